"""Train a new run in one call, resume an interrupted one, or continue a finished one with more labels.

Called by `halflabel.train` and `halflabel.continue_training`; `halflabel train` makes its configuration here too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.backbone_names import DEFAULT
from halflabel.features.embed import options_of_features
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.auto import Choice, choose
from halflabel.fitting.config import Config, declared_options
from halflabel.fitting.device import choose_device
from halflabel.labels.formats import read
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Stats, Table
from halflabel.methods.base import Recipe, recipe
from halflabel.runs.folder import RunFolder
from halflabel.runs.from_nothing import FROM_NOTHING, learn_from_answers, without_labels
from halflabel.runs.train import TrainingJob
from halflabel.system import distributed
from halflabel.system.files import absolute_path
from halflabel.system.reporter import SILENT, Reporter


def resume_training(run: RunFolder, images: Path | None = None) -> TrainingJob:
    """The rest of an interrupted run, with its labels and settings; `images` if the image folder has moved."""
    config = Config.from_dict(run.read_config())
    config.check_names()
    return TrainingJob(run.read_rows(), images or Path(config.images), config, run, run.read_truth(), resume=True)


def continue_training(
    finished: RunFolder, run: RunFolder, *, answers: Labels | None = None, images: Path | None = None
) -> TrainingJob:
    """A training in the folder `run` that starts from the weights, labels and settings of a finished run.

    `answers` are more labels, such as `halflabel review` exports, by default the answers of `review` in the finished
    run; they replace earlier labels of the same entries.
    """
    config = Config.from_dict(finished.read_config())
    config.check_names()
    folder = images or Path(config.images)
    config = dataclasses.replace(config, begin_from=str(finished.folder.absolute()), images=absolute_path(folder))
    rows = finished.read_rows()
    answers = finished.read_answers() if answers is None else answers
    labels = rows if answers is None else rows.append(answers)
    return TrainingJob(labels, folder, learn_from_answers(config, labels.training), run)


def train_run(
    labels: str | Path | Labels | Table | list[str],
    images: str | Path | Tensor,
    out: str | Path | None,
    method: str = "auto",
    *,
    force: bool = False,
    reporter: Reporter = SILENT,
    **options: Any,
) -> RunFolder:
    """Train a new run; the arguments are those of `halflabel.train`."""
    if isinstance(labels, str | Path):
        stated = {field.name: options.pop(field.name) for field in fields(Policy) if field.name in options}
        rows = read(labels, **stated).rows
    elif isinstance(labels, list):
        rows, method = without_labels(Path(str(images)), labels), FROM_NOTHING if method == "auto" else method
        options = {"names": "on", **options}
    else:
        rows = Labels.of(labels)
    folder = images if isinstance(images, Tensor) else Path(images)
    stats = rows.training.stats
    choice = choose_for(stats, options, None if method == "auto" else recipe(method).name)
    training = {name: value for name, value in options.items() if name in declared_options()}
    method_options = {name: value for name, value in options.items() if name not in training}
    config = make_config(choice, training, method_options, "" if isinstance(folder, Tensor) else absolute_path(folder))
    config = dataclasses.replace(config, from_nothing=isinstance(labels, list) and config.method == FROM_NOTHING)
    check_options(recipe(config.method), config.options)
    Assembly(config).check_fit(training, rows.training)
    run = distributed.run_on_main(lambda: RunFolder.create(out or Path("runs") / method, force=force))
    TrainingJob(rows, folder, config, run).start(reporter)
    return run


def choose_for(stats: Stats, training: Mapping[str, Any], method: str | None) -> Choice:
    """Return the choice for labels and the options of training that were given."""
    on_gpu = choose_device(training.get("device", "auto"), fall_back=True) == "cuda"
    tune, backbone = training.get("tune", "head"), training.get("backbone", DEFAULT)
    return choose(stats, tune=tune, method=method, backbone=backbone, on_gpu=on_gpu)


def reserved_options() -> set[str]:
    """Return the names that an option of a method must not have: `train_run` would take it as its own."""
    own = signature(train_run).parameters
    return {*declared_options(), *(field.name for field in fields(Policy)), *own} - {"options"}


def continue_run(
    run: str | Path,
    out: str | Path,
    *,
    answers: str | Path | Labels | None = None,
    images: str | Path | None = None,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> RunFolder:
    """Train a run from a finished one; the arguments are those of `halflabel.continue_training`."""
    finished = RunFolder.open(run)
    new = distributed.run_on_main(lambda: RunFolder.create(out, force=force))
    rows = read(answers).rows if isinstance(answers, str | Path) else answers
    job = continue_training(finished, new, answers=rows, images=Path(images) if images is not None else None)
    job.start(reporter)
    return new


def make_config(
    choice: Choice,
    training: Mapping[str, Any],
    options: Mapping[str, Any],
    images: str = "",
    given_recipe: Recipe | None = None,
) -> Config:
    """Return the configuration of a new run, or of an estimator.

    The given `training` options come first (None: not given), then those of the choice for the labels, then the
    defaults of the method. `options` are those of the method. Features in place of images decide the backbone
    and its options.
    """
    chosen = given_recipe or recipe(choice.method)
    set_options = {name: value for name, value in training.items() if value is not None}
    return Config.from_options(
        {
            "fit": "auto",
            "lr": chosen.lr,
            "choose_lr": training.get("lr") is None and "lr" not in choice.config,
            "weight_decay": chosen.weight_decay,
            "linear_init": chosen.linear_init,
            **choice.config,
            **set_options,
            "method": chosen.name,
            "options": {**choice.options, **options},
            "candidates": "" if options else ", ".join(map(str, choice.candidates)),
            "images": images,
            **options_of_features(images),
        }
    )


def change_config(
    earlier: Config, method: str, given: Mapping[str, Any], options: Mapping[str, Any], images: str
) -> Config:
    """Return the configuration of an earlier run with other images and the given changes.

    The options of the method are those of the earlier run if it had the same method.
    """
    is_same = method == earlier.method and not options
    earlier_options = earlier.options if method == earlier.method else {}
    values = {**vars(earlier), **given}
    values |= {} if is_same else {"averaged_with": "", "candidates": ""}
    values |= options_of_features(images)
    return Config.from_options(
        {**values, "method": method, "options": {**earlier_options, **options}, "images": images}
    )


def check_options(chosen: Recipe, names: Collection[str]) -> None:
    """Raise if one of these options is neither of training nor of the method, or could be of both."""
    of_training = declared_options()
    if clashing := sorted(of_training.keys() & chosen.options.keys()):
        raise UserError(
            f"{clashing[0]} is an option of training, so that of {chosen.name} cannot be set",
            f"rename the option {clashing[0]!r} of {chosen.name}",
        )
    for name in names:
        if name not in chosen.options:
            hint = f"the options of {chosen.name}: {', '.join(chosen.options)}"
            hint = hint if chosen.options else f"{chosen.name} has no options"
            close = get_close_matches(name, [*chosen.options, *of_training], 1)
            raise UserError(
                f"neither training nor the method {chosen.name} has an option {name!r}",
                f"did you mean {close[0]}?" if close else hint,
            )
