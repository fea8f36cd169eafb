"""What to fill: probabilities, thresholds and rules put together, then rows, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.fill.crossfit import Scores
from halflabel.fill.decide import BINS, Counts, Side, bin_of, choose
from halflabel.fill.probability import ClassPlatt, fit_classes
from halflabel.fill.sample import one_sided, warn
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable
from halflabel.rules import Rules

__all__ = ["RULE", "Filling", "Tally", "plan"]

RULE = "rule"  # the source of what follows from known labels

_ENTRIES = 1 << 21  # of a block

Mask = NDArray[np.bool_]


@dataclass
class Tally:
    """What was filled so far, per class (C,)."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]  # left unknown, of the images in the table
    by_rule: NDArray[np.int64]  # of the filled ones, those that follow from known labels
    clashes: NDArray[np.int64]  # not filled, because rules forbid them together
    contradictions: int = 0  # known labels (and what follows from them) that break the rules
    examples: list[str] = field(default_factory=list)  # of these: "image: class"


@dataclass(frozen=True)
class Filling:
    """All that is decided; `blocks()` makes the rows."""

    scores: Scores
    table: LabelTable
    platts: list[ClassPlatt]  # one per part, fitted without it; the last one from all, for part −1
    counts: Counts
    present: Side
    absent: Side
    rules: Rules | None
    source: str
    precision: float
    confidence: float
    shut: Mask  # (C,) classes of which nothing can be said
    asked: NDArray[np.int64]  # the images to fill, by number
    warnings: tuple[str, ...]

    def tally(self) -> Tally:
        """An empty tally for `blocks`."""
        zero = np.zeros(len(self.table.classes), np.int64)
        return Tally(zero.copy(), zero.copy(), zero.copy(), zero.copy(), zero.copy())

    def blocks(self, tally: Tally | None = None) -> Iterator[Rows]:
        """Rows for what was unknown and is filled, by image; a known label never has one. Counts into `tally`.

        The score is the calibrated probability that the value is right. Rows that follow from known labels by a rule
        have the source "rule" and no score. What the rules make of the model's fills is the model's too, with the
        probability of the surest fill it follows from. Memory: about 40 bytes per entry of a block of 2 million.
        """
        tally = tally if tally is not None else self.tally()
        for index in _blocks(self.asked, len(self.table.classes)):
            labels = self.table.rows(index)
            p = self._probabilities(index)
            value, score, ruled = self._fill(labels, p, tally, index)
            tally.present += (value > 0).sum(0)
            tally.absent += (value < 0).sum(0)
            tally.unknown += ((value == 0) & (labels == 0)).sum(0)
            tally.by_rule += ruled.sum(0)
            row, column = np.nonzero(value)
            yield Rows.build(
                self.table.images.take(index),
                self.table.classes,
                row,
                column,
                value[row, column],
                ruled[row, column].astype(np.int16),
                score[row, column],
                (self.source, RULE),
            )

    def rows(self) -> Rows:
        """All rows at once, over the images of the table: 15 bytes each."""
        found = [
            (index, rows)
            for index, rows in zip(_blocks(self.asked, len(self.table.classes)), self.blocks(), strict=True)
        ]
        return Rows.build(
            self.table.images,
            self.table.classes,
            np.concatenate([index[rows.image] for index, rows in found]),
            np.concatenate([rows.column for _, rows in found]),
            np.concatenate([rows.value for _, rows in found]),
            np.concatenate([rows.source for _, rows in found]),
            np.concatenate([rows.score for _, rows in found]),
            (self.source, RULE),
        )

    def _probabilities(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        return _probabilities(self.scores, self.platts, index)

    def _fill(
        self, labels: NDArray[np.int8], p: NDArray[np.float32], tally: Tally, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], Mask]:
        """(value to fill or 0, score, whether by a rule), each (B, C)."""
        follows, free = _closed(self.rules, labels, self.shut, tally, self.table, index)
        free &= ~np.isnan(p)
        place = bin_of(p)
        present = free & (place >= self.present.cut)
        absent = free & (BINS - 1 - place >= self.absent.cut) & ~present
        score = np.where(present, p, 1 - p).astype(np.float32)
        if self.rules is not None:
            bad_present, bad_absent = self.rules.clashing(present, absent)
            tally.clashes += (bad_present | bad_absent).sum(0)
            present &= ~bad_present
            absent &= ~bad_absent
            more = self.rules.consequences(present.astype(np.int8) - absent.astype(np.int8))
            # Classes that are shut to the model are open to what follows from others; what clashed stays unknown.
            able = (labels == 0) & (follows == 0) & ~bad_present & ~bad_absent
            late_present, late_absent = more.present & able & ~present, more.absent & able & ~absent
            score[late_present | late_absent] = 0
            _carry(self.rules.implied, present, score, late_present)
            _carry(self.rules.implied.T.tocsr(), absent, score, late_absent)
            _carry(self.rules.excluded, present, score, late_absent)
            present |= late_present
            absent |= late_absent
        value = follows + present.astype(np.int8) - absent.astype(np.int8)
        score[follows != 0] = np.nan
        return value, score, follows != 0


def plan(
    scores: Scores,
    table: LabelTable,
    *,
    judged: LabelTable | None = None,
    asked: Mask | None = None,
    precision: float = 0.95,
    confidence: float = 0.9,
    rules: Rules | None = None,
    source: str = "model",
) -> Filling:
    """Decide what of the unknown entries of `table` can be filled, present and absent each as precise as asked.

    `judged` holds the labels that count as evidence, the same images and classes; labels that a model filled before are
    in `table`, and so are not touched, but not in `judged`. Only the images where `asked` (N,) is true are filled; the
    others are evidence. What is guaranteed, and what not: see `decide.choose`; it
    holds for known labels that are a random sample of each class's entries of like probability. Classes with known
    positives only have nothing to judge them by, and are left alone.
    """
    if not 0.5 < precision < 1 or not 0.5 <= confidence < 1:
        raise UserError(f"precision {precision:g} at confidence {confidence:g}", "use shares such as 0.95 and 0.9")
    judged = table if judged is None else judged
    image, column, value = judged.entries()
    evidence = (scores.part[image] >= 0) & ~np.isnan(scores.logits[image, column])
    image, column, present = image[evidence], column[evidence].astype(np.int64), value[evidence] > 0
    _check_evidence(present)
    classes = len(table.classes)
    shut = one_sided(column, present, classes)
    open_ = ~shut[column]
    image, column, present = image[open_], column[open_], present[open_]
    _check_evidence(present)
    logits = np.asarray(scores.logits[image, column])
    part = scores.part[image]
    platts = []
    for number in range(int(scores.part.max()) + 1):
        others = part != number if (part != number).any() else np.ones(len(part), bool)
        platts.append(fit_classes(column[others], logits[others], present[others], classes))
    platts.append(fit_classes(column, logits, present, classes))

    counts = Counts.zeros(classes)
    fill = np.ones(len(table), bool) if asked is None else asked
    for index in _blocks(np.arange(len(table)), classes):
        _, free = _closed(rules, table.rows(index), shut, None, table, index)
        free &= fill[index, None]
        known = judged.rows(index)
        known[scores.part[index] < 0] = 0
        known[:, shut] = 0
        counts.add(_probabilities(scores, platts, index), free, known)
    sides = [choose(counts, positive=sign, target=precision, confidence=confidence) for sign in (True, False)]
    warnings = warn(counts, table.classes, shut, sides, precision)
    return Filling(
        scores=scores,
        table=table,
        platts=platts,
        counts=counts,
        present=sides[0],
        absent=sides[1],
        rules=rules,
        source=source,
        precision=precision,
        confidence=confidence,
        shut=shut,
        asked=np.flatnonzero(fill),
        warnings=tuple(warnings),
    )


def _check_evidence(present: Mask) -> None:
    missing = "absent" if not len(present) or present.all() else "present" if not present.any() else ""
    if missing:
        raise UserError(
            f"no label that can judge the scores is known to be {missing}, so the precision of a fill cannot be "
            "estimated: neither of positives nor of negatives",
            f"have a few hundred randomly chosen entries labelled, present and absent, or at least some that are "
            f"{missing}",
        )


def _blocks(images: NDArray[np.int64], classes: int) -> Iterator[NDArray[np.int64]]:
    step = max(1, _ENTRIES // max(classes, 1))
    for first in range(0, len(images), step):
        yield images[first : first + step]


def _probabilities(scores: Scores, platts: list[ClassPlatt], index: NDArray[np.int64]) -> NDArray[np.float32]:
    logits, part = np.asarray(scores.logits[index]), scores.part[index]
    p = np.empty_like(logits)
    for number in np.unique(part).tolist():  # −1, trained on, is judged by the last one
        p[part == number] = platts[number].scores(logits[part == number])
    return p


def _closed(
    rules: Rules | None,
    labels: NDArray[np.int8],
    shut: Mask,
    tally: Tally | None,
    table: LabelTable,
    index: NDArray[np.int64],
) -> tuple[NDArray[np.int8], Mask]:
    """(what follows from known labels by the rules, what is then free for the model), each (B, C)."""
    free = (labels == 0) & ~shut
    follows = np.zeros_like(labels)
    if rules is None:
        return follows, free
    found = rules.consequences(labels)
    if tally is not None and found.contradiction.any():
        row, column = np.nonzero(found.contradiction)
        tally.contradictions += len(row)
        room = max(0, 5 - len(tally.examples))
        tally.examples += [
            f"{table.images[index[r]]}: {table.classes[c]}" for r, c in zip(row[:room], column[:room], strict=True)
        ]
    follows[(labels == 0) & found.present] = 1
    follows[(labels == 0) & found.absent] = -1
    return follows, free & (follows == 0) & ~found.contradiction


def _carry(matrix: Any, said: Mask, score: NDArray[np.float32], late: Mask) -> None:
    """Give each late entry the highest score of the entries it follows from."""
    rows = np.flatnonzero(late.any(1))
    if not len(rows):
        return
    at, column = np.nonzero(said[rows])
    count = np.diff(matrix.indptr)[column]
    before = np.cumsum(count) - count
    to = matrix.indices[np.arange(int(count.sum())) + np.repeat(matrix.indptr[column] - before, count)]
    row, value = np.repeat(rows[at], count), np.repeat(score[rows[at], column], count)
    hit = late[row, to]
    np.maximum.at(score, (row[hit], to[hit]), value[hit])
