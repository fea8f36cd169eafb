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

from halflabel import __version__, processes
from halflabel.errors import UserError
from halflabel.files import check_fields, plain, read_json, read_text, replacing, write_json

if TYPE_CHECKING:
    from halflabel.calibrate import Platt
    from halflabel.labels.rows import Rows
    from halflabel.labels.table import LabelTable

__all__ = ["Run", "model_kind"]

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


class Run:
    """A folder with the settings, the log, the weights and the results of one training run.

    config.yaml     every setting, resolved                 log.jsonl, log.csv   one line per epoch
    env.json        versions and device                     metrics.json         what was measured, on what
    made.json       when training ended, by which version
    labels.parquet  the labels trained on, data.hash their digest
    truth.parquet   hidden labels, for the log alone
    split.parquet   which image was held out                per_label.csv        the same, per class
                                                            predictions.parquet  scores of the held-out images
    best.safetensors  the weights to use                    thresholds.json      per class, best F1 on known labels
    last/           checkpoints to resume from              calibration.json     logits to probabilities
    bad_images.csv  what could not be read                  plots/, model_card.md, report.html, repro.sh
    answers.sqlite  what people said, kept for ever         scores.parquet       scores to ask by
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def weights(self) -> Path:
        return self / "best.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self / "last"

    @property
    def plots(self) -> Path:
        return self / "plots"

    @classmethod
    def create(cls, folder: str | Path, *, force: bool = False) -> Run:
        """A new run; a folder that already holds one is refused, unless it may be overwritten. Writes nothing yet."""
        run = cls(folder)
        if run.folder.exists() and not run.folder.is_dir():
            raise UserError(f"{run.folder} is a file", "name a folder for the run with --out")
        if (run / "config.yaml").exists() and not force:
            raise UserError(
                f"{run.folder} already holds a run",
                "choose another --out, go on with --resume, or add --force to start it again",
            )
        return run

    @_by_the_first
    def start(self, table: LabelTable, config: Mapping[str, Any], truth: LabelTable | None = None) -> None:
        """Clear what an earlier run left here, then write labels and settings: from now on it can be resumed."""
        import shutil

        (self / "config.yaml").unlink(missing_ok=True)
        for folder in (self.checkpoints, self.plots):
            shutil.rmtree(folder, ignore_errors=True)
        for name in _RESULTS:
            (self / name).unlink(missing_ok=True)
        self.write_labels(table)
        if truth is not None:
            from halflabel.labels import formats

            formats.write(truth, self / "truth.parquet")
        self.write_config(config)

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
    def open(cls, folder: str | Path) -> Run:
        """An existing run, or an error that says what is missing."""
        run = cls(folder)
        if not (run / "config.yaml").exists():
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
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{self / 'config.yaml'} cannot be read ({reason})", "train again") from None
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

    def read_calibration(self) -> Platt:
        """How logits become probabilities."""
        from halflabel.calibrate import Platt

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
            temporary.write_text(text, encoding="utf-8")

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
        with replacing(self / name) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows([plain(cell) for cell in row] for row in rows)

    @_by_the_first
    def write_labels(self, table: LabelTable) -> None:
        """The labels trained on: a run can be resumed whatever becomes of the file they came from."""
        from halflabel.labels import formats

        formats.write(table, self / "labels.parquet")
        self.write_text("data.hash", table.digest() + "\n")

    def read_labels(self) -> LabelTable:
        """The labels trained on, checked against their digest."""
        from halflabel.labels import formats

        try:
            table = formats.read(self / "labels.parquet", format="long").table()
        except UserError as error:
            raise UserError(error.message, "start a new run") from None
        if read_text(self / "data.hash", "start a new run").strip() != table.digest():
            raise UserError(f"{self / 'labels.parquet'} is not what was trained on", "start a new run")
        return table

    def read_rows(self) -> Rows:
        """The labels trained on as rows, to append others to."""
        from halflabel.labels import formats

        return formats.read(self / "labels.parquet", format="long").rows

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
        with replacing(self / "split.parquet") as temporary:
            pq.write_table(pa.table({"image": images, "part": pa.array(kind).dictionary_encode()}), temporary)

    def read_split(self) -> dict[str, int]:
        """0 for images that were trained on, 1 for those held out, by name."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self / "split.parquet"
        try:
            if not path.is_file():  # a pipe would be waited for
                raise ValueError("no such file")
            found = pq.read_table(path)
            columns = [found[name].to_pylist() for name in ("image", "part")]
        except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} cannot be read ({reason})", "start a new run") from None
        return {str(image): int(part == "validation") for image, part in zip(*columns, strict=True)}

    @_by_the_first
    def write_predictions(self, images: Sequence[str], classes: Sequence[str], scores: NDArray[np.float32]) -> None:
        """One row per image with a list of C scores; the class names stand in the file's metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(np.ascontiguousarray(scores, dtype=np.float32).reshape(-1))
        table = pa.table({"image": images, "scores": pa.FixedSizeListArray.from_arrays(flat, len(classes))})
        table = table.replace_schema_metadata({"classes": json.dumps(list(classes))})
        with replacing(self / "predictions.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")


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
    Run.open(path).check_finished()
    return "run"


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
