"""Accuracy of filled-in labels, measured against the true labels."""

from __future__ import annotations

from typing import NamedTuple

import torch

from halflabel.errors import UserError
from halflabel.evaluation._inputs import ArrayLike, as_labels, row_blocks


class Completion(NamedTuple):
    """Rates of filled-in labels, each in [0, 1]; NaN where nothing can be counted."""

    tp_rate: float
    tn_rate: float
    accuracy: float
    label_proportion: float


def completion_rates(predicted: ArrayLike, truth: ArrayLike, given: ArrayLike | None = None) -> Completion:
    """True positive rate, true negative rate and accuracy of filled-in labels, and the share of entries labelled.

    Over the filled-in entries F (predicted != 0, given = 0) whose truth is known (Durand 2019, tables 2 and 8):
      tp_rate            of those in F that are truly +1, the share labelled +1
      tn_rate            of those in F that are truly -1, the share labelled -1
      accuracy           of F, the share labelled right
      label_proportion   of all entries, the share labelled: predicted != 0 or given != 0 ("clean + weak labels")
    The paper does not define the rates. They cannot be shares of the entries labelled +1 or -1 (precision): for the
    strategy that fills in positives only it reports "the label accuracy instead of the TP rate", where precision and
    accuracy are equal, while the rate as defined here is always 1. Nor are they shares of all truly +1 entries, filled
    in or not: its TP rates reach 99 % with 27 % of the entries labelled.

    predicted, truth, given: (N, C) in {-1, 0, +1}; given are the clean labels, by default none.

    >>> completion_rates(torch.tensor([[1, -1, 0, 1]]), torch.tensor([[1, 1, 1, -1]]))
    Completion(tp_rate=0.5, tn_rate=0.0, accuracy=0.3333333333333333, label_proportion=0.75)
    """
    filled, true = as_labels(predicted, "predicted labels"), as_labels(truth, "true labels")
    clean = (
        torch.zeros((), dtype=torch.int8).expand(filled.shape) if given is None else as_labels(given, "given labels")
    )
    if not filled.shape == true.shape == clean.shape:
        raise UserError(
            f"predicted, true and given labels have the shapes {[tuple(t.shape) for t in (filled, true, clean)]}",
            "give all of them as images by classes, shape (N, C)",
        )
    true, clean = true.to(filled.device), clean.to(filled.device)
    counts = torch.zeros(5, dtype=torch.int64, device=filled.device)
    for rows in row_blocks(filled):
        new = (filled[rows] != 0) & (clean[rows] == 0)
        right = filled[rows] == true[rows]
        present, absent = new & (true[rows] > 0), new & (true[rows] < 0)
        labelled = (filled[rows] != 0) | (clean[rows] != 0)
        masks = (present & right, present, absent & right, absent, labelled)
        counts += torch.stack([mask.sum() for mask in masks])
    tp, present_all, tn, absent_all, labelled_all = counts.tolist()
    return Completion(
        _share(tp, present_all),
        _share(tn, absent_all),
        _share(tp + tn, present_all + absent_all),
        _share(labelled_all, filled.numel()),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
