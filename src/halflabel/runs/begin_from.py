"""Training from the weights of a finished run (`--begin-from`), with the same split of the images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError, error_summary
from halflabel.labels.names import Names
from halflabel.models.heads import Model
from halflabel.runs.folder import RunFolder
from halflabel.runs.folder_integrity import verify_checksum
from halflabel.runs.predictor import Predictor
from halflabel.training.checkpoint import load_state


def load_weights_of(run: RunFolder, model: Model, classes: Names) -> None:
    """Put the weights of a finished run into a model for the same classes."""
    from safetensors.torch import load_file

    before = Predictor.from_run(run)
    if list(before.classes) != list(classes):
        raise UserError(
            f"{run.folder} was trained on other classes", "use the same classes in the same order, or start a new run"
        )
    state = before.model.state_dict()
    if run.tuned_head.exists():  # the head was fitted again after training: continue from the tuned one
        verify_checksum(run.tuned_head)
        head = {f"head.{name}": tensor for name, tensor in load_file(run.tuned_head).items()}
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")} | head
    try:
        load_state(model, state)
    except RuntimeError as error:
        reason = error_summary(error)
        raise UserError(
            f"{run.folder} has another model ({reason})", "use its backbone, method and options, or start a new run"
        ) from None


def keep_split(run: RunFolder, images: Names, part: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return `part`, but images of an earlier run stay in its parts: images trained on must not be held out."""
    before = run.split_of(images)
    return np.where(before < 0, part, before)
