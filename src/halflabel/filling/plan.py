"""Decide which unknown labels to fill, from probabilities, thresholds and rules; make the rows block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration, fit_class_platt
from halflabel.evaluation.scores import Scores, image_blocks
from halflabel.filling.thresholds import (
    BINS,
    BinCounts,
    FillDecision,
    bin_of,
    choose_thresholds,
    compare_known,
    image_repetition,
    random_answers_needed,
)
from halflabel.labels.labels import RULE_SOURCE, Labels
from halflabel.labels.names import Names
from halflabel.labels.rules import Rules
from halflabel.labels.table import Table
from halflabel.system.format import group_digits

Mask = NDArray[np.bool_]

_SAMPLED = 1 << 19  # entries of a sample of labelled images
# Known labels that differ more, in standard errors and in standard deviations, cannot stand for unknown ones: random
# samples of three photo sets and of made-up tables differed by 3.1 standard errors at most.
_SIGMAS, _LEAST_DIFFERENCE = 3.5, 0.05
_NO_NEGATIVE = (
    "positives are known but no negatives, so nothing can be estimated; left unknown. Label some images where they are "
    "absent."
)
_NO_POSITIVE = (
    "no positive is known, apart from answers to chosen questions, so nothing shows that the model finds one; left "
    "unknown. Label some images where they are present."
)
_NO_SAMPLE = (
    "the known labels are not a random sample: their scores differ from those of unknown ones. The precision of fills "
    "may be overestimated; check a random sample of them by hand."
)
_MIN_POSITIVES = 5  # with so many known positives, having no negative is not chance


@dataclass
class FillCounts:
    """Numbers of filled entries so far, per class (C,)."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]  # left unknown, in the images to fill
    by_rule: NDArray[np.int64]  # filled entries that follow by rules from labels made by people
    by_model: NDArray[np.int64]  # filled entries that follow by rules only from earlier labels of a model
    clashes: NDArray[np.int64]  # not filled because rules exclude each other
    contradictions: int = 0  # known labels, or labels derived from them, that break the rules
    examples: list[str] = field(default_factory=list)  # some contradictions: "image: class"


@dataclass(frozen=True)
class FillOptions:
    """What to fill, and how sure the fills must be."""

    to_fill: Mask | None = None  # (N,) images to fill, by default all; the others are evidence
    precision: float = 0.95
    confidence: float = 0.9
    rules: Rules | None = None
    source: str = "model"  # of the filled rows


@dataclass(frozen=True)
class FillPlan:
    """All decisions of a fill; `blocks()` makes the rows."""

    scores: Scores
    table: Table
    calibrations: list[Calibration]  # one per fold, fitted on the others; the last on all, for fold −1
    bin_counts: BinCounts
    decide: Callable[[float], tuple[FillDecision, FillDecision]]  # present and absent fills that reach a precision
    present: FillDecision
    absent: FillDecision
    options: FillOptions
    model_labels: Labels  # labels of `table` made by a model, by image; `sources` are those of the filled rows
    unfillable: Mask  # (C,) classes for which nothing can be estimated
    images_to_fill: NDArray[np.int64]  # image numbers
    missing: float  # expected number of present labels among the unknown ones, filled or not
    warnings: tuple[str, ...] = ()
    assumption: str = ""  # under which the fills are right, where no label shows it
    check: str = ""  # what control answers say about the assumption
    unlike: str = ""  # how known labels differ from unknown ones, where they cannot show the precision of fills
    answered: Table | None = None  # `table` with answers that are not evidence: nothing is filled there either

    def lower_precision(self, useful: int = 20) -> tuple[float, int] | None:
        """Return the highest precision below the wanted one, in steps of 0.01, that fills `useful` labels or any."""
        best: tuple[float, int] | None = None
        for hundredths in range(math.ceil(100 * self.options.precision - 1e-9) - 1, 49, -1):
            present, absent = self.decide(hundredths / 100)
            if present.filled.sum() + absent.filled.sum() >= (1 if best is None else useful):
                counts = self.empty_counts()
                for _ in replace(self, present=present, absent=absent).blocks(counts):
                    pass
                filled = int((counts.present + counts.absent).sum())
                if filled >= useful:
                    return hundredths / 100, filled
                best = best or ((hundredths / 100, filled) if filled else None)
        return best

    def empty_counts(self) -> FillCounts:
        """Return counts of zero, for `blocks`."""
        return FillCounts(*np.zeros((6, len(self.table.classes)), np.int64))

    def blocks(self, counts: FillCounts | None = None) -> Iterator[Labels]:
        """Yield rows for the entries to fill, by image; never for a known label. Adds to `counts`.

        The score is the calibrated probability that the value is right. Rows that follow by rules from labels made by
        people have the source "rule" and no score. Rows that follow from a model's label have the source and score of
        the surest such label, whether it is an earlier one or one of this fill.
        Memory: about 40 bytes per entry of a block of 1 million.
        """
        counts = counts if counts is not None else self.empty_counts()
        for index in image_blocks(self.images_to_fill, len(self.table.classes)):
            labels = (self.answered or self.table).rows(index)
            p = _probabilities(self.scores, self.calibrations, index)
            value, score, source = self._fill(labels, p, counts, index)
            counts.present += (value > 0).sum(0)
            counts.absent += (value < 0).sum(0)
            counts.unknown += ((value == 0) & (labels == 0)).sum(0)
            row, column = np.nonzero(value)
            yield Labels.build(
                self.table.images.take(index),
                self.table.classes,
                row,
                column,
                value[row, column],
                source[row, column],
                score[row, column],
                self.model_labels.sources,
            )

    def rows(self) -> Labels:
        """Return all rows at once, with the images of the table: 15 bytes each."""
        numbers = image_blocks(self.images_to_fill, len(self.table.classes))
        blocks = [
            (index[rows.image], rows.column, rows.value, rows.source, rows.score)
            for index, rows in zip(numbers, self.blocks(), strict=True)
        ]
        image, column, value, source, score = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        sources = self.model_labels.sources
        return Labels.build(self.table.images, self.table.classes, image, column, value, source, score, sources)

    def _fill(
        self, labels: NDArray[np.int8], p: NDArray[np.float32], counts: FillCounts, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int16]]:
        """Return (value to fill or 0, score, source), each (B, C)."""
        rules, earlier = self.options.rules, _rows_of_images(self.model_labels, index)
        follows, people, contradiction = _apply_rules(rules, labels, earlier)
        is_open = (labels == 0) & (follows == 0) & ~contradiction
        row, column = np.nonzero(contradiction)
        counts.contradictions += len(row)
        names = zip(index[row[:5]].tolist(), column[:5].tolist(), strict=True)
        counts.examples = [*counts.examples, *(f"{self.table.images[i]}: {self.table.classes[c]}" for i, c in names)][
            :5
        ]
        free, bins = is_open & ~self.unfillable & ~np.isnan(p), bin_of(p)
        present = free & (bins >= self.present.cut)
        absent = free & (BINS - 1 - bins >= self.absent.cut) & ~present
        value, source = present.astype(np.int8) - absent, people.astype(np.int16)
        score = np.where(present, p, 1 - p).astype(np.float32)
        if rules is not None:
            clash = np.logical_or(*rules.conflicting(present, absent))
            counts.clashes += clash.sum(0)
            value[clash] = 0
            # Rules may fill classes that the model may not; entries that clashed stay unknown.
            derived = rules.consequences(value)
            late = (derived.present.astype(np.int8) - derived.absent) * (is_open & (value == 0) & ~clash)
            from_models = np.where(people, np.int8(0), follows)
            counts.by_model += (from_models != 0).sum(0)
            premises, at = value.copy(), (earlier.image, earlier.column)
            premises[at], score[at], source[at] = earlier.value, earlier.score, earlier.source
            row, column, origin = rules.strongest_premises(premises, score, late + from_models)
            score[row, column], source[row, column] = score[row, origin], source[row, origin]
            value += late + follows
        counts.by_rule += people.sum(0)
        score[people] = np.nan
        return value, score, source


def plan_fill(scores: Scores, labels: Table | Labels, options: FillOptions = FillOptions()) -> FillPlan:
    """Decide which unknown entries to fill, so that present and absent fills each reach the precision.

    Labels made by a model stay as they are, but are not evidence; a table has no sources, so all its labels are
    evidence. For what is guaranteed see `thresholds.choose_thresholds`; it holds if the known labels are a random
    sample of the entries of each class with similar probability. Classes with only known positives cannot be evaluated,
    and of classes without one nothing shows that the model finds them: both are not filled.
    """
    precision, confidence = options.precision, options.confidence
    if not 0.5 < precision < 1 or not 0.5 <= confidence < 1:
        raise UserError(f"precision {precision:g} at confidence {confidence:g}", "use shares such as 0.95 and 0.9")
    labels = Labels.of(labels).drop_overridden()
    table, evidence = labels.training, labels.evaluation
    image, column, value = evidence.entries()
    evidence = evidence.keep(scores.unbiased[image] & ~np.isnan(scores.logits[image, column]))
    _check_evidence(evidence.value > 0)
    classes = len(table.classes)
    known = evidence.stats
    unfillable = (known.positives >= _MIN_POSITIVES) & (known.negatives == 0)  # only what is present was annotated
    evidence = evidence.keep(~unfillable[evidence.column])
    image, column, value = evidence.entries()
    present = value > 0
    _check_evidence(present)
    logits, fold = np.asarray(scores.logits[image, column]), scores.fold[image]
    calibrations = []
    for number in range(int(scores.fold.max()) + 1):
        others = fold != number if (fold != number).any() else np.ones(len(fold), bool)
        calibrations.append(fit_class_platt(column[others], logits[others], present[others], classes))
    calibrations.append(fit_class_platt(column, logits, present, classes))

    def decide(counts: BinCounts, target: float) -> tuple[FillDecision, FillDecision]:
        present, absent = (
            choose_thresholds(counts, positive=positive, target=target, confidence=confidence)
            for positive in (True, False)
        )
        return present, absent

    unseen = ~unfillable & (np.bincount(column[present], minlength=classes) == 0)
    plan = make_plan(scores, table, evidence, labels, calibrations, unfillable | unseen, decide, options)
    labelled = np.flatnonzero(np.diff(evidence.start))
    sample = next(image_blocks(labelled[:: 1 + evidence.shape[1] * len(labelled) // _SAMPLED], classes))
    repetition = image_repetition(plan.bin_counts, _probabilities(scores, calibrations, sample), evidence.rows(sample))
    difference, sigmas, differs = compare_known(plan.bin_counts, repetition)
    unlike = ""
    if abs(sigmas) >= _SIGMAS and abs(difference) >= _LEAST_DIFFERENCE:
        unlike = "scores of known labels differ from those of unknown ones of their class by "
        unlike += f"{abs(sigmas):.0f} standard errors"
    warnings = [
        f"{_first_names(table.classes, mask)}: {text}"
        for mask, text in ((unfillable, _NO_NEGATIVE), (unseen, _NO_POSITIVE), (differs & ~unfillable, _NO_SAMPLE))
        if mask.any()
    ]
    reasons: dict[str, list[str]] = {}
    for word, decision in (("present", plan.present), ("absent", plan.absent)):
        if not decision.filled.any():
            reasons.setdefault(_too_little_evidence(word, plan.bin_counts, options), []).append(word)
    warnings += [f"nothing is filled as {' or '.join(words)}: {reason}" for reason, words in reasons.items()]
    return replace(plan, warnings=tuple(warnings), unlike=unlike)


def _first_names(classes: Names, mask: Mask, most: int = 3) -> str:
    chosen = np.flatnonzero(mask)
    shown = ", ".join(classes[int(c)] for c in chosen[:most])
    return shown + (f" and {len(chosen) - most} more" if len(chosen) > most else "")


def _too_little_evidence(word: str, counts: BinCounts, options: FillOptions) -> str:
    """Return why nothing is filled as present or absent, and what would help."""
    share, is_present = f"{100 * options.precision:g} %", word == "present"
    needed = random_answers_needed(counts, positive=is_present, target=options.precision, confidence=options.confidence)
    if needed is None:
        return (
            f"known labels do not show that {share} would be right, and more random ones hardly would. Lower "
            "‹precision›, or let the model learn from answers (review)."
        )
    known = int((counts.present if is_present else counts.absent).sum())
    return (
        f"{known} known labels are too few to show that {share} would be right. About {group_digits(needed)} answers "
        "to random questions (next ‹control=1›) may be enough if the model stays as good; or lower ‹precision›."
    )


def make_plan(
    scores: Scores,
    table: Table,
    evidence: Table,
    known_rows: Labels,
    calibrations: list[Calibration],
    unfillable: Mask,
    decide: Callable[[BinCounts, float], tuple[FillDecision, FillDecision]],
    options: FillOptions,
) -> FillPlan:
    """Count unknown entries and `evidence` by class and probability, and let `decide` choose the fills."""
    model_labels = _model_labels(known_rows, options.source)
    counts = BinCounts.zeros(len(table.classes))
    to_fill = np.ones(len(table), bool) if options.to_fill is None else options.to_fill
    for index in image_blocks(*table.shape):
        known, p, inside = table.rows(index), _probabilities(scores, calibrations, index), to_fill[index]
        follows, _, contradiction = _apply_rules(options.rules, known, _rows_of_images(model_labels, index))
        free = (known == 0) & (follows == 0) & ~contradiction & ~unfillable & inside[:, None]
        counts.add(p, free, evidence.rows(index), inside & scores.unbiased[index])
    present, absent = decide(counts, options.precision)
    return FillPlan(
        scores=scores,
        table=table,
        calibrations=calibrations,
        bin_counts=counts,
        decide=partial(decide, counts),
        present=present,
        absent=absent,
        options=options,
        model_labels=model_labels,
        unfillable=unfillable,
        images_to_fill=np.flatnonzero(to_fill),
        missing=float(counts.summed.sum()),
    )


def _check_evidence(present: Mask) -> None:
    missing = "absent" if not len(present) or present.all() else "present" if not present.any() else ""
    if missing:
        raise UserError(
            f"no label that can be used for evaluation is known to be {missing}, so the precision of a fill cannot "
            "be estimated: neither of positives nor of negatives",
            f"have a few hundred randomly chosen entries labelled, present and absent, or at least some that are "
            f"{missing}",
        )


def _probabilities(scores: Scores, calibrations: list[Calibration], index: NDArray[np.int64]) -> NDArray[np.float32]:
    logits, fold = np.asarray(scores.logits[index]), scores.fold[index]
    p = np.empty_like(logits)
    for number in np.unique(fold).tolist():  # fold −1, the training images, uses the last calibration
        p[fold == number] = calibrations[number].scores(logits[fold == number])
    return p


def _model_labels(known: Labels, source: str) -> Labels:
    """Return the labels made by a model, with their sources numbered after `source` and "rule"."""
    rows = known.select(known.is_model_made())
    names = [known.sources[n] for n in np.unique(rows.source).tolist()]
    sources = tuple(dict.fromkeys((source, RULE_SOURCE, *names)))
    number = np.array([sources.index(name) if name in names else 0 for name in known.sources], np.int16)
    return replace(rows, source=number[rows.source], sources=sources)


def _rows_of_images(rows: Labels, index: NDArray[np.int64]) -> Labels:
    """Return the rows of the images `index` (B,), ascending; the image of a row becomes its position in `index`."""
    first, end = np.searchsorted(rows.image, (index[0], index[-1] + 1))
    numbers = np.arange(first, end)
    position = np.searchsorted(index, rows.image[numbers])
    inside = index[position] == rows.image[numbers]
    return replace(rows.select(numbers[inside]), image=position[inside].astype(np.int32))


def _apply_rules(
    rules: Rules | None, labels: NDArray[np.int8], model_labels: Labels
) -> tuple[NDArray[np.int8], Mask, Mask]:
    """Return what follows from known labels (B, C); labels made by people override the `model_labels`.

    That is the values that follow for unknown entries, or 0; the entries that follow from labels made by people; and
    those where labels contradict each other, and labels of people do not decide.
    """
    if rules is None:
        nothing = np.zeros(labels.shape, bool)
        return np.zeros_like(labels), nothing, nothing
    people_labels = labels.copy()
    people_labels[model_labels.image, model_labels.column] = 0
    combined = people = rules.consequences(labels)
    if len(model_labels):
        people = rules.consequences(people_labels)
    unknown = labels == 0
    decided = unknown & (people.present | people.absent)
    follows = np.zeros_like(labels)
    follows[unknown & (combined.present | people.present)] = 1
    follows[unknown & (combined.absent | people.absent)] = -1
    # A model's label cannot contradict what follows from labels made by people.
    return follows, decided, combined.contradiction & ~decided
