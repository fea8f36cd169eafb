"""Features of a label in one image are blended into another where it is unknown (Pu 2022: SARB, SARB*)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from halflabel.features.heads import Model, find_head
from halflabel.labels.table import Table
from halflabel.methods.base import AfterEpoch, Duration, Method, NonNegative, PositiveCount, Share, Size, method
from halflabel.methods.parts.feature_bank import Prototypes
from halflabel.methods.parts.semantic import SemanticHead, SemanticMethod, label_features, semantic_parts
from halflabel.methods.parts.transfer import WarmUp, contrastive_loss
from halflabel.methods.ssgrl import ssgrl
from halflabel.system.validate import MAX_SIZE, at_least, between
from halflabel.types import Batch, Output, Targets


class Blending(SemanticMethod):
    """L = L_known + instance_weight · L_instance + prototype_weight · L_prototype + contrast_weight · L_cos.

    α and β start at `share`, are learned if `learn`, and clipped to [0, 1]. `by` is how prototypes are computed.
    """

    samples = True  # partners, labels and prototypes are drawn at random

    def __init__(
        self,
        width: int,
        *,
        warm: int,
        share: float,
        learn: bool,
        instance_weight: float,
        prototype_weight: float,
        contrast_weight: float,
        blends: int,
        bank: int,
        prototypes: int,
        every: int,
        by: str,
        **semantic: Any,
    ) -> None:
        super().__init__(relabel=WarmUp("blending", warm), **semantic)
        self.width = width
        self.warm, self.every = warm, every
        self.instance_weight, self.prototype_weight = instance_weight, prototype_weight
        self.contrast_weight, self.blends = contrast_weight, blends
        self.prototypes = Prototypes(bank, prototypes, by)
        self.alpha = nn.Parameter(torch.tensor(share), requires_grad=learn)
        self.beta = nn.Parameter(torch.tensor(share), requires_grad=learn)

    def begin(self, table: Table) -> None:
        super().begin(table)
        self.prototypes.start(len(table.classes), self.width)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        shares = [share for share in (self.alpha, self.beta) if share.requires_grad]
        return [{"params": shares, "base_lr": lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(batch.views[0])
        features, labels = label_features(output), batch.labels
        loss = self.label_loss(output.logits, batch, epoch)
        loss = loss + self.contrast_weight * contrastive_loss(features, labels)
        quadrant = quadrants(output.maps) if output.maps is not None and self.prototypes.by == "quadrants" else None
        if epoch > self.warm:
            self.prototypes.refresh(epoch, self.warm + 1, self.every)
            for share in (self.alpha, self.beta):
                share.data.clamp_(0, 1)
            head = find_head(model, SemanticHead)
            partner = torch.randperm(len(labels), device=labels.device)
            instance = blend_images(features, labels, partner, self.alpha)
            loss = loss + self.instance_weight * self._blend_loss(head, output.logits, instance)
            chosen = draw_unknown(labels, self.blends, self.prototypes.exists)
            number = self._draw_prototypes(labels, quadrant)
            prototype = blend_prototypes(features, labels, chosen, self.prototypes.centres, number, self.beta)
            loss = loss + self.prototype_weight * self._blend_loss(head, output.logits, prototype)
        self.prototypes.bank.remember(features, labels, quadrant)
        return loss

    def _blend_loss(self, head: SemanticHead, logits: Tensor, blend: Blend) -> Tensor:
        """Return the loss of blended images; `logits` (B, C) are those of images in which nothing was blended."""
        changed = blend.mixed.any(1).nonzero().squeeze(1)
        logits = logits.index_put((changed,), head.classify(blend.features[changed]).to(logits.dtype))
        return self.reduce(self.loss(logits, blend.targets), blend.targets)

    def _draw_prototypes(self, labels: Tensor, quadrant: Tensor | None) -> Tensor:
        """Draw a prototype number for each label: (B, C)."""
        if quadrant is None:
            return torch.randint(self.prototypes.count, labels.shape, device=labels.device)
        return (quadrant + torch.randint(1, 4, labels.shape, device=labels.device)) % 4


def quadrants(maps: Tensor) -> Tensor:
    """Return the quarter of the picture with the peak of the attention, 0 to 3, row by row: (B, C, h, w) -> (B, C)."""
    height, width = maps.shape[2:]
    peak = maps.flatten(2).argmax(2)
    return 2 * (peak // width >= height // 2) + (peak % width >= width // 2).long()


def draw_unknown(labels: Tensor, count: int, usable: Tensor) -> Tensor:
    """Draw up to `count` unknown labels of each image among the usable ones (C,): (B, C) bool."""
    candidates = (labels == 0) & usable
    rank = torch.rand(labels.shape, device=labels.device).masked_fill(~candidates, -1)
    best = rank.topk(min(count, labels.shape[1]), dim=1)
    return torch.zeros_like(candidates).scatter(1, best.indices, best.values >= 0)


class Blend(NamedTuple):
    """Blended features of each label (B, C, W), their soft labels, and which entries were blended."""

    features: Tensor
    targets: Targets
    mixed: Tensor  # (B, C) bool


def blend_images(features: Tensor, labels: Tensor, partner: Tensor, alpha: Tensor) -> Blend:
    """Blend a label that is unknown in one image with its features in another that shows it. Pu 2022 (SARB), ILRB.

    `partner` (B,): the image m of each image n. The gradient reaches the features of both images and α.
    """
    return _blend(features, labels, (labels == 0) & (labels[partner] > 0), features[partner], alpha)


def blend_prototypes(
    features: Tensor, labels: Tensor, chosen: Tensor, centres: Tensor, number: Tensor, beta: Tensor
) -> Blend:
    """Blend the `chosen` (B, C) unknown labels with the prototypes of `number` (B, C) among `centres` (C, k, W)."""
    prototypes = centres[torch.arange(len(centres), device=centres.device), number].to(features.dtype)
    return _blend(features, labels, chosen & (labels == 0), prototypes, beta)


def _blend(features: Tensor, labels: Tensor, mixed: Tensor, others: Tensor, share: Tensor) -> Blend:
    """Where `mixed`: share · features + (1 − share) · others, with the label 1 − share."""
    blended = torch.where(mixed[:, :, None], torch.lerp(others, features, share.to(features.dtype)), features)
    pos = torch.where(mixed, 1 - share, (labels > 0).to(share.dtype))
    neg = torch.where(mixed, share, (labels < 0).to(share.dtype))
    return Blend(blended, Targets(pos, neg), mixed)


def _tune(options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {"warm": (2, 5, 10)} if options["instance_weight"] or options["prototype_weight"] else {}


@method(
    serves=("full", "partial"),
    paper="Pu, Chen, Wu, Lu, Lin 2022 (arXiv 2205.13092), later Dual-Perspective Semantic-Aware Representation "
    "Blending, 2024: SARB*",
    lr=1e-3,
    tune=_tune,
    name="sarb*",
    options_of=ssgrl,
)
def sarb_star(
    share: Share = 0.5,
    learn: bool = True,
    warm: AfterEpoch = 5,
    instance_weight: NonNegative = 1.0,
    prototype_weight: NonNegative = 1.0,
    contrast_weight: NonNegative = 0.05,
    every: Duration = 5,
    blends: PositiveCount = 1,
    bank: Size = 100,
    **head: Any,
) -> Method:
    """`sarb` with one prototype per quarter of the picture, blended into another quarter than its own.

    Quote the star in a shell, or write sarb-star. Use it where `sarb` is suitable.

        prototypes of c: the mean f_c of images that show c with the peak of its attention in one quarter (of all images
        if there are none);   f_c ← β f_c + (1 − β) (a prototype of c from another quarter than its own)

    All options are those of `sarb`, except that there are four prototypes: share, learn, warm, instance_weight,
    prototype_weight, contrast_weight, every, blends, bank, steps, dropout, width, rank, graph, vectors, vector_size.

    Wang 2023 calls SARB* an extension of SARB; that extension blends prototypes by quarters, on attended maps before
    they are summed over places. The sum is linear, so blending the sums is the same.
    """
    options = locals()
    return _blending("quadrants", 4, **options.pop("head"), **options)


@method(
    serves=("full", "partial"),
    paper="Pu, Chen, Wu, Lin 2022: Semantic-Aware Representation Blending for Multi-Label Image Recognition with "
    "Partial Labels (SARB)",
    lr=1e-3,
    tune=_tune,
    options_of=sarb_star,
)
def sarb(prototypes: Size = 10, **options: Any) -> Method:
    """Features of a label in images that show it are blended into images where it is unknown, with a soft label.

    The head is that of `ssgrl`, whose per-label features can be exchanged between images. Unlike in `sst` nothing is
    guessed: the blended label is known to be partly present. Use it for partly known ± labels, above all if few are
    known. It needs features with places (maps); once blending has started, a step takes up to three times as long.

        instance: where y_c^n is unknown and y_c^m = 1:  f_c ← α f_c^n + (1 − α) f_c^m,  y_c ← 1 − α            (ILRB)
        prototype: for unknown labels drawn at random:  f_c ← β f_c + (1 − β) prototype_c,  y_c ← 1 − β         (PLRB)
        L = ℓ(y) + instance_weight · ℓ(instance) + prototype_weight · ℓ(prototype) + contrast_weight · L_cos
        ℓ = BCE divided by the entries used, with soft labels where blended;  L_cos as in `sst`

    share: α and β at the start; learn: learn both, through features and labels. warm: epochs before blending.
    prototypes: number of cluster centres of a label's features, recomputed every `every` epochs from the last `bank`
    images that showed it. blends: number of unknown labels of an image that get a prototype. The partner m of an image
    is drawn at random from the batch. width, rank: of the head; 1,024 and 512 in the released code. steps, dropout,
    graph, vectors, vector_size: as in `ssgrl`.

    Differs from the released code: partners are drawn, instead of reversing the batch; each entry draws its own
    prototype; prototypes come from a bank of training features.
    """
    return _blending("clusters", prototypes, **options)


def _blending(by: str, prototypes: int, **options: Any) -> Method:
    between(1, MAX_SIZE, width=options["width"])
    at_least(1, every=options["every"])
    head = {name: options.pop(name) for name in ("rank", "steps", "dropout", "graph", "vectors", "vector_size")}
    return Blending(by=by, prototypes=prototypes, **options, **semantic_parts(width=options["width"], **head))
