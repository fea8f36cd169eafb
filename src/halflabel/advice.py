"""Which methods suit a label table, and what in it looks wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.stats import Regime, Stats

__all__ = ["Advice", "Caution", "Suggestion", "advise"]

FEW_POSITIVES = 5
MANY_CLASSES = 100  # nobody looks at every image for more classes than this
NEARLY_FULL = 0.9  # share of the classes known per labelled image from which there is little left to guess


class Suggestion(NamedTuple):
    """A method by name, and why it suits these labels."""

    method: str
    why: str


class Caution(NamedTuple):
    """Something to look at: a fixed `kind`, one sentence, and the numbers of the classes it is about."""

    kind: str
    message: str
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """What kind of labels these are, the methods to try in that order, and what looks wrong."""

    regime: str
    methods: tuple[Suggestion, ...]
    cautions: tuple[Caution, ...]


_FULL = (
    Suggestion("bce", "every label is known: plain binary cross-entropy has nothing to guess"),
    Suggestion("asl", "plays down the many easy negatives, which helps rare classes"),
)
_EM_APL = Suggestion("em-apl", "needs positives only: unknown labels are not assumed to be absent")
_ROLE = Suggestion("role", "estimates the unknown labels from the expected number of positives per image")
_WAN = Suggestion("wan", "assumes that unknown is absent but charges little for it: simple and fast")
_AN = Suggestion("an", "the baseline to beat: unknown is taken as absent")
_PARTIAL = (
    Suggestion("plcl", "learns from known labels only, scaled by their number, and adds easy unknown ones in steps"),
    Suggestion("srcr", "labels what is unknown from two views of the image: strong when few labels are known"),
    Suggestion("imcl", "fills in unknown labels from similar images and related classes"),
    Suggestion("bn-bce", "the baseline to beat: binary cross-entropy over the known labels of the batch"),
)
_METHODS: dict[Regime, tuple[Suggestion, ...]] = {
    "full": _FULL,
    "single-positive": (_EM_APL, _ROLE, _WAN, _AN),
    "positives-only": (
        _EM_APL,
        _ROLE,
        Suggestion("splc", "takes unknown labels as present once the model is sure of them"),
        Suggestion("ll-r", "leaves out assumed negatives with a large loss: they are likely to be present"),
        _WAN,
        _AN,
    ),
    "partial": _PARTIAL,
    "empty": (),
}
_NEARLY_FULL = (
    Suggestion("bce", "nearly every label is known: leaving out the rest costs little"),
    _FULL[1],
    *_PARTIAL,
)
_PROPAGATE = Suggestion("ss-rml", "hands labels on to the images that have none, from their nearest labelled images")
_ROBUST = Suggestion("rml", "if labels may be wrong, which a table cannot show: its loss limits the harm each can do")


def advise(stats: Stats) -> Advice:
    """Methods to try and things to check, from counts of the known labels alone.

    The methods follow from the regime. `ss-rml` comes first where most images have no label at all, after the regime's
    own where some have none. `rml` is always last, for labels that may be wrong: a table cannot show that.
    """
    methods = _METHODS[stats.regime]
    if stats.regime == "partial" and _known_per_image(stats) >= NEARLY_FULL * stats.classes:
        methods = _NEARLY_FULL
    if methods:
        if stats.unlabelled_share > 0.5:
            methods = (_PROPAGATE, *methods)
        elif stats.unlabelled_share > 0:
            methods = (*methods, _PROPAGATE)
        methods = (*methods, _ROBUST)
    return Advice(_sentence(stats), methods, tuple(_cautions(stats)))


def _known_per_image(stats: Stats) -> float:
    return stats.known / max(stats.labelled_images, 1)


def _sentence(stats: Stats) -> str:
    some = f"on average {_known_per_image(stats):.3g} of {stats.classes} classes"
    return {
        "full": "Full labels: every class is known for every labelled image.",
        "single-positive": "Single positive: each labelled image has one class known to be present, none to be absent.",
        "positives-only": f"Positives only: {some} are known to be present per labelled image, none to be absent.",
        "partial": f"Partial labels: {some} are known per labelled image, as present or absent.",
        "empty": "No labels: nothing is known yet.",
    }[stats.regime]


def _cautions(stats: Stats) -> list[Caution]:
    if not stats.known:
        return [Caution("no labels", "No label is known: label some images, or check how the label file was read.")]
    entries = stats.images * stats.classes
    found = [
        Caution(
            "known share", f"{_percent(stats.known, entries)} of all labels are known: {stats.known:,} of {entries:,}."
        )
    ]
    without = stats.images - stats.labelled_images
    if without:
        found.append(
            Caution(
                "unlabelled images", f"{without:,} images ({_percent(without, stats.images)}) have no label at all."
            )
        )
    if stats.regime == "full" and stats.negatives.any():
        found.extend(_assumed_absent(stats))

    never = stats.positives + stats.negatives == 0
    few = ~never & (stats.positives < FEW_POSITIVES)
    # Where no class has a negative, that is the regime and not something odd about a class.
    no_negative = ~never & (stats.negatives == 0) & bool(stats.negatives.any())
    found += _about("never known", "without any known label, so nothing can be learned for them", never, stats)
    found += _about("few positives", f"with fewer than {FEW_POSITIVES} known positives", few, stats)
    found += _about("no negatives", "never known to be absent, so their scores cannot be judged", no_negative, stats)
    return found


def _assumed_absent(stats: Stats) -> list[Caution]:
    """Complete labels that look as if what the file does not list had been read as absent."""
    one_each = stats.classes > 2 and int(stats.positives_per_image[1:2].sum()) == stats.labelled_images
    if not one_each and stats.classes < MANY_CLASSES:
        return []
    why = "exactly one class is present" if one_each else f"all {stats.classes} classes are known"
    return [
        Caution(
            "assumed absent",
            f"In every labelled image {why} and the rest absent: was each really checked? If the file lists only what "
            "is present, read what it does not list as unknown.",
        )
    ]


def _about(kind: str, what: str, which: NDArray[np.bool_], stats: Stats) -> list[Caution]:
    """A caution that counts the classes and names the first few; none where there are none."""
    classes = np.flatnonzero(which)
    if not len(classes):
        return []
    named = ", ".join(stats.class_names[c] for c in classes[:5]) + (", …" if len(classes) > 5 else "")
    noun = "class" if len(classes) == 1 else "classes"
    return [Caution(kind, f"{len(classes):,} {noun} {what}: {named}.", tuple(classes.tolist()))]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"
