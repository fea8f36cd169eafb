"""Saliency regularisation and consistency: the strongest places of a class map count twice (Wang 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import BCE, ByShare, Reduce, over_entries, over_known
from halflabel.methods.parts.relabel import Ignore, Relabeler, never_starts
from halflabel.models.heads import Head, HeadMaker, Model, pool
from halflabel.types import Batch, Output, Targets, at_least_float32

__all__ = ["Confident", "Saliency", "SelfTraining", "srcr"]


class Saliency(Head):
    """Class maps A = W · features + b at each place; their mean is shifted by the mean of their k largest cells.

        a_c = mean(A_c),   s_c = mean of the k largest cells of A_c,   x_c = a_c + α s_c    (Wang 2023, eq. 3 to 5)

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w). With fewer than k cells s_c is the mean of all; pooled features
    (B, D) are maps of one cell, where x_c = (1 + α) A_c. `infer` "mean" leaves the shift out in evaluation mode. Of
    equal cells any may be among the k: the score is the same. Memory: 4·(D + 1) bytes per class.
    """

    needs_maps = True

    def __init__(self, channels: int, classes: int, k: int = 5, alpha: float = 0.5, infer: str = "shifted") -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1)
        self.k = k
        self.alpha = alpha
        self.infer = infer

    def forward(self, features: Tensor) -> Output:
        places = features if features.ndim == 4 else features[:, :, None, None]
        maps = at_least_float32(self.class_maps(places))  # in half precision the shift could overflow
        logits = maps.mean(dim=(2, 3))
        if self.alpha and (self.training or self.infer == "shifted"):
            cells = maps.flatten(2)
            salient = cells.topk(min(self.k, cells.shape[2]), sorted=False).values.mean(dim=2)
            logits = logits + self.alpha * salient
        return Output(logits, pool(features), maps)

    def class_maps(self, maps: Tensor) -> Tensor:
        scored: Tensor = self.conv(maps)
        return scored


class Confident(Relabeler):
    """Known labels stay; unknown → (1, 0) if p ≥ τ, (0, 1) if 1 − p ≥ τ, else (0, 0). Wang 2023, eq. 8.

    Where both hold (τ = p = 0.5) they cancel, as in the paper's difference of indicators. Before the epoch `first` all
    unknown → (0, 0). It remembers nothing.
    """

    def __init__(self, tau: float, first: int = 1) -> None:
        super().__init__()
        self.tau = tau
        self.first = first

    def idle(self, epochs: int) -> str:
        return never_starts("learning from guesses", self.first, epochs, f"--cr-from {epochs}")

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        wide = at_least_float32(logits)
        present, absent = torch.sigmoid(wide) >= self.tau, torch.sigmoid(-wide) >= self.tau
        unknown = (batch.labels == 0) & (epoch >= self.first)
        pos = (batch.labels > 0) | (unknown & present & ~absent)
        neg = (batch.labels < 0) | (unknown & absent & ~present)
        return Targets(pos.to(wide.dtype), neg.to(wide.dtype))


class SelfTraining(Method):
    """L = L_s + weight · L_u: known labels, and what the relabeler makes of unknown ones, each reduced by itself.

    All views go through the model as one batch: one pass, and in batch norm they share their statistics. The first view
    gives the pseudo-labels, the last is charged with them; given one view, it does both. L_s is charged on the views
    `supervise` ("first", "last" or "both"). Unless `shifted`, L_u is about the plain means of the class maps, a_c.
    """

    def __init__(
        self,
        relabel: Relabeler,
        *,
        head: HeadMaker,
        reduce: Reduce,
        views: tuple[str, ...],
        supervise: str,
        shifted: bool,
        weight: float,
    ) -> None:
        super().__init__(BCE(), relabel, head=head, reduce=reduce, views=views)
        self.supervise = supervise
        self.shifted = shifted
        self.weight = weight

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(torch.cat(batch.views))
        count = len(batch.labels)
        scored = output.logits if self.shifted else _means(output)
        targets = self.relabel(batch, scored[:count].detach(), epoch)
        unknown = batch.labels == 0
        known = Targets(targets.pos.masked_fill(unknown, 0), targets.neg.masked_fill(unknown, 0))
        guessed = Targets(targets.pos.masked_fill(~unknown, 0), targets.neg.masked_fill(~unknown, 0))

        logits = output.logits
        if self.supervise != "both":
            logits = logits[:count] if self.supervise == "first" else logits[-count:]
        repeats = len(logits) // max(count, 1)
        known = Targets(known.pos.repeat(repeats, 1), known.neg.repeat(repeats, 1))
        supervised = self.reduce(self.loss(logits, known), known)
        return supervised + self.weight * self.reduce(self.loss(scored[-count:], guessed), guessed)


def _means(output: Output) -> Tensor:
    if output.maps is None:
        raise TypeError("a head without class maps has no plain means")
    return output.maps.mean(dim=(2, 3))


_REDUCE: dict[str, Reduce] = {"batch": over_known, "image": ByShare(1.0, 0.0, -1.0), "entries": over_entries}
_SUPERVISE = {"both": "both", "weak": "first", "strong": "last"}


@method(
    serves=("full", "partial"),
    paper="Wang 2023 (Saliency Regularization for Self-Training with Partial Annotations), SR+CR",
    tune=lambda given: {} if given["saliency"] == "none" else {"alpha": (0.1, 0.25, 0.5, 1.0)},
)
def srcr(
    alpha: float = 0.5,
    k: int = 5,
    tau: float = 0.6,
    weight: float = 1.0,
    saliency: str = "all",
    consistency: str = "cr",
    normalise: str = "batch",
    supervise: str = "both",
    infer: str = "shifted",
    cr_from: int = 1,
) -> Method:
    """The strongest places of each class map are added to its score; sure guesses on a weak view teach a strong one.

    Where few labels are known, negatives outnumber positives so much that objects no longer light up on the class
    maps. Saliency regularisation (SR) rewards the k strongest cells on top of the mean; consistency regularisation (CR)
    turns the unknown labels the model is sure of on a weakly augmented view into labels of a strongly augmented one.
    Use it for partly known ± labels, most of all when few are known and objects are small. It needs features with
    places (maps), and two views per image in one pass: twice the work of a plain step. Positives alone do not do (the
    paper says so too): what is charged would all be "present".

        A_c = 1×1 convolution of the features,   a_c = mean(A_c),   s_c = mean of the k largest cells of A_c
        p̂_c = σ(a_c + α s_c)                                                                  (eq. 5)
        ŷ_c = 1[p̂_c(weak) ≥ τ] − 1[1 − p̂_c(weak) ≥ τ] where y_c is unknown, held fixed         (eq. 8)
        l(p, y) = 1/n Σ_{y_c ≠ 0} −log p_c (y_c = 1) or −log(1 − p_c) (y_c = −1)                (eq. 9)
        L = l(p̂, y) + weight · l(p̂(strong), ŷ)                                                (eq. 10 to 12)

    Options: alpha (α), k and tau (τ, from 0.5 to 1) as above; weight: of the second part, 1 in the paper; normalise:
    what n counts, y and ŷ each by their own: "batch", the entries that are not 0 in the batch (the paper's BN-BCE);
    "image", those of the image, then the mean over images (eq. 9); "entries", all of B·C (S-BCE). supervise: the views
    that known labels are charged on, "both", "weak" or "strong". infer: the score after training, "shifted" a_c + α s_c
    or "mean" a_c. saliency: where the shift is used, "all", "known" (not for ŷ and what it charges: eq. 7) or "none";
    consistency: "cr", "pl" (pseudo-labels that charge the weak view they come from) or "none". Without "cr" there is
    one weak view, whatever supervise says; weight=0 instead keeps both views. cr_from: the first epoch with ŷ, 1 in the
    paper. A head that has just been drawn at random is sure of many things, and goes on believing what it charges
    itself with: on frozen features of few images a later start or a smaller weight does better. With "entries" the
    guesses, being more, outweigh the known labels.

    The rows of the paper's ablation, with the paper's mAP (COCO, 10 % known, ResNet-101):

        S-BCE              saliency=none  consistency=none  normalise=entries    61.7
        BN-BCE             saliency=none  consistency=none                       70.7
        PL                 saliency=none  consistency=pl                         70.8
        CR without SR      saliency=none  consistency=cr                         72.4
        SR                 saliency=all   consistency=none                       75.8
        SR, CR without SR  saliency=known consistency=cr                         76.2
        SR+CR              (the defaults)                                        77.2

    Its averages over 10 to 90 % known: VOC 2007 93.7, COCO 81.0, VG-200 49.2; OpenImages V3 81.5.

    Where the paper is silent: learning rate, epochs and augmentations (here the weak view is a crop and a mirror image,
    the strong one RandAugment and cutout besides: --crop, --strong-ops, --strong-magnitude, --cutout); the score after
    training (`infer`); the views of the known labels ("shared by supervised and unsupervised learning" is read as
    both); a bias per class map, which eq. 1 leaves out; the sum over images of eq. 10 and 11, here the mean over the
    batch; the sign of eq. 9, which must be minus; and row 76.2, which the table shows unnamed and the text describes.
    Both views pass through the network as one batch, so batch norm has statistics of both.

    On cached features of a frozen backbone, strong views are what the cache holds of them. Features that come without
    images have none: then both views are the plain one, and "cr" is the same as "pl".
    """
    _one_of("saliency", saliency, ("all", "known", "none"))
    _one_of("consistency", consistency, ("cr", "pl", "none"))
    _one_of("normalise", normalise, tuple(_REDUCE))
    _one_of("supervise", supervise, tuple(_SUPERVISE))
    _one_of("infer", infer, ("shifted", "mean"))
    if not 0.5 <= tau <= 1:
        raise UserError(f"srcr with tau {tau:g} would call an entry both present and absent", "use tau from 0.5 to 1")
    if cr_from < 1:
        raise UserError(f"srcr cannot start in epoch {cr_from}", "epochs count from 1: use cr_from ≥ 1")
    if k < 1 or alpha < 0 or weight < 0:
        raise UserError(f"k {k}, alpha {alpha:g}, weight {weight:g} do not fit", "k ≥ 1, alpha ≥ 0, weight ≥ 0")
    return SelfTraining(
        Ignore() if consistency == "none" else Confident(tau, cr_from),
        head=partial(Saliency, k=k, alpha=0.0 if saliency == "none" else alpha, infer=infer),
        reduce=_REDUCE[normalise],
        views=("weak", "strong") if consistency == "cr" else ("weak",),
        supervise=_SUPERVISE[supervise],
        shifted=saliency != "known",
        weight=weight,
    )


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"srcr has no {option} {value!r}", f"use {', '.join(allowed)}")
