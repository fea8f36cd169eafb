"""Saliency regularisation and consistency: the strongest places of a class map count twice (Wang 2023)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from halflabel.features.heads import MapHead, Model, pool
from halflabel.methods.base import FromEpoch, Method, NonNegative, Not, PositiveCount, method
from halflabel.methods.parts.losses import BCE, ByShare, Reduce, over_entries, over_known
from halflabel.methods.parts.relabel import Begins, Ignore, Relabeler
from halflabel.system.validate import between, one_of
from halflabel.types import Batch, Output, Targets, at_least_float32


class SaliencyHead(MapHead):
    """Class maps; the score is their mean, shifted by the mean of their top k cells: a_c + α s_c. Eq. 3 to 5.

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w). With fewer than k cells s_c is the mean of all; pooled features
    (B, D) are maps of one cell, where x_c = (1 + α) A_c. `infer` "mean" leaves the shift out in evaluation mode.
    """

    def __init__(self, channels: int, classes: int, k: int = 5, alpha: float = 0.5, infer: str = "shifted") -> None:
        super().__init__(channels, classes)
        self.k = k
        self.alpha = alpha
        self.gain = 1 + alpha
        self.infer = infer

    @property
    def words(self) -> str:
        return f"class maps, saliency of the {self.k} strongest places" if self.alpha else "class maps"

    def forward(self, features: Tensor) -> Output:
        maps = at_least_float32(self.class_maps(self.places(features)))  # in half precision the shift could overflow
        logits = maps.mean(dim=(2, 3))
        if self.alpha and (self.training or self.infer == "shifted"):
            cells = maps.flatten(2)
            salient = cells.topk(min(self.k, cells.shape[2]), sorted=False).values.mean(dim=2)
            logits = logits + self.alpha * salient
        return Output(logits, pool(features), maps)


class SelfTraining(Method):
    """L = L_s + weight · L_u: the loss of known labels, and of those the relabeler guesses, each reduced separately.

    All views go through the model as one batch: one pass, with shared batch-norm statistics. The relabeler guesses
    labels on the first view, and L_u trains the last view with them; with one view it is both. L_s uses the views
    `supervise` ("first", "last" or "both"). Unless `shifted`, L_u uses the plain means of the class maps, a_c.
    """

    def __init__(
        self,
        relabel: Relabeler,
        *,
        supervise: str,
        shifted: bool,
        weight: float,
        **parts: Any,
    ) -> None:
        super().__init__(BCE(), relabel, **parts)
        self.supervise = supervise
        self.shifted = shifted
        self.weight = weight

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(torch.cat(batch.views))
        count = len(batch.labels)
        scores = output.logits
        if not self.shifted:
            assert output.maps is not None, "a head without class maps has no plain means"
            scores = output.maps.mean(dim=(2, 3))
        targets = self.relabel(batch, scores[:count].detach(), epoch)
        unknown = batch.labels == 0
        known = Targets(targets.pos.masked_fill(unknown, 0), targets.neg.masked_fill(unknown, 0))
        guessed = Targets(targets.pos.masked_fill(~unknown, 0), targets.neg.masked_fill(~unknown, 0))

        logits = output.logits
        if self.supervise != "both":
            logits = logits[:count] if self.supervise == "first" else logits[-count:]
        repeats = len(logits) // max(count, 1)
        known = Targets(known.pos.repeat(repeats, 1), known.neg.repeat(repeats, 1))
        supervised = self.reduce(self.loss(logits, known), known)
        return supervised + self.weight * self.reduce(self.loss(scores[-count:], guessed), guessed)


_REDUCE: dict[str, Reduce] = {"batch": over_known, "image": ByShare(1.0, 0.0, -1.0), "entries": over_entries}
_SUPERVISE = {"both": "both", "weak": "first", "strong": "last"}


@method(
    serves=("full", "partial"),
    paper="Wang 2023 (Saliency Regularization for Self-Training with Partial Annotations), SR+CR",
    tune={"alpha": (0.1, 0.25, 0.5, 1.0)},
    needs={
        "alpha": {"saliency": Not("none")},
        "k": {"saliency": Not("none"), "alpha": Not(0)},
        "infer": {"saliency": Not("none"), "alpha": Not(0)},
        "tau": {"consistency": Not("none"), "weight": Not(0)},
        "weight": {"consistency": Not("none")},
        "cr_from": {"consistency": Not("none"), "weight": Not(0)},
        "supervise": {"consistency": ("cr",)},
    },
)
def srcr(
    alpha: NonNegative = 0.5,
    k: PositiveCount = 5,
    tau: float = 0.6,
    weight: NonNegative = 1.0,
    saliency: Literal["all", "known", "none"] = "all",
    consistency: Literal["cr", "pl", "none"] = "cr",
    normalise: str = "batch",
    supervise: str = "both",
    infer: Literal["shifted", "mean"] = "shifted",
    cr_from: FromEpoch = 1,
) -> Method:
    """The strongest places of a class map raise its score; confident labels of a weak view train a strong view.

    Saliency regularisation (SR) adds the k strongest cells to the mean; consistency regularisation (CR) turns unknown
    labels that the model is sure of on a weakly augmented view into labels of a strongly augmented one. Use it for
    partly known ± labels, above all when few are known and objects are small. It needs features with places (maps), and
    two views per image: twice the work of a plain step. It cannot learn from positives only (as the paper also says).

        A_c = 1×1 convolution of the features,   a_c = mean(A_c),   s_c = mean of the k largest cells of A_c
        p̂_c = σ(a_c + α s_c)                                                                  (eq. 5)
        ŷ_c = 1[p̂_c(weak) ≥ τ] − 1[1 − p̂_c(weak) ≥ τ] where y_c is unknown, without gradient   (eq. 8)
        l(p, y) = 1/n Σ_{y_c ≠ 0} −log p_c (y_c = 1) or −log(1 − p_c) (y_c = −1)                (eq. 9)
        L = l(p̂, y) + weight · l(p̂(strong), ŷ)                                                (eq. 10 to 12)

    Options: alpha (α), k and tau (τ, from 0.5 to 1) as above; weight of the second part, 1 in the paper.
    normalise: what n counts, for y and ŷ separately: batch = non-zero entries of the batch (the paper's BN-BCE);
    image = those of the image, then the mean over images (eq. 9); entries = all of B·C (S-BCE).
    supervise: the views that known labels are used on: both, weak or strong. infer: the score after training: shifted =
    a_c + α s_c, or mean = a_c. saliency: where the shift is used: all, known (not for ŷ and its loss: eq. 7) or none.
    consistency: cr, pl (pseudo-labels train the weak view they come from) or none; without cr there is one weak view,
    whatever supervise is; weight=0 keeps both views.
    cr_from: the first epoch with ŷ, 1 in the paper. A new head is confident about many wrong labels and reinforces
    them: on frozen features of few images a later start or a smaller weight is better. With normalise=entries the
    pseudo-labels, which are more, outweigh the known labels.



    Not in the paper, and chosen here: learning rate, epochs, augmentations, the score after training, both views for
    the known labels, a bias per class map, and the mean over the batch for the sum over images in eq. 10 and 11.

    On a frozen backbone the strong views are those in the cache. Features without images have none:
    then both views are the plain one, and cr equals pl.
    """
    one_of(_REDUCE, normalise=normalise)
    one_of(_SUPERVISE, supervise=supervise)
    between(0.5, 1, tau=tau)  # below 0.5 an entry would be both present and absent
    return SelfTraining(
        Ignore() if consistency == "none" else Confident(tau, cr_from),
        head=partial(SaliencyHead, k=k, alpha=0.0 if saliency == "none" else alpha, infer=infer),
        reduce=_REDUCE[normalise],
        views=("weak", "strong") if consistency == "cr" else ("weak",),
        supervise=_SUPERVISE[supervise],
        shifted=saliency != "known",
        weight=weight,
    )


class Confident(Relabeler):
    """Known labels stay; unknown → (1, 0) if p ≥ τ, (0, 1) if 1 − p ≥ τ, else (0, 0). Wang 2023, eq. 8.

    Where both hold (τ = p = 0.5) they cancel. Before the epoch `first` all unknown → (0, 0).
    """

    def __init__(self, tau: float, first: int = 1) -> None:
        super().__init__()
        self.tau = tau
        self.first = first

    def begins(self) -> Begins | None:
        return Begins("learning from pseudo-labels", self.first, "cr_from")

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        wide = at_least_float32(logits)
        present, absent = torch.sigmoid(wide) >= self.tau, torch.sigmoid(-wide) >= self.tau
        unknown = (batch.labels == 0) & (epoch >= self.first)
        pos = (batch.labels > 0) | (unknown & present & ~absent)
        neg = (batch.labels < 0) | (unknown & absent & ~present)
        return Targets(pos.to(wide.dtype), neg.to(wide.dtype))
