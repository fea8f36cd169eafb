"""The run folder: the settings, labels, log, weights and results of one training run.

Only this module knows the file names inside a run. Of several processes only the first one may write.
"""

from __future__ import annotations

import csv
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.scores import Kind, Scores
from halflabel.labels import formats
from halflabel.labels.answers import AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.run_files import (
    read_digests,
    read_kind,
    read_scores,
    verify_checksum,
    with_checksum,
    write_checksums,
    write_scores,
)
from halflabel.runs.store import OCCUPIED_FIX, RunStore
from halflabel.system import distributed
from halflabel.system.files import (
    JobLock,
    atomic_write,
    cache_folder,
    read_json,
    read_text,
    read_yaml,
    to_json_value,
    write_csv,
    write_json,
)
from halflabel.system.reporter import SILENT, Reporter

_RESULT_FILES = (  # of a training, which the next one in the folder removes
    *("best.safetensors", "log.jsonl", "log.csv", "metrics.json", "names.csv", "per_label.csv", "images.parquet"),
    *("scores.parquet", "thresholds.json", "calibration.json", "checksums.json", "bad_images.csv", "model_card.md"),
    *("made.json", "report.html", "truth.parquet"),
)


class _PathInRun:
    """An attribute that is the path of a file or folder inside the run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, kind: type[RunFolder] | None = None) -> Path:
        return run.folder / self.name


class RunFolder:
    """A folder with the settings, the log, the weights and the results of one training run.

    docs/architecture.md lists its files.
    """

    weights = _PathInRun("best.safetensors")
    checkpoints = _PathInRun("last")
    labels = _PathInRun("labels.parquet")
    stored_scores = _PathInRun("scores.parquet")
    digests = _PathInRun("images.parquet")  # content digests of the images; 0 of one that was never read
    bad_images = _PathInRun("bad_images.csv")
    filled = _PathInRun("filled.csv")  # default output of `fill`
    answers = _PathInRun("answers.sqlite")
    asked = _PathInRun("asked.csv")  # all questions that `next` wrote, so that answers to chosen ones never evaluate
    control = _PathInRun("control.csv")  # the questions that `fill` needs answered where only positives are known
    fill_options = _PathInRun("fill_options.json")  # of the last `fill`; a continued run inherits them

    def __init__(self, folder: str | Path, *, may_replace: bool = True) -> None:
        self.folder = Path(folder)
        self.store: RunStore | None = None  # where the folder is uploaded to
        self._may_replace = may_replace

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def address(self) -> str:
        """The path of the folder, or its address in a store."""
        return self.folder.as_posix() if self.store is None else self.store.url

    @property
    def cache(self) -> Path:
        """The folder of the features, which the runs beside this one share."""
        return cache_folder(self.folder.parent)

    @property
    def is_started(self) -> bool:
        """Whether settings and labels are written, so that training can be resumed."""
        return (self / "config.yaml").exists()

    @property
    def is_calibrated(self) -> bool:
        """Whether a calibration and thresholds were fitted, on held-out images or out-of-fold scores."""
        return (self / "calibration.json").exists()

    @classmethod
    def create(cls, folder: str | Path, *, force: bool = False) -> RunFolder:
        """Return a new run without writing anything; refuse a folder that holds a run, unless `force` is set."""
        store = RunStore.of(folder)
        run = cls(folder, may_replace=force) if store is None else cls(store.create(force=force))
        run.store = store
        if run.folder.exists() and not run.folder.is_dir():
            raise UserError(f"{run.folder} is a file", "name a folder for the run with ‹out›")
        try:
            str(run.folder).encode()
        except UnicodeEncodeError:  # Arrow cannot open such paths
            raise UserError(f"{str(run.folder)!r} is not UTF-8", "choose another ‹out›") from None
        run._check_free()
        return run

    def _check_free(self) -> None:
        if self.is_started and not self._may_replace:
            raise UserError(f"{self.folder} already holds a run", OCCUPIED_FIX)

    @contextmanager
    def lock_for_training(self, *, resume: bool) -> Iterator[None]:
        """Lock the run to the end of its training; a second training there is refused."""
        folder = self.folder.resolve()
        lock = JobLock(folder.with_name(f".{folder.name}.lock"))

        def acquire() -> None:
            if not lock.try_acquire():
                fix = "choose another ‹out›, or wait until it has ended"
                raise UserError(f"another training is writing {folder}", fix)
            if not resume:  # another may have ended since `create`
                self._check_free()

        try:
            distributed.run_on_main(acquire)
            with nullcontext() if self.store is None else self.store.lock():
                yield
        finally:
            lock.release()

    def start(self, labels: Labels, config: Mapping[str, Any], truth: Table | None = None) -> None:
        """Remove the files of an earlier run, then write labels and settings. From now on the run can be resumed."""
        if self.store is not None:
            self.store.clear()
        (self / "config.yaml").unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in _RESULT_FILES:
            (self / name).unlink(missing_ok=True)
        self.write_labels(labels)
        if truth is not None:
            formats.write(truth, self / "truth.parquet")
        self.write_config(config)

    def cancel_start(self) -> None:
        """Undo `start`: a run that stopped before its first epoch cannot be resumed."""
        (self / "config.yaml").unlink(missing_ok=True)

    def remove_temporary_files(self) -> None:
        """Remove partly written files of a killed training."""
        for folder in (self.folder, self.checkpoints / "head", self.checkpoints / "all"):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)

    @classmethod
    def open(cls, folder: str | Path) -> RunFolder:
        """Return an existing run, or raise an error that names what is missing; a run in a store is downloaded."""
        store = RunStore.of(folder)
        run = cls(folder if store is None else store.download())
        run.store = store
        if not run.is_started:
            raise UserError(f"{run.folder} is not a run: config.yaml is missing", "name the folder of a run")
        return run

    def check_finished(self) -> None:
        if not self.weights.is_file():  # reading a device or a pipe would block
            fix = f"finish it: halflabel train --resume {shlex.quote(self.address)}"
            raise UserError(f"{self.address} has no weights yet", fix)

    def read_config(self) -> dict[str, Any]:
        verify_checksum(self / "config.yaml")
        return read_yaml(self / "config.yaml", "train again")

    def write_config(self, config: Mapping[str, Any]) -> None:
        with with_checksum(self / "config.yaml"), atomic_write(self / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), encoding="utf-8")

    def read_object(self, name: str, fix: str = "remove the file: nothing else is lost") -> dict[str, Any]:
        """Return the JSON object in a file, such as env.json; {} if there is no such file."""
        content = read_json(self / name, fix) if (self / name).exists() else {}
        if not isinstance(content, dict):
            raise UserError(f"{self / name} is damaged", fix)
        return content

    def write_metrics(self, metrics: Mapping[str, Any], per_class: Sequence[Mapping[str, Any]]) -> None:
        write_json(self / "metrics.json", metrics)
        if per_class:
            write_csv(self / "per_label.csv", list(per_class[0]), [list(row.values()) for row in per_class])

    def write_calibration(self, calibration: Calibration, thresholds: Mapping[str, float]) -> None:
        write_json(self / "thresholds.json", thresholds)
        write_json(self / "calibration.json", calibration.as_json())
        self.write_checksums("thresholds.json", "calibration.json")

    def write_checksums(self, *names: str) -> None:
        write_checksums(self.folder, *names)

    def read_calibration(self) -> Calibration:
        """Return the calibration that turns logits into probabilities; no change where nothing was evaluated."""
        if not self.is_calibrated:
            return Calibration()
        verify_checksum(self / "calibration.json")
        values = self.read_object("calibration.json", "train again")
        try:
            return Calibration.from_json(values, len(self.read_thresholds()))
        except (TypeError, AttributeError, ValueError):
            raise UserError(f"{self / 'calibration.json'} is damaged", "train again") from None

    def read_thresholds(self) -> dict[str, float | None]:
        """Return the probability from which each class counts as present; None for a class without known labels."""
        verify_checksum(self / "thresholds.json")
        thresholds = self.read_object("thresholds.json", "train again")
        if not all(value is None or (type(value) in (int, float) and 0 <= value <= 1) for value in thresholds.values()):
            raise UserError(
                f"{self / 'thresholds.json'} is damaged: it does not map classes to probabilities", "train again"
            )
        return thresholds

    def write_text(self, name: str, text: str) -> None:
        with atomic_write(self / name) as temporary:
            # A path may contain bytes that are not UTF-8; they are written back unchanged.
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")

    def inherit_fill_options(self, earlier: RunFolder) -> None:
        with suppress(OSError, UserError):  # there may be none
            self.write_text(self.fill_options.name, read_text(earlier.fill_options, "remove it"))

    def write_env(self, device: str) -> None:
        versions = {package: version(package) for package in ("torch", "torchvision", "timm", "numpy")}
        where = {"python": sys.version.split()[0], "system": platform.platform(), "device": device}
        write_json(self / "env.json", {**where, "halflabel": __version__, **versions})

    def write_completion(self, trained: str) -> None:
        """Write what was trained, when training ended and with which version, unless that is already written."""
        if not (self / "made.json").exists():
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            write_json(self / "made.json", {"trained": trained, "time": now, "halflabel": __version__})

    def write_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.write_text("log.jsonl", "".join(json.dumps(to_json_value(dict(line))) + "\n" for line in lines))
        columns = list(dict.fromkeys(key for line in lines for key in line))
        write_csv(self / "log.csv", columns, [[line.get(key, "") for key in columns] for line in lines])

    def read_log(self) -> list[dict[str, Any]]:
        path = self / "log.jsonl"
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in read_text(path, "remove the file").splitlines()]
        except (ValueError, RecursionError):
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise UserError(f"{path} is damaged", "remove the file: only the log is lost")
        return lines

    def read_csv(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file as text; none if there is no such file."""
        path = self / name
        if not path.exists():
            return []
        if not path.is_file():  # reading a pipe would wait forever
            raise UserError(f"{path} is not a file", "train again")
        try:
            with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
                return list(csv.DictReader(file))
        except (OSError, csv.Error) as error:
            raise UserError(f"{path} cannot be read ({error})", "train again") from None

    def write_labels(self, labels: Labels) -> None:
        """Write the training labels, so that a run can be resumed even if the original file changes.

        Rows keep their source and score, so labels made by a model remain marked as such; overridden rows are dropped.
        """
        with with_checksum(self.labels):
            formats.write(labels.drop_overridden(), self.labels)

    def read_labels(self) -> Table:
        return self.read_rows().training

    def read_rows(self) -> Labels:
        """Return the training labels as rows, one per known entry, with their sources."""
        verify_checksum(self.labels)
        try:
            return formats.read(self.labels, format="long").rows
        except UserError as error:
            raise UserError(error.message, "start a new run") from None

    def read_answers(self) -> Labels | None:
        """Return the answers of `review` as rows about the images and classes of the run; None if there are none."""
        if not self.answers.exists():
            return None
        labels = self.read_rows()
        with closing(AnswerStore(self.answers)) as store:
            rows = store.label_rows(labels.images, labels.classes)
        return rows if len(rows) else None

    def read_truth(self) -> Table | None:
        """Return the hidden labels that the log compares guesses with, or None."""
        path = self / "truth.parquet"
        return formats.read(path, format="long").table() if path.exists() else None

    def write_scores(self, scores: Scores) -> None:
        write_scores(self.stored_scores, scores)

    def read_scores(self) -> Scores | None:
        """Return the scores that the run was evaluated by; None if nothing was held out, or training has not ended."""
        return read_scores(self.stored_scores) if self.stored_scores.exists() else None

    def unseen_scores(self, scores: Scores, digests: NDArray[np.uint64]) -> tuple[Scores, NDArray[np.bool_] | None]:
        """Return the scores with those of the run's own images replaced by stored ones, and which images (N,) are own.

        Own images are known by their content digests; None if the run has none. A stored score is by a model that saw
        no label of its image; own images without one get fold −1.
        """
        if not self.digests.exists():
            return scores, None
        images, own = read_digests(self.digests)
        order = np.argsort(own, kind="stable")
        place = np.searchsorted(own, digests, sorter=order).clip(max=len(own) - 1)
        is_own = (own[order[place]] == digests) & (digests != 0)
        stored = self.read_scores() or Scores.unknown(Names([]), scores.classes)
        rows_of_stored = np.where(is_own, stored.images.index(images.array)[order[place]], -1)
        scores.fold[is_own] = -1
        rows = np.flatnonzero(rows_of_stored >= 0)
        scores.logits[rows], scores.fold[rows] = stored.logits[rows_of_stored[rows]], stored.fold[rows_of_stored[rows]]
        return replace(scores, kind=stored.kind if is_own.all() else scores.kind), is_own

    @property
    def score_kind(self) -> Kind | None:
        """The kind of the stored scores; None where there are none."""
        return read_kind(self.stored_scores) if self.stored_scores.exists() else None

    def split_of(self, images: Names) -> NDArray[np.int8]:
        """Return 0 for training images, 1 for held-out ones and −1 for unknown ones, in the order of `images` (N,)."""
        part = np.where(self.read_labels().images.index(images.array) < 0, -1, 0).astype(np.int8)
        if self.score_kind == "held-out" and (scores := self.read_scores()) is not None:
            part[scores.images.index(images.array) >= 0] = 1
        return part

    def scores(self, names: Names, folder: str | Path, reporter: Reporter = SILENT) -> Scores:
        """Return the scores of images in a folder: the stored ones, and those of the final model for other images."""
        from halflabel.runs.scores import score_images

        return score_images(self, names, Path(folder), reporter)


def next_run_folder(run: Path) -> Path:
    """Return RUN-2, or the first such name that is not taken; after RUN-2 comes RUN-3."""
    base, _, digits = run.name.rpartition("-")
    if digits.isdecimal() and base and run.with_name(base).exists():
        run = run.with_name(base)
    number = 2
    while (folder := run.with_name(f"{run.name}-{number}")).exists():
        number += 1
    return folder


def model_kind(path: Path) -> Literal["run", "hub", "onnx"]:
    """Return whether a path is a finished run, a folder exported for the Hub or an ONNX file; else raise an error.

    Does not import torch, so a wrong path is reported at once.
    """
    if path.is_file():
        if path.suffix != ".onnx":
            raise UserError(f"{path} is not a model", "name a run folder, an exported folder or an .onnx file")
        return "onnx"
    if (path / "config.json").is_file() and not (path / "config.yaml").exists():
        return "hub"
    RunFolder.open(path).check_finished()
    return "run"
