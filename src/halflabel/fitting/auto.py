"""The rules of `--method auto` and `--methods auto`: which methods to try for which labels, and how to train them.

`RULES` is meant to be edited: the first rule that fits the labels is used; its first method is trained, and all of its
methods are the short list to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from halflabel.errors import UserError
from halflabel.labels.table import Stats

SHORT_LIST = 6  # most methods on a short list


@dataclass(frozen=True)
class Choice:
    """A method, why it fits, its options, and the fields of `Settings` and `Config` to train it with."""

    method: str
    why: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # such as lr, epochs, ema
    config: Mapping[str, Any] = field(default_factory=dict)  # such as linear_init
    candidates: tuple[Choice, ...] = ()  # that a linear fit measures, to take one instead, or an average

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Rule:
    """Methods for label regimes; each number must be in its range, whose first number is included."""

    regimes: tuple[str, ...]
    choices: tuple[Choice, ...]
    unlabelled: tuple[float, float] = (0.0, 2.0)  # share of images without any label
    negatives: tuple[float, float] = (0.0, math.inf)  # known negatives per known positive
    known: tuple[float, float] = (0.0, 2.0)  # share of known labels
    positives: tuple[float, float] = (0.0, math.inf)  # known positives per class, on average
    classes: tuple[float, float] = (0, math.inf)
    whole: str = ""  # the method to tune a whole network by; "": the first one of WHOLE_FIRST among the choices

    def fits(self, stats: Stats) -> bool:
        positives = float(stats.positives.sum())
        negatives = float(stats.negatives.sum()) / max(1.0, positives)
        return (
            stats.regime in self.regimes
            and self.unlabelled[0] <= stats.unlabelled_share < self.unlabelled[1]
            and self.negatives[0] <= negatives < self.negatives[1]
            and self.known[0] <= stats.share_known < self.known[1]
            and self.positives[0] <= positives / max(1, stats.classes) < self.positives[1]
            and self.classes[0] <= stats.classes < self.classes[1]
        )

    def conditions(self) -> list[str]:
        """Return what the labels must be like besides their regime, in words."""
        limits = (
            (self.unlabelled[0] > 0, f"{100 * self.unlabelled[0]:g} % or more of the images without any label"),
            (self.negatives[1] < math.inf, f"fewer than {self.negatives[1]:g} known negatives per known positive"),
            (self.known[1] < 1, f"less than {100 * self.known[1]:g} % of the labels known"),
            (self.positives[0] > 0, f"at least {self.positives[0]:g} known positives per class"),
            (self.classes[1] < math.inf, f"fewer than {self.classes[1]:g} classes"),
        )
        return [text for applies, text in limits if applies]


_AN_LS = Choice("an-ls", "trusts no label fully, which helps with wrong labels and rare classes")
_BCE = Choice("bce", "uses known labels only: nothing is guessed")
_BN_BCE = Choice("bn-bce", "the baseline to beat: binary cross-entropy over the known labels of the batch")
_ASL = Choice("asl", "gives little weight to the many absent labels that are easy to tell, which helps rare classes")
_CURRICULUM = Choice(
    "curriculum",
    "learns from known labels, then adds unknown ones of which it is sure, in steps; trusts no label fully",
    {"smoothing": 0.05, "theta": 1.5},
)
_EASY_PRESENCES = Choice(
    "curriculum",
    "learns from known labels, scaled by their number, then adds likely presences among unknown ones, in steps",
    {"strategy": "c"},
)
_SMOOTH_BCE = Choice("bce", "learns from known labels only, and trusts none of them fully", {"smoothing": 0.1})
_SS_RML = Choice("ss-rml", "copies labels to images that have none, from their nearest labelled images")
_RML = Choice("rml", "its loss limits the harm that a wrong label can do")
_EM = Choice("em", "keeps unknown labels uncertain: nothing is assumed absent")
_LL_R = Choice("ll-r", "ignores assumed negatives with a large loss: they are likely to be present")
_SPLC = Choice("splc", "takes unknown labels as present once the model is confident")
_N_LS = Choice("n-ls", "takes unknown as probably absent, but never as certainly absent: simple and fast")
_WAN = Choice("wan", "assumes that unknown is absent, with little weight")
_AN = Choice("an", "the baseline to beat: unknown is taken as absent")
_FOCAL = Choice("focal", "gives entries that are already right less weight")
_CSL = Choice(
    "csl",
    "leaves out unknown labels that may well be present, and counts the others as absent, with little weight",
    {},
    {"lr": 9e-4},
)

_MEASURED = (_SMOOTH_BCE, _CURRICULUM, _EASY_PRESENCES)
_MEASURED_FEW = (_SMOOTH_BCE, _EASY_PRESENCES)
_MEASURED_FULL = (_SMOOTH_BCE, _BCE)
_MEASURED_POSITIVES = (_N_LS, _LL_R, _AN_LS)  # where a class has few positives, em is unsteady
_POSITIVES = (_N_LS, _LL_R, _EM, _SPLC, _WAN, _AN)
_MANY_POSITIVES = (_EM, _LL_R, _N_LS, _SPLC, _WAN, _AN)
_MANY: dict[str, Any] = {"positives": (60, math.inf), "classes": (0, 200)}

# Measured on frozen features (benchmarks/RESULTS.md). Test mAP with fewer and more known positives per class: from one
# positive `em` 77.4, `n-ls` 78.3 (15 per class) and 85.1, 85.0 (286; with 75 in simulated scenes of 80 classes 58.6,
# 55.6; not measured above 80 classes); few known labels, without smoothing, `curriculum` 78.4, with strategy c 79.3
# (15) and 82.6, 82.3 (26).
RULES: tuple[Rule, ...] = (
    # Presences with a few answers of "no": methods that learn from known labels alone would call everything present.
    # One positive per photo of VOC 2012 and 1,200 answers, test mAP: em 84.8, n-ls 84.5, wan 84.1, csl 61.4, bce 57.9.
    Rule(("partial",), _MANY_POSITIVES, negatives=(0.0, 0.5), **_MANY),
    Rule(("partial",), _POSITIVES, negatives=(0.0, 0.5)),
    Rule(
        ("full", "partial"),
        (_CURRICULUM, _CSL, _BCE, _SS_RML),
        whole="srcr",
        unlabelled=(0.5, 2.0),
        positives=(25, math.inf),
    ),
    Rule(("full", "partial"), (_EASY_PRESENCES, _CSL, _BCE, _SS_RML), whole="srcr", unlabelled=(0.5, 2.0)),
    Rule(("full",), (_SMOOTH_BCE, _CSL, _CURRICULUM, _RML), unlabelled=(0.1, 2.0)),
    Rule(("full",), (_AN_LS, _ASL, _CSL, _BCE, _FOCAL, _RML)),
    Rule(
        ("partial",),
        (_CURRICULUM, _CSL, _BN_BCE, _BCE),
        whole="srcr",
        known=(0.0, 0.4),
        positives=(25, math.inf),
    ),
    Rule(("partial",), (_EASY_PRESENCES, _CSL, _BN_BCE, _BCE, _AN), whole="srcr", known=(0.0, 0.4)),
    Rule(("partial",), (_SMOOTH_BCE, _CSL, _BN_BCE, _CURRICULUM), whole="srcr"),
    Rule(("single-positive", "positives-only"), _MANY_POSITIVES, **_MANY),
    Rule(("single-positive", "positives-only"), _POSITIVES),
)

# Epochs of a head on a frozen backbone, by the number of images: few images make few steps per epoch. On VOC 2012 (test
# mAP, `bn-bce` with all labels, mean of 2 seeds) 300 images give 58.9 / 66.4 / 68.8 after 20 / 40 / 80 epochs,
# 1,000 images 75.8 / 77.4 / 77.4, and 3,000 images 80.9 / 81.0 / 80.9.
EPOCHS: tuple[tuple[float, int], ...] = ((500, 80), (2_000, 40), (math.inf, 20))


# To train a whole network: first the head on frozen features, then everything with a small learning rate; the average
# of the weights is saved, and mirror images are scored too. benchmarks/RESULTS.md has the effect of each on VOC 2012.
WHOLE: Mapping[str, Any] = {"epochs": 10, "lr": 1e-4, "backbone_lr": 1.0, "ema": 0.998}
WHOLE_FIRST = ("em", "bce")  # the best there, in this order, if they fit the labels


def epochs_for(images: int, tune: str = "head") -> int:
    """Return the number of epochs: by `EPOCHS` for a head on a frozen backbone, 20 for a whole network.

    >>> epochs_for(100), epochs_for(10_000), epochs_for(100, "all")
    (80, 20, 20)
    """
    return next(epochs for most, epochs in EPOCHS if images < most) if tune == "head" else 20


def choose(stats: Stats, *, tune: str = "head", method: str | None = None) -> Choice:
    """Choose the method for these labels and the settings to train it with; for a named method, only the epochs."""
    if method is not None:
        return Choice(method, settings={"epochs": epochs_for(stats.images, tune)})
    candidates = _candidates(stats)
    if tune == "head":
        settings = {"epochs": epochs_for(stats.images, tune), **candidates[0].settings}
        return replace(candidates[0], settings=settings, candidates=_measured(stats))
    from halflabel.methods.base import recipe

    by_name = {choice.method: choice for choice in candidates}
    best = next((by_name[name] for name in WHOLE_FIRST if name in by_name), candidates[0])
    if whole := next(rule.whole for rule in RULES if rule.fits(stats)):
        best = Choice(whole, recipe(whole).summary)
    start = {"linear_init": epochs_for(stats.images), "linear_lr": recipe(best.method).lr, "crop": 0.5, "mirror": True}
    return replace(best, settings=WHOLE, config=start)


def _measured(stats: Stats) -> tuple[Choice, ...]:
    """Return the methods that a linear fit measures; their average is taken where nothing is better."""
    if stats.regime == "full" and not stats.unlabelled_share:
        return _MEASURED_FULL
    candidates = _candidates(stats)
    if candidates is _MANY_POSITIVES:
        return candidates[:3]
    if candidates is _POSITIVES:
        return _MEASURED_POSITIVES
    return _MEASURED_FEW if candidates[0] is _EASY_PRESENCES else _MEASURED


def suited(stats: Stats) -> tuple[Choice, ...]:
    """Return the choices of the first rule that fits; none if no label is known."""
    return next((rule.choices for rule in RULES if rule.fits(stats)), ())


def short_list(*tables: Stats) -> tuple[Choice, ...]:
    """Return the methods to compare for these labels, at most `SHORT_LIST`, the best first.

    For several tables of the same images, one per label mask: methods that can learn from all of them, those for the
    table with the fewest known labels first.
    """
    from halflabel.methods.base import recipes

    known = recipes()
    regimes = {stats.regime for stats in tables}
    choices: dict[str, Choice] = {}
    for stats in sorted(tables, key=lambda stats: stats.known):
        for choice in _candidates(stats):
            if regimes <= set(known[choice.method].serves):
                choices.setdefault(choice.method, choice)
    if not choices:
        raise UserError(f"no method learns from both {' and '.join(sorted(regimes))} labels", "name some by ‹methods›")
    return tuple(choices.values())[:SHORT_LIST]


def _candidates(stats: Stats) -> tuple[Choice, ...]:
    """Return the choices of the first rule that fits; raise without any label."""
    if choices := suited(stats):
        return choices
    raise UserError("no label is known, so no method can learn", "label some images, or check how the file was read")
