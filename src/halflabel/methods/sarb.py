"""Features of a label in one image are blended into another where it is unknown (Pu 2022: SARB, SARB*)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, method
from halflabel.methods.parts.semantic import SemanticHead, SemanticMethod, check_head, label_edges, label_features
from halflabel.methods.parts.transfer import Blend, Prototypes, Warm, blend_images, blend_prototypes, contrast
from halflabel.models.heads import Model, find_head
from halflabel.system.validate import MAX_SIZE, at_least, between
from halflabel.types import Batch, Output, Targets

__all__ = ["Blending", "sarb", "sarb_star"]


class Blending(SemanticMethod):
    """L = L_known + instance_weight · L_instance + prototype_weight · L_prototype + contrast_weight · L_cos.

    α and β start at `share`, are learned if `learn`, and cut off at 0 and 1. `by` is how prototypes are made
    (`Prototypes`); with "quadrants" a label gets one of another quarter of the picture than where it was looked for.
    """

    samples = True  # partners, labels and prototypes are drawn

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
        **told: Any,
    ) -> None:
        super().__init__(relabel=Warm("blending", warm), **told)
        self.width = width
        self.warm, self.every = warm, every
        self.instance_weight, self.prototype_weight = instance_weight, prototype_weight
        self.contrast_weight, self.blends = contrast_weight, blends
        self.prototypes = Prototypes(bank, prototypes, by)
        self.alpha = nn.Parameter(torch.tensor(share), requires_grad=learn)
        self.beta = nn.Parameter(torch.tensor(share), requires_grad=learn)

    def begin(self, table: LabelTable) -> None:
        super().begin(table)
        self.prototypes.start(len(table.classes), self.width)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        shares = [share for share in (self.alpha, self.beta) if share.requires_grad]
        return [{"params": shares, "base_lr": lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(batch.views[0])
        found, labels = label_features(output), batch.labels
        known: Targets = self.relabel(batch, output.logits.detach(), epoch)
        loss = self.reduce(self.loss(output.logits, known), known)
        loss = loss + self.contrast_weight * contrast(found, labels)
        quadrant = quadrants(output.maps) if output.maps is not None and self.prototypes.by == "quadrants" else None
        if epoch > self.warm:
            self.prototypes.refresh(epoch, self.warm + 1, self.every)
            for share in (self.alpha, self.beta):
                share.data.clamp_(0, 1)
            head = find_head(model, SemanticHead)
            partner = torch.randperm(len(labels), device=labels.device)
            instance = blend_images(found, labels, partner, self.alpha)
            loss = loss + self.instance_weight * self._charged(head, instance)
            chosen = draw_unknown(labels, self.blends, self.prototypes.there)
            drawn = self.prototypes.centres[
                torch.arange(labels.shape[1], device=labels.device), self._drawn(labels, quadrant)
            ]
            prototype = blend_prototypes(found, labels, chosen, drawn, self.beta)
            loss = loss + self.prototype_weight * self._charged(head, prototype)
        self.prototypes.bank.remember(found, labels, quadrant)
        return loss

    def _charged(self, head: SemanticHead, blend: Blend) -> Tensor:
        return self.reduce(self.loss(head.classify(blend.found), blend.targets), blend.targets)

    def _drawn(self, labels: Tensor, quadrant: Tensor | None) -> Tensor:
        """(B, C) the number of a prototype for each label."""
        if quadrant is None:
            return torch.randint(self.prototypes.count, labels.shape, device=labels.device)
        return (quadrant + torch.randint(1, 4, labels.shape, device=labels.device)) % 4


def quadrants(maps: Tensor) -> Tensor:
    """(B, C, h, w) attention -> (B, C), the quarter of the picture with its peak: 0 to 3, row by row."""
    high, wide = maps.shape[2:]
    peak = maps.flatten(2).argmax(2)
    return 2 * (peak // wide >= high // 2) + (peak % wide >= wide // 2).long()


def draw_unknown(labels: Tensor, count: int, usable: Tensor) -> Tensor:
    """(B, C) bool: up to `count` unknown labels of each image, drawn at random among the usable ones (C,)."""
    free = (labels == 0) & usable
    rank = torch.rand(labels.shape, device=labels.device).masked_fill(~free, -1)
    best = rank.topk(min(count, labels.shape[1]), dim=1)
    return torch.zeros_like(free).scatter(1, best.indices, best.values >= 0)


_SERVES = ("full", "partial")


@method(
    serves=_SERVES,
    paper="Pu, Chen, Wu, Lin 2022: Semantic-Aware Representation Blending for Multi-Label Image Recognition with "
    "Partial Labels (SARB)",
    lr=1e-3,
    tune=lambda given: {"warm": (2, 5, 10)} if given["instance_weight"] or given["prototype_weight"] else {},
)
def sarb(
    share: float = 0.5,
    learn: bool = True,
    warm: int = 5,
    instance_weight: float = 1.0,
    prototype_weight: float = 1.0,
    contrast_weight: float = 0.05,
    prototypes: int = 10,
    every: int = 5,
    blends: int = 1,
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
    """What a label looks like in images that show it is blended into images where it is unknown, and so is the label.

    The head is that of `ssgrl`, whose features of each label can be exchanged between images. Unlike `sst` nothing is
    guessed: the blended label is known to be there in part. Use it for partly known ± labels, few of them known most
    of all. It needs features with places (maps), and scores every batch three times once blending has begun.

        instance: where y_c^n is unknown and y_c^m = 1:  f_c ← α f_c^n + (1 − α) f_c^m,  y_c ← 1 − α            (ILRB)
        prototype: for unknown labels drawn at random:  f_c ← β f_c + (1 − β) prototype_c,  y_c ← 1 − β         (PLRB)
        L = ℓ(y) + instance_weight · ℓ(instance) + prototype_weight · ℓ(prototype) + contrast_weight · L_cos
        ℓ = BCE divided by the entries charged, softly where blended;  L_cos as in `sst`

    share: α and β at the start; learn: both are learned, through features and labels alike. warm: epochs before
    blending. prototypes: centres of the clusters of a label's features, made anew every so many epochs (`every`) from
    the last `bank` images that showed it. blends: how many unknown labels of an image get a prototype. Another image of
    the batch, drawn at random, is the partner. width, rank: of the head; 1,024 and 512 in the released code. steps,
    dropout, graph, vectors, vector_size, missing: as in `ssgrl`.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 77.9, VG-200 45.6, VOC 2007 90.7.
    Measured here (VOC 2012, 2 of 20 labels known, head on frozen maps, 20 epochs, one seed, test mAP, epoch chosen on
    held-out photos): 75.1, `ssgrl` 73.8, `bce` 74.0; pooled features 75.5.

    Differs from the released code: partners are drawn, not the batch turned round; each entry draws its own prototype;
    an image of which all labels are known gets none; prototypes come from a bank of training features instead of a
    pass over all images.
    """
    return _blending("clusters", prototypes, **_given(locals()))


@method(
    serves=_SERVES,
    paper="Pu, Chen, Wu, Lu, Lin 2022 (arXiv 2205.13092), later Dual-Perspective Semantic-Aware Representation "
    "Blending, 2024: SARB*",
    lr=1e-3,
    tune=lambda given: {"warm": (2, 5, 10)} if given["instance_weight"] or given["prototype_weight"] else {},
    name="sarb*",
)
def sarb_star(
    share: float = 0.5,
    learn: bool = True,
    warm: int = 5,
    instance_weight: float = 1.0,
    prototype_weight: float = 1.0,
    contrast_weight: float = 0.05,
    every: int = 5,
    blends: int = 1,
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
    """`sarb` whose prototypes know their place: one per quarter of the picture, blended from another quarter.

    Quote the star for the shell, or write sarb-star. Use it where `sarb` would do.

        prototypes of c: the mean f_c of images that show c with the peak of its attention in one quarter (of all, where
        none has it there);   f_c ← β f_c + (1 − β) (a prototype of c from another quarter than its own)

    All options are those of `sarb`, except that there are four prototypes: share, learn, warm, instance_weight,
    prototype_weight, contrast_weight, every, blends, bank, steps, dropout, width, rank, graph, vectors, vector_size,
    missing.

    What the star means: Wang 2023 calls SARB* an extension of SARB, cites the arXiv version of the same title, and says
    no more. The extension with that title blends prototypes "in a location-sensitive manner", and its code does it by
    quarters, on attended maps before they are summed over places. The sum is linear, so blending what is summed is the
    same, at a fraction of the memory; where the peak is, is read from the attention alone.

    Figures of Wang 2023 (ResNet-101, averages over 10 to 90 % known, mAP): COCO 78.4, VG-200 46.0, VOC 2007 91.5.
    Measured here, as for `sarb`: 75.4; `sarb` 75.1, `ssgrl` 73.8, `bce` 74.0.
    """
    return _blending("quadrants", 4, **_given(locals()))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "prototypes"}


def _blending(by: str, prototypes: int, **options: Any) -> Method:
    between(0, 1, share=options["share"])
    between(1, MAX_SIZE, bank=options["bank"], width=options["width"], prototypes=prototypes)
    at_least(1, blends=options["blends"], every=options["every"])
    at_least(0, **{name: options[name] for name in ("warm", "instance_weight", "prototype_weight", "contrast_weight")})
    head = {name: options.pop(name) for name in ("rank", "steps", "dropout")} | {"width": options["width"]}
    check_head(**head, vector_size=options["vector_size"])
    return Blending(
        by=by,
        prototypes=prototypes,
        make=partial(SemanticHead, vector_size=options["vector_size"], **head),
        edges=partial(label_edges, options.pop("graph")),
        **options,
    )
