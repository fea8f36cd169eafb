"""What the folder of a comparison says, gathered for its page; and where two methods differ, class by class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.errors import UserError
from halflabel.experiments.result import RESAMPLES, Failure, Interval, LeftOut, Row, difference
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe
from halflabel.runs.redact import shown_name, shown_options, without_folders

__all__ = ["ClassGap", "Told", "class_gaps", "read_comparison"]


@dataclass(frozen=True, eq=False)
class Told:
    """What the folder of a comparison says; `test` are the labels judged by, where they were kept."""

    folder: Path
    config: dict[str, Any]
    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]
    left_out: tuple[LeftOut, ...]
    protocol: tuple[str, ...]
    hidden_truth: bool
    memory_kind: str
    chosen_by: Mapping[str, str]
    test: LabelTable | None

    @property
    def panels(self) -> list[list[Row]]:
        """The rows of each way of hiding labels, best first."""
        names = dict.fromkeys(row.labels for row in self.rows)
        return [[row for row in self.rows if row.labels == name] for name in names]

    @property
    def caution(self) -> str:
        """What has to stand at every number that was chosen on labels nobody has."""
        return "CHOSEN ON HIDDEN TRUTH: too good for anyone who lacks those labels." if self.hidden_truth else ""


class ClassGap(NamedTuple):
    """One class: the average precision of two methods, mean over their common seeds, and the paired difference."""

    name: str
    first: float
    second: float
    gap: Interval
    present: int  # known positives among the test images


def read_comparison(folder: Path) -> Told:
    """Read what `halflabel compare` left in a folder."""
    path, again = folder / "comparison.json", "run the same `halflabel compare` command again: it goes on"
    if not path.exists() and (folder / "study.json").exists():  # an earlier version called studies comparisons too
        raise UserError(f"{folder} holds a study, not a comparison", "make its page with `halflabel report`")
    if not path.exists():
        raise UserError(f"{folder} has no comparison.json: the comparison was stopped before its end", again)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = json.loads(path.read_text(encoding="utf-8"))
        told = Told(
            folder=folder,
            config={key: value for key, value in config.items() if key != "what"},
            rows=tuple(_row(row) for row in found["rows"]),
            failures=tuple(_failure(Failure(**failure)) for failure in found["failures"]),
            left_out=tuple(_left_out(left) for left in found["left_out"]),
            protocol=tuple(map(str, found["protocol"])),
            hidden_truth=bool(found["selected_on_hidden_truth"]),
            memory_kind=str(found["memory_is"]),
            chosen_by=dict(found["auto"]),
            test=_read_test(folder, config.get("test labels")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})", again) from None
    if not told.rows:
        raise UserError(f"{folder} holds not one finished run", again)
    return told


def _row(found: Mapping[str, Any]) -> Row:
    """A row again; what JSON cannot hold was written as null."""
    number = {field.name for field in fields(Row) if field.type == "float"}
    values: dict[str, Any] = {
        name: math.nan if value is None and name in number else value for name, value in found.items()
    }
    several = ("per_seed", "best_epochs", "judged_by", "runs")
    values |= {name: tuple(values.get(name, ())) for name in several}
    return Row(**{**values, "method": shown_name(values["method"]), "options": shown_options(values["options"])})


def _failure(found: Failure) -> Failure:
    shown = shown_name(found.method)
    what = found.what.replace(found.method, shown)
    return found._replace(method=shown, what=what, reason=without_folders(found.reason))


def _left_out(found: Mapping[str, Any]) -> LeftOut:
    return LeftOut(**{**found, "method": shown_name(found["method"]), "seeds": tuple(found["seeds"])})


def _read_test(folder: Path, digest: str | None) -> LabelTable | None:
    from halflabel.labels import formats

    path = folder / "test.parquet"
    if not path.exists():
        return None
    table = formats.read(path, format="long").table()
    if table.digest() != digest:
        raise UserError(f"{path} is not what the methods were judged by", "start the comparison again with --force")
    return table


def class_gaps(told: Told, first: Row, second: Row, most: int = 8) -> list[ClassGap] | None:
    """Classes in which two methods differ most, gains of the first one first: at most `most` on either side.

    None where the folder holds no finished runs of both with the same seed: nothing can be said then.

    AP is the mean over the seeds that both have; the interval of the difference is paired by image and seed, as
    in the table. Only classes with a known positive and a known negative among the test images count.
    """
    assert told.test is not None
    tasks = [_tasks(told, row) for row in (first, second)]
    seeds = sorted(set(tasks[0]) & set(tasks[1]))
    if not seeds:
        return None
    labels = torch.from_numpy(told.test.dense())
    logits = [[torch.from_numpy(np.load(found[seed], allow_pickle=False)) for seed in seeds] for found in tasks]
    readable = ~torch.stack([torch.isnan(one).any(1) for side in logits for one in side]).any(0)
    labels = labels[readable]
    logits = [[one[readable] for one in side] for side in logits]
    judged = torch.nonzero((labels > 0).any(0) & (labels < 0).any(0)).flatten()
    ap = np.array([[metrics.average_precision(one, labels)[judged].numpy() for one in side] for side in logits])
    gaps = (ap[0] - ap[1]).mean(0)  # ap: (2, seeds, classes)
    order = np.argsort(-gaps, kind="stable")
    ends = [k for k in order[:most] if gaps[k] > 0] + [k for k in order[-most:] if gaps[k] < 0]
    found = []
    for k in dict.fromkeys(ends):
        column = int(judged[k])
        draws = [
            np.stack([_replicates(one[:, column : column + 1], labels[:, column : column + 1]) for one in side])
            for side in logits
        ]
        name, both = told.test.classes[column], ap[:, :, k].mean(1)
        present = int((labels[:, column] > 0).sum())
        gap = difference(ap[0, :, k] - ap[1, :, k], draws[0] - draws[1], present)
        found.append(ClassGap(name, float(both[0]), float(both[1]), gap, present))
    return found


def _replicates(logits: torch.Tensor, labels: torch.Tensor) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = metrics.bootstrap(logits, labels, n=RESAMPLES).replicates.double().numpy()
    return drawn


def _tasks(told: Told, row: Row) -> dict[int, Path]:
    """The logits of the runs behind a row, by seed."""
    if row.runs:
        named = {seed: told.folder / "tasks" / f"{run}.npy" for seed, run in zip(row.judged_by, row.runs, strict=True)}
        return {seed: path for seed, path in named.items() if path.exists()}
    # A folder of an earlier version. A run that two contenders share bears the name of the first of them, so what was
    # trained is compared, not what it is called.
    found, method = {}, row.method.partition(":")[0]
    for path in sorted((told.folder / "tasks").glob("*.json")):
        try:
            task = json.loads(path.read_text(encoding="utf-8"))
            if task["outcome"]["error"] or (task["method"], task["labels"]) != (method, row.labels):
                continue
            how = recipe(task["method"])
            options = {**{name: how.options[name].default for name in how.tunes({})}, **task["options"]}
            if math.isclose(task["lr"], row.lr, rel_tol=1e-9) and shown_options(options) == dict(row.options):
                logits = path.with_suffix(".npy")
                if logits.exists():
                    found[int(task["seed"])] = logits
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged task is run again by `compare`; here it is one seed less
    # More of them may be there, from an earlier call with more seeds: the table has the first ones.
    return {seed: found[seed] for seed in sorted(found)[: row.seeds]}
