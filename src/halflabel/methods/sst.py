"""Known labels say something about unknown ones, within an image and across images (Chen 2022: SST and HST)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, method
from halflabel.methods.parts.semantic import SemanticHead, SemanticMethod, check_head, label_edges, label_features
from halflabel.methods.parts.transfer import Bank, Cooccurrence, Prototypes, Warm, contrast, falling, with_guesses
from halflabel.models.heads import Model
from halflabel.system.validate import MAX_SIZE, at_least, between
from halflabel.types import Batch, Output, Targets

__all__ = ["Transfer", "hst", "sst"]

_SHARPNESS = 10.0  # how steeply a guess turns around its threshold, where that is learned


class Transfer(SemanticMethod):
    """L = L_known + L_within + L_across + weights · (co-occurrence loss, contrast, and what prototypes add).

    Without `prototypes` the bank of features stands for a label, else so many prototypes made of it. `learned` lets the
    known labels teach the thresholds; else they fall from epoch to epoch.
    """

    theta: nn.Parameter  # (2,) within and across

    def __init__(
        self,
        width: int,
        rank: int,
        *,
        warm: int,
        theta: float,
        fall: float,
        floor: float,
        pair_weight: float,
        contrast_weight: float,
        guess_weight: float,
        bank: int,
        prototypes: int = 0,
        learned: bool = False,
        every: int = 5,
        **told: Any,
    ) -> None:
        super().__init__(relabel=Warm("guessing labels", warm), **told)
        self.width = width
        self.warm, self.first, self.fall, self.floor = warm, theta, fall, floor
        self.pair_weight, self.contrast_weight, self.guess_weight = pair_weight, contrast_weight, guess_weight
        self.learned, self.every = learned, every
        self.within = Cooccurrence(width, rank)
        self.bank = Bank(bank) if not prototypes else None
        self.prototypes = Prototypes(bank, prototypes) if prototypes else None
        self.theta = nn.Parameter(torch.full((2,), theta), requires_grad=learned)

    def begin(self, table: LabelTable) -> None:
        super().begin(table)
        self.within.start(len(table.classes))
        for part in (self.bank, self.prototypes):
            if part is not None:
                part.start(len(table.classes), self.width)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        thresholds = [{"params": [self.theta], "base_lr": lr, "weight_decay": 0.0}] if self.learned else []
        return [{"params": list(self.within.parameters()), "base_lr": lr}, *thresholds]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(batch.views[0])
        found, labels = label_features(output), batch.labels
        known: Targets = self.relabel(batch, output.logits.detach(), epoch)
        pairs = self.within(found)
        loss = self.reduce(self.loss(output.logits, known), known)
        loss = loss + self.pair_weight * self.within.charge(pairs, labels)
        loss = loss + self.contrast_weight * contrast(found, labels)
        if epoch > self.warm:
            loss = loss + self._transferred(output, found, pairs.detach(), labels, epoch)
        (self.bank if self.prototypes is None else self.prototypes.bank).remember(found, labels)  # type: ignore[union-attr]
        return loss

    def _transferred(self, output: Output, found: Tensor, pairs: Tensor, labels: Tensor, epoch: int) -> Tensor:
        """What is charged for the guesses, and what keeps thresholds and prototypes in order."""
        loss = found.new_zeros(())
        if self.prototypes is not None:
            self.prototypes.refresh(epoch, self.warm + 1, self.every)
            near = self.prototypes.similarity(found)
            counts = (labels != 0) & self.prototypes.there
            loss = loss + self.contrast_weight * ((1 - labels * near) * counts).sum() / counts.sum().clamp(min=1)
            across, seen = near.detach(), self.prototypes.there.expand_as(near)
        else:
            assert self.bank is not None
            across, seen = self.bank.similarity(found), (self.bank.seen > 0).expand(labels.shape)
        within, told = self.within.scores(pairs, labels)
        if self.learned:
            self.theta.data.clamp_(0, 1)
        fixed = falling(epoch, self.warm, self.first, self.fall, self.floor)
        for number, (scores, there) in enumerate(((within, told), (across, seen))):
            theta = self.theta[number] if self.learned else fixed
            targets = with_guesses(labels, there & (scores >= theta), scores.dtype)
            loss = loss + self.guess_weight * self.reduce(self.loss(output.logits, targets), targets)
            if self.learned:
                loss = loss + 0.1 * _taught(scores, there, labels, theta)
        return loss


def _taught(scores: Tensor, there: Tensor, labels: Tensor, theta: Any) -> Tensor:
    """Known labels as if they were guessed: BCE of σ(10 (score − θ)), scores held fixed; a scalar."""
    counts = there & (labels != 0)
    logits = _SHARPNESS * (scores - theta)
    return (softplus(-labels * logits) * counts).sum() / counts.sum().clamp(min=1)


_SERVES = ("full", "partial")


@method(
    serves=_SERVES,
    paper="Chen, Pu, Wu, Xie, Lin 2022: Structured Semantic Transfer for Multi-Label Recognition with Partial Labels",
    lr=1e-3,
    tune=lambda given: {"theta_floor": (0.65, 0.75, 0.85)} if given["theta_fall"] and given["guess_weight"] else {},
)
def sst(
    theta: float = 0.95,
    theta_fall: float = 0.025,
    theta_floor: float = 0.75,
    warm: int = 5,
    guess_weight: float = 1.0,
    pair_weight: float = 10.0,
    contrast_weight: float = 0.05,
    bank: int = 100,
    steps: int = 3,
    dropout: float = 0.5,
    width: int = 256,
    rank: int = 256,
    graph: str = "cooccurrence",
    vectors: str = "graph",
    vector_size: int = 300,
    missing: str = "error",
) -> Method:
    """Unknown labels become present where known ones of the image, or other images of the label, say so clearly.

    The head is that of `ssgrl`. A small network learns which labels come together in an image; and features of each
    label are made alike where it is present. Both then complete labels, with thresholds that fall as training goes on.
    Use it for partly known ± labels in pictures of many things. It needs features with places (maps).

        p_cc' = co-occurrence seen from f_c and f_c';   within: mean of p_cc' over known present c' ≠ c ≥ θ     (IST)
        across: mean of cos(f_c, f_c of the last `bank` images that showed c) ≥ θ                               (CST)
        L = ℓ(y) + guess_weight · (ℓ(y and within) + ℓ(y and across)) + pair_weight · L_pairs + contrast_weight · L_cos
        ℓ = BCE divided by the entries charged;  L_pairs: asymmetric loss of p_cc' on known pairs, over all;
        L_cos: 1 − cos(f_c^n, f_c^m) where both images show c, 1 + cos otherwise

    theta (θ) in the first epoch after the warm ones, which guess nothing; it falls by theta_fall each epoch to
    theta_floor: 0.95, 0.025 and 0.75 in the paper, after 5 epochs. guess_weight, pair_weight and contrast_weight: as
    above; 1, 10 and 0.05 in the released code. bank: images remembered per label, 4·width bytes each. width, rank: of
    the head and of the co-occurrence network; 1,024 and 512 in the released code. steps, dropout, graph, vectors,
    vector_size, missing: as in `ssgrl`. The co-occurrence network has 2·rank·C² bytes of weights, which training alone
    needs.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 76.7, VG-200 41.8, VOC 2007 90.4.

    Measured here (VOC 2012, 2 of 20 labels known, head on frozen maps, 20 epochs, one seed, test mAP, epoch chosen on
    held-out photos): 73.8, `ssgrl` 73.8, `bce` 74.0; pooled features 74.4. On the held-out photos guessing, which sets
    in after epoch 5, lifts it from 73.0 to 73.5, where `ssgrl` stands too: with two labels per image there is little to
    learn of which labels go together.

    Differs from the released code: p_cc' is taught by pairs that are both known, not by taking unknown for absent; the
    mean over the bank is over what is in it, and a batch joins after its own guesses, not before; pairs for L_cos are
    weighted, not drawn; L_pairs and L_cos count in full from the first step instead of growing through the first epoch.
    """
    _check(theta, theta_floor, warm, bank, width)
    at_least(0, theta_fall=theta_fall, guess_weight=guess_weight, pair_weight=pair_weight)
    at_least(0, contrast_weight=contrast_weight)
    check_head(width=width, rank=rank, steps=steps, dropout=dropout, vector_size=vector_size)
    return Transfer(
        width,
        rank,
        warm=warm,
        theta=theta,
        fall=theta_fall,
        floor=theta_floor,
        pair_weight=pair_weight,
        contrast_weight=contrast_weight,
        guess_weight=guess_weight,
        bank=bank,
        make=partial(SemanticHead, vector_size=vector_size, width=width, rank=rank, steps=steps, dropout=dropout),
        edges=partial(label_edges, graph),
        vectors=vectors,
        vector_size=vector_size,
        missing=missing,
    )


@method(
    serves=_SERVES,
    paper="Chen, Pu, Liu, Shi, Yang, Lin 2022/24: Heterogeneous Semantic Transfer for Multi-label Recognition with "
    "Partial Labels",
    lr=1e-3,
    tune=lambda given: {"prototypes": (1, 10)} if given["guess_weight"] or given["contrast_weight"] else {},
)
def hst(
    prototypes: int = 10,
    every: int = 5,
    thresholds: str = "learned",
    theta: float = 0.95,
    theta_fall: float = 0.025,
    theta_floor: float = 0.75,
    warm: int = 5,
    guess_weight: float = 1.0,
    pair_weight: float = 10.0,
    contrast_weight: float = 0.05,
    bank: int = 100,
    steps: int = 3,
    dropout: float = 0.5,
    width: int = 256,
    rank: int = 256,
    graph: str = "cooccurrence",
    vectors: str = "graph",
    vector_size: int = 300,
    missing: str = "error",
) -> Method:
    """`sst` with prototypes of each label in place of single images, and thresholds that known labels teach.

    Use it where `sst` would do, if its thresholds are hard to choose. Prototypes are steadier than single images.

        across: mean over the prototypes of label c of cos(f_c, prototype) ≥ θ_across                        (CST)
        L = that of `sst` + contrast_weight · mean over known labels of (1 − y_c · mean cos(f_c, prototype))
            + 0.1 · Σ over within and across of BCE(σ(10 (score − θ)), y) on known labels, which moves θ alone   (DTL)

    prototypes: centres of the clusters of a label's features, made anew every so many epochs (`every`) after the warm
    ones, from the last `bank` images that showed the label. thresholds: learned = both θ start at theta and are learned
    from the known labels, as if these were guessed; falling = as in `sst`, by theta_fall each epoch to theta_floor.
    All else as in `sst`: warm, guess_weight, pair_weight, contrast_weight, width, rank, steps, dropout, graph, vectors,
    vector_size, missing.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 77.9, VG-200 44.8, VOC 2007 90.9.
    Measured here, as for `sst`: 75.5; `sst` 73.8, `bce` 74.0; pooled features 75.9.

    Differs from the released code: that learns θ through a score cut off at 0, which has a gradient only where a label
    is the one known in its image, and pulls features away from the prototypes of labels that are present; here both go
    the way the paper describes. Prototypes come from a bank of training features instead of a pass over all images.
    """
    _check(theta, theta_floor, warm, bank, width)
    at_least(0, theta_fall=theta_fall, guess_weight=guess_weight, pair_weight=pair_weight)
    at_least(0, contrast_weight=contrast_weight)
    check_head(width=width, rank=rank, steps=steps, dropout=dropout, vector_size=vector_size)
    if thresholds not in ("learned", "falling"):
        raise UserError(f"thresholds cannot be {thresholds!r}", "use learned or falling")
    between(1, MAX_SIZE, prototypes=prototypes)
    at_least(1, every=every)
    return Transfer(
        width,
        rank,
        warm=warm,
        theta=theta,
        fall=theta_fall,
        floor=theta_floor,
        pair_weight=pair_weight,
        contrast_weight=contrast_weight,
        guess_weight=guess_weight,
        bank=bank,
        prototypes=prototypes,
        learned=thresholds == "learned",
        every=every,
        make=partial(SemanticHead, vector_size=vector_size, width=width, rank=rank, steps=steps, dropout=dropout),
        edges=partial(label_edges, graph),
        vectors=vectors,
        vector_size=vector_size,
        missing=missing,
    )


def _check(theta: float, floor: float, warm: int, bank: int, width: int) -> None:
    if not 0 <= floor <= theta <= 1:
        raise UserError(f"theta {theta:g} cannot fall to {floor:g}", "use 0 ≤ theta_floor ≤ theta ≤ 1")
    at_least(0, warm=warm)
    between(1, MAX_SIZE, bank=bank, width=width)
