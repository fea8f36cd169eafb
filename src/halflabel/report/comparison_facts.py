"""Read everything that the page of a comparison shows from its folder, and compare two methods class by class."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.comparison.result import RESAMPLES, ComparisonRow, Failure, Interval, LeftOut, difference
from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.report.layout import nan_for_null, read_experiment
from halflabel.runs.redact import shown_name, shown_options, without_folders


@dataclass(frozen=True, eq=False)
class ComparisonFacts:
    """One comparison; `test` holds the labels of the test images."""

    folder: Path
    config: dict[str, Any]
    rows: tuple[ComparisonRow, ...]
    oracle: ComparisonRow | None  # no label is hidden from it; not among the rows
    conclusions: tuple[str, ...]
    failures: tuple[Failure, ...]
    left_out: tuple[LeftOut, ...]
    protocol: tuple[str, ...]
    hidden_truth: bool
    memory_kind: str
    chosen_by: Mapping[str, str]
    test: Table

    @property
    def panels(self) -> list[list[ComparisonRow]]:
        """The rows of each set of labels, best method first."""
        names = dict.fromkeys(row.labels for row in self.rows)
        return [[row for row in self.rows if row.labels == name] for name in names]

    @property
    def caution(self) -> str:
        """The warning at every number that was chosen by hidden labels; empty where none was."""
        return "CHOSEN ON HIDDEN TRUTH: too good for anyone who lacks those labels." if self.hidden_truth else ""


class ClassGap(NamedTuple):
    """The paired difference of the average precision of two methods for one class, mean over common seeds."""

    name: str
    interval: Interval
    present: int  # known positives among the test images


def read_comparison(folder: Path) -> ComparisonFacts:
    """Read the folder that `halflabel compare` wrote."""
    return read_experiment(folder, "comparison", "compare", lambda *parts: _facts(folder, *parts))


def _facts(folder: Path, config: dict[str, Any], content: Mapping[str, Any]) -> ComparisonFacts:
    rows = tuple(_row(row) for row in content["rows"])
    return ComparisonFacts(
        folder=folder,
        config=config,
        rows=tuple(row for row in rows if row.role != "oracle"),
        oracle=next((row for row in rows if row.role == "oracle"), None),
        conclusions=tuple(without_folders(str(line)) for line in content["conclusions"]),
        failures=tuple(_failure(Failure(**failure)) for failure in content["failures"]),
        left_out=tuple(_left_out(runs) for runs in content["left_out"]),
        protocol=tuple(map(str, content["protocol"])),
        hidden_truth=bool(content["selected_on_hidden_truth"]),
        memory_kind=str(content["memory_is"]),
        chosen_by=dict(content["auto"]),
        test=_read_test(folder, config.get("test labels")),
    )


def _row(content: Mapping[str, Any]) -> ComparisonRow:
    values = nan_for_null(ComparisonRow, content)
    tuples = ("per_seed", "best_epochs", "judged_by", "runs", "strengths")
    values |= {name: tuple(values[name]) for name in tuples}
    return ComparisonRow(
        **{**values, "method": shown_name(values["method"]), "options": shown_options(values["options"])}
    )


def _failure(failure: Failure) -> Failure:
    """Remove folder names from a failure."""
    shown = shown_name(failure.method)
    what = failure.what.replace(failure.method, shown)
    return failure._replace(method=shown, what=what, reason=without_folders(failure.reason))


def _left_out(content: Mapping[str, Any]) -> LeftOut:
    return LeftOut(**{**content, "method": shown_name(content["method"]), "seeds": tuple(content["seeds"])})


def _read_test(folder: Path, digest: str | None) -> Table:
    from halflabel.labels import formats

    path = folder / "test.parquet"
    table = formats.read(path, format="long").table()
    if table.digest() != digest:
        raise UserError(
            f"{path} does not hold the labels that the methods were tested on",
            "start the comparison again with ‹force›",
        )
    return table


def class_gaps(
    facts: ComparisonFacts, first: ComparisonRow, second: ComparisonRow, most: int = 8
) -> list[ClassGap] | None:
    """Return the classes in which two methods differ most, gains of the first method first: at most `most` per side.

    None where the folder has no finished runs of both methods with the same seed. AP is the mean over common seeds; the
    interval of the difference is paired by image and seed. Only classes with a known positive and a known negative
    among the test images count.
    """
    tasks = [_tasks(facts, row) for row in (first, second)]
    seeds = sorted(set(tasks[0]) & set(tasks[1]))
    if not seeds:
        return None
    labels = torch.from_numpy(facts.test.dense())
    logits = [[torch.from_numpy(np.load(paths[seed], allow_pickle=False)) for seed in seeds] for paths in tasks]
    readable = ~torch.stack([torch.isnan(run).any(1) for runs in logits for run in runs]).any(0)
    labels = labels[readable]
    groups = _read_groups(facts.folder, len(readable))[readable.numpy()]
    logits = [[run[readable] for run in runs] for runs in logits]
    measured = torch.nonzero((labels > 0).any(0) & (labels < 0).any(0)).flatten()
    ap = np.array([[metrics.average_precision(run, labels)[measured].numpy() for run in runs] for runs in logits])
    gaps = (ap[0] - ap[1]).mean(0)  # ap: (2, seeds, classes)
    order = np.argsort(-gaps, kind="stable")
    ends = [k for k in order[:most] if gaps[k] > 0] + [k for k in order[-most:] if gaps[k] < 0]
    differing = []
    for k in dict.fromkeys(ends):
        column = int(measured[k])
        draws = [
            np.stack([_replicates(run[:, [column]], labels[:, [column]], groups) for run in runs]) for runs in logits
        ]
        present = int((labels[:, column] > 0).sum())
        interval = difference(ap[0, :, k] - ap[1, :, k], draws[0] - draws[1], present)
        differing.append(ClassGap(facts.test.classes[column], interval, present))
    return differing


def _replicates(logits: torch.Tensor, labels: torch.Tensor, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    resampled = metrics.bootstrap(logits, labels, n=RESAMPLES, groups=groups)
    replicates: NDArray[np.float64] = resampled.replicates.double().numpy()
    return replicates


def _read_groups(folder: Path, images: int) -> NDArray[np.int64]:
    """Return the group of each test image (N,); each is alone where the folder does not say."""
    with open(folder / "split.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
        groups = [int(row["group"]) for row in csv.DictReader(file) if row["part"] == "test"]
    return np.array(groups) if len(groups) == images else np.arange(images)


def _tasks(facts: ComparisonFacts, row: ComparisonRow) -> dict[int, Path]:
    """Return the files with the test logits of the runs behind a row, by seed."""
    paths = {seed: facts.folder / "tasks" / f"{run}.npy" for seed, run in zip(row.judged_by, row.runs, strict=True)}
    return {seed: path for seed, path in paths.items() if path.exists()}
