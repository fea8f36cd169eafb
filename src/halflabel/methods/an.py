"""Assume negative: unknown labels are taken as absent; and common ways to soften that assumption."""

from __future__ import annotations

from halflabel.methods.base import REGIMES, Method, NonNegative, Share, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import AssumeNegative, LabelSmoothing
from halflabel.methods.parts.terms import Entropy


@method(serves=REGIMES, paper="common baseline; Zhou 2022 (EM+APL), row AN")
def an() -> Method:
    """Binary cross-entropy with every unknown entry taken as absent.

    The baseline for positives-only labels: missing positives are trained as negatives, so scores are too low. Report it
    beside every other method, with the oracle.

        L = 1/(B·C) (Σ_present −log p + Σ_{absent or unknown} −log(1 − p))
    """
    return Method(BCE(), AssumeNegative())


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="common baseline; Zhou 2022 (EM+APL), row LS; Cole 2021 (ROLE), row AN-LS",
    tune={"smoothing": (0.05, 0.1, 0.2)},
)
def an_ls(smoothing: Share = 0.1) -> Method:
    """Unknown taken as absent, with label smoothing of present and absent labels: no label is fully trusted.

    Use it where `an` pushes scores too low: missing positives and wrong labels then cost less. Known labels are
    smoothed too, on purpose.

        L = 1/(B·C) Σ (1 − ε) · term of the label + ε · opposite term

    Options: smoothing (ε), 0.1 in full as in the released code, not half of it.
    """
    method = Method(BCE(), LabelSmoothing(smoothing, known=True))
    method.changes_known = True
    return method


@method(lr=3e-4, serves=REGIMES, paper="Zhou 2022 (EM+APL), row N-LS", tune={"smoothing": (0.05, 0.1, 0.2)})
def n_ls(smoothing: Share = 0.1) -> Method:
    """Unknown taken as absent, with label smoothing of the assumed negatives only; known labels are fully trusted.

    Use it in place of `an-ls` if the known labels are right. With all labels known it equals `bce`.

        L = 1/(B·C) (Σ_known BCE + Σ_unknown −ε log p − (1 − ε) log(1 − p))

    Options: smoothing (ε).
    """
    return Method(BCE(), LabelSmoothing(smoothing, known=False))


@method(serves=REGIMES, paper="Zhou 2022 (EM+APL), row DW; Cole 2021 (ROLE), row WAN")
def wan(weight: NonNegative = 0.0) -> Method:
    """Unknown taken as absent with weight 1/(C − 1), so that one known positive weighs as much as all of them.

    Simple and fast, for images with one or few known positives. Scores grow with the number of classes and are no
    probabilities; `halflabel train` calibrates them.

        L = 1/(B·C) (Σ_known BCE + 1/(C − 1) Σ_unknown −log(1 − p))

    Options: weight (of an unknown label; 0 means 1/(C − 1)). A small one suits few answers to chosen questions, which
    alone would make every class look common.

    Differs from the released code: known negatives have weight 1 here; it has none and would give them 1/(C − 1).
    """
    return Method(BCE(), AssumeNegative(weight))


@method(serves=REGIMES, paper="Zhou 2022 (EM+APL), row EntMin", tune={"alpha": (0.05, 0.1, 0.2, 0.5)})
def entmin(alpha: NonNegative = 0.2) -> Method:
    """Binary cross-entropy on known labels, and minimum entropy on unknown entries, which makes them confident.

    With known negatives it is a classic of semi-supervised learning. With positives only it collapses, because nothing
    keeps the scores low: that is its row in the paper's table, the opposite of `em`. Do not use it there.

        L = 1/(B·C) (Σ_known BCE + α Σ_unknown H(p)),  H(p) = −p log p − (1 − p) log(1 − p)

    Options: alpha (α), which the paper does not give; the default is that of `em`.
    """
    return Method(BCE(), terms=[Entropy(alpha)])
