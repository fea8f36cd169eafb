"""The measures of the published tables, each computed as its paper does, in percent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from halflabel import metrics
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.metrics import Kind

__all__ = ["GIVEN", "GUESSES", "METRICS", "given_shares", "measure"]

METRICS = {
    "mAP": "mean average precision; options kind (interpolation), empty (classes without positive: nan or zero), "
    "group (1 to 5, by number of training annotations)",
    "exact_match": "share of images whose known entries are all decided right; option threshold",
    "accuracy": "share of images whose highest score is of their class",
    **{
        name: f"{what}; options threshold (else 0.5), top_k"
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

GUESSES = {
    "label_proportion": "share of training entries that are known or made up in the end",
    "tp_rate": "of the present entries that were made up, the share called present",
    "tn_rate": "of the absent entries that were made up, the share called absent",
    "accuracy_of_guesses": "share of the made-up entries that are right",
}


GIVEN = {
    "clean_labels": "of the labels of the training images, the share that training is told rightly",
    "wrong_labels": "of the labels of the training images, the share that training is told wrongly",
}


def given_shares(known: LabelTable, full: LabelTable) -> dict[str, float]:
    """The measures of GIVEN from what training is told and what is true of the same images, in percent.

    >>> full = LabelTable.from_dense([[1, 1, -1, -1]])
    >>> given_shares(LabelTable.from_dense([[1, -1, 0, -1]]), full)
    {'clean_labels': 50.0, 'wrong_labels': 25.0}
    """
    (image, column, value), (rows, columns, true) = known.entries(), full.entries()
    keys, asked = rows * len(full.classes) + columns, image * len(full.classes) + column
    right = int((true[np.searchsorted(keys, asked)] == value).sum())
    share = 100 / max(full.known, 1)
    return {"clean_labels": share * right, "wrong_labels": share * (len(value) - right)}


def measure(metric: str, logits: Tensor, labels: Tensor, *, counts: Tensor | None = None, **options: Any) -> float:
    """One metric of METRICS from test logits (N, C) and labels (N, C) in {−1, 0, +1}, in percent.

    counts (C,): training annotations per class, for groups. Thresholds are of the score σ(logit).

    >>> labels = torch.tensor([[1, -1], [-1, 1]])
    >>> measure("accuracy", torch.tensor([[2.0, 1.0], [3.0, 1.0]]), labels)
    50.0
    """
    if metric not in METRICS:
        raise UserError(f"no metric is called {metric!r}", f"use one of: {', '.join(METRICS)}")
    if metric == "mAP":
        return 100 * _mean_ap(logits, labels, counts, **options)
    if metric == "accuracy":
        return 100 * metrics.accuracy(logits, labels)
    threshold, top_k = float(options.pop("threshold", 0.5)), options.pop("top_k", None)
    if options:
        raise UserError(f"{metric} has no option {next(iter(options))!r}", "its options: threshold, top_k")
    scores = torch.sigmoid(logits.double())  # in single precision large logits would be tied at 1
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
    group: int | None = None,
) -> float:
    each = metrics.average_precision(logits, labels, kind)
    if empty == "zero":
        each = torch.nan_to_num(each, nan=0.0)
    elif empty != "nan":
        raise UserError(f"empty {empty!r} does not exist", "use nan or zero")
    if group is None:
        return float(each.nanmean()) if not bool(each.isnan().all()) else math.nan
    if counts is None:
        raise UserError("groups of classes need the number of training annotations", "give counts")
    return float(metrics.group_means(each, counts).groups[group - 1])
