"""What is compared: candidates × label masks × seeds, the search for settings, and the order in which tasks are run."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe

__all__ = ["Candidate", "Grid", "LabelMask", "Options", "Outcome", "Results", "Search", "Task", "parse_budget"]

Options = tuple[tuple[str, Any], ...]
Search = Literal["small", "none"]

_RATES = (1 / 3, 3.0)  # tried besides the method's own learning rate


@dataclass(frozen=True)
class Candidate:
    """A method with options of its own, as written: "em" or "em:alpha=0.05:…"."""

    name: str
    method: str
    options: Options
    lr: float
    weight_decay: float

    @classmethod
    def parse(cls, text: str, *, lr: float | None = None) -> Candidate:
        """
        >>> Candidate.parse("em:alpha=0.05").options
        (('alpha', 0.05),)
        """
        name, given = _parse(text)
        how = recipe(name)
        options = how.parse(given)
        how.make(**options)  # values that the method refuses are refused now
        return cls(text.strip(), name, _options(options), how.lr if lr is None else lr, how.weight_decay)

    def trials(self) -> tuple[str, tuple[Any, ...]]:
        """The key hyper-parameter and the values to try besides its present one; none if it was given, or is idle."""
        return _trials(self.method, self.options)


@dataclass(frozen=True)
class LabelMask:
    """A way of hiding labels from training: a protocol of `halflabel.labels.drop` and its options; "" hides nothing."""

    protocol: str = ""
    options: Options = ()

    @classmethod
    def share(cls, share: float) -> LabelMask:
        """Keep a share of every image's labels; 1 keeps all."""
        if not 0 < share <= 1:
            raise UserError(f"the share {share:g} is not in (0, 1]", "give shares such as 0.1,0.3,1")
        return cls("partial", (("share", float(share)),)) if share < 1 else cls()

    @classmethod
    def parse(cls, text: str) -> LabelMask:
        """
        >>> LabelMask.parse("per-class:positives=20:negatives=30").options
        (('negatives', 30), ('positives', 20))
        """
        name, given = _parse(text)
        if name not in drop.PROTOCOLS:
            raise UserError(f"no protocol is called {name!r}", f"use one of: {', '.join(drop.PROTOCOLS)}")
        takes = inspect.signature(drop.PROTOCOLS[name], eval_str=True).parameters
        options = _options({key: _typed(text, key, value, takes) for key, value in given.items()})
        needed = [key for key in takes if key in drop.EXAMPLES and takes[key].default is inspect.Parameter.empty]
        if missing := [key for key in needed if key not in given]:
            example = ":".join([text, *(f"{key}={drop.EXAMPLES[key]}" for key in missing)])
            raise UserError(f"{name} needs {' and '.join(missing)}", f"say how much, such as {example}")
        return cls(name, options)

    @property
    def name(self) -> str:
        """
        >>> LabelMask().name, LabelMask.share(0.1).name, LabelMask.parse("positives:number=2").name
        ('all', '10 %', 'positives:number=2')
        """
        if not self.protocol:
            return "all"
        if self.protocol == "partial" and len(self.options) == 1:
            return f"{100 * self.kept:g} %"
        return ":".join([self.protocol, *(f"{name}={value}" for name, value in self.options)])

    @property
    def kept(self) -> float:
        """The share of each image's labels that is kept, where that is how labels are hidden; else NaN."""
        if not self.protocol:
            return 1.0
        return float(dict(self.options)["share"]) if self.protocol == "partial" else math.nan

    def apply(self, table: LabelTable, seed: int) -> LabelTable:
        return drop.apply(self.protocol, table, seed=seed, **dict(self.options)) if self.protocol else table


@dataclass(frozen=True)
class Task:
    """One training run: a candidate on the labels that a label mask leaves, with one seed and one setting."""

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
        """A file name that people can read, and that no other task has."""
        content = [
            self.candidate.method,
            self.label_mask.protocol,
            self.label_mask.options,
            self.seed,
            self.lr,
            self.options,
        ]
        content.append(self.candidate.weight_decay)
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]
        words = re.sub(r"[^A-Za-z0-9.+=-]+", "_", f"{self.candidate.method}-{self.label_mask.name}-seed{self.seed}")
        return f"{words[:80]}-{digest}"

    def describe(self) -> str:
        parts = [self.candidate.name, f"labels {self.label_mask.name}", f"seed {self.seed}", f"lr {self.lr:.2g}"]
        given = dict(self.candidate.options)
        parts += [f"{name} {value}" for name, value in self.options if name not in given]
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """What a finished task leaves behind besides its test scores; `error` says why it failed, if it did."""

    select: float = math.nan  # the validation measure of the best epoch
    measure: str = ""  # which one: "mAP", or "assumed_mAP" where unknown counts as absent
    best_epoch: int = 0
    known: float = math.nan  # the share of the training entries that are known
    seconds: float = 0.0  # of all epochs, validation included
    wall: float = 0.0  # with all that comes before and after them
    memory: int | None = None  # bytes
    memory_kind: str = ""
    log: tuple[Mapping[str, Any], ...] = ()
    error: str = ""

    @property
    def rank(self) -> float:
        """What settings are chosen by: a run that failed, or that could not be judged, comes last."""
        return -math.inf if self.error or math.isnan(self.select) else self.select


Results = Mapping[Task, Outcome]


@dataclass(frozen=True)
class Grid:
    """All tasks of a comparison; `unfit` pairs, whose method cannot learn from such labels, have none."""

    candidates: tuple[Candidate, ...]
    label_masks: tuple[LabelMask, ...]
    seeds: int
    search: Search = "small"
    unfit: frozenset[tuple[Candidate, LabelMask]] = frozenset()

    @property
    def pairs(self) -> list[tuple[Candidate, LabelMask]]:
        return [(c, h) for h in self.label_masks for c in self.candidates if (c, h) not in self.unfit]

    def runs(self, candidate: Candidate) -> int:
        """How many tasks a candidate has per label mask."""
        return self.seeds + (len(_RATES) + len(candidate.trials()[1]) if self.search == "small" else 0)

    @property
    def total(self) -> int:
        return sum(self.runs(candidate) for candidate, _ in self.pairs)

    def tasks(self, found: Results) -> Iterator[Task]:
        """The tasks in turn. `found` has to hold the outcome of each before the next is asked for.

        Round by round over all pairs: first every candidate with its own settings and seed 0; then the search, other
        learning rates and, at the best of them, other values of the key hyper-parameter; then the chosen settings
        with seed 1, and so on. Nobody gets a second seed before everyone has had a first.
        """
        for pair in self.pairs:
            yield self._default(*pair)
        if self.search == "small":
            for rate in _RATES:
                for pair in self.pairs:
                    first = self._default(*pair)
                    yield replace(first, lr=first.lr * rate)
            most = max((len(candidate.trials()[1]) for candidate, _ in self.pairs), default=0)
            for number in range(most):
                for pair in self.pairs:
                    yield from self._option_tasks(*pair, found)[number : number + 1]
        for seed in range(1, self.seeds):
            for pair in self.pairs:
                yield replace(self.chosen(*pair, found), seed=seed)

    def tried(self, candidate: Candidate, label_mask: LabelMask, found: Results) -> list[Task]:
        """The tasks of a pair's search that were run, in their order."""
        first = self._default(candidate, label_mask)
        tasks = [first]
        if self.search == "small":
            tasks += [replace(first, lr=first.lr * rate) for rate in _RATES]
            tasks += self._option_tasks(candidate, label_mask, found)
        return [task for task in tasks if task in found]

    def chosen(self, candidate: Candidate, label_mask: LabelMask, found: Results) -> Task:
        """The task of seed 0 with the settings that did best on validation; of equal ones the first."""
        return _best(self.tried(candidate, label_mask, found), found) or self._default(candidate, label_mask)

    def cell(self, candidate: Candidate, label_mask: LabelMask, seed: int, found: Results) -> Task:
        """The task that stands for a candidate, a label mask and a seed in the table."""
        return replace(self.chosen(candidate, label_mask, found), seed=seed)

    def _default(self, candidate: Candidate, label_mask: LabelMask) -> Task:
        return Task(candidate, label_mask, 0, candidate.lr, candidate.options)

    def _option_tasks(self, candidate: Candidate, label_mask: LabelMask, found: Results) -> list[Task]:
        """Other values of the key hyper-parameter at the best learning rate."""
        first = self._default(candidate, label_mask)
        rated = [first, *(replace(first, lr=first.lr * rate) for rate in _RATES)]
        at = _best([task for task in rated if task in found], found) or first
        name, values = candidate.trials()
        return [replace(at, options=_options({**dict(at.options), name: value})) for value in values]


@cache
def _trials(method: str, given: Options) -> tuple[str, tuple[Any, ...]]:
    how = recipe(method)
    for name, values in how.tunes(dict(given)).items():
        if name not in dict(given):
            default = how.options[name].default
            return name, tuple(value for value in values if value != default)
    return "", ()


def _best(tasks: Sequence[Task], found: Results) -> Task | None:
    return max(tasks, key=lambda task: found[task].rank, default=None)


def parse_budget(text: str) -> float:
    """Seconds from "90s", "30m", "2h" or "1h30m".

    >>> parse_budget("1h30m")
    5400.0
    """
    found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text.strip().lower())
    try:
        assert found is not None
        parts = [float(part) if part else 0.0 for part in found.groups()]
    except (AssertionError, ValueError):
        parts = [0.0]
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise UserError(f"{text!r} is no length of time", "write a budget such as 90s, 30m, 2h or 1h30m")
    return float(seconds)


def _parse(text: str) -> tuple[str, dict[str, str]]:
    """The parts of "name:key=value:key=value"."""
    name, *pairs = text.strip().split(":")
    given = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair!r} in {text!r} is no option", "write NAME:option=value, such as em:alpha=0.05")
        given[key.strip().replace("-", "_")] = value.strip()
    return name, given


def _typed(text: str, key: str, value: str, takes: Mapping[str, inspect.Parameter]) -> Any:
    """A protocol's option, as the type its signature names."""
    if key not in takes or key in ("table", "seed"):
        own = [name for name in takes if name not in ("table", "seed")]
        raise UserError(f"{text.split(':')[0]} takes no {key}", f"it takes: {', '.join(own) or 'no options'}")
    kind = str(takes[key].annotation)
    try:
        if "bool" in kind:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        return int(value) if "int" in kind else float(value)
    except (KeyError, ValueError):
        raise UserError(f"{value!r} is no value for {key} in {text!r}", "give a number, or true or false") from None


def _options(given: Mapping[str, Any]) -> Options:
    return tuple(sorted(given.items()))
