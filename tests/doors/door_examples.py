"""The doors: every way to fit a model to the same labels, each as a function from a task to logits.

`FINAL` scores images that were not trained on by the final model, `OUT_OF_FOLD` the training images by models that did
not see their labels. All doors fit from nothing, and are compared with `halflabel.train`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import done
from digit_scenes import scenes
from numpy.typing import NDArray
from PIL import Image

import halflabel
from halflabel.images.sources import open_images
from halflabel.labels import formats
from halflabel.labels.answers import Answer, AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.review.live import LiveReview
from halflabel.review.live_run import finish_review, open_live_review
from halflabel.runs.folder import RunFolder

Logits = NDArray[np.float32]

RANDOM, CHOSEN = 24.0, 0.0  # inclusion weights of questions
THINGS = ("dog", "cat", "bus", "sofa", "apple", "boat", "bird", "clock", "horse", "train")  # not what the photos show


@dataclass(frozen=True, eq=False)
class Material:
    """Training images in `images/` and others in `test/`, pictures or features, with labels in files beside them.

    `start.csv` has the labels before some answers of `review`, `labels.csv` those after them.
    """

    folder: Path
    truth: Table  # all labels of the training images
    test: Table
    options: dict[str, Any]  # of `train`
    features: tuple[Any, Any] | None = None  # of training and test images, for the estimator
    runs: dict[str, Path] = field(default_factory=dict)  # that doors have made

    def read(self, name: str) -> Labels:
        return formats.read(self.folder / name).rows

    def write_labels(self, known: NDArray[np.bool_], answered: NDArray[np.int64], weight: float) -> None:
        """Write the known labels (N, C), and right answers about entries (n, 2)."""
        images, classes, truth = self.truth.images, self.truth.classes, self.truth.dense()
        formats.write(self.test, self.folder / "test.csv")
        formats.write(Table.from_dense(np.where(known, truth, 0), images, classes), self.folder / "start.csv")
        with closing(AnswerStore(self.folder / "answers.sqlite")) as store:
            entries = [(i, c, int(truth[i, c])) for i, c in answered.tolist()]
            store.add(
                (Answer(f"{i}-{c}", images[i], classes[c], value, weight=weight) for i, c, value in entries), "me"
            )
            rows = self.read("start.csv").append(store.label_rows(images, classes))
        formats.write(rows, self.folder / "labels.csv")


def features_and_answers(folder: Path, weight: float = RANDOM, answers: int = 40) -> Material:
    """Features of 240 training images with a fifth of the labels known before the answers, and of 60 test images."""
    draw = np.random.default_rng(0)
    labels = np.where(draw.random((300, 5)) < 0.3, 1, -1)
    vectors = ((labels > 0) @ draw.normal(size=(5, 16)) + draw.normal(size=(300, 16))).astype(np.float32)
    names, parts = [str(number) for number in range(300)], (slice(240), slice(240, 300))
    for place, rows in zip(("images", "test"), parts, strict=True):
        (folder / place).mkdir()
        lists = pa.array(vectors[rows].tolist(), pa.list_(pa.float32()))
        pq.write_table(pa.table({"image": names[rows], "features": lists}), folder / place / "0.parquet")
    truth, test = (Table.from_dense(labels[rows], names[rows]) for rows in parts)
    options = {"backbone": "features-16", "device": "cpu"}
    material = Material(folder, truth, test, options, (vectors[:240], vectors[240:]))
    known = draw.random((240, 5)) < 0.2
    material.write_labels(known, draw.permutation(np.argwhere(~known))[:answers], weight)
    return material


def photos(folder: Path, prefix: str = "", classes: Sequence[str] | None = None, **options: Any) -> Material:
    """Scenes of digits: 90 training images with two fifths of the labels known, and 30 test images."""
    samples = scenes(120, size=32)
    names, tables = [f"{prefix}{number}" for number in range(120)], []
    for place, rows in (("images", slice(90)), ("test", slice(90, 120))):
        (folder / place).mkdir()
        for name, pixels in zip(names[rows], samples.images[rows], strict=True):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / place / f"{name}.png")
        tables.append(Table.from_dense(samples.labels[rows], names[rows], classes or samples.classes))
    material = Material(folder, *tables, {"backbone": "tiny", "size": 32, "device": "cpu", **options})
    known = np.random.default_rng(0).random((90, 10)) < 0.4
    material.write_labels(known, np.zeros((0, 2), np.int64), RANDOM)
    return material


MATERIALS: dict[str, Callable[[Path], Material]] = {
    "features": features_and_answers,
    "features and chosen answers": partial(features_and_answers, weight=CHOSEN, answers=150),
    "photos": photos,
    "photos with names": partial(photos, prefix="photo-"),  # not the numbers 0, 1, …
    "class names": partial(photos, classes=THINGS, backbone="efficientnet-lite0", size=64),
}


class Task(NamedTuple):
    """What every door fits: a method on a material, with options of `train`."""

    name: str
    material: Material
    method: str
    options: dict[str, Any]

    @property
    def flags(self) -> list[str]:
        return [word for name, value in self.options.items() for word in ("--set", f"{name}={value}")]


# Doors that make a run folder; each makes one per task.


def train_in_python(task: Task, out: Path, labels: str = "labels.csv") -> Path:
    rows, images = task.material.read(labels), task.material.folder / "images"
    return halflabel.train(rows, images, out, task.method, **task.options).folder


def train_by_command(task: Task, out: Path) -> Path:
    folder = task.material.folder
    done("train", folder / "labels.csv", folder / "images", "--method", task.method, "--out", out, *task.flags)
    return out


def train_before_answers(task: Task, out: Path) -> Path:
    run = RunFolder(train_in_python(task, out, "start.csv"))
    shutil.copy(task.material.folder / "answers.sqlite", run.answers)
    return run.folder


def continue_by_command(task: Task, out: Path) -> Path:
    done("train", "--continue", run_of(train_before_answers, task), "--out", out)
    return out


def finish(task: Task, _: Path) -> Path:
    run, images = RunFolder(run_of(train_before_answers, task)), task.material.folder / "images"
    about = {"precision": 0.6, "write_report": None, "step": lambda text: None}
    return Path(finish_review(run, images, run.answers, **about)["run"])


def run_of(door: Callable[[Task, Path], Path], task: Task) -> Path:
    runs, name = task.material.runs, f"{door.__name__}-{task.name}"
    if name not in runs:
        runs[name] = door(task, task.material.folder / "runs" / name)
    return runs[name]


def final_logits(door: Callable[[Task, Path], Path], task: Task) -> Logits:
    model, material = halflabel.Model.open(run_of(door, task)), task.material
    return model.logits(open_images(material.test.images, material.folder / "test", model.views), cached=True).numpy()


def stored_out_of_fold(door: Callable[[Task, Path], Path], task: Task) -> Logits:
    stored = RunFolder(run_of(door, task)).read_scores()
    assert stored is not None
    return stored.of(task.material.truth.images).logits


# Other doors.


def compare(task: Task) -> Logits:
    folder, out = task.material.folder, task.material.folder / "comparisons" / task.name
    alone = ["--methods", task.method, "--seeds", "1", "--search", "none", "--no-references"]
    test = ["--test", folder / "test.csv", "--test-images", folder / "test"]
    done("compare", folder / "labels.csv", folder / "images", "--out", out, *test, *alone, *task.flags)
    (stored,) = (out / "tasks").glob("*.npy")
    return np.load(stored)


def fit_estimator(task: Task) -> tuple[halflabel.HalfLabelClassifier, Any]:
    """Return the fitted estimator and its X of the test images."""
    material, options = task.material, dict(task.options)
    options |= {"fit_by": options.pop("fit", "auto")}
    images, test = material.features or (
        [material.folder / place / f"{name}.png" for name in table.images]
        for place, table in (("images", material.truth), ("test", material.test))
    )
    estimator = halflabel.HalfLabelClassifier(task.method, **options)
    return estimator.fit(images, material.read("labels.csv")), test


def estimator_final(task: Task) -> Logits:
    estimator, test = fit_estimator(task)
    return estimator.decision_function(test)


def estimator_out_of_fold(task: Task) -> Logits:
    logits = fit_estimator(task)[0].oof_logits_
    assert logits is not None
    return logits


def fill_in_folds(task: Task) -> Logits:
    run, images = run_of(train_in_python, task), task.material.folder / "images"
    return halflabel.fill(run, images, folds=5, precision=0.6).scores.logits


def open_live(task: Task) -> LiveReview:
    """Open the model of a live review of the run before the answers."""
    run, images = RunFolder(run_of(train_before_answers, task)), task.material.folder / "images"
    return open_live_review(run, images, precision=0.95)


def live(task: Task) -> Logits:
    return open_live(task).refit(task.material.read("labels.csv"))


RUNS = {"train": train_by_command, "train --continue": continue_by_command, "Finish": finish}
FINAL: dict[str, Callable[[Task], Logits]] = {
    **{name: partial(final_logits, door) for name, door in RUNS.items()},
    "compare --test": compare,
    "HalfLabelClassifier": estimator_final,
}
OUT_OF_FOLD: dict[str, Callable[[Task], Logits]] = {
    **{name: partial(stored_out_of_fold, door) for name, door in RUNS.items()},
    "fill --folds 5": fill_in_folds,
    "live": live,
    "HalfLabelClassifier": estimator_out_of_fold,
}
