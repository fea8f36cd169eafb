"""Advice for a label table: which methods fit, and what looks wrong (`halflabel inspect`)."""

from __future__ import annotations

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


class Advice(NamedTuple):
    """The kind of labels, the methods to try in that order, and possible problems."""

    regime: str
    methods: list[Suggestion]
    cautions: list[Caution]
    measured: list[str]  # the methods that `train` measures


def advise(stats: Stats) -> Advice:
    """Return methods to try and things to check, from counts of the known labels.

    The methods are those of `halflabel.fitting.auto`, so that `inspect` and `compare` agree. `ss-rml` is
    added if some images have no label at all, and `rml` always, for labels that may be wrong: a table cannot show that.
    """
    methods = {choice.method: choice.why for choice in suited(stats)}
    if methods and stats.unlabelled_share > 0:
        methods.setdefault("ss-rml", "copies labels to the images that have none, from their nearest labelled images")
    if methods:
        methods.setdefault("rml", "if labels may be wrong, which a table cannot show: its loss limits the harm of each")
    names = [str(choice) for choice in choose(stats).candidates] if methods else []
    suggestions = [Suggestion(*pair) for pair in methods.items()]
    return Advice(describe_labels(stats), suggestions, _cautions(stats), names)


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
    cautions = []
    if without := stats.images - stats.labelled_images:
        share = f"{100 * without / stats.images:.3g} %"
        cautions.append(Caution("unlabelled images", f"{without:,} images ({share}) have no label at all."))
    if assumption := {
        "single-positive": "the label of an image was chosen at random among its present classes",
        "positives-only": "each present label had the same chance of being given",
    }.get(stats.regime):
        cautions.append(Caution("assumption", f"Probabilities will assume that {assumption}."))
    if stats.regime == "full" and stats.negatives.any():  # as if unlisted labels had been read as absent
        one_each = stats.classes > 2 and int(stats.positives_per_image[1:2].sum()) == stats.labelled_images
        why = "exactly one class is present" if one_each else f"all {stats.classes} classes are known"
        if one_each or stats.classes >= MANY_CLASSES:
            message = (
                f"In every labelled image {why} and the rest absent: was each really checked? If the file lists only "
                "present labels, read unlisted ones as unknown."
            )
            cautions.append(Caution("assumed absent", message))
    never = stats.positives + stats.negatives == 0
    for kind, problem, which in (
        ("never known", "without any known label, so that nothing can be learned", never),
        (
            "few positives",
            f"with fewer than {FEW_POSITIVES} known positives",
            ~never & (stats.positives < FEW_POSITIVES),
        ),
        (  # if no class has a negative, that is the regime, not a problem of a class
            "no negatives",
            "never known absent, so that scores cannot be evaluated",
            ~never & (stats.negatives == 0) & bool(stats.negatives.any()),
        ),
    ):
        if len(classes := np.flatnonzero(which)):
            names = ", ".join(stats.class_names[c] for c in classes[:5]) + (", …" if len(classes) > 5 else "")
            message = f"{counted(len(classes), 'class', 'classes')} {problem}: {names}."
            cautions.append(Caution(kind, message, tuple(classes.tolist())))
    return cautions
