"""People's answers about the entries of a table: which hold, who is still to be asked, and estimates from controls."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from halflabel.evaluation.inclusion import share_interval
from halflabel.labels.answers import (
    SETTLED,
    Answer,
    AnswerStore,
    expected_errors,
    group_by_entry,
    holding_answer,
    is_conflict,
    measure_agreement,
)
from halflabel.labels.table import Table


class TeamAnswers:
    """Follows a store of answers, also those that other processes write; an entry has the number image · C + class.

    The share `twice` of all entries, drawn at random, is asked to two people.
    """

    def __init__(self, store: AnswerStore, table: Table, project: str, twice: float) -> None:
        self.store, self.project, self.twice = store, project, twice
        self._image = {name: i for i, name in enumerate(table.images)}
        self._column = {name: c for c, name in enumerate(table.classes)}
        self.given: dict[int, list[Answer]] = {}  # by all people
        self.holding: dict[int, Answer] = {}
        self.waiting: dict[int, Answer] = {}  # answered by one person, to be asked to a second one
        self.errors: dict[str, float] = {}  # expected error of each person
        self.shared_changes = 0  # counts changes of entries that several people answered
        self._seen = (0, 0)  # how far the store was read
        self.reload_if_changed()

    def wants_answer(self, e: int) -> bool:
        """Whether nobody has answered, or only one person and the question is for two."""
        return e in self.waiting or e not in self.given

    def is_open(self, e: int, who: str) -> bool:
        """Whether a person is to be asked."""
        return self.waiting[e].who != who if e in self.waiting else e not in self.given

    def _is_for_two(self, e: int) -> bool:
        drawn = hashlib.blake2b(f"{self.project}-{e}".encode(), digest_size=4).digest()
        return int.from_bytes(drawn, "big") < self.twice * 2**32

    def visible(self, e: int, who: str) -> Answer | None:
        """Return a person's own answer, or else the one that holds, unless the person is still to be asked."""
        given = self.given.get(e)
        if given is None or self.is_open(e, who):
            return None
        of_person = [item for item in given if item.who == who and item.why != SETTLED] if len(given) > 1 else []
        return of_person[0] if of_person else self.holding[e]

    def votes(self, e: int) -> list[Answer]:
        """Return the answers about an entry, without the one that settled a conflict."""
        return [item for item in self.given.get(e, ()) if item.why != SETTLED]

    def conflicts(self) -> list[int]:
        """Return the entries that people differ about, oldest first."""
        return [e for e, given in self.given.items() if len(given) > 1 and is_conflict(given)]

    def agreement(self) -> dict[str, Any]:
        """Return how people agree, for all classes and for each, their expected errors, and the number of conflicts."""
        self.weigh()
        agreement = measure_agreement(self.given.values())
        people = Counter(item.who for e in self.given for item in self.votes(e)).most_common()
        return {
            "all": agreement[""]._asdict() if agreement else None,
            "classes": [{"name": c, **agreement[c]._asdict()} for c in self._column if c in agreement],
            "people": [{"name": who, "answers": count, "error": self.errors.get(who)} for who, count in people],
            "conflicts": len(self.conflicts()),
        }

    def reload_if_changed(self) -> None:
        """Read what was written since, by this process or another."""
        is_first = self._seen == (0, 0)
        changed, self._seen = self.store.changed_since(self._seen)
        groups = group_by_entry(self.store.current()) if is_first else {it: self.store.current(it) for it in changed}
        for (image, label), given in groups.items():
            if image not in self._image or label not in self._column:
                continue
            e = self._image[image] * len(self._column) + self._column[label]
            self.shared_changes += max(len(given), len(self.given.get(e, ()))) > 1
            self.waiting.pop(e, None)
            if given:
                self.given[e], self.holding[e] = given, holding_answer(given, self.errors)
            else:
                self.given.pop(e, None)
                self.holding.pop(e, None)
            if len(given) == 1 and self._is_for_two(e):
                self.waiting[e] = given[0]

    def weigh(self) -> None:
        """Estimate each person's error again; where people differ, another answer may then hold."""
        shared = [e for e, given in self.given.items() if len(given) > 1]
        self.errors = expected_errors(self.given[e] for e in shared)
        self.holding |= {e: holding_answer(self.given[e], self.errors) for e in shared}


def estimate_share(asked: Mapping[int, float], answers: Mapping[int, Answer], run: str) -> dict[str, Any]:
    """Estimate the share of present entries from random answers of a run, with its 95 % interval; null without any.

    The inclusion weights of the random questions and the answers are given by the numbers of their entries.
    """
    answered = {e: answers[e] for e in asked if e in answers}
    counted = {e: item.value > 0 for e, item in answered.items() if item.value and item.weight and item.run == run}
    estimate: dict[str, Any] = {"part": sum(counted.values()), "total": len(counted), "asked": len(asked)}
    estimate |= {"share": None, "low": None, "high": None}
    if counted:
        interval = share_interval(np.array([asked[e] for e in counted]), np.array(list(counted.values())))
        estimate |= zip(("share", "low", "high"), interval, strict=True)
    return estimate | {"unsure": sum(not item.value for item in answered.values())}
