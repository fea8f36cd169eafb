"""Several reviewers: which answer holds, how often two agree, and how often each is expected to be wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from halflabel.labels.answers import Answer


SETTLED = "settled"  # why of an answer that ends a conflict
_ERROR = 0.05  # of a reviewer before any question was answered twice
_PRIOR = 10.0  # answers that the mean error of all reviewers counts for
_ROUNDS = 20

Group = Sequence["Answer"]  # the answers of all people about one entry


class Agreement(NamedTuple):
    """How two people agree: pairs of answers, equal pairs, and Cohen's κ (None if all answers are the same)."""

    pairs: int
    equal: int
    kappa: float | None


def group_by_entry(answers: Iterable[Answer]) -> dict[tuple[str, str], list[Answer]]:
    """Return the answers about each (image, class), in their order."""
    groups: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for item in answers:
        groups[item.image, item.label].append(item)
    return dict(groups)


def _votes(group: Group) -> list[Answer]:
    """Return the yes and no answers, without the one that settled a conflict."""
    return [item for item in group if item.value and item.why != SETTLED]


def _settled(group: Group) -> Answer | None:
    return next((item for item in reversed(group) if item.why == SETTLED), None)


def is_conflict(group: Group) -> bool:
    """Whether people differ about an entry and nobody has settled it."""
    return len({item.value for item in _votes(group)}) > 1 and _settled(group) is None


def expected_errors(groups: Iterable[Group]) -> dict[str, float]:
    """Return the expected share of wrong answers of each reviewer, from the questions that several people answered.

    The model of Dawid and Skene (1979) with one error per person: where no answer settles what is right, a difference
    counts for each person by how likely it is that this person is wrong. The mean of all counts as 10 more answers.
    """
    several = [(votes, _settled(group)) for group in groups if len(votes := _votes(group)) > 1]
    counts: dict[str, int] = defaultdict(int)
    for votes, _ in several:
        for item in votes:
            counts[item.who] += 1
    errors = dict.fromkeys(counts, _ERROR)
    for _ in range(_ROUNDS if several else 0):
        wrong = dict.fromkeys(counts, 0.0)
        for votes, settled in several:
            evidence = sum(item.value * _weight(errors[item.who]) for item in votes)
            for item in votes:
                if settled is None:
                    wrong[item.who] += 1 / (1 + math.exp(item.value * evidence))
                else:
                    wrong[item.who] += settled.value not in (0, item.value)
        mean = (sum(wrong.values()) + _PRIOR * _ERROR) / (sum(counts.values()) + _PRIOR)
        errors = {who: (wrong[who] + _PRIOR * mean) / (count + _PRIOR) for who, count in counts.items()}
    return errors


def _weight(error: float) -> float:
    """Return the log odds that an answer is right."""
    error = min(max(error, 1e-3), 0.45)
    return math.log((1 - error) / error)


def holding_answer(group: Group, errors: Mapping[str, float]) -> Answer:
    """Return the answer that holds for an entry; unsure (0) where people differ and are equally reliable.

    The settled answer holds; else the one that more reliable people gave. If one of the answers was to a control
    question, the entry was drawn at random: the result is a control answer too.
    """
    votes = _votes(group)
    held = _settled(group)
    if held is None and votes:
        evidence = sum(item.value * _weight(errors.get(item.who, _ERROR)) for item in votes)
        value = 0 if abs(evidence) < 1e-9 else int(math.copysign(1, evidence))
        best = min(votes, key=lambda item: (item.value != value, errors.get(item.who, _ERROR)))
        held = best._replace(value=value)
    held = held or group[-1]
    return held._replace(weight=next((item.weight for item in group if item.weight), 0.0))


def holding_answers(answers: Iterable[Answer]) -> list[Answer]:
    """Return the answer that holds for each entry."""
    groups = group_by_entry(answers).values()
    errors = expected_errors(groups)
    return [holding_answer(group, errors) for group in groups]


def measure_agreement(groups: Iterable[Group]) -> dict[str, Agreement]:
    """Return the agreement of all classes together, under "", and of each class that two people answered."""
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for group in groups:
        for first, second in combinations(sorted(_votes(group), key=lambda item: item.who), 2):
            pairs[""].append((first.value, second.value))
            pairs[first.label].append((first.value, second.value))
    return {label: _agreement(values) for label, values in pairs.items()}


def _agreement(pairs: Sequence[tuple[int, int]]) -> Agreement:
    """κ = (p − e) / (1 − e): p of the pairs are equal, and e would be if both answered at random as often yes."""
    number = len(pairs)
    equal = sum(first == second for first, second in pairs)
    p, q = (sum(pair[k] > 0 for pair in pairs) / number for k in (0, 1))
    chance = p * q + (1 - p) * (1 - q)
    return Agreement(number, equal, None if chance == 1 else (equal / number - chance) / (1 - chance))
