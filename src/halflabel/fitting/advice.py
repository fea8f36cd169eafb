"""Advice for a label table: which methods fit, and what looks wrong (`halflabel inspect`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.evaluate import Evaluation
from halflabel.features.names import leaning
from halflabel.fitting.auto import choose, suited
from halflabel.labels.table import Stats
from halflabel.system.format import counted

FEW_POSITIVES = 5
MANY_CLASSES = 100  # more classes than this are hardly ever checked for every image


class Suggestion(NamedTuple):
    """A method by name, and why it fits these labels."""

    method: str
    why: str


class Caution(NamedTuple):
    """A possible problem: a fixed `kind`, one sentence, and the numbers of the classes concerned."""

    kind: str
    message: str
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """The kind of labels, the methods to try in that order, and possible problems."""

    regime: str
    methods: tuple[Suggestion, ...]
    cautions: tuple[Caution, ...]
    measured: tuple[str, ...] = ()  # the methods that `train` measures


_PROPAGATE = Suggestion("ss-rml", "copies labels to the images that have none, from their nearest labelled images")
_ROBUST = Suggestion("rml", "if labels may be wrong, which a table cannot show: its loss limits the harm of each")


def advise(stats: Stats) -> Advice:
    """Return methods to try and things to check, from counts of the known labels.

    The methods are those of `halflabel.fitting.auto`, so that `inspect` and `compare` agree. `ss-rml` is
    added if some images have no label at all, and `rml` always, for labels that may be wrong: a table cannot show that.
    """
    methods = [Suggestion(choice.method, choice.why) for choice in suited(stats)]
    also = [_PROPAGATE] if stats.unlabelled_share > 0 else []
    if methods:
        listed = {suggestion.method for suggestion in methods}
        methods += [suggestion for suggestion in (*also, _ROBUST) if suggestion.method not in listed]
    names = tuple(map(str, choose(stats).candidates)) if methods else ()
    return Advice(describe_labels(stats), tuple(methods), tuple(_cautions(stats)), names)


def describe_labels(stats: Stats) -> str:
    """Say in one sentence what is known of these labels."""
    some = f"on average {stats.known / max(stats.labelled_images, 1):.3g} of {stats.classes} classes"
    return {
        "full": "Full labels: every class is known for every labelled image.",
        "single-positive": "Single positive: each labelled image has one class known to be present, none to be absent.",
        "positives-only": f"Positives only: {some} are known to be present per labelled image, none to be absent.",
        "partial": f"Partial labels: {some} are known per labelled image, as present or absent.",
        "empty": "No labels: nothing is known yet.",
    }[stats.regime]


def describe_names(evaluation: Evaluation) -> str:
    """Say how class names alone rank the known labels; empty where nothing is known to be absent."""
    mean = evaluation.lines()[0]
    known = sum(row["present"] + row["absent"] for row in evaluation.per_class)
    if mean.title != "mAP" or not mean.interval:
        return ""
    return f"Class names alone rank {counted(known, 'known label')} with an mAP of {mean.with_interval}."


def names_rows(evaluation: Evaluation, likeness: NDArray[np.float32]) -> list[tuple[str, str, float]]:
    """Return per class its name, the ImageNet classes that it is most like, and the AP of the name alone."""
    names = zip(evaluation.per_class, leaning(likeness), strict=True)
    return [(row["class"], like, row["AP"]) for row, like in names]


def _cautions(stats: Stats) -> list[Caution]:
    if not stats.known:
        return [Caution("no labels", "No label is known: label some images, or check how the label file was read.")]
    entries = stats.images * stats.classes
    cautions = [
        Caution(
            "known share", f"{_percent(stats.known, entries)} of all labels are known: {stats.known:,} of {entries:,}."
        )
    ]
    without = stats.images - stats.labelled_images
    if without:
        cautions.append(
            Caution(
                "unlabelled images", f"{without:,} images ({_percent(without, stats.images)}) have no label at all."
            )
        )
    if assumption := {
        "single-positive": "the label of an image was chosen at random among its present classes",
        "positives-only": "each present label had the same chance of being given",
    }.get(stats.regime):
        cautions.append(
            Caution(
                "assumption",
                f"Probabilities will assume that {assumption}.",
            )
        )
    if stats.regime == "full" and stats.negatives.any():
        cautions.extend(_assumed_absent(stats))

    never = stats.positives + stats.negatives == 0
    few = ~never & (stats.positives < FEW_POSITIVES)
    # If no class has a negative, that is the regime, not a problem of a class.
    no_negative = ~never & (stats.negatives == 0) & bool(stats.negatives.any())
    cautions += _about("never known", "without any known label, so that nothing can be learned", never, stats)
    cautions += _about("few positives", f"with fewer than {FEW_POSITIVES} known positives", few, stats)
    cautions += _about("no negatives", "never known absent, so that scores cannot be evaluated", no_negative, stats)
    return cautions


def _assumed_absent(stats: Stats) -> list[Caution]:
    """Warn about full labels that look as if unlisted labels had been read as absent."""
    one_each = stats.classes > 2 and int(stats.positives_per_image[1:2].sum()) == stats.labelled_images
    if not one_each and stats.classes < MANY_CLASSES:
        return []
    why = "exactly one class is present" if one_each else f"all {stats.classes} classes are known"
    return [
        Caution(
            "assumed absent",
            f"In every labelled image {why} and the rest absent: was each really checked? If the file lists only "
            "present labels, read unlisted ones as unknown.",
        )
    ]


def _about(kind: str, problem: str, which: NDArray[np.bool_], stats: Stats) -> list[Caution]:
    """Return a caution with the number of classes and the names of the first few, if there are any."""
    classes = np.flatnonzero(which)
    if not len(classes):
        return []
    names = ", ".join(stats.class_names[c] for c in classes[:5]) + (", …" if len(classes) > 5 else "")
    noun = "class" if len(classes) == 1 else "classes"
    return [Caution(kind, f"{len(classes):,} {noun} {problem}: {names}.", tuple(classes.tolist()))]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"
