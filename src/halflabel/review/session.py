"""A review session: hands questions to browser tabs, stores answers, and estimates the model's quality from them."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.answers import SETTLED, Answer, AnswerStore
from halflabel.questions.choose import Question
from halflabel.questions.next import doubtful_labels
from halflabel.review.team_answers import TeamAnswers, estimate_share
from halflabel.runs.scores import ScoredImages

LEASE_SECONDS = 90.0  # a question is reserved this long for the tab that shows it
_GALLERY_ENTRIES = 240  # that a gallery can show
_CHOSEN = "chosen by the person"
_STATES = {1: "present", -1: "absent", 0: "unsure"}


@dataclass(eq=False)
class ReviewSession:
    """Hands out questions and stores answers; thread-safe.

    An entry has the number image · C + class; the page knows images by random public ids. Control questions come first,
    in their random order, and only while no filter is on: at any moment the answered ones are then a random sample, and
    estimates from them are unbiased. A live session (`live`) keeps the order of its queue, which mixes them in, and a
    new fit of the model replaces scores and questions by `apply_update`.

    The share `twice` of all entries, drawn at random, is asked to two people; the second does not see the first answer.
    """

    scored: ScoredImages
    questions: InitVar[Sequence[Question]]
    answers: AnswerStore
    _: KW_ONLY
    who: str
    asks_name: bool = False  # whether browsers may send another name
    run: str = ""
    live: bool = False
    for_fill: bool = False  # whether the questions are those of `fill`
    next_command: str = ""  # that uses the answers, which the page shows at the end
    twice: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self, questions: Sequence[Question]) -> None:
        scored, answers = self.scored, self.answers
        self.classes = list(scored.table.classes)
        self.images = list(scored.table.images)
        # Entry numbers depend on the labels: a page must not send answers that it stored for other labels.
        self.project = f"{answers.project}-{scored.table.digest()[:12]}"
        self._lock = threading.RLock()
        # The same after a restart of the server: a page that is open can still undo and show its last answers.
        secret = self.project.encode()[:64]
        self.public_ids = [
            hashlib.blake2b(f"{i}".encode(), key=secret, digest_size=9).hexdigest() for i in range(len(self.images))
        ]
        self._image_of = {public: i for i, public in enumerate(self.public_ids)}
        self.pool = {self._entry(*q.entry): q for q in questions}  # in their order
        self._leases: dict[int, tuple[str, float]] = {}
        self.team = TeamAnswers(answers, scored.table, self.project, self.twice)

    def states(self, column: int) -> NDArray[np.int8]:
        """Return what is known of a class for each image (N,), answers included: 1, −1, or 0 for unknown."""
        with self._current() as team:
            image, of_class, value = self.scored.table.entries()
            states = np.zeros(len(self.images), np.int8)
            states[image[of_class == column]] = value[of_class == column]
            for e, answer in team.holding.items():
                if e % len(self.classes) == column:
                    states[e // len(self.classes)] = answer.value
            return states

    def image(self, public: str) -> int | None:
        """Return the index of an image by its public id."""
        return self._image_of.get(public)

    def take_questions(
        self,
        tab: str,
        count: int,
        *,
        who: str = "",
        label: str = "",
        state: str = "open",
        skip: Iterable[int] = (),
        one_class: bool = False,
    ) -> list[dict[str, Any]]:
        """Return up to `count` questions for a tab, reserved for it for 90 s: no other tab gets them meanwhile.

        Up to a quarter are questions that another person has answered, while there are others.
        With `one_class` all are of the class with the most open questions, most probable first, without controls.
        """
        who = who or self.who
        filtered = bool(label) or one_class
        with self._current() as team:
            for e, first in team.waiting.items():
                if e not in self.pool:
                    self.pool[e] = self._question(e, first.why, first.weight)
            skipped = set(skip)

            def matches(e: int) -> bool:
                question = self.pool[e]
                if e in skipped or (label and self.classes[question.column] != label):
                    return False
                if state == "open":
                    return team.is_open(e, who) and self._is_free(e, tab) and not (filtered and question.is_control)
                answer = team.visible(e, who)
                return answer is not None and state in ("answered", _STATES[answer.value])

            asked = filter(team.wants_answer, self.pool) if state == "open" else self.pool
            free = list(filter(matches, asked))
            if not filtered and not self.live:
                free.sort(key=lambda e: not self.pool[e].is_control)  # stable sort: keeps the order otherwise
            if one_class and free:
                # Ties go to the class that comes first in the list.
                column = Counter(e % len(self.classes) for e in free).most_common(1)[0][0]
                free = [e for e in free if e % len(self.classes) == column]
                free.sort(key=lambda e: -np.nan_to_num(self.pool[e].probability))
            second = [e for e in free if e in team.given] if state == "open" and not one_class else []
            if second:
                new = [e for e in free if e not in team.given]
                free = second[: max(1, count // 4, count - len(new))] + new
            chosen = free[:count]
            if state == "open":
                self._lease(chosen, tab)
            return [self._show(e, who) for e in chosen]

    def browse(
        self,
        tab: str,
        count: int,
        *,
        label: str,
        order: str,
        like: str,
        name: str,
        within: Sequence[str] = (),
        skip: Iterable[int] = (),
    ) -> list[dict[str, Any]]:
        """Return open entries of one class for a tab, reserved for it: by score, or most like a photo first.

        Without a label it is the class with the most open questions. `name` is a part of the image's name, and
        `within` are public ids: other images are left out.
        """
        with self._current() as team:
            classes = len(self.classes)
            open_questions = Counter(e % classes for e in self.pool if e not in team.holding)
            column = self.classes.index(label) if label in self.classes else next(iter(open_questions), 0)
            scores = np.asarray(self.scored.scores[:, column], np.float64)
            taken = [e // classes for e in (*team.holding, *skip, *self._leases) if e % classes == column]
            taken += [q.image for q in self.pool.values() if q.is_control and q.column == column]
            is_open = self.states(column) == 0
            is_open[taken] = False
            if name:
                is_open &= np.array([name.casefold() in image.casefold() for image in self.images])
            index = np.flatnonzero(is_open)
            if within:
                index = np.intersect1d(index, [self._image_of[public] for public in within if public in self._image_of])
            rank = np.nan_to_num(scores) if order == "low" else -np.nan_to_num(scores)
            if (photo := self._image_of.get(like)) is not None:
                rank = -self._similarity(photo)
            chosen = [self._entry(int(i), column) for i in index[np.argsort(rank[index], kind="stable")[:count]]]
            for e in chosen:
                self.pool[e] = self._question(e, _CHOSEN)
            self._lease(chosen, tab)
            return [self._show(e, self.who) for e in chosen]

    @contextmanager
    def _current(self) -> Iterator[TeamAnswers]:
        """Hold the lock, and give the answers as they are now."""
        with self._lock:
            self.team.reload_if_changed()
            yield self.team

    def _is_free(self, e: int, tab: str) -> bool:
        """Whether no other tab has reserved an entry."""
        holder, until = self._leases.get(e, (tab, 0.0))
        return holder == tab or until <= self.clock()

    def _lease(self, entries: Iterable[int], tab: str) -> None:
        self._leases |= dict.fromkeys(entries, (tab, self.clock() + LEASE_SECONDS))

    def _similarity(self, image: int) -> NDArray[np.float64]:
        """Return the cosine similarity (N,) of all photos to one of them, by their centred features."""
        features = np.nan_to_num(self.scored.features.astype(np.float64))
        features = features - features.mean(0)
        length = np.maximum(np.linalg.norm(features, axis=1), 1e-12)
        return np.asarray(features @ features[image] / (length * length[image]))

    def photo(self, image: int, who: str = "") -> list[dict[str, Any]]:
        """Return all classes of one image, those that are known to be present and the most probable first."""
        who = who or self.who
        with self._current() as team:
            labels = self.scored.table.rows([image])[0]
            scores = self.scored.scores[image]

            def rank(column: int) -> tuple[float, float]:
                answer = team.visible(self._entry(image, column), who)
                value = answer.value if answer is not None else int(labels[column])
                return -value, -float(np.nan_to_num(scores[column]))

            entries = [self._entry(image, column) for column in sorted(range(len(self.classes)), key=rank)]
            return [self._show(e, who, self._question(e, _CHOSEN)) for e in entries]

    def renew(self, tab: str, entries: Iterable[int]) -> None:
        """Extend the reservation of questions that a tab still shows, unless another tab has them by now."""
        with self._lock:
            self._lease(
                [e for e in entries if e in self.pool and self.team.wants_answer(e) and self._is_free(e, tab)], tab
            )

    def release(self, tab: str, entries: Iterable[int]) -> None:
        """End the reservation of questions that a tab no longer shows."""
        with self._lock:
            for e in entries:
                if self._leases.get(e, ("", 0.0))[0] == tab:
                    del self._leases[e]

    def add_answers(
        self,
        given: Sequence[tuple[str, int, int]],
        tab: str = "",
        *,
        who: str = "",
        chosen: bool = False,
        settles: bool = False,
    ) -> None:
        """Store (key, entry, value) answers; returns when they are on the disk.

        `chosen`: the person chose what to answer, so that no such answer is a random check. `settles`: the answers
        hold against those of all people.
        """
        answers = []
        for key, e, value in given:
            image, column = self._split(e)
            question = None if chosen or settles else self.pool.get(e)
            why, weight = (SETTLED if settles else _CHOSEN, 0.0) if question is None else question[3:]
            score = _none_if_nan(self.scored.scores[image, column])
            answers.append(Answer(key, self.images[image], self.classes[column], value, score, why, weight))
        with self._lock:
            self.answers.add(answers, who or self.who, self.run)
            self._reload_entries((e for _, e, _ in given), tab)

    def undo(self, keys: Sequence[str], tab: str = "", who: str = "") -> None:
        """Undo answers: earlier answers hold again, or the question is open again, reserved for `tab`."""
        with self._lock:
            self.answers.undo(keys, who or self.who)
            changed = {e for e, given in self.team.given.items() if any(item.key in keys for item in given)}
            self._reload_entries(changed)
            if tab:
                self.renew(tab, changed)

    def entry_answers(self) -> list[tuple[int, int, int, float]]:
        """Return the current answers: image, class, value and inclusion weight."""
        with self._current() as team:
            team.weigh()
            return [(*self._split(e), item.value, item.weight) for e, item in team.holding.items()]

    def apply_update(self, scores: NDArray[np.float32], threshold: float, queue: Sequence[Question]) -> None:
        """Replace scores and open questions by those of a new fit; questions that a tab shows stay.

        Where a random question of the queue is answered already, it is stored again with the weight of this draw.
        """
        with self._lock:
            self.scored = replace(self.scored, scores=scores, thresholds=np.full(len(self.classes), threshold))
            holding = self.team.holding
            in_use = {e: question for e, question in self.pool.items() if e in holding or not self._is_free(e, "")}
            asked = {self._entry(*q.entry): q for q in queue}
            self.pool = {e: question for e, question in asked.items() if e not in holding} | in_use
            for e, question in asked.items():
                answer = next((item for item in self.team.votes(e) if item.value), None)
                if answer is not None and question.is_control and self.team.holding[e].weight != question.weight:
                    about = answer.image, answer.label, answer.value, answer.score, question.why, question.weight
                    self.answers.add([Answer(secrets.token_hex(16), *about)], answer.who, self.run)
                    self._reload_entries([e])

    def progress(self, who: str = "") -> dict[str, Any]:
        """Return how many questions are answered, in total and per class, and the estimates from control answers."""
        who = who or self.who
        with self._current() as team:
            # The counts of the class filter: a filter hides open control questions.
            counts = {c: dict.fromkeys(("open", "present", "absent", "unsure"), 0) for c in range(len(self.classes))}
            answered = 0
            controls: dict[str, dict[int, float]] = {"precision": {}, "missed": {}, "fillable": {}}
            for e, question in self.pool.items():
                if (answer := team.visible(e, who)) is not None:
                    answered += 1
                    counts[question.column][_STATES[answer.value]] += 1
                elif not question.is_control:
                    counts[question.column]["open"] += 1
                if question.is_control and not self.live:  # the estimates of a live session come with each fit
                    is_called = self.scored.scores[question.entry] >= self.scored.thresholds[question.column]
                    shows = "fillable" if self.for_fill else "precision" if is_called else "missed"
                    controls[shows][e] = question.weight
            asked_classes = {question.column for question in self.pool.values()}
            values = Counter(answer.value for answer in team.holding.values())
            return {
                "answered": answered,
                "questions": len(self.pool),
                "values": {state: values[value] for value, state in _STATES.items()},
                "classes": [{"name": name, **counts[c]} for c, name in enumerate(self.classes) if c in asked_classes],
                "estimate": {kind: estimate_share(asked, team.holding, self.run) for kind, asked in controls.items()},
                "assumption": self.scored.assumption,
                "next": self.next_command,
                "shared_changes": team.shared_changes,
            }

    def agreement(self) -> dict[str, Any]:
        """Return how people agree and how many conflicts are open."""
        with self._current() as team:
            return team.agreement()

    def gallery(self, kind: str, label: str = "", start: int = 0, count: int = 24, who: str = "") -> dict[str, Any]:
        """Return entries of a gallery: known labels that look wrong, or conflicts."""
        who = who or self.who
        with self._current() as team:
            controls = [e for e, question in self.pool.items() if question.is_control]
            skip = [self._split(e) for e in (*team.holding, *controls)]
            if kind == "wrong":
                scores, table, trained_on = self.scored.scores, self.scored.table, ~self.scored.held_out
                entries = doubtful_labels(scores, table, _GALLERY_ENTRIES, trained_on=trained_on, skip=skip)
            else:
                entries = [self._question(e, SETTLED) for e in team.conflicts()]
            entries = [item for item in entries if label in ("", self.classes[item.column])]
            items = [self._show(self._entry(*q.entry), who, q) for q in entries[start : start + count]]
            for item in items if kind == "conflicts" else ():
                votes = team.votes(item["entry"])
                item["answers"] = [{"who": each.who, "value": each.value} for each in votes]
            return {"items": items, "total": len(entries), "start": start}

    def _show(self, e: int, who: str, question: Question | None = None) -> dict[str, Any]:
        image, column = self._split(e)
        asked = question or self.pool[e]
        answer = self.team.visible(e, who)
        return {
            "entry": e,
            "image": self.public_ids[image],
            "name": self.images[image],
            "column": column,
            "class": self.classes[column],
            "probability": _none_if_nan(asked.probability),
            "score": _none_if_nan(self.scored.scores[image, column]),
            "why": "random check" if asked.is_control else asked.why,
            "label": int(self.scored.table.rows([image])[0, column]),
            "held_out": bool(self.scored.held_out[image]),
            "answer": None if answer is None else {"value": answer.value, "key": answer.key, "who": answer.who},
        }

    def _question(self, e: int, why: str, weight: float = 0.0) -> Question:
        return Question(*self._split(e), float(self.scored.scores[self._split(e)]), why, weight)

    def _entry(self, image: int, column: int) -> int:
        return image * len(self.classes) + column

    def _split(self, e: int) -> tuple[int, int]:
        return divmod(e, len(self.classes))

    def _reload_entries(self, entries: Iterable[int], tab: str = "") -> None:
        """Read answers that were written; ends reservations, except those of another tab for a second answer."""
        self.team.reload_if_changed()
        for e in entries:
            if e not in self.team.waiting or self._leases.get(e, (tab, 0.0))[0] == tab:
                self._leases.pop(e, None)


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
