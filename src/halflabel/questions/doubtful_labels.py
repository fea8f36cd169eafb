"""Known labels that look wrong: for `next --wrong`, the review page and the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.scores import image_blocks
from halflabel.labels.table import Table, are_nearly_all_positive
from halflabel.questions.choose import Question

_SHARE_OF_MEDIAN = 0.1


def present_limits(column: NDArray[Any], probability: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Return the probability (C,) below which a present label looks wrong, from those known to be present.

    It is a tenth of the median of the class. Where hardly any negative is known, a model finds only part of the
    labels that were given: that it misses one is no evidence.
    """
    limits = np.zeros(classes)
    order = np.argsort(column, kind="stable")
    parts = np.split(probability[order], np.searchsorted(column[order], np.arange(1, classes)))
    for c, part in enumerate(parts):
        part = part[~np.isnan(part)]
        limits[c] = _SHARE_OF_MEDIAN * np.median(part) if len(part) else 0.0
    return limits


def doubtful_labels(
    scores: NDArray[Any],
    table: Table,
    count: int,
    *,
    trained_on: NDArray[np.bool_] | None = None,
    score_kind: str = "held-out score",
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
) -> list[Question]:
    """Return known labels that look wrong, least probable first: p of a present label, 1 − p of an absent one.

    Only labels with a probability below 0.5 or, where hardly any label is known to be absent, below that of
    `present_limits`. No class takes more than a quarter while other classes have labels.
    Images in the mask `trained_on` (N,) were scored by a model that learned these labels; the others have scores of
    `score_kind`. `why` of a question says which.
    """
    limits = np.full(len(table.classes), 0.5)
    if are_nearly_all_positive(table.value, math.prod(table.shape)):
        is_present = table.value > 0
        at, of_class = (part[is_present] for part in table.entries()[:2])
        limits = present_limits(of_class, np.asarray(scores[at, of_class]), len(table.classes))
    answered = np.array([i * len(table.classes) + c for i, c in skip], np.int64)
    parts = []
    for index in image_blocks(len(table), 1):
        known = slice(table.start[index[0]], table.start[index[-1] + 1])
        image = np.repeat(index, np.diff(table.start[index[0] : index[-1] + 2]))
        column, value = table.column[known].astype(np.int64), table.value[known]
        score = np.asarray(scores[image, column])
        with np.errstate(invalid="ignore"):
            probability = np.where(value > 0, score, 1 - score)
            is_doubtful = probability < np.where(value > 0, limits[column], 0.5)
            is_doubtful &= ~np.isin(image * len(table.classes) + column, answered)
        parts.append(tuple(part[is_doubtful] for part in (image, column, value, probability, score)))
    image, column, value, probability, score = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((column, image, probability))
    asked: Counter[int] = Counter()
    per_class: Counter[int] = Counter()
    quota = max(2, count // 4)
    first: list[int] = []
    rest: list[int] = []
    for k in order:
        if len(first) == count:
            break
        i, c = int(image[k]), int(column[k])
        if asked[i] < per_image:
            asked[i] += 1
            per_class[c] += 1
            (first if per_class[c] <= quota else rest).append(int(k))
    questions = []
    for k in sorted((first + rest)[:count], key=lambda k: float(probability[k])):
        was_trained_on = trained_on is not None and bool(trained_on[image[k]])
        label = "labelled present" if value[k] > 0 else "labelled absent"
        why = f"{label}; {'score of a label trained on' if was_trained_on else score_kind}"
        questions.append(Question(int(image[k]), int(column[k]), float(score[k]), why))
    return questions
