"""Partial-BCE, a graph over the classes, and curriculum labelling (Durand 2019)."""

from __future__ import annotations

from halflabel.errors import UserError
from halflabel.methods.base import Method, method
from halflabel.methods.parts.curriculum import STRATEGIES, Curriculum
from halflabel.methods.parts.losses import BCE, ByShare
from halflabel.models.gnn_head import GnnHead
from halflabel.models.heads import Ensemble, Head, Linear, Weldon
from halflabel.system.validate import MAX_SIZE, above, at_least, between

__all__ = ["curriculum", "partial_bce", "plcl"]

_PAPER = "Durand, Mehrasa, Mori 2019: Learning a Deep ConvNet for Multi-label Classification with Partial Labels"
_SERVES = ("full", "partial")
_THRESHOLDS = {"a": (1.0, 5.0), "b": (0.2, 0.5), "c": (1.0, 2.0), "d": (1.0, 5.0), "e": (0.1, 0.5)}  # besides their own


@method(
    serves=_SERVES,
    paper=f"{_PAPER}, partial-BCE",
    tune=lambda given: {} if given["alpha"] or given["beta"] else {"g_value": (3.0, 5.0, 20.0)},
)
def partial_bce(
    g_value: float = 5.0, g_share: float = 0.1, gamma: float = 1.0, alpha: float = 0.0, beta: float = 0.0
) -> Method:
    """Binary cross-entropy on known labels, images with few of them weighted up.

    Use it in place of `bce` for partly known ± labels, above all where some images have many labels and others few:
    the rate that suits all labels then suits few. With all labels known it equals `bce`.

        L = 1/B Σ_i g(p_i)/C Σ_{known c} BCE,   g(p) = α p^γ + β,   p_i = share of image i's labels known   (eq. 1, 2)

    g_value, g_share: g(g_share) = g_value; with g(1) = 1 that gives α and β: g(0.1) = 5 and γ = 1 make α = −4.44 and
    β = 5.44, which the paper rounds to −4.45 and 5.45. It finds g(0.1) from 3 to 50 alike, 20 best; 1 is `bce`.
    gamma (γ): 1 is linear; the paper finds −1 worse, 3 better for many known labels and slightly worse for few.
    alpha, beta (α, β): set g outright instead, if either is not 0; alpha=1 gamma=-1 is the mean over what each image
    knows.

    The paper's figures (ResNet-101, WELDON pooling): mAP on COCO with 10 % known 75.31 against 72.15 of BCE, on Open
    Images 83.05 against 79.01. Where every image has the same share of labels known, g is one factor for all, which
    AdamW undoes: the same as `bce` then, unless weak labels or --optimizer sgd come in.
    """
    return Method(BCE(), reduce=_normalise(g_value, g_share, gamma, alpha, beta))


@method(serves=_SERVES, paper=f"{_PAPER}, score threshold strategy", tune={"theta": (1.0, 2.0, 5.0)})
def curriculum(
    theta: float = 2.0,
    relabel_at: str = "",
    redecide: bool = False,
    g_value: float = 5.0,
    g_share: float = 0.1,
    gamma: float = 1.0,
) -> Method:
    """`partial-bce`, and twice in training the unknown entries that score far from zero become labels.

    Use it for partly known ± labels. It is the baseline "curriculum labelling" of later papers: `plcl` with the score
    threshold strategy, on a linear head without a graph. It remembers a quarter of a byte per training image and class.

        L = 1/B Σ_i g(p_i)/C Σ_{known or weak c} BCE,   weak labels: x ≥ θ present, x < −θ absent   (eq. 1, 8)

    theta (θ, of the logit); relabel_at: the epochs before which labels are added, as in 10,15 (default: at half and
    three quarters of training, the paper's 10 and 15 of 20); redecide: weak labels are forgotten and decided anew each
    time instead of kept. g_value, g_share, gamma: as in `partial-bce`.

    Figures of Huynh 2020 (Open Images, mAP): 77.05 against 75.85 of `logistic`.
    """
    relabel = Curriculum("a", theta, relabel_at, redecide=redecide)
    return Method(BCE(), relabel, reduce=_normalise(g_value, g_share, gamma))


@method(serves=_SERVES, paper=_PAPER, tune=lambda given: {"theta": _THRESHOLDS.get(given["strategy"], ())})
def plcl(
    strategy: str = "e",
    theta: float = 0.0,
    relabel_at: str = "",
    redecide: bool = False,
    passes: int = 20,
    statistic: str = "variance",
    spread_of: str = "logit",
    dropout: float = 0.5,
    block: int = 16,
    ensemble: int = 3,
    ensemble_of: str = "seeds",
    pooling: str = "weldon",
    k_plus: float = 0.1,
    k_minus: float = 0.1,
    gnn: bool = True,
    steps: int = 3,
    readout: str = "node",
    g_value: float = 5.0,
    g_share: float = 0.1,
    gamma: float = 1.0,
    alpha: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """Partial-BCE, scores that hear each other through a graph, and unknown entries labelled once they are easy.

    Use it for partly known ± labels when training may take longer: it needs features with places (maps) unless pooling
    is "mean", remembers a quarter of a byte per training image and class, and the graph takes time that grows with C³.
    It refuses more than 2,400 classes with a graph.

        A = 1×1 convolution of the features;  x_c = ½ (mean of the highest k⁺ of A_c + mean of the lowest k⁻)
        h_v⁰ = x_v e_v;  T times: h_v ← GRU(h_v, mean over u ≠ v of ReLU(FC(h_u)));  y_v = (h_v⁰ + h_v^T)_v
        L = 1/B Σ_i g(p_i)/C Σ_{known or weak c} BCE(y),   g(p) = α p^γ + β,   p_i = the share of labels known or weak
        weak labels: before chosen epochs, of the entries still unknown those that are easy:
          a: y ≥ θ present, y < −θ absent (θ 2)      b: the share θ with the largest |y| of each block of images (0.8)
          c: y ≥ θ present (5)                       d: as a, on the mean logit of an ensemble (2)
          e: Var(y) ≤ θ over passes with dropout, label by the sign of the mean (0.3)     2steps: all, once

    strategy: none, a, b, c, d, e or 2steps; theta (θ): 0 = the strategy's own, as above.
    relabel_at: the epochs before which labels are added, as in 10,15 (default: at half and three quarters of training,
    the paper's 10 and 15 of 20). Weak labels are kept, and later times add to them, as the paper's label proportions
    show; redecide: they are forgotten and decided anew each time.
    passes, dropout, statistic (variance or std), spread_of (logit or score): for e, of which the paper says "variance
    of the classification scores" and "the setting used in" Kendall and Gal 2017. Variance, of logits, is meant by that:
    its θ up to 0.5 leave entries unlabelled, and scores between 0 and 1 vary by 0.25 at most. That setting is 50 passes
    and dropout of 0.2 after every convolution; here dropout is before the head alone, and 20 passes at 0.5 are ours.
    It acts in training under every strategy. θ is not on a scale of its own: a model that has seen few steps, or with
    little dropout, varies little and would label everything, right or wrong; then take a, which goes by the size of the
    score.
    block: images per block of b, the paper's mini-batch.
    ensemble, ensemble_of: for d, whose ensemble the paper does not describe: so many heads on the same features with
    first weights of their own ("seeds", each with a loss of its own; their mean is the model), or the mean of the
    scores after the last so many epochs ("snapshots").
    pooling: weldon, or mean (a linear head); k_plus, k_minus (k⁺, k⁻): below 1 a share of the cells, else how many.
    gnn: the graph, or none; steps (T); readout: "node" as above, or "linear", a learned read-out shared by the classes:
    the text does not say how a score comes of the vector h_v⁰ + h_v^T.
    g_value, g_share, gamma, alpha, beta: as in `partial-bce`.

    The paper's ablation (COCO, 10 % known, ResNet-101, mAP): BCE 72.15 (strategy=none gnn=false g_value=1 dropout=0),
    partial-BCE 75.31 (strategy=none gnn=false dropout=0), with the graph 75.82 (strategy=none dropout=0), with
    labelling 75.71 (gnn=false), with both 76.40; 0-1 exact match 22.04, 24.51, 25.14, 30.52, 32.12. It trains with
    --optimizer sgd --lr 0.01 --batch-size 16 --schedule step --epochs 20 --size 448 --tune all, one rate for all layers
    (--backbone-lr 1) and mirror images alone (--crop 1). On VOC 2007 with 10 % known, 79.74 % of the entries are
    labelled in the end by e, TP rate 68.96, TN rate 99.23.

    Measured here (digit scenes, 10 % known, frozen features, 3 seeds): mAP 48.7 against 49.5 of `bce`. With one seed
    at --lr 1e-3, 49.4 against 50.4: 45 % of the entries are labelled in the end, TP rate 33, TN rate 93; with passes=50
    dropout=0.2, mAP 49.6: 91 %, 37 and 90. Where a model cannot tell, its labels cannot help.
    """
    if strategy not in ("none", *STRATEGIES):
        raise UserError(f"plcl has no strategy {strategy!r}", f"use none, {', '.join(STRATEGIES)}")
    if pooling not in ("weldon", "mean"):
        raise UserError(f"plcl has no pooling {pooling!r}", "use weldon or mean")
    if ensemble_of not in ("seeds", "snapshots") or ensemble < 1:
        raise UserError(f"there is no ensemble of {ensemble} {ensemble_of!r}", "use 1 or more seeds or snapshots")
    if not 0 <= dropout < 1 or (strategy == "e" and dropout == 0):
        raise UserError(
            f"dropout {dropout:g} does not fit strategy {strategy}",
            "use 0 ≤ dropout < 1; above 0 for e, which measures what dropout changes",
        )
    above(0, k_plus=k_plus)
    at_least(0, k_minus=k_minus)
    between(1, MAX_SIZE, steps=steps, passes=passes, ensemble=ensemble)
    seeds = ensemble if strategy == "d" and ensemble_of == "seeds" else 1

    def make_member(channels: int, classes: int) -> Head:
        plain: Head
        if pooling == "weldon":
            plain = Weldon(channels, classes, k_plus, k_minus, dropout)
        else:
            plain = Linear(channels, classes, dropout)
        return GnnHead(plain, classes, steps, readout) if gnn else plain

    def make_head(channels: int, classes: int) -> Head:
        members = [make_member(channels, classes) for _ in range(seeds)]
        return Ensemble(members) if seeds > 1 else members[0]

    relabel = None
    if strategy != "none":
        relabel = Curriculum(
            strategy,
            theta,
            relabel_at,
            redecide=redecide,
            block=block,
            snapshots=ensemble if ensemble_of == "snapshots" else 0,
            passes=passes,
            statistic=statistic,
            of=spread_of,
        )
    return Method(BCE(), relabel, head=make_head, reduce=_normalise(g_value, g_share, gamma, alpha, beta))


def _normalise(g_value: float, g_share: float, gamma: float, alpha: float = 0.0, beta: float = 0.0) -> ByShare:
    return ByShare(alpha, beta, gamma) if alpha or beta else ByShare.through(g_share, g_value, gamma)
