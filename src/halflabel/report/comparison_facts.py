"""Read everything that the page of a comparison or study shows, and compare two rows class by class."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from halflabel import metrics
from halflabel.comparison.result import RESAMPLES, Interval, Row, Trials, difference
from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.runs.redact import shown_name, shown_options, without_folders


@dataclass(frozen=True, eq=False)
class ComparisonFacts:
    """One comparison or study, without folder names of this machine; `test` holds the labels of the test images."""

    folder: Path
    config: dict[str, Any]
    trials: Trials
    oracle: Row | None  # no label is hidden from it; not among the rows
    test: Table


class ClassGap(NamedTuple):
    """The paired difference of the average precision of two methods for one class, mean over common seeds."""

    name: str
    interval: Interval
    present: int  # known positives among the test images


def read_comparison(folder: Path) -> ComparisonFacts:
    """Read the folder that `halflabel compare` or `halflabel study` wrote."""
    path, fix = folder / "comparison.json", "run the same command again: it resumes"
    if not path.exists():
        raise UserError(f"{folder} has no {path.name}: it was stopped before its end", fix)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        content = _without_folders(json.loads(path.read_text(encoding="utf-8")))
        trials = TypeAdapter(Trials).validate_python(content)
        config.pop("what")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})", fix) from None
    rows = tuple(row for row in trials.rows if row.role != "oracle")
    if not rows:
        raise UserError(f"{folder} has no finished run", fix)
    oracle = next((row for row in trials.rows if row.role == "oracle"), None)
    test = _read_test(folder, config.get("test labels"))
    return ComparisonFacts(folder, config, replace(trials, rows=rows), oracle, test)


def _without_folders(value: Any, name: str = "") -> Any:
    """Remove folder names from all texts of a JSON value."""
    if isinstance(value, dict):
        value = shown_options(value) if name == "options" else value
        return {key: _without_folders(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    return shown_name(value) if name == "method" else without_folders(value)


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


def class_gaps(facts: ComparisonFacts, first: Row, second: Row, most: int = 8) -> list[ClassGap] | None:
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


def _tasks(facts: ComparisonFacts, row: Row) -> dict[int, Path]:
    """Return the files with the test logits of the runs behind a row, by seed."""
    paths = {seed: facts.folder / "tasks" / f"{run}.npy" for seed, run in zip(row.judged_by, row.runs, strict=True)}
    return {seed: path for seed, path in paths.items() if path.exists()}
