"""Pseudo-labels from co-occurring labels and from prototypes, with learned thresholds (Chen 2024, HST)."""

from __future__ import annotations

from typing import Any, Literal

from halflabel.methods.base import Duration, Method, Size, method
from halflabel.methods.parts.transfer import SemanticTransfer
from halflabel.methods.sst import FALLING, sst
from halflabel.system.validate import at_least


@method(
    serves=("full", "partial"),
    paper="Chen, Pu, Liu, Shi, Yang, Lin 2022/24: Heterogeneous Semantic Transfer for Multi-label Recognition with "
    "Partial Labels",
    lr=1e-3,
    tune=lambda options: {"prototypes": (1, 10)} if options["guess_weight"] or options["contrast_weight"] else {},
    needs={
        **FALLING,
        **{name: {**FALLING[name], "thresholds": ("falling",)} for name in ("theta_fall", "theta_floor")},
    },
    options_of=sst,
)
def hst(
    prototypes: Size = 10, every: Duration = 5, thresholds: Literal["learned", "falling"] = "learned", **options: Any
) -> Method:
    """`sst` with prototypes of each label instead of single images, and thresholds learned from the known labels.

    Use it where `sst` is suitable but its thresholds are hard to choose. Prototypes are steadier than single images.

        across: mean over the prototypes of label c of cos(f_c, prototype) ≥ θ_across                        (CST)
        L = that of `sst` + contrast_weight · mean over known labels of (1 − y_c · mean cos(f_c, prototype))
            + 0.1 · Σ over within and across of BCE(σ(10 (score − θ)), y) on known labels, which trains θ only   (DTL)

    prototypes: number of cluster centres of a label's features, recomputed every `every` epochs after the warm-up, from
    the last `bank` images that showed the label. thresholds: learned = both θ start at theta and are learned from the
    known labels, as if these were unknown; falling = as in `sst`, by theta_fall each epoch to theta_floor. The other
    options are those of `sst`: warm, guess_weight, pair_weight, contrast_weight, width, rank, steps, dropout, graph,
    vectors, vector_size.

    Differs from the released code: thresholds and prototypes follow the paper's description, and prototypes come from a
    bank of training features instead of a pass over all images.
    """
    at_least(1, every=every)
    return SemanticTransfer(prototypes=prototypes, every=every, learned=thresholds == "learned", **options)
