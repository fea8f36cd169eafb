"""LSEP: a smooth ranking loss over all pairs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import Loss, over_images
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.types import Targets, at_least_float32


@method(lr=3e-4, serves=REGIMES, paper="Li, Song, Luo 2017; Huynh 2020 (IMCL), row LSEP")
def lsep(unknown: Unknown = "auto") -> Method:
    """Log-sum-exp pairwise ranking: every known positive should score above every known negative of its image.

    A smooth alternative to `warp` without sampling. It ranks the classes within an image; scores of different
    images are not comparable. An image is used only if it has a positive and a negative.

        L = 1/B Σ_i log(1 + Σ_{n absent} Σ_{p present} exp(x_n − x_p))

    unknown: as in `warp`.

    Differs from Li 2017: there at most 1,000 pairs per image are sampled; here all are used, at the cost of a sum over
    classes.
    """
    return Method(LSEP(), UnknownAs(unknown), reduce=over_images)


class LSEP(Loss):
    """log(1 + Σ_{n, p} neg_n pos_p exp(x_n − x_p)) of each image, shared equally among its positives.

    The sum over pairs is a product: softplus(log Σ_n neg_n exp(x_n) + log Σ_p pos_p exp(−x_p)), so no pair is formed.
    """

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        x = at_least_float32(logits)
        gap = _log_sum(x, targets.neg) + _log_sum(-x, targets.pos)
        present = (targets.pos > 0).to(x.dtype)
        share = present / present.sum(1, keepdim=True).clamp(min=1)
        return share * softplus(gap)


def _log_sum(x: Tensor, weight: Tensor) -> Tensor:
    """log Σ_c w_c exp(x_c), (B, C) -> (B, 1); where all weights are 0 a large negative number with gradient 0."""
    # Not −∞: its gradient would be NaN. A quarter, so that two of them, and a logit, can be added.
    least = torch.finfo(x.dtype).min / 4
    log_weight = weight.to(x.dtype).log().clamp(min=least)
    return torch.where(weight > 0, x + log_weight, least).logsumexp(1, keepdim=True)
