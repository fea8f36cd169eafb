"""The rules of `--method auto` and `--methods auto`: which methods to try for which labels, and how to train them.

`RULES` is meant to be edited: the first rule that fits the labels is used; its methods are the short list to compare. A
linear fit measures those of `_measured` and takes one, or their average; other fits take the first method of the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from halflabel.errors import UserError
from halflabel.features.backbone_names import DEFAULT
from halflabel.labels.table import Stats

SHORT_LIST = 6  # most methods on a short list


@dataclass(frozen=True)
class Choice:
    """A method, why it fits, its options, and the fields of `Config` to train it with."""

    method: str
    why: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # such as lr, epochs, targets
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

# Measured on frozen features: benchmarks/RESULTS.md.
RULES: tuple[Rule, ...] = (
    # Presences with a few answers of "no": methods that learn from known labels alone would call everything present.
    Rule(("partial",), _MANY_POSITIVES, negatives=(0.0, 0.5), **_MANY),
    Rule(("partial",), _POSITIVES, negatives=(0.0, 0.5)),
    Rule(
        ("full", "partial"),
        (_CURRICULUM, _CSL, _BCE, _SS_RML),
        unlabelled=(0.5, 2.0),
        positives=(25, math.inf),
    ),
    Rule(("full", "partial"), (_EASY_PRESENCES, _CSL, _BCE, _SS_RML), unlabelled=(0.5, 2.0)),
    Rule(("full",), (_SMOOTH_BCE, _CSL, _CURRICULUM, _RML), unlabelled=(0.1, 2.0)),
    Rule(("full",), (_AN_LS, _ASL, _CSL, _BCE, _FOCAL, _RML)),
    Rule(
        ("partial",),
        (_CURRICULUM, _CSL, _BN_BCE, _BCE),
        known=(0.0, 0.4),
        positives=(25, math.inf),
    ),
    Rule(("partial",), (_EASY_PRESENCES, _CSL, _BN_BCE, _BCE, _AN), known=(0.0, 0.4)),
    Rule(("partial",), (_SMOOTH_BCE, _CSL, _BN_BCE, _CURRICULUM)),
    Rule(("single-positive", "positives-only"), _MANY_POSITIVES, **_MANY),
    Rule(("single-positive", "positives-only"), _POSITIVES),
)

# Epochs of a head on a frozen backbone, by the number of images: few images make few steps per epoch.
EPOCHS: tuple[tuple[float, int], ...] = ((500, 80), (2_000, 40), (math.inf, 20))


# To tune a whole network: one setting for all label regimes, and a learning rate by type of network.
_TRANSFORMERS = ("vit", "deit", "beit", "eva", "swin", "dino", "siglip", "clip", "cait", "xcit", "maxvit")
WHOLE: Mapping[str, Any] = {"backbone_lr": 1.0, "ema": 0.998, "clip": 5.0, "patience": 3, "weight_decay": 0.02}
_RATES = {"efficientnet": 3e-4, "transformer": 5e-5, "other": 1e-4}
_WHOLE_SIZE = 448
_WHOLE_CROP = 0.4


def epochs_for(images: int, tune: str = "head") -> int:
    """Return the number of epochs: by `EPOCHS` for a head on a frozen backbone; fewer with more images for a network.

    >>> epochs_for(100), epochs_for(10_000), [epochs_for(images, "all") for images in (300, 1_000, 5_717, 100_000)]
    (80, 20, [35, 19, 8, 4])
    """
    if tune == "head":
        return next(epochs for most, epochs in EPOCHS if images < most)
    return min(max(round(600 / math.sqrt(max(images, 1))), 4), 40)


def whole_settings(images: int, backbone: str, *, on_gpu: bool) -> dict[str, Any]:
    """Return the fields of the configuration to tune a whole network with.

    >>> whole_settings(5_717, "efficientnet-lite2", on_gpu=True)["lr"]
    0.0003
    """
    name = backbone.lower()
    is_transformer = any(part in name for part in _TRANSFORMERS)
    kind = "transformer" if is_transformer else "efficientnet" if "efficientnet" in name else "other"
    epochs = epochs_for(images, "all")
    held_out = min(max(600 / max(images, 1), 0.05), 0.2)
    batch_size = 64 if images >= 1000 else 32
    config = {**WHOLE, "epochs": epochs, "warmup": 0.08 * epochs, "lr": _RATES[kind], "batch_size": batch_size}
    config |= {"held_out": round(held_out, 3), "crop": _WHOLE_CROP}
    if on_gpu:
        config["precision"] = "bf16"
        if not is_transformer and backbone != "tiny":
            config["size"] = _WHOLE_SIZE
    return config


def choose(
    stats: Stats, *, tune: str = "head", method: str | None = None, backbone: str = "", on_gpu: bool = False
) -> Choice:
    """Choose the method for these labels and the settings to train it with; for a named method, only the settings.

    With `tune` "all", a method that is not named fits the frozen recipe, whose probabilities the network learns from.
    """
    chosen = Choice(method or "")
    if method is None:
        chosen = replace(_candidates(stats)[0], candidates=_measured(stats))
    if tune == "all":
        whole = whole_settings(stats.images, backbone or DEFAULT, on_gpu=on_gpu)
        return replace(chosen, config=whole | ({} if method is not None else {"targets": "soft"}))
    return replace(chosen, config={"epochs": epochs_for(stats.images), **chosen.config})


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
