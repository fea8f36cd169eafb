"""The measures of the published tables, each computed as in its paper, in percent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from halflabel import metrics
from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import Outcome, Task
from halflabel.comparison.store import Store
from halflabel.evaluation.ranking import Kind, mean_known
from halflabel.labels.table import Table
from halflabel.papers.spec import PaperTable, TableRow

METRICS = {
    "mAP": "mean average precision; options kind (interpolation), empty (classes without positive: nan or zero), "
    "no_negative (classes without negative: nan or one), group (1 to 5, by number of training annotations)",
    "exact_match": "share of images whose known entries are all predicted correctly; option threshold",
    "accuracy": "share of images whose highest score belongs to their class",
    **{
        name: f"{what}; options threshold (default 0.5), top_k"
        for name, what in {
            "CP": "mean over classes of the precision",
            "CR": "mean over classes of the recall",
            "CF1": "F1 of CP and CR",
            "OP": "precision over all entries together",
            "OR": "recall over all entries together",
            "OF1": "F1 of OP and OR",
            "macro_f1": "mean over classes of the F1",
            "micro_f1": "F1 over all entries together",
        }.items()
    },
}

# Read from the training log of methods that add labels.
RELABEL_METRICS = {
    "label_proportion": "share of training entries that are known or added by the method at the end",
    "tp_rate": "of the truly present entries among the added labels, the share labelled present",
    "tn_rate": "of the truly absent entries among the added labels, the share labelled absent",
    "accuracy_of_guesses": "share of the added labels that are correct",
}
_LOG_NAMES = {"accuracy_of_guesses": "accuracy"}  # where the name in the log differs

LABEL_METRICS = {
    "clean_labels": "of the labels of the training images, the share that training sees with the correct value",
    "wrong_labels": "of the labels of the training images, the share that training sees with the wrong value",
}


def label_shares(known: Table, full: Table) -> dict[str, float]:
    """LABEL_METRICS of the labels that training sees, compared with the full labels of the same images.

    >>> full = Table.from_dense([[1, 1, -1, -1]])
    >>> label_shares(Table.from_dense([[1, -1, 0, -1]]), full)
    {'clean_labels': 50.0, 'wrong_labels': 25.0}
    """
    (image, column, value), (full_image, full_column, full_value) = known.entries(), full.entries()
    full_keys, keys = full_image * len(full.classes) + full_column, image * len(full.classes) + column
    correct = int((full_value[np.searchsorted(full_keys, keys)] == value).sum())
    percent = 100 / max(full.known, 1)
    return {"clean_labels": percent * correct, "wrong_labels": percent * (len(value) - correct)}


def compute_metric(
    metric: str,
    logits: Tensor,
    labels: Tensor,
    *,
    counts: Tensor | None = None,
    threshold: float = 0.5,
    top_k: int | None = None,
    **options: Any,
) -> float:
    """One metric of METRICS from test logits (N, C) and labels (N, C) in {−1, 0, +1}, in percent.

    counts (C,): training annotations per class, needed for groups. Thresholds apply to the score σ(logit).
    """
    if metric == "mAP":
        return 100 * _mean_ap(logits, labels, counts, **options)
    if metric == "accuracy":
        return 100 * metrics.accuracy(logits, labels)
    scores = torch.sigmoid(logits.double())  # in single precision, scores of large logits would tie at 1
    if metric == "exact_match":
        return 100 * metrics.exact_match(scores, labels, threshold, top_k=top_k)
    return 100 * float(getattr(metrics.precision_recall_f1(scores, labels, threshold, top_k=top_k), metric))


def _mean_ap(
    logits: Tensor,
    labels: Tensor,
    counts: Tensor | None,
    *,
    kind: Kind = "sklearn",
    empty: str = "nan",
    no_negative: str = "nan",
    group: int | None = None,
) -> float:
    per_class = metrics.average_precision(logits, labels, kind)
    has_positive, has_negative = (labels > 0).any(0), (labels < 0).any(0)
    per_class = per_class.masked_fill(~has_positive, {"nan": math.nan, "zero": 0.0}[empty])
    per_class = per_class.masked_fill(has_positive & ~has_negative, {"nan": math.nan, "one": 1.0}[no_negative])
    if group is None:
        return float(per_class.nanmean()) if not bool(per_class.isnan().all()) else math.nan
    assert counts is not None
    # Huynh 2020, §4.5: fifths of the classes, those with the fewest annotations first.
    return mean_known(per_class[counts.argsort(stable=True)].tensor_split(5)[group - 1])


def measure_task(
    table: PaperTable, row: TableRow, bench: Bench, outcome: Outcome, store: Store, task: Task
) -> dict[str, float]:
    """All measures of a finished training run by the paper's names; NaN for a measure that does not apply."""
    logits, labels = torch.from_numpy(store.logits(task)), torch.from_numpy(bench.test.dense())
    readable = ~torch.isnan(logits).any(1)
    logits, labels = logits[readable], labels[readable]
    stats = bench.rest.stats
    counts = torch.from_numpy(stats.positives + stats.negatives)
    is_single_label = bool((((labels > 0).sum(1) == 1) & (labels != 0).all(1)).all())
    # In a table with accuracy and other measures, accuracy is for images of exactly one class, the others for the rest.
    is_mixed = {measure.metric == "accuracy" for measure in table.measures} == {True, False}
    values: dict[str, float] = {}
    for measure in table.measures:
        metric = row.measured_as.get(measure.name, measure.metric)
        if is_mixed and (measure.metric == "accuracy") != is_single_label:
            values[measure.name] = math.nan
        elif metric in LABEL_METRICS:
            values[measure.name] = label_shares(bench.divide(task.label_mask, task.seed).known, bench.rest)[metric]
        elif metric in RELABEL_METRICS:
            values[measure.name] = _last_logged(outcome, _LOG_NAMES.get(metric, metric))
        else:
            group_counts = counts if "group" in measure.options else None
            values[measure.name] = compute_metric(metric, logits, labels, counts=group_counts, **measure.options)
    return values


def _last_logged(outcome: Outcome, name: str) -> float:
    """The last logged value up to the tested epoch, in percent: later labels do not belong to the tested weights."""
    values = [line[name] for line in outcome.log[: outcome.best_epoch] if line.get(name) is not None]
    return 100 * float(values[-1]) if values else math.nan
