"""What a run directory says of itself, gathered for its page: labels, log, and what was measured on held-out images."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.report.markup import count, percent
from halflabel.run import Run

__all__ = ["Facts", "Measured", "gather", "is_comparison"]


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores of the H held-out images that could be read, what is known of them, and what that gave."""

    images: NDArray[np.int64]  # (H,) their numbers in the label table
    scores: NDArray[np.float32]  # (H, C) calibrated
    labels: NDArray[np.int8]  # (H, C)
    thresholds: NDArray[np.float64]  # (C,)
    overall: dict[str, float]
    per_class: list[dict[str, Any]]  # one per class, in the table's order
    protocol: str

    @property
    def known(self) -> int:
        """The number of known entries."""
        return int((self.labels != 0).sum())

    @property
    def knows_absence(self) -> bool:
        """Whether anything is known to be absent: without that neither ranking nor calibration can be judged."""
        return bool((self.labels < 0).any())

    @property
    def where(self) -> str:
        """On what all this was measured, in words."""
        of = self.labels.size
        return (
            f"Measured on the {count(len(self.images))} held-out images, which training did not see: "
            f"{count(self.known)} of their {count(of)} entries are known ({percent(self.known, of)})."
        )


@dataclass(frozen=True, eq=False)
class Facts:
    """One run; `measured` is None while it is unfinished, or where no images were held out."""

    name: str
    config: dict[str, Any]
    table: LabelTable
    training: NDArray[np.int64]  # image numbers
    log: list[dict[str, Any]]
    measured: Measured | None
    env: dict[str, Any]
    made: dict[str, Any]  # when training ended, and by which version; empty in older runs
    unreadable: int
    finished: bool


def gather(run: Run) -> Facts:
    """Read a run; one that is unfinished has labels, settings and the log so far."""
    table = run.read_labels()
    held = run / "predictions.parquet"
    return Facts(
        name=run.folder.resolve().name,
        config=run.read_config(),
        table=table,
        training=_training(run, table),
        log=run.read_log(),
        measured=_measured(run, table) if held.exists() else None,
        env=run.read_json("env.json") if (run / "env.json").exists() else {},
        made=_made(run),
        unreadable=_rows(run, "bad_images.csv"),
        finished=run.weights.exists(),
    )


def is_comparison(folder: Path) -> bool:
    """Whether `halflabel compare` wrote this folder."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("what") == "comparison"


def _made(run: Run) -> dict[str, Any]:
    found = run.read_json("made.json") if (run / "made.json").exists() else {}
    if not isinstance(found, dict):
        raise UserError(f"{run / 'made.json'} is damaged", "remove the file: nothing else is lost")
    return found


def _training(run: Run, table: LabelTable) -> NDArray[np.int64]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = run / "split.parquet"
    if not path.exists():
        return np.arange(len(table))
    found = pq.read_table(path).combine_chunks()
    names = found["image"].filter(pc.equal(found["part"].cast("string"), "train")).combine_chunks()
    return _numbers(run, table, names)


def _numbers(run: Run, table: LabelTable, names: Any) -> NDArray[np.int64]:
    at = table.images.index(names)
    if (at < 0).any():
        raise UserError(f"{run.folder} holds images that its labels do not name", "train again")
    return at


def _measured(run: Run, table: LabelTable) -> Measured:
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(run / "predictions.parquet").combine_chunks()
        classes = json.loads(found.schema.metadata[b"classes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{run / 'predictions.parquet'} cannot be read ({reason})", "train again") from None
    if classes != list(table.classes):
        raise UserError(f"{run / 'predictions.parquet'} is of other classes than the run's labels", "train again")
    images = _numbers(run, table, found["image"].combine_chunks())
    flat = found["scores"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    scores = flat.reshape(-1, len(classes)).astype(np.float32)
    readable = ~np.isnan(scores).any(axis=1)
    images, scores = images[readable], scores[readable]
    cuts = run.read_json("thresholds.json")
    metrics = run.read_json("metrics.json")
    protocol = str(metrics.pop("protocol", ""))
    rows = {row["class"]: row for row in _read_csv(run, "per_label.csv")}
    return Measured(
        images=images,
        scores=scores,
        labels=table.rows(images),
        thresholds=np.array([_number(cuts.get(name)) for name in classes]),
        overall={name: _number(value) for name, value in metrics.items()},
        per_class=[_line(name, rows.get(name, {})) for name in classes],
        protocol=protocol,
    )


def _line(name: str, row: dict[str, str]) -> dict[str, Any]:
    numbers = ("present", "absent", "AP", "AP_low", "AP_high", "threshold", "precision", "recall")
    return {"class": name, **{key: _number(row.get(key)) for key in numbers}}


def _number(value: Any) -> float:
    """A number as JSON or CSV has it; what is missing is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _read_csv(run: Run, name: str) -> list[dict[str, str]]:
    path = run / name
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def _rows(run: Run, name: str) -> int:
    return len(_read_csv(run, name))
