"""The commands as Python functions, with their progress: `train` returns a `Run`, whose methods are the other commands.

job = halflabel.train("labels.csv", "photos")
job.predict(["a.jpg"])
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from halflabel.cli.progress import Bar, TrainingBar
from halflabel.errors import in_python
from halflabel.evaluation.evaluate import Evaluation
from halflabel.evaluation.registry import Shown, shown_metrics
from halflabel.filling.run import fill, write_filled
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.choose import record_questions, write_questions
from halflabel.questions.next import next_questions
from halflabel.report.run_page import write_report
from halflabel.runs import new_run
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.predict import Prediction
from halflabel.system.format import counted
from halflabel.system.html import el
from halflabel.system.reporter import Reporter


class Filled(NamedTuple):
    """A file of filled labels, and how many were filled or left unknown."""

    file: Path
    present: int
    absent: int
    unknown: int


class Run:
    """A finished run, in its folder: `Run("runs/first")` opens one.

    `model` predicts and evaluates; the methods are the commands of the same names. `images` is the folder of the photos
    that it was trained on.
    """

    def __init__(self, folder: str | Path | RunFolder) -> None:
        self._run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
        self._run.check_finished()
        self.folder = self._run.folder

    @cached_property
    def model(self) -> Model:
        """The trained model."""
        return Model.open(self._run)

    @property
    def images(self) -> Path:
        """The folder of the photos."""
        return Path(self._run.read_config()["images"])

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by known labels that the model had not seen; NaN where nothing was measured."""
        metrics = {
            name: math.nan if value is None else value for name, value in self._run.read_object("metrics.json").items()
        }
        return {name: value for name, value in metrics.items() if isinstance(value, int | float)}

    def predict(self, images: str | Path | Sequence[str | Path], **options: Any) -> list[Prediction]:
        """Return the labels of image files and of the images of folders, as `Model.predict`."""
        with _progress("scores") as reporter:
            return self.model.predict(images, **{"reporter": reporter, **options})

    def evaluate(
        self, labels: str | Path | Table | Labels, images: str | Path | None = None, **options: Any
    ) -> Evaluation:
        """Evaluate on labels, of other images or of the run's own, as `Model.evaluate`."""
        return evaluate(self.model, labels, self.images if images is None else images, **options)

    def fill(self, out: str | Path | None = None, *, images: str | Path | None = None, **options: Any) -> Filled:
        """Write the known labels and the unknown ones that reach a precision, by default to RUN/filled.csv.

        The options are those of `halflabel.fill`, such as `precision=0.9`.
        """
        path = self._run.filled if out is None else Path(out)
        options = {"answers": self._run.read_answers(), **options}
        with _progress("features") as reporter:
            plan = fill(self._run, images or self.images, **{"reporter": reporter, **options})
        known = options.get("labels") or self._run.read_rows()
        counts = write_filled(plan, path, base=known, answers=options["answers"])
        return Filled(path, *(int(part.sum()) for part in (counts.present, counts.absent, counts.unknown)))

    def questions(
        self, count: int = 200, out: str | Path | None = None, *, images: str | Path | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Return the entries most worth asking a person about, and with `out` write them to a CSV file.

        The run records them, so that answers to chosen questions never evaluate. The options are those of
        `halflabel.next_questions`, such as `wrong=True`.
        """
        with _progress("scores") as reporter:
            asked = next_questions(self._run, images or self.images, count, **{"reporter": reporter, **options})
        table = asked.table
        record_questions(asked.questions, table, self._run.asked)
        if out is not None:
            write_questions(asked.questions, table, out)
        names = ((table.images[item.image], table.classes[item.column], item) for item in asked.questions)
        return [
            {"image": image, "class": label, "probability": item.probability, "why": item.why, "weight": item.weight}
            for image, label, item in names
        ]

    def review(self, *, images: str | Path | None = None) -> None:
        """Open the review page in the browser, until it is interrupted."""
        command = [sys.executable, "-m", "halflabel", "review", str(self.folder), str(images or self.images)]
        subprocess.run(command, check=False)

    def report(self, out: str | Path | None = None, *, images: str | Path | None = None, **options: Any) -> Path:
        """Write the HTML report, by default to RUN/report.html, with galleries of `images`."""
        photos, page = None if images is None else Path(images), None if out is None else Path(out)
        with _progress("scores") as reporter:
            return write_report(self._run, page, images=photos, **{"reporter": reporter, **options}).path

    def continue_training(self, out: str | Path, **options: Any) -> Run:
        """Train a new run with the answers of the review page, as `halflabel.continue_training`."""
        return continue_training(self.folder, out, **options)

    def _title(self) -> str:
        config, classes = self._run.read_config(), len(self._run.read_rows().classes)
        place = self._run.address
        return f"{place}: {config['method']} on {config['backbone']}, {counted(classes, 'class', 'classes')}"

    def _shown_metrics(self) -> list[Shown]:
        return shown_metrics(self.metrics) if self.metrics.get("positives") else []

    def __repr__(self) -> str:
        metrics = ", ".join(f"{each.title} {each.with_interval}" for each in self._shown_metrics())
        return f"<run {self._title()}; {metrics or 'nothing was measured'}>"

    def _repr_html_(self) -> str:
        rows = [el("tr", el("th", each.title), el("td", each.with_interval)) for each in self._shown_metrics()]
        return str(el("div", el("b", f"run {self._title()}"), el("table", *rows)))


def train(
    labels: str | Path | Labels | Table | list[str],
    images: str | Path | Tensor,
    out: str | Path | None = None,
    method: str = "auto",
    *,
    force: bool = False,
    reporter: Reporter | None = None,
    **options: Any,
) -> Run:
    """Train a classifier as `halflabel train` does, in the new run folder `out`, by default runs/METHOD.

    `labels` is a label file or folder of any known format, labels already read, or a list of class names where no label
    is known. `images` is an image folder, a pack, a folder of features (`halflabel embed`), or uint8 images
    (N, 3, H, W) in the order of the labels. "auto" chooses a method that suits the labels. `options` are options of
    `halflabel train` and of the method, with underscores, and what the label file leaves open: `epochs=40`,
    `tune="all"`, `alpha=0.1`, `unlisted="unknown"`, `ignore="date"`.
    `force` replaces a run that the folder already holds. Progress is shown unless a `reporter` gets it.

        job = halflabel.train("labels.csv", "photos", "runs/first")
        job.metrics["mAP"]
    """
    with _progress("features") as shown:
        how: dict[str, Any] = {"force": force, "reporter": reporter or shown, **options}
        return Run(new_run.train_run(labels, images, out, method, **how))


def continue_training(
    run: str | Path,
    out: str | Path,
    *,
    answers: str | Path | Labels | None = None,
    images: str | Path | None = None,
    force: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train in the new run folder `out`, from the weights, labels and settings of a finished run.

    `answers` are more labels, a file such as `halflabel review` exports or labels already read; they replace earlier
    labels of the same entries. Without them, the answers of `review` in the finished run are used. `images` is the
    image folder, if it has moved.

        halflabel.continue_training("runs/first", "runs/second", answers="answers.csv")
    """
    with _progress("features") as shown:
        how: dict[str, Any] = {"answers": answers, "images": images, "force": force, "reporter": reporter or shown}
        return Run(new_run.continue_run(run, out, **how))


def evaluate(
    model: str | Path | Run | Model,
    labels: str | Path | Table | Labels,
    images: str | Path,
    **options: Any,
) -> Evaluation:
    """Evaluate a model on labels, as `halflabel evaluate` does; the options are those of `Model.evaluate`.

    Images that the run was trained on are evaluated by its scores of models that had not seen them, or left out.
    """
    opened = model.model if isinstance(model, Run) else model if isinstance(model, Model) else Model.open(model)
    with _progress("scores") as reporter:
        return opened.evaluate(labels, images, **{"reporter": reporter, **options})


@contextmanager
def _progress(title: str) -> Iterator[Reporter]:
    """Show progress, in a terminal and in a notebook, and messages with options as parameters."""
    with Bar(title) as bar, Bar("fits", "fits") as fits, TrainingBar() as epochs:
        yield Reporter(bar, lambda text: print(in_python(text)), epochs, fits=fits)
