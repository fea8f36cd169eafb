"""Pseudo-labels from co-occurring labels and from similar images (Chen 2022, SST)."""

from __future__ import annotations

from typing import Any

from halflabel.methods.base import AfterEpoch, Method, Needs, NonNegative, Not, PerEpoch, Size, method
from halflabel.methods.parts.transfer import SemanticTransfer
from halflabel.methods.ssgrl import ssgrl

FALLING: Needs = {
    "theta": {"guess_weight": Not(0)},
    "theta_fall": {"guess_weight": Not(0)},
    "theta_floor": {"guess_weight": Not(0), "theta_fall": Not(0)},
}


@method(
    serves=("full", "partial"),
    paper="Chen, Pu, Wu, Xie, Lin 2022: Structured Semantic Transfer for Multi-Label Recognition with Partial Labels",
    lr=1e-3,
    tune={"theta_floor": (0.65, 0.75, 0.85)},
    needs=FALLING,
    options_of=ssgrl,
)
def sst(
    theta: float = 0.95,
    theta_fall: PerEpoch = 0.025,
    theta_floor: float = 0.75,
    warm: AfterEpoch = 5,
    guess_weight: NonNegative = 1.0,
    pair_weight: NonNegative = 10.0,
    contrast_weight: NonNegative = 0.05,
    bank: Size = 100,
    **head: Any,
) -> Method:
    """Unknown labels become present if known labels of the image, or other images of the label, clearly suggest it.

    The head is that of `ssgrl`. Use it for partly known ± labels in pictures of many things. It needs features with
    places (maps).

        p_cc' = predicted co-occurrence from f_c and f_c';   within: mean of p_cc' over known present c' ≠ c ≥ θ  (IST)
        across: mean of cos(f_c, f_c of the last `bank` images that showed c) ≥ θ                               (CST)
        L = ℓ(y) + guess_weight · (ℓ(y and within) + ℓ(y and across)) + pair_weight · L_pairs + contrast_weight · L_cos
        ℓ = BCE divided by the entries used;  L_pairs: asymmetric loss of p_cc' on known pairs, over all;
        L_cos: 1 − cos(f_c^n, f_c^m) if both images show c, else 1 + cos

    theta (θ): threshold of the first epoch after the warm-up of `warm` epochs, which has no pseudo-labels; it falls by
    theta_fall each epoch to theta_floor: 0.95, 0.025 and 0.75 in the paper, after 5 epochs. guess_weight, pair_weight
    and contrast_weight: as above; 1, 10 and 0.05 in the released code. bank: images stored per label, 4·width bytes
    each. width, rank: of the head and of the co-occurrence network; 1,024 and 512 in the released code. steps, dropout,
    graph, vectors, vector_size: as in `ssgrl`. The co-occurrence network has 2·rank·C² bytes of weights, used
    in training only.

    Differs from the released code: p_cc' is trained on pairs of known labels, not by taking unknown as absent; the mean
    over the bank is over its filled slots, and a batch is stored after its own pseudo-labels, not before; pairs for
    L_cos are weighted, not drawn.
    """
    options = locals()
    return SemanticTransfer(**options.pop("head"), **options)
