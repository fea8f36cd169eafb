"""What a trained run says of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.data.decode import find_images
from halflabel.data.sources import Images, Source, open_images
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.provenance import training_and_evaluation_tables
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe
from halflabel.metrics.calibration import Platt
from halflabel.models.backbones import build_backbone
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import Evaluation, evaluate
from halflabel.runs.folder import RunFolder
from halflabel.system import distributed as processes
from halflabel.training.config import Config
from halflabel.training.device import choose_device

__all__ = ["Prediction", "Predictor", "predict_files"]


class Prediction(NamedTuple):
    """The labels of one image, most likely first; or why it could not be read."""

    image: str
    labels: list[dict[str, Any]]  # class, probability, present (over its threshold)
    error: str = ""


class Predictor:
    """A trained run, ready to score images."""

    run: RunFolder | None = None  # None for what was exported

    def __init__(self, run: RunFolder) -> None:
        """Load the weights, the class names, the thresholds and the calibration of a run."""
        from safetensors import SafetensorError, safe_open

        self.run = run
        self.config = Config.from_dict(run.read_config())
        run.check_finished()
        try:
            with safe_open(run.weights, "pt") as file:
                about = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        except SafetensorError as error:
            raise UserError(f"{run.weights} is damaged ({error})", "train again, or resume the run") from None
        try:
            self.classes = Names(json.loads(about["halflabel"])["classes"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(f"{run.weights} does not say its classes", "train again") from None
        backbone = build_backbone(self.config.backbone, pretrained=False, size=self.config.size)
        try:
            method = recipe(self.config.method).make(**self.config.options)
            self.model = Model(backbone, method.head(backbone.channels, len(self.classes)))
            self.model.load_state_dict(state)
        except (RuntimeError, TypeError, ValueError) as error:  # options of other kinds fail in their own ways
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{run.weights} is of another model ({reason})", "train again") from None
        self.device = choose_device(self.config.settings.device, fall_back=True)
        self.model.to(self.device).to(memory_format=torch.channels_last).eval()
        size = self.config.size or backbone.preprocess.size
        self.views = self.config.views(size, backbone)
        self.platt, self.thresholds = Platt(), torch.full((len(self.classes),), 0.5)
        if run.is_calibrated:
            self.platt = run.read_calibration()
            cuts = run.read_thresholds()
            if missing := [name for name in self.classes if cuts.get(name) is None]:
                raise UserError(f"{run.folder} has no threshold for the class {missing[0]!r}", "train again")
            self.thresholds = torch.tensor([cuts[name] for name in self.classes])

    @cached_property
    def annotations(self) -> NDArray[np.int64] | None:
        """Known training labels per class (C,), where the labels are there; read when they are first asked for."""
        if self.run is None or not self.run.labels.exists():
            return None
        return self.run.read_labels().stats().annotations

    def logits(self, source: Source, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Logits of every image of a source (N, C); NaN for unreadable ones."""
        return score_source(
            self.model,
            source,
            device=self.device,
            batch_size=32,
            mirror=self.config.mirror,
            progress=progress,
            features=False,
        ).logits

    def scores(self, source: Source, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Calibrated probabilities (N, C); NaN for unreadable images."""
        return self.platt.scores(self.logits(source, progress))

    def labels(self, scores: Tensor, *, top: int = 3, every: bool = False) -> list[dict[str, Any]]:
        """What the scores (C,) of an image say, most likely first: class, probability, present (over its threshold).

        Given are the classes that are present and the `top` most likely, or every one.
        """
        present = scores >= self.thresholds
        order = torch.argsort(scores, descending=True, stable=True)
        shown = order if every else order[(torch.arange(len(order)) < min(top, len(order))) | present[order]]
        columns = (self.classes.take(shown.numpy()), scores[shown].tolist(), present[shown].tolist())
        keys = ("class", "probability", "present")
        return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]

    def evaluate(
        self,
        labels: LabelTable | Rows,
        images: Path,
        progress: Callable[[int, int], None] | None = None,
        *,
        called: str = "the label table",
        threshold: float | None = None,
    ) -> Evaluation:
        """Measure the run on other labels, less those that a model made; classes are matched by name.

        Of a class that the labels do not name, nothing is known. `called` is what an error calls the labels. With
        `threshold` all classes are decided by this one probability, else each by the run's own for it.
        """
        if threshold is not None and not 0 <= threshold <= 1:
            raise UserError(f"{threshold:g} is no threshold", "give a probability between 0 and 1")
        every, table = training_and_evaluation_tables(labels)
        if every.known and not table.known:
            raise UserError(
                f"all {every.known} labels were made by a model, so there is nothing to measure by",
                "have some of them checked: halflabel review",
            )
        if (table.classes.index(self.classes.array) < 0).all():
            theirs, own = (", ".join(map(repr, list(names)[:3])) for names in (table.classes, self.classes))
            raise UserError(
                f"{called} names none of the run's {len(self.classes)} classes: it has {theirs} …, the run {own} …",
                "use the same class names",
            )
        table, every = _over(table, self.classes), _over(every, self.classes)
        left_out = every.known - table.known
        annotations = self.annotations  # before the work of scoring: the run's labels may be damaged
        source = open_images(table.images, images, self.views, workers=self.config.workers, max_bad=1.0)
        truth = torch.from_numpy(table.dense())
        logits = self.logits(source, progress)
        found = processes.on_first(
            lambda: evaluate(
                logits,
                truth,
                table.classes,
                thresholds=self.thresholds if threshold is None else threshold,
                platt=self.platt,
                annotations=annotations,
            )
        )
        return found.less(left_out)


def predict_files(
    predictor: Predictor,
    given: Sequence[Path],
    stdin: Iterable[str],
    *,
    top: int = 3,
    all_scores: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Score files and the images of folders; the path "-" stands for names that come line by line."""

    def listed() -> list[Path]:
        paths: list[Path] = []
        for path in given:
            if str(path) == "-":
                paths += [Path(line) for line in stdin if line.strip()]
            elif path.is_dir():
                paths += find_images(path)
            else:
                paths.append(path)
        return paths

    paths = processes.on_first(listed)  # of several processes one alone reads the lines
    if not paths:
        raise UserError("there is no image to look at", "name image files, or folders that hold some")
    source = Images(paths, Names.numbered(len(paths)), predictor.views, max_bad=1.0)
    try:
        scores = predictor.scores(source, progress)
    except UserError:
        if len(source.bad) < len(paths):
            raise
        scores = torch.full((len(paths), len(predictor.classes)), torch.nan)
    reasons = {int(number): reason for number, _, reason in source.quarantine.rows}
    found = []
    for number, path in enumerate(paths):
        if number in reasons:
            found.append(Prediction(str(path), [], reasons[number]))
            continue
        found.append(Prediction(str(path), predictor.labels(scores[number], top=top, every=all_scores)))
    return found


def _over(table: LabelTable, classes: Names) -> LabelTable:
    """The labels of a table over other classes, by name: of those that it does not have nothing is known."""
    at = classes.index(table.classes.array)
    image, column, value = table.entries()
    stays = at[column] >= 0
    return LabelTable.from_entries(table.images, classes, image[stays], at[column[stays]], value[stays])
