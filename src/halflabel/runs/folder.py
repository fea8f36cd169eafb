"""The run directory: everything a training run leaves behind. The only file that knows its paths."""

from __future__ import annotations

import csv
import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import numpy as np
from numpy.typing import NDArray

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.system import distributed as processes
from halflabel.system.files import check_fields, plain, read_json, read_text, replacing, write_json

if TYPE_CHECKING:
    from halflabel.labels.names import Names
    from halflabel.labels.rows import Rows
    from halflabel.labels.table import LabelTable
    from halflabel.metrics.calibration import Platt

__all__ = ["RunFolder", "model_kind"]

_LARGEST_CONFIG = 1 << 20  # bytes
_MOST_SETTINGS = 10_000


_BEGINNING = ("config.yaml", "env.json", "labels.parquet", "data.hash", "split.parquet")
_RESULTS = (
    "best.safetensors",
    "log.jsonl",
    "log.csv",
    "metrics.json",
    "per_label.csv",
    "predictions.parquet",
    "thresholds.json",
    "calibration.json",
    "bad_images.csv",
    "model_card.md",
    "repro.sh",
    "made.json",
    "report.html",
    "scores.parquet",
    "truth.parquet",
)


P = ParamSpec("P")


def _by_the_first(write: Callable[P, None]) -> Callable[P, None]:
    """Of several processes the first one writes."""

    @wraps(write)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        if processes.is_first():
            write(*args, **kwargs)

    return guarded


class _Place:
    """Where something of a run lies."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, kind: type[RunFolder] | None = None) -> Path:
        return run.folder / self.name


class RunFolder:
    """A folder with the settings, the log, the weights and the results of one training run.

    config.yaml     every setting, resolved                 log.jsonl, log.csv   one line per epoch
    env.json        versions and device                     metrics.json         what was measured, on what
    made.json       when training ended, by which version
    labels.parquet  the labels trained on, with their sources and scores; data.hash is their digest
    truth.parquet   hidden labels, for the log alone
    split.parquet   which image was held out                per_label.csv        the same, per class
                                                            predictions.parquet  scores of the held-out images
    best.safetensors  the weights to use                    thresholds.json      per class, best F1 on known labels
    last/           checkpoints to resume from              calibration.json     logits to probabilities
    bad_images.csv  what could not be read                  plots/, model_card.md, report.html, repro.sh
    answers.sqlite  what people said, kept for ever         scores.parquet       scores to ask by
    filled.csv      what `fill` filled
    """

    weights = _Place("best.safetensors")
    checkpoints = _Place("last")
    plots = _Place("plots")
    labels = _Place("labels.parquet")
    split = _Place("split.parquet")
    predictions = _Place("predictions.parquet")
    bad_images = _Place("bad_images.csv")
    filled = _Place("filled.csv")  # where `fill` writes unless told otherwise
    tensorboard = _Place("tensorboard")

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def begun(self) -> bool:
        """Whether there are settings and labels, so that it can be resumed."""
        return (self / "config.yaml").exists()

    @property
    def judged(self) -> bool:
        """Whether held-out images gave a calibration and thresholds."""
        return (self / "calibration.json").exists()

    @classmethod
    def create(cls, folder: str | Path, *, force: bool = False) -> RunFolder:
        """A new run; a folder that already holds one is refused, unless it may be overwritten. Writes nothing yet."""
        run = cls(folder)
        if run.folder.exists() and not run.folder.is_dir():
            raise UserError(f"{run.folder} is a file", "name a folder for the run with --out")
        try:
            str(run.folder).encode()
        except UnicodeEncodeError:  # Arrow opens no such paths
            raise UserError(f"{str(run.folder)!r} is no UTF-8", "choose another --out") from None
        if run.begun and not force:
            raise UserError(
                f"{run.folder} already holds a run",
                "choose another --out, go on with --resume, or add --force to start it again",
            )
        return run

    @_by_the_first
    def start(self, labels: LabelTable | Rows, config: Mapping[str, Any], truth: LabelTable | None = None) -> None:
        """Clear what an earlier run left here, then write labels and settings: from now on it can be resumed."""
        import shutil

        (self / "config.yaml").unlink(missing_ok=True)
        for folder in (self.checkpoints, self.plots):
            shutil.rmtree(folder, ignore_errors=True)
        for name in _RESULTS:
            (self / name).unlink(missing_ok=True)
        self.write_labels(labels)
        if truth is not None:
            from halflabel.labels import formats

            formats.write(truth, self / "truth.parquet")
        self.write_config(config)

    @_by_the_first
    def withdraw(self) -> None:
        """Take the start back: what stopped the run before its first epoch is no run to go on with."""
        (self / "config.yaml").unlink(missing_ok=True)

    @_by_the_first
    def tidy(self) -> None:
        """Remove what a training that was killed had begun to write; of other files nothing, others may write them."""
        for folder in (self.checkpoints / "head", self.checkpoints / "all", self.plots):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)
        for name in (*_BEGINNING, *_RESULTS):
            for path in self.folder.glob(f".{name}.*.tmp"):
                path.unlink(missing_ok=True)

    @classmethod
    def open(cls, folder: str | Path) -> RunFolder:
        """An existing run, or an error that says what is missing."""
        run = cls(folder)
        if not run.begun:
            raise UserError(f"{run.folder} holds no run (no config.yaml)", "name the folder that `train --out` wrote")
        return run

    def check_finished(self) -> None:
        """Refuse a run that has no weights to use yet."""
        if not self.weights.is_file():  # a device or a pipe would be waited for
            raise UserError(
                f"{self.folder} has no weights yet",
                f"finish it: halflabel train --resume {shlex.quote(str(self.folder))}",
            )

    def read_config(self) -> dict[str, Any]:
        import yaml

        text = read_text(self / "config.yaml", "train again", most=_LARGEST_CONFIG)
        try:
            config = yaml.safe_load(text)
        except Exception as error:  # besides its own kinds, whatever a date or a number that is none makes Python raise
            raise UserError(f"{self / 'config.yaml'} cannot be read ({_reason(error)})", "train again") from None
        if not isinstance(config, dict) or not _is_small(config):
            raise UserError(f"{self / 'config.yaml'} holds no settings", "train again")
        return config

    @_by_the_first
    def write_config(self, config: Mapping[str, Any]) -> None:
        import yaml

        with replacing(self / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), encoding="utf-8")

    @_by_the_first
    def write_json(self, name: str, content: Any) -> None:
        write_json(self / name, content)

    def read_json(self, name: str) -> Any:
        fix = "finish the run with `train --resume`"
        try:
            return read_json(self / name, fix)
        except UserError:
            raise UserError(f"{self / name} is missing or damaged", fix) from None

    def _read_object(self, name: str, fix: str) -> dict[str, Any]:
        """What a JSON file maps names to; nothing where there is no such file."""
        found = self.read_json(name) if (self / name).exists() else {}
        if not isinstance(found, dict):
            raise UserError(f"{self / name} is damaged", fix)
        return found

    def read_env(self) -> dict[str, Any]:
        return self._read_object("env.json", "remove the file: nothing else is lost")

    def read_made(self) -> dict[str, Any]:
        """When training ended, and by which version; empty in older runs."""
        return self._read_object("made.json", "remove the file: nothing else is lost")

    @_by_the_first
    def write_metrics(self, metrics: Mapping[str, Any], per_class: Sequence[Mapping[str, Any]]) -> None:
        """What was measured on held-out images, and the same per class."""
        self.write_json("metrics.json", metrics)
        if per_class:
            self.write_csv("per_label.csv", list(per_class[0]), [list(row.values()) for row in per_class])

    def read_metrics(self) -> dict[str, Any]:
        return self._read_object("metrics.json", "train again")

    def read_per_class(self) -> list[dict[str, str]]:
        """The lines of per_label.csv, as they are written there."""
        return self._read_csv("per_label.csv")

    @_by_the_first
    def write_calibration(self, platt: Platt, thresholds: Mapping[str, float]) -> None:
        """How logits become probabilities, and from which probability each class is said to be present."""
        self.write_json("thresholds.json", thresholds)
        self.write_json("calibration.json", platt._asdict())

    def read_calibration(self) -> Platt:
        """How logits become probabilities."""
        from halflabel.metrics.calibration import Platt

        found = self.read_json("calibration.json")
        try:
            check_fields(Platt, found)
            return Platt(**found)
        except (TypeError, AttributeError):
            raise UserError(f"{self / 'calibration.json'} is damaged", "train again") from None

    def read_thresholds(self) -> dict[str, float | None]:
        """The probability from which a class is said to be present, by class; None where nothing is known of it."""
        found = self.read_json("thresholds.json")
        cuts: list[Any] = list(found.values()) if isinstance(found, dict) else [""]
        if not all(cut is None or (type(cut) in (int, float) and 0 <= cut <= 1) for cut in cuts):
            raise UserError(
                f"{self / 'thresholds.json'} is damaged: it maps no classes to probabilities", "train again"
            )
        return dict(found)

    @_by_the_first
    def write_text(self, name: str, text: str) -> None:
        with replacing(self / name) as temporary:
            # A path may hold bytes that are no UTF-8; they go out as they came in.
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")

    def write_card(self, text: str) -> None:
        self.write_text("model_card.md", text)

    def write_script(self, text: str) -> None:
        """The commands that train the same again."""
        self.write_text("repro.sh", text)

    @_by_the_first
    def write_env(self, device: str) -> None:
        from importlib.metadata import PackageNotFoundError, version

        versions = {}
        for package in ("halflabel", "torch", "torchvision", "timm", "accelerate", "numpy"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                versions[package] = "not installed"
        self.write_json(
            "env.json",
            {"python": sys.version.split()[0], "system": platform.platform(), "device": device, **versions},
        )

    @_by_the_first
    def write_made(self) -> None:
        """When training ended and by which version; where that is known already, it stays."""
        if not (self / "made.json").exists():
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.write_json("made.json", {"time": now, "halflabel": __version__})

    @_by_the_first
    def write_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """The whole log, as JSON lines and as CSV."""
        self.write_text("log.jsonl", "".join(json.dumps(plain(dict(line))) + "\n" for line in lines))
        columns = list(dict.fromkeys(key for line in lines for key in line))
        self.write_csv("log.csv", columns, [[line.get(key, "") for key in columns] for line in lines])

    def read_log(self) -> list[dict[str, Any]]:
        path = self / "log.jsonl"
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in read_text(path, "remove the file").splitlines()]
        except (ValueError, RecursionError):
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise UserError(f"{path} is damaged", "remove the file: the log is lost, nothing else")
        return lines

    @_by_the_first
    def write_csv(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        with (
            replacing(self / name) as temporary,
            open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows([plain(cell) for cell in row] for row in rows)

    def _read_csv(self, name: str) -> list[dict[str, str]]:
        path = self / name
        if not path.exists():
            return []
        try:
            with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
                return list(csv.DictReader(file))
        except (OSError, csv.Error) as error:
            raise UserError(f"{path} cannot be read ({error})", "train again") from None

    def count_bad_images(self) -> int:
        """How many images could not be read."""
        return len(self._read_csv(self.bad_images.name))

    @_by_the_first
    def write_labels(self, labels: LabelTable | Rows) -> None:
        """The labels trained on: a run can be resumed whatever becomes of the file they came from.

        Of rows, those that hold are kept with their source and score: what a model made stays known as such.
        """
        from halflabel.labels import formats
        from halflabel.labels.rows import Rows

        rows = (labels if isinstance(labels, Rows) else Rows.from_table(labels)).drop_overridden()
        formats.write(rows, self.labels)
        self.write_text("data.hash", rows.resolve().digest() + "\n")

    def read_labels(self) -> LabelTable:
        """The labels trained on, checked against their digest."""
        return self._read_labels()[1]

    def read_rows(self) -> Rows:
        """The same as rows, one per known entry, with who made each; in older runs nobody is named."""
        return self._read_labels()[0]

    def _read_labels(self) -> tuple[Rows, LabelTable]:
        from halflabel.labels import formats

        try:
            rows = formats.read(self.labels, format="long").rows
        except UserError as error:
            raise UserError(error.message, "start a new run") from None
        table = rows.resolve()
        if read_text(self / "data.hash", "start a new run").strip() != table.digest():
            raise UserError(f"{self.labels} is not what was trained on", "start a new run")
        return rows, table

    def read_truth(self) -> LabelTable | None:
        """The hidden labels that the log compares guesses with, where they were given."""
        from halflabel.labels import formats

        path = self / "truth.parquet"
        return formats.read(path, format="long").table() if path.exists() else None

    @_by_the_first
    def write_split(self, images: Sequence[str], part: NDArray[Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = np.array(["train", "validation"])[part]
        with replacing(self.split) as temporary:
            pq.write_table(pa.table({"image": images, "part": pa.array(kind).dictionary_encode()}), temporary)

    def read_split(self) -> dict[str, int]:
        """0 for images that were trained on, 1 for those held out, by name; `parts` is quicker where there are many."""
        names, part = self._read_split()
        return dict(zip(names, part.tolist(), strict=True))

    def parts(self, images: Names) -> NDArray[np.int8]:
        """0 for images that were trained on, 1 for those held out, −1 for others, in the order given (N,)."""
        names, part = self._read_split()
        at = names.index(images.array)
        return np.where(at < 0, -1, part[at] if len(part) else 0).astype(np.int8)

    def _read_split(self) -> tuple[Names, NDArray[np.int8]]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from halflabel.labels.names import Names

        try:
            if not self.split.is_file():  # a pipe would be waited for
                raise ValueError("no such file")
            found = pq.read_table(self.split)
            image, part = (found[name].cast(pa.string()).combine_chunks() for name in ("image", "part"))
            if image.null_count or not pc.all(pc.is_in(part, pa.array(["train", "validation"])), min_count=0).as_py():
                raise ValueError("an image has no name or no part")
            names = Names(image)
        except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException, UserError) as error:
            raise UserError(f"{self.split} cannot be read ({_reason(error)})", "start a new run") from None
        return names, pc.equal(part, "validation").to_numpy(zero_copy_only=False).astype(np.int8)

    @_by_the_first
    def write_predictions(self, images: Sequence[str], classes: Sequence[str], scores: NDArray[np.float32]) -> None:
        """One row per image with a list of C scores; the class names stand in the file's metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(np.ascontiguousarray(scores, dtype=np.float32).reshape(-1))
        table = pa.table({"image": images, "scores": pa.FixedSizeListArray.from_arrays(flat, len(classes))})
        table = table.replace_schema_metadata({"classes": json.dumps(list(classes))})
        with replacing(self.predictions) as temporary:
            pq.write_table(table, temporary, compression="zstd")

    def read_predictions(self) -> tuple[Names, list[str], NDArray[np.float32]]:
        """(H images, C classes, scores (H, C)); NaN for images that could not be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from halflabel.labels.names import Names

        try:
            found = pq.read_table(self.predictions).combine_chunks()
            classes = [str(name) for name in json.loads(found.schema.metadata[b"classes"])]
            names = Names(found["image"].cast(pa.string()).combine_chunks())
            flat = found["scores"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            scores = flat.reshape(len(names), len(classes)).astype(np.float32)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, UserError) as error:
            raise UserError(f"{self.predictions} cannot be read ({_reason(error)})", "train again") from None
        return names, classes, scores


def model_kind(path: Path) -> Literal["run", "hub", "onnx"]:
    """As what a model was left there, a finished run or what was exported; an error where there is none.

    It needs no torch, so that a wrong path is said at once.
    """
    if path.is_file():
        if path.suffix != ".onnx":
            raise UserError(f"{path} is no model", "name a run folder, an exported folder or an .onnx file")
        return "onnx"
    if (path / "config.json").is_file() and not (path / "config.yaml").exists():
        return "hub"
    RunFolder.open(path).check_finished()
    return "run"


def _reason(error: Exception) -> str:
    text = error.message if isinstance(error, UserError) else str(error)
    return (text.splitlines() or [type(error).__name__])[0]


def _is_small(config: Any) -> bool:
    """Whether settings stay few when repeated ones are counted each time: ten lines of YAML can stand for billions."""
    waiting, seen = [config], 0
    while waiting and seen < _MOST_SETTINGS:
        seen += 1
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple | set):
            waiting += item
    return not waiting
