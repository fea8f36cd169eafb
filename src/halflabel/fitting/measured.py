"""Which of several methods `--method auto` takes, or the average of which: by out-of-fold scores on known labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from halflabel.evaluation.ranking import mean_known, ranking_quality_of_classes


class Measured(dict[tuple[int, ...], tuple[float, float]]):
    """Mean quality, and its difference to the first average in standard errors, by the numbers of the methods."""


_MOST = 3  # methods of an average
_ERRORS = 2.0  # standard errors by which another choice must be better than the first two methods together


def choose_members(scored: Sequence[tuple[Tensor, Tensor] | None]) -> tuple[tuple[int, ...], Measured]:
    """Return the numbers of the methods to average, one or several, and what was measured.

    `scored` holds logits (N, C) and labels of each method, the one that is best elsewhere first. The average of the
    first two is taken, unless another choice is better by 2 standard errors, from the differences of the classes: few
    labels tell methods apart badly.
    """
    logits = [pair[0] for pair in scored if pair is not None]
    assert len(logits) == len(scored)
    assert scored[0] is not None
    labels, numbers = scored[0][1], range(len(logits))
    choices = [each for size in range(1, _MOST + 1) for each in itertools.combinations(numbers, size)]
    of_classes = {each: ranking_quality_of_classes(_mean(logits, each), labels) for each in choices}
    first = tuple(numbers[:2])
    differences = {each: _standard_errors(quality - of_classes[first]) for each, quality in of_classes.items()}
    measured = Measured({each: (mean_known(of_classes[each]), differences[each]) for each in choices})
    better = [each for each in choices if measured[each][1] > _ERRORS]
    return max(better, key=lambda each: measured[each][0], default=first), measured


def _mean(logits: Sequence[Tensor], members: Sequence[int]) -> Tensor:
    return torch.stack([logits[member] for member in members]).mean(0)


def _standard_errors(differences: Tensor) -> float:
    """Return the mean difference of the classes in standard errors; 0 where too few classes have one."""
    known = differences[~torch.isnan(differences)]
    error = float(known.std()) / math.sqrt(len(known)) if len(known) > 1 else math.inf
    return float(known.mean()) / error if error > 0 and len(known) > 1 else 0.0
