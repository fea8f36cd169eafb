"""Which of several methods `--method auto` takes, or the average of which: by out-of-fold scores on known labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from halflabel.evaluation.ranking import mean_known, ranking_quality_of_classes

_ERRORS = 2.0  # standard errors by which another choice must be better than the average of all


class Measured(NamedTuple):
    """The out-of-fold quality of a method, or of the average of some."""

    members: tuple[int, ...]  # numbers of the methods
    quality: float
    gain: float  # mean over classes of the difference to the average of all
    error: float  # its standard error
    seconds: float = 0.0  # of a method alone

    @property
    def is_better(self) -> bool:
        return self.gain > _ERRORS * self.error


def choose_members(
    scored: Sequence[tuple[Tensor, Tensor]], seconds: Sequence[float] = ()
) -> tuple[tuple[int, ...], list[Measured]]:
    """Return the numbers of the methods to average, one or several, and what was measured.

    `scored` holds logits (N, C) and labels of each method, which took so many `seconds`. The average of all is taken,
    unless another choice is better by 2 standard errors, from the differences of the classes: few labels tell methods
    apart badly.
    """
    logits, numbers = [pair[0] for pair in scored], range(len(scored))
    of_all = ranking_quality_of_classes(_mean(logits, numbers), scored[0][1])
    measured = []
    for size in numbers:
        for members in itertools.combinations(numbers, size + 1):
            of_classes = ranking_quality_of_classes(_mean(logits, members), scored[0][1])
            gains = (of_classes - of_all)[~torch.isnan(of_classes)]
            error = float(gains.std()) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
            gain = float(gains.mean()) if len(gains) else 0.0
            took = seconds[members[0]] if seconds and not size else 0.0
            measured.append(Measured(members, mean_known(of_classes), gain, error, took))
    better = [each for each in measured if each.is_better]
    return max(better, key=lambda each: each.quality, default=measured[-1]).members, measured


def measured_lines(measured: Sequence[Measured], names: Sequence[str], taken: Sequence[int]) -> list[str]:
    """Return one line for each method alone, for the average of all and for what was taken."""
    if all(math.isnan(each.quality) for each in measured):
        return ["  no class has labels present and absent, which it takes to measure: the average of all is taken"]
    lines = []
    for each in measured:
        is_taken = each.members == tuple(taken)
        if len(each.members) > 1 and each != measured[-1] and not is_taken:
            continue
        name = names[each.members[0]] if len(each.members) == 1 else "average of all"
        if 1 < len(each.members) < len(names):
            name = "average of " + " and ".join(names[member] for member in each.members)
        difference = "" if each == measured[-1] else f", {100 * each.gain:+.1f} ± {200 * each.error:.1f} against all"
        took = f", {each.seconds:.1f} s" if each.seconds else ""
        lines.append(f"{'→' if is_taken else ' '} {name}: {100 * each.quality:.1f}{difference}{took}")
    return lines


def _mean(logits: Sequence[Tensor], members: Sequence[int]) -> Tensor:
    return torch.stack([logits[member] for member in members]).mean(0)
