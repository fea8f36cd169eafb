"""What to fill: probabilities, thresholds and rules put together, then rows, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.fill.sampling_bias import one_sided, warn
from halflabel.fill.thresholds import BINS, Counts, Side, bin_of, choose
from halflabel.labels.provenance import RULE_SOURCE, is_model_made, training_and_evaluation_tables
from halflabel.labels.rows import Rows
from halflabel.labels.rules import Rules
from halflabel.labels.table import LabelTable
from halflabel.metrics.probability import ClassPlatt, fit_classes
from halflabel.runs.crossfit import Scores

__all__ = ["RULE_SOURCE", "Filling", "Tally", "plan"]

_ENTRIES = 1 << 21  # of a block

Mask = NDArray[np.bool_]


@dataclass
class Tally:
    """What was filled so far, per class (C,)."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]  # left unknown, of the images in the table
    by_rule: NDArray[np.int64]  # of the filled ones, those that follow from labels that people made
    by_model: NDArray[np.int64]  # and those that follow from labels that a model made before, and no person's
    clashes: NDArray[np.int64]  # not filled, because rules forbid them together
    contradictions: int = 0  # known labels (and what follows from them) that break the rules
    examples: list[str] = field(default_factory=list)  # of these: "image: class"
    by_models_fault: int = 0  # of these, those where labels that people made break no rule


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
    made: Rows  # the labels of `table` that a model made, by image; `sources` are those of the filled rows, ours first
    precision: float
    confidence: float
    shut: Mask  # (C,) classes of which nothing can be said
    asked: NDArray[np.int64]  # the images to fill, by number
    warnings: tuple[str, ...]

    def tally(self) -> Tally:
        """An empty tally for `blocks`."""
        return Tally(*np.zeros((6, len(self.table.classes)), np.int64))

    def blocks(self, tally: Tally | None = None) -> Iterator[Rows]:
        """Rows for what was unknown and is filled, by image; a known label never has one. Counts into `tally`.

        The score is the calibrated probability that the value is right. Rows that follow by a rule from labels that
        people made have the source "rule" and no score. What the rules make of a model's label is that model's too,
        with the source and score of the surest one it follows from: of labels that a model made before as of the fills.
        Memory: about 40 bytes per entry of a block of 2 million.
        """
        tally = tally if tally is not None else self.tally()
        for index in _blocks(self.asked, len(self.table.classes)):
            labels = self.table.rows(index)
            p = self._probabilities(index)
            value, score, source = self._fill(labels, p, tally, index)
            tally.present += (value > 0).sum(0)
            tally.absent += (value < 0).sum(0)
            tally.unknown += ((value == 0) & (labels == 0)).sum(0)
            row, column = np.nonzero(value)
            yield Rows.build(
                self.table.images.take(index),
                self.table.classes,
                row,
                column,
                value[row, column],
                source[row, column],
                score[row, column],
                self.made.sources,
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
            self.made.sources,
        )

    def _probabilities(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        return _probabilities(self.scores, self.platts, index)

    def _fill(
        self, labels: NDArray[np.int8], p: NDArray[np.float32], tally: Tally, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int16]]:
        """(value to fill or 0, score, source), each (B, C)."""
        made = _of_images(self.made, index)
        follows, people, free, contradiction, people_differ = _closed(self.rules, labels, made, self.shut)
        if contradiction.any():
            row, column = np.nonzero(contradiction)
            tally.contradictions += len(row)
            tally.by_models_fault += int((contradiction & ~people_differ).sum())
            room = max(0, 5 - len(tally.examples))
            names = zip(index[row[:room]].tolist(), column[:room].tolist(), strict=True)
            tally.examples += [f"{self.table.images[i]}: {self.table.classes[c]}" for i, c in names]
        free &= ~np.isnan(p)
        place = bin_of(p)
        present = free & (place >= self.present.cut)
        absent = free & (BINS - 1 - place >= self.absent.cut) & ~present
        score = np.where(present, p, 1 - p).astype(np.float32)
        if self.rules is not None:
            bad_present, bad_absent = self.rules.conflicting(present, absent)
            tally.clashes += (bad_present | bad_absent).sum(0)
            present &= ~bad_present
            absent &= ~bad_absent
            more = self.rules.consequences(present.astype(np.int8) - absent.astype(np.int8))
            # Classes that are shut to the model are open to what follows from others; what clashed stays unknown.
            able = (labels == 0) & (follows == 0) & ~bad_present & ~bad_absent
            late_present, late_absent = more.present & able & ~present, more.absent & able & ~absent
            late = late_present.astype(np.int8) - late_absent
            row, column, origin = self.rules.strongest_premises(present.astype(np.int8) - absent, score, late)
            score[row, column] = score[row, origin]
            present |= late_present
            absent |= late_absent
        value = follows + present.astype(np.int8) - absent.astype(np.int8)
        score[follows != 0] = np.nan
        source = people.astype(np.int16)
        tally.by_rule += people.sum(0)
        if self.rules is not None and (of_models := np.where(people, np.int8(0), follows)).any():
            self._pass_on(made, of_models, score, source)
            tally.by_model += (of_models != 0).sum(0)
        return value, score, source

    def _pass_on(
        self, made: Rows, follows: NDArray[np.int8], score: NDArray[np.float32], source: NDArray[np.int16]
    ) -> None:
        """Give what follows (B, C) from labels that a model made the score and the source of the surest of them."""
        assert self.rules is not None
        said, sure, who = np.zeros_like(follows), np.full_like(score, np.nan), np.zeros_like(source)
        said[made.image, made.column] = made.value
        sure[made.image, made.column] = made.score
        who[made.image, made.column] = made.source
        row, column, origin = self.rules.strongest_premises(said, sure, follows)
        score[row, column] = sure[row, origin]
        source[row, column] = who[row, origin]


def plan(
    scores: Scores,
    labels: LabelTable | Rows,
    *,
    asked: Mask | None = None,
    precision: float = 0.95,
    confidence: float = 0.9,
    rules: Rules | None = None,
    source: str = "model",
    progress: Callable[[int, int], None] | None = None,
) -> Filling:
    """Decide what of the unknown entries can be filled, present and absent each as precise as asked.

    Of rows, labels that a model made before stay as they are, but count as no evidence; a table says nothing of who
    made it, and all of it counts. Only the images where `asked` (N,) is true are filled; the others are evidence. What
    is guaranteed, and what not: see `decide.choose`; it holds for known labels that are a random sample of each class's
    entries of like probability. Classes with known positives only have nothing to judge them by, and are left alone.
    """
    if not 0.5 < precision < 1 or not 0.5 <= confidence < 1:
        raise UserError(f"precision {precision:g} at confidence {confidence:g}", "use shares such as 0.95 and 0.9")
    known_rows = labels.drop_overridden() if isinstance(labels, Rows) else None
    table, judged = training_and_evaluation_tables(labels if known_rows is None else known_rows)
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

    made = _made(known_rows, table, source)
    counts = Counts.zeros(classes)
    fill = np.ones(len(table), bool) if asked is None else asked
    for index in _blocks(np.arange(len(table)), classes):
        free = _closed(rules, table.rows(index), _of_images(made, index), shut).free
        free &= fill[index, None]
        known = judged.rows(index)
        known[scores.part[index] < 0] = 0
        known[:, shut] = 0
        counts.add(_probabilities(scores, platts, index), free, known)
        if progress is not None:
            progress(int(index[-1]) + 1, len(table))
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
        made=made,
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


def _made(known: Rows | None, table: LabelTable, source: str) -> Rows:
    """The labels that a model made, their sources numbered after `source` and "rule"."""
    if known is None:
        nothing = np.zeros(0, np.int32)
        return Rows.build(table.images, table.classes, nothing, nothing, nothing, nothing, None, (source, RULE_SOURCE))
    theirs = known.select(is_model_made(known))
    names = [known.sources[n] for n in np.unique(theirs.source).tolist()]
    sources = tuple(dict.fromkeys((source, RULE_SOURCE, *names)))
    number = np.array([sources.index(name) if name in names else 0 for name in known.sources], np.int16)
    return replace(theirs, source=number[theirs.source], sources=sources)


def _of_images(rows: Rows, index: NDArray[np.int64]) -> Rows:
    """Of rows by image, those of the images `index` (B,), which ascend; their image is then a number into `index`."""
    first, end = np.searchsorted(rows.image, (index[0], index[-1] + 1))
    at = np.arange(first, end)
    place = np.searchsorted(index, rows.image[at])
    inside = index[place] == rows.image[at]
    return replace(rows.select(at[inside]), image=place[inside].astype(np.int32))


class _Closed(NamedTuple):
    """What the rules make of known labels, all (B, C)."""

    follows: NDArray[np.int8]  # what follows from them and was unknown
    people: Mask  # of this, what follows from labels that people made
    free: Mask  # what is then left to the model
    contradiction: Mask  # where they disagree, and people's labels do not decide
    people_differ: Mask  # where people's labels alone disagree


def _closed(rules: Rules | None, labels: NDArray[np.int8], made: Rows, shut: Mask) -> _Closed:
    """What follows from known labels (B, C), of which a model made those in `made`: people's labels speak first."""
    unknown = labels == 0
    if rules is None:
        nothing = np.zeros(labels.shape, bool)
        return _Closed(np.zeros_like(labels), nothing, unknown & ~shut, nothing, nothing)
    found = people = rules.consequences(labels)
    if len(made):
        said = labels.copy()
        said[made.image, made.column] = 0
        people = rules.consequences(said)
    decided = unknown & (people.present | people.absent)
    # What people's labels decide, no label of a model can contradict.
    contradiction = found.contradiction & ~decided
    follows = np.zeros_like(labels)
    follows[unknown & (found.present | people.present)] = 1
    follows[unknown & (found.absent | people.absent)] = -1
    free = unknown & ~shut & (follows == 0) & ~contradiction
    return _Closed(follows, decided, free, contradiction, people.contradiction)
