"""The desk: which question goes to which page, what has been answered, and what the answers say of the model."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from halflabel.metrics.calibration import PositiveUnlabelled, has_enough_negatives
from halflabel.metrics.intervals import wilson
from halflabel.review.answers import Answer, Answers, Standing
from halflabel.review.questions import CONTROL_ABSENT, CONTROL_PRESENT, Question, doubtful, likely
from halflabel.review.scores import Scored

__all__ = ["Desk", "Share"]

LEASE = 90.0  # seconds that a question stays with the page that shows it
_GALLERY = 240  # entries a gallery can show
_STATES = {1: "present", -1: "absent", 0: "unsure"}


class Share(NamedTuple):
    """k of n, with its 95 % interval; NaN where n is 0."""

    part: int
    whole: int
    low: float
    high: float

    @classmethod
    def of(cls, part: int, whole: int) -> Share:
        """With its Wilson interval."""
        return cls(part, whole, *map(float, wilson(part, whole)))

    def as_dict(self) -> dict[str, Any]:
        known = self.whole > 0
        share = self.part / self.whole if known else None
        interval = (self.low, self.high) if known else (None, None)
        return {"part": self.part, "of": self.whole, "share": share, "low": interval[0], "high": interval[1]}


class Desk:
    """Hands out questions and takes answers; safe to call from several threads.

    Entries are numbered image · C + class; images go by a name that means nothing outside this desk. Questions drawn as
    control are asked first, in their random order, and only where no filter is on: so at any moment those answered are
    a random sample, and what they say of the model is unbiased.
    """

    def __init__(
        self,
        scored: Scored,
        questions: Sequence[Question],
        answers: Answers,
        *,
        who: str,
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scored, self.answers, self.who, self.run = scored, answers, who, run
        self.classes = list(scored.table.classes)
        self.images = list(scored.table.images)
        # Entry numbers mean nothing for other labels: a page must not send to these what it kept for those.
        self.project = f"{answers.project}-{scored.table.digest()[:12]}"
        self.fair = has_enough_negatives(scored.table.value)  # else chances are upper estimates
        self._clock = clock
        self._lock = threading.RLock()
        secret = secrets.token_bytes(16)
        self._public = [
            hashlib.blake2b(f"{i}".encode(), key=secret, digest_size=9).hexdigest() for i in range(len(self.images))
        ]
        self._number = {public: i for i, public in enumerate(self._public)}
        self.pool = {self._entry(q.image, q.column): q for q in questions}  # in the order given
        self._leases: dict[int, tuple[str, float]] = {}
        self._said: dict[int, Standing] = {}
        self._version = -1
        self._presence: PositiveUnlabelled | None = None
        self._refresh()

    def image(self, public: str) -> int | None:
        """The number of an image by its public name."""
        return self._number.get(public)

    def next(
        self,
        tab: str,
        count: int,
        *,
        label: str = "",
        state: str = "open",
        low: float = 0.0,
        high: float = 1.0,
        skip: Iterable[int] = (),
        one_class: bool = False,
    ) -> list[dict[str, Any]]:
        """Up to `count` questions for one page, and theirs for 90 s: no other page gets them meanwhile.

        With `one_class` all are of the class that has most, the likeliest first, and no control is among them.
        """
        filtered = bool(label) or low > 0 or high < 1 or one_class
        with self._lock:
            self._refresh()
            held = set(skip)
            free = [e for e in self.pool if e not in held and self._fits(e, tab, label, state, low, high, filtered)]
            if not filtered:
                free.sort(key=lambda e: not self.pool[e].is_control)  # stable: the order of the list within
            if one_class and free:
                # Of classes that have equally many the one that comes first in the list.
                column = Counter(e % len(self.classes) for e in free).most_common(1)[0][0]
                free = [e for e in free if e % len(self.classes) == column]
                free.sort(key=lambda e: -_number(self.pool[e].probability))
            chosen = free[:count]
            if state == "open":
                until = self._clock() + LEASE
                self._leases |= dict.fromkeys(chosen, (tab, until))
            return [self._show(e) for e in chosen]

    def _fits(self, e: int, tab: str, label: str, state: str, low: float, high: float, filtered: bool) -> bool:
        question, said = self.pool[e], self._said.get(e)
        if label and self.classes[question.column] != label:
            return False
        if (low > 0 or high < 1) and not low <= _number(question.probability) <= high:
            return False
        if state == "open":
            holder, until = self._leases.get(e, ("", 0.0))
            leased = holder not in ("", tab) and until > self._clock()
            return said is None and not leased and not (filtered and question.is_control)
        return said is not None and state in ("answered", _STATES[said.value])

    def hold(self, tab: str, entries: Iterable[int]) -> None:
        """Keep questions for a page that still shows them, unless another has them by now."""
        with self._lock:
            now = self._clock()
            for e in entries:
                holder, until = self._leases.get(e, ("", 0.0))
                if e in self.pool and e not in self._said and (holder in ("", tab) or until <= now):
                    self._leases[e] = tab, now + LEASE

    def release(self, tab: str, entries: Iterable[int]) -> None:
        """Give questions back that a page no longer shows."""
        with self._lock:
            for e in entries:
                if self._leases.get(e, ("", 0.0))[0] == tab:
                    del self._leases[e]

    def say(self, given: Sequence[tuple[str, int, int]]) -> None:
        """Write (key, entry, value) answers; returns when they are on the disk."""
        answers = []
        for key, e, value in given:
            image, column = self._split(e)
            asked = self.pool.get(e)
            score = float(self.scored.scores[image, column])
            answers.append(
                Answer(
                    key,
                    self.images[image],
                    self.classes[column],
                    value,
                    None if math.isnan(score) else score,
                    asked.why if asked is not None else "gallery",
                )
            )
        with self._lock:
            self.answers.say(answers, self.who, self.run)
            self._look_again(e for _, e, _ in given)

    def undo(self, keys: Sequence[str], tab: str = "") -> None:
        """Take answers back; what was said before holds, or the question is open again, and with the page that asks."""
        with self._lock:
            self.answers.undo(keys, self.who)
            changed = {e for e, said in self._said.items() if said.key in keys}
            self._look_again(changed)
            if tab:
                self.hold(tab, changed)

    def knows(self, e: int) -> bool:
        """Whether an entry has that number."""
        return 0 <= e < len(self.images) * len(self.classes)

    def progress(self) -> dict[str, Any]:
        """How far the list is, per class too, and what the control says of the model."""
        with self._lock:
            self._refresh()
            # What a filter by class shows: of the open questions none that is control.
            counts = {c: dict.fromkeys(("open", "present", "absent", "unsure"), 0) for c in range(len(self.classes))}
            asked = set()
            for e, question in self.pool.items():
                asked.add(question.column)
                if e in self._said:
                    counts[question.column][_STATES[self._said[e].value]] += 1
                elif not question.is_control:
                    counts[question.column]["open"] += 1
            values = [said.value for said in self._said.values()]
            return {
                "answered": sum(e in self._said for e in self.pool),
                "questions": len(self.pool),
                "said": {"present": values.count(1), "absent": values.count(-1), "unsure": values.count(0)},
                "classes": [{"name": name, **counts[c]} for c, name in enumerate(self.classes) if c in asked],
                "estimate": self._estimate(),
                "fair": self.fair,
            }

    def _estimate(self) -> dict[str, Any]:
        """Precision of "present", and the share missed among "absent", from control answers about this run's scores."""
        found = {}
        for name, why in (("precision", CONTROL_PRESENT), ("missed", CONTROL_ABSENT)):
            asked = [e for e, question in self.pool.items() if question.why == why]
            said = [self._said[e] for e in asked if e in self._said]
            counted = [item.value for item in said if item.value and item.why == why and item.run == self.run]
            share = Share.of(counted.count(1), len(counted)).as_dict()
            found[name] = share | {"asked": len(asked), "unsure": sum(not item.value for item in said)}
        return found

    def gallery(self, kind: str, label: str = "", start: int = 0, count: int = 24) -> dict[str, Any]:
        """Entries to look through: likely missing positives, or known labels that look wrong."""
        with self._lock:
            self._refresh()
            controls = {e for e, question in self.pool.items() if question.is_control}
            shut = [self._split(e) for e in (*self._said, *controls)]
            wanted = self.classes.index(label) if label in self.classes else None
            scored = self.scored
            if kind == "wrong":
                trained_on = ~scored.held_out
                found = doubtful(scored.scores, scored.table, _GALLERY, trained_on=trained_on, skip=shut)
                found = [item for item in found if wanted is None or item.column == wanted]
            else:
                found = self._missing(shut, wanted)
            items = [self._show(self._entry(q.image, q.column), q) for q in found[start : start + count]]
            return {"items": items, "total": len(found), "start": start}

    def _missing(self, shut: Sequence[tuple[int, int]], wanted: int | None) -> list[Question]:
        """Unknown entries, likeliest first; no class takes more than a quarter of a page while others wait."""
        if self._presence is None:
            self._presence = PositiveUnlabelled.fit(self.scored.scores, *self.scored.table.entries())
        found = likely(self.scored.scores, self.scored.table, self._presence, 4 * _GALLERY, skip=shut, column=wanted)
        seen: Counter[int] = Counter()
        ranked = []
        for item in found:
            ranked.append((seen[item.column] // 6, item))  # six of each class, then six more
            seen[item.column] += 1
        ranked.sort(key=lambda pair: pair[0])
        return [item for _, item in ranked[:_GALLERY]]

    def _show(self, e: int, question: Question | None = None) -> dict[str, Any]:
        image, column = self._split(e)
        asked = question or self.pool[e]
        said = self._said.get(e)
        held_out = bool(self.scored.held_out[image])
        label = int(self.scored.table.rows([image])[0, column])
        score = float(self.scored.scores[image, column])
        return {
            "entry": e,
            "image": self._public[image],
            "name": self.images[image],
            "column": column,
            "class": self.classes[column],
            "probability": None if math.isnan(asked.probability) else asked.probability,
            "score": None if math.isnan(score) else score,
            "why": "random check" if asked.is_control else asked.why,
            "label": label,
            "held_out": held_out,
            "said": None if said is None else {"value": said.value, "key": said.key, "who": said.who},
        }

    def _entry(self, image: int, column: int) -> int:
        return image * len(self.classes) + column

    def _split(self, e: int) -> tuple[int, int]:
        return divmod(e, len(self.classes))

    def _look_again(self, entries: Iterable[int]) -> None:
        for e in entries:
            image, column = self._split(e)
            found = self.answers.standing((self.images[image], self.classes[column]))
            if found:
                self._said[e] = found[0]
            else:
                self._said.pop(e, None)
            self._leases.pop(e, None)

    def _refresh(self) -> None:
        """Read all answers where another process has written some."""
        version = self.answers.version()
        if version == self._version:
            return
        self._version = version
        standing = self.answers.standing()
        images = self.scored.table.images.index([item.image for item in standing])
        columns = self.scored.table.classes.index([item.label for item in standing])
        self._said = {
            self._entry(int(i), int(c)): item
            for i, c, item in zip(images, columns, standing, strict=True)
            if i >= 0 and c >= 0
        }


def _number(value: float) -> float:
    return 0.0 if math.isnan(value) else value
