"""The grid of an experiment: candidates × label masks × seeds, the search for settings, and the order of the tasks."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, cast

from halflabel.comparison.label_mask import LabelMask
from halflabel.errors import UserError
from halflabel.fitting.auto import Choice
from halflabel.labels import drop
from halflabel.labels.uncertain import parse_uncertain
from halflabel.methods.base import recipe

Options = tuple[tuple[str, Any], ...]
Search = Literal["small", "none"]

BASE = "bce"  # the method that systems in batches begin with
NAIVE = "an"  # the method that takes every unknown label as absent
_RATE_STEP = 3.0  # between learning rates that are tried
_FURTHEST = 100.0  # times the learning rate of the method, or a fraction of it: rates beyond are not tried


@dataclass(frozen=True)
class Candidate:
    """A method with options, written as "em" or "em:alpha=0.05:…"."""

    name: str
    method: str
    options: Options
    lr: float  # 0 in a linear fit, which has none
    weight_decay: float
    fit: Literal["linear", "batches"] = "batches"
    # Of a row that is compared with the given methods: unknown is absent; all labels known; the base of systems.
    role: Literal["", "naive", "oracle", "base"] = ""
    uncertain: str = ""  # how it trains on uncertain labels, if not as the others

    @classmethod
    def parse(cls, text: str, *, lr: float | None = None) -> Candidate:
        """
        >>> Candidate.parse("em:alpha=0.05").options
        (('alpha', 0.05),)
        """
        name, texts = drop.split_options(text)
        method = recipe(name)
        uncertain = texts.pop("uncertain", "")
        if uncertain:
            parse_uncertain(uncertain)
        options = method.parse(texts)
        method.make(**options)  # raises an error for values that the method does not take
        lr = method.lr if lr is None else lr
        return cls(text.strip(), name, _options(options), lr, method.weight_decay, uncertain=uncertain)

    @classmethod
    def of_choice(cls, choice: Choice, *, lr: float | None = None) -> Candidate:
        """Return the method of a rule of `auto`; epochs and similar settings are the same for all methods."""
        options = "".join(f":{option}={value}" for option, value in choice.options.items())
        return cls.parse(choice.method + options, lr=choice.config.get("lr") if lr is None else lr)

    def trials(self) -> tuple[str, tuple[Any, ...]]:
        """Return the main hyper-parameter and other values to try; none if it was given, or has no effect."""
        return ("", ()) if self.role else _trials(self.method, self.options)

    @property
    def searches_rates(self) -> bool:
        """Whether other learning rates are tried."""
        return self.fit == "batches" and self.role in ("", "base")


@dataclass(frozen=True)
class Task:
    """One training run: a candidate with a label mask, a seed and settings."""

    candidate: Candidate
    label_mask: LabelMask
    seed: int
    lr: float
    options: Options

    @property
    def pair(self) -> tuple[Candidate, LabelMask]:
        return self.candidate, self.label_mask

    @property
    def key(self) -> str:
        """A readable and unique file name."""
        candidate, label_mask = self.candidate, self.label_mask
        content = [candidate.method, label_mask.protocol, label_mask.options, self.seed, self.lr, self.options]
        content += [candidate.weight_decay, *([candidate.uncertain] if candidate.uncertain else [])]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]
        words = re.sub(r"[^A-Za-z0-9.+=-]+", "_", f"{self.candidate.method}-{self.label_mask.name}-seed{self.seed}")
        return f"{words[:80]}-{digest}"

    def describe(self) -> str:
        parts = [self.candidate.name, f"labels {self.label_mask.name}", f"seed {self.seed}"]
        parts += [f"lr {self.lr:.2g}"] if self.candidate.fit == "batches" else []
        parts += [f"{name} {value}" for name, value in self.options if name not in dict(self.candidate.options)]
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """The result of a task besides its test scores; `error` is the reason if it failed."""

    select: float = math.nan  # the validation metric of the best epoch, or that of the out-of-fold scores
    measure: str = ""  # "mAP", or "assumed_mAP" if unknown labels count as absent
    best_epoch: int = 0  # 0 in a linear fit
    known: float = math.nan  # the share of the training entries that are known
    seconds: float = 0.0  # of all epochs, validation included
    wall: float = 0.0  # with everything before and after the epochs
    log: tuple[Mapping[str, Any], ...] = ()
    strength: float = math.nan  # of a linear fit, chosen by out-of-fold scores
    decisions: Mapping[str, Any] = field(default_factory=dict)  # calibration and thresholds of the run
    error: str = ""

    @property
    def rank(self) -> float:
        """The value to select settings by; failed runs and runs without validation come last."""
        return -math.inf if self.error or math.isnan(self.select) else self.select


Results = Mapping[Task, Outcome]


@dataclass(frozen=True)
class Grid:
    """All tasks of an experiment; none of `unfit` pairs, and `references` with default settings."""

    candidates: tuple[Candidate, ...]
    label_masks: tuple[LabelMask, ...]
    seeds: int
    search: Search = "small"
    unfit: frozenset[tuple[Candidate, LabelMask]] = frozenset()
    references: tuple[tuple[Candidate, LabelMask], ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"{self.seeds} seeds give no result", "use 1 or more")

    @property
    def pairs(self) -> list[tuple[Candidate, LabelMask]]:
        pairs = [(c, h) for h in self.label_masks for c in self.candidates if (c, h) not in self.unfit]
        return [*pairs, *self.references]

    def runs(self, candidate: Candidate) -> int:
        """Return the number of tasks of a candidate per label mask; more where the best rate is found at an end."""
        searched = 2 * candidate.searches_rates + len(candidate.trials()[1])
        return self.seeds + (searched if self.search == "small" else 0)

    @property
    def total(self) -> int:
        return sum(self.runs(candidate) for candidate, _ in self.pairs)

    def tasks(self, outcomes: Results) -> Iterator[Task]:
        """Yield the tasks in order; `outcomes` must have the outcome of each before the next one is requested.

        In rounds over all pairs: every candidate with its default settings and seed 0; then the search, learning rates
        first; then the selected settings with seed 1, and so on.
        """
        offered: set[Task] = set()
        while True:
            rated = (self._rated(*pair, outcomes) for pair in self.pairs)
            waiting = [next((task for task in tasks if task not in offered), None) for tasks in rated]
            offered.update(firsts := [task for task in waiting if task is not None])
            if not firsts:
                break
            yield from firsts
        if self.search == "small":
            most = max((len(candidate.trials()[1]) for candidate, _ in self.pairs), default=0)
            for number in range(most):
                for pair in self.pairs:
                    yield from self._option_tasks(*pair, outcomes)[number : number + 1]
        for seed in range(1, self.seeds):
            for pair in self.pairs:
                yield replace(self.chosen(*pair, outcomes), seed=seed)

    def tried(self, candidate: Candidate, label_mask: LabelMask, outcomes: Results) -> list[Task]:
        """Return the tasks of the search of a pair that were run, in order."""
        tasks = [self._default(candidate, label_mask)]
        if self.search == "small":
            tasks = [
                *self._rated(candidate, label_mask, outcomes),
                *self._option_tasks(candidate, label_mask, outcomes),
            ]
        return [task for task in tasks if task in outcomes]

    def chosen(self, candidate: Candidate, label_mask: LabelMask, outcomes: Results) -> Task:
        """Return the task of seed 0 with the best validation metric; of equal ones the first."""
        return _best(self.tried(candidate, label_mask, outcomes), outcomes) or self._default(candidate, label_mask)

    def finished(self, candidate: Candidate, label_mask: LabelMask, outcomes: Results) -> dict[int, Task]:
        """Return the finished task of each seed with the chosen settings, without those that failed."""
        chosen = self.chosen(candidate, label_mask, outcomes)
        tasks = {seed: replace(chosen, seed=seed) for seed in range(self.seeds)}
        return {seed: task for seed, task in tasks.items() if task in outcomes and not outcomes[task].error}

    def _default(self, candidate: Candidate, label_mask: LabelMask) -> Task:
        return Task(candidate, label_mask, 0, candidate.lr, candidate.options)

    def _rated(self, candidate: Candidate, label_mask: LabelMask, outcomes: Results) -> list[Task]:
        """Return the default task, and those with other learning rates: further ones while the best is at an end."""
        first = self._default(candidate, label_mask)
        if self.search == "none" or not candidate.searches_rates:
            return [first]
        tasks = [first, replace(first, lr=first.lr / _RATE_STEP), replace(first, lr=first.lr * _RATE_STEP)]
        while all(task in outcomes for task in tasks):
            rates, best = [task.lr for task in tasks], cast(Task, _best(tasks, outcomes)).lr
            further = {min(rates): best / _RATE_STEP, max(rates): best * _RATE_STEP}.get(best)
            if further is None or not 1 / _FURTHEST < further / first.lr < _FURTHEST:
                break
            tasks.append(replace(first, lr=further))
        return tasks

    def _option_tasks(self, candidate: Candidate, label_mask: LabelMask, outcomes: Results) -> list[Task]:
        """Return tasks with other values of the main hyper-parameter at the best learning rate."""
        rated = self._rated(candidate, label_mask, outcomes)
        best = _best([task for task in rated if task in outcomes], outcomes) or rated[0]
        name, values = candidate.trials()
        return [replace(best, options=_options({**dict(best.options), name: value})) for value in values]


@cache
def _trials(method: str, options: Options) -> tuple[str, tuple[Any, ...]]:
    method_recipe = recipe(method)
    for name, values in method_recipe.tunes(dict(options)).items():
        if name not in dict(options):
            default = method_recipe.options[name].default
            return name, tuple(value for value in values if value != default)
    return "", ()


def _best(tasks: Sequence[Task], outcomes: Results) -> Task | None:
    return max(tasks, key=lambda task: outcomes[task].rank, default=None)


def parse_budget(text: str) -> float:
    """Return the seconds of "90s", "30m", "2h" or "1h30m".

    >>> parse_budget("1h30m")
    5400.0
    """
    number = r"(\d*\.?\d+)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    parts = [float(part or 0) for part in match.groups()] if match else [0.0] * 3
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=True))
    if seconds <= 0:
        raise UserError(f"{text!r} is not a duration", "write a budget such as 90s, 30m, 2h or 1h30m")
    return seconds


def deadline_of(budget: float | str | None) -> float | None:
    """Return when a budget, in seconds or as text, ends, by `time.monotonic`; None without a budget."""
    seconds = parse_budget(budget) if isinstance(budget, str) else budget
    return None if seconds is None else time.monotonic() + seconds


def _options(values: Mapping[str, Any]) -> Options:
    return tuple(sorted(values.items()))
