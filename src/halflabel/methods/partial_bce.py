"""Partial-BCE, and partial-BCE with the score threshold curriculum (Durand 2019); `plcl` is the whole system."""

from __future__ import annotations

from typing import Literal

from halflabel.methods.base import EpochList, Method, Needs, Positive, Share, method
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.losses import BCE, ByShare

PAPER = "Durand, Mehrasa, Mori 2019: Learning a Deep ConvNet for Multi-label Classification with Partial Labels"
BY_SHARE: Needs = {name: {"alpha": (0,), "beta": (0,)} for name in ("g_value", "g_share")}
_SERVES = ("full", "partial")


@method(
    serves=_SERVES,
    paper=f"{PAPER}, partial-BCE",
    tune={"g_value": (3.0, 5.0, 20.0)},
    needs=BY_SHARE,
)
def partial_bce(
    g_value: float = 5.0, g_share: float = 0.1, gamma: float = 1.0, alpha: float = 0.0, beta: float = 0.0
) -> Method:
    """Binary cross-entropy on known labels, with a larger weight for images with few known labels.

    Use it in place of `bce` for partly known ± labels, above all if some images have many known labels and others few:
    one learning rate then suits both. With all labels known it equals `bce`.

        L = 1/B Σ_i g(p_i)/C Σ_{known c} BCE,   g(p) = α p^γ + β,   p_i = share of image i's labels known   (eq. 1, 2)

    g_value, g_share: g(g_share) = g_value, which with g(1) = 1 gives α and β: g(0.1) = 5 and γ = 1 give α = −4.44 and β
    = 5.44 (rounded to −4.45 and 5.45 in the paper). gamma (γ): 1 is linear. alpha, beta (α, β): set g directly, if
    either is not 0; alpha=1 gamma=-1 is the mean over the known labels.

    If every image has the same share of known labels, g is one common factor, which AdamW cancels: the result is that
    of `bce`, unless weak labels or optimizer=sgd are used.
    """
    return Method(BCE(), reduce=ByShare.from_options(g_value, g_share, gamma, alpha, beta))


@method(serves=_SERVES, paper=f"{PAPER}, score threshold strategy", tune={"theta": (1.0, 2.0, 5.0)})
def curriculum(
    strategy: Literal["a", "c"] = "a",
    theta: Positive = 2.0,
    relabel_at: EpochList = "",
    g_value: float = 5.0,
    g_share: float = 0.1,
    gamma: float = 1.0,
    smoothing: Share = 0.0,
) -> Method:
    """`partial-bce`, and twice during training unknown entries with a score far from zero become labels.

    Use it for partly known ± labels. It is the baseline "curriculum labelling" of later papers: `plcl` with the score
    threshold strategy, a linear head and no graph. It stores a byte per training image and class.

        L = 1/B Σ_i g(p_i)/C Σ_{known or weak c} BCE,   weak labels: x ≥ θ present, x < −θ absent   (eq. 1, 8)

    strategy: a, as above; c: presence alone (eq. 9). theta (θ, of the logit). relabel_at: as in `plcl`; g_value,
    g_share, gamma: as in `partial-bce`; smoothing: as in `bce`, of known and weak labels; not in the paper.
    """
    reduce = ByShare.from_options(g_value, g_share, gamma)
    # What is labelled first decides the rest.
    return Method(BCE(smoothing), Curriculum(strategy, theta, relabel_at), reduce=reduce, starts_from_bce=True)
