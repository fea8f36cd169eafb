"""A tuned network and the frozen one as one model: heads of both score an image, and weights combine their scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from halflabel.features.backbones import Backbone
from halflabel.features.heads import Head, Model, NormalisedHead, NormalisedLinear, pool, run_head
from halflabel.types import Output


class BackbonePair(nn.Module):
    """The features of a tuned backbone, then those of the frozen one: two passes per image."""

    def __init__(self, tuned: Backbone, frozen: Backbone) -> None:
        super().__init__()
        self.tuned, self.frozen = tuned, frozen
        self.preprocess = frozen.preprocess

    def pooled(self, images: Tensor) -> Tensor:
        """Return both pooled vectors (B, D + D') of images."""
        return torch.cat([self.tuned.pooled(images), self.frozen.pooled(images)], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps of the tuned backbone, beside the pooled vector of the frozen one at each place."""
        maps = self.tuned(images)
        pooled = self.frozen.pooled(images)[:, :, None, None]
        return torch.cat([maps, pooled.expand(-1, -1, *maps.shape[2:])], 1)

    def places(self, images: Tensor) -> Tensor:
        """Return both pooled vectors as if each place were the whole image: (B, D + D', h, w)."""
        return torch.cat([self.tuned.places(images), self.frozen.places(images)], 1)


class Combined(Head):
    """x = Σ_m weight_m · x_m over heads m, each on the features of the tuned backbone or of the frozen one.

    The first head is the one that was tuned with the network, also where its weight is 0. `widths` are the lengths of
    both features, the second 0 where no head needs the frozen backbone.
    """

    weight: Tensor
    is_frozen: Tensor
    widths: Tensor

    def __init__(
        self, heads: Sequence[Head], weight: Sequence[float], is_frozen: Sequence[bool], widths: list[int]
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.needs_maps = any(head.needs_maps for head in heads)
        self.register_buffer("weight", torch.tensor(weight, dtype=torch.float32))
        self.register_buffer("is_frozen", torch.tensor(is_frozen))
        self.register_buffer("widths", torch.tensor(widths))
        self.places = [int(each) for each in is_frozen]  # the part of the features that each head sees
        self.sizes = list(widths)

    @property
    def words(self) -> str:
        return " + ".join(cast(Head, head).words for head in self.heads)

    def forward(self, features: Tensor) -> Output:
        parts = torch.split(features, self.sizes, 1)
        scores = [run_head(head, parts[place]).logits for head, place in zip(self.heads, self.places, strict=True)]
        return Output(self._sum(scores), pool(features))

    def class_maps(self, maps: Tensor) -> Tensor:
        """Return the weighted sum of the maps of those heads that have some."""
        parts = torch.split(maps, self.sizes, 1)
        known = [type(cast(Head, head)).class_maps is not Head.class_maps for head in self.heads]
        scores = [
            cast(Head, head).class_maps(parts[place]) if has_maps else torch.zeros((), device=maps.device)
            for head, place, has_maps in zip(self.heads, self.places, known, strict=True)
        ]
        return self._sum(scores)

    def _sum(self, scores: Sequence[Tensor]) -> Tensor:
        return sum(
            (weight * score for weight, score in zip(self.weight, scores, strict=True)), torch.zeros_like(scores[0])
        )

    @classmethod
    def from_shapes(cls, state: Mapping[str, Tensor], prefix: str, make_tuned: Callable[[], Head]) -> Combined | None:
        """Return an empty head with the shapes of a state dict; None if the state belongs to another head."""
        if f"{prefix}is_frozen" not in state:
            return None
        is_frozen = state[f"{prefix}is_frozen"].tolist()
        heads = [
            NormalisedLinear.from_shapes(state, f"{prefix}heads.{number}.") or make_tuned()
            for number in range(len(is_frozen))
        ]
        return cls(heads, [0.0] * len(heads), is_frozen, state[f"{prefix}widths"].tolist())


def frozen_copy(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone that stays as it is."""
    return copy.deepcopy(backbone).requires_grad_(False).eval()


def trained_part(model: Model) -> Model:
    """Return the backbone and the head that batches train: without its base, and nothing that was combined."""
    backbone = model.backbone.tuned if isinstance(model.backbone, BackbonePair) else model.backbone
    head: Head = cast(Head, model.head.heads[0]) if isinstance(model.head, Combined) else model.head
    return Model(backbone, head.head if isinstance(head, NormalisedHead) else head)
