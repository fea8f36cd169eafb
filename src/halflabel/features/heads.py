"""Heads, which turn a backbone's features or maps into logits, and the model that joins backbone and head."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from halflabel.errors import UserError, WrongHead
from halflabel.features.feature_transform import FeatureTransform
from halflabel.features.names import NameScores
from halflabel.features.similar_images import SimilarImages
from halflabel.images.views import ImageList
from halflabel.types import Output, at_least_float32


def pool(features: Tensor) -> Tensor:
    """Mean over places: (B, D, h, w) -> (B, D); pooled features (B, D) are returned unchanged."""
    return features.mean(dim=(2, 3)) if features.ndim == 4 else features


def in_words(name: str) -> str:
    """Return the words of a class name: "label aware head" of LabelAwareHead, "APL" of APL."""
    return name if name.isupper() else re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


class Head(nn.Module):
    """(B, D) pooled features or (B, D, h, w) maps -> Output."""

    needs_maps = False  # True: pooled features are not enough
    adds_names = True  # False: its logits are no sum that scores from class names could be part of

    @property
    def words(self) -> str:
        """What the head is, for people: by default the words of its class name."""
        return in_words(type(self).__name__)

    def forward(self, features: Tensor) -> Output:
        raise TypeError(f"{type(self).__name__} does not define forward")

    def class_maps(self, maps: Tensor) -> Tensor:
        """Evidence per place and class, for heat maps: (B, D, h, w) -> (B, C, h, w)."""
        raise TypeError(f"{type(self).__name__} has no class maps")

    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        """Start from a linear classifier x = W f + b, W (C, D), b (C,); heads without such a start ignore it."""


HeadMaker = Callable[[int, int], Head]  # (D, C) -> head
H = TypeVar("H", bound=Head)


class Linear(Head):
    """x = W · (mean of the features over places) + b. Memory: 4·D bytes per class."""

    def __init__(self, channels: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, classes)

    @property
    def words(self) -> str:
        return "linear head" + _dropout_words(self.dropout)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(self.linear(self.dropout(pooled)), pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.einsum("cd,bdhw->bchw", self.linear.weight, maps) + self.linear.bias.view(1, -1, 1, 1)

    @torch.no_grad()
    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        self.linear.weight.copy_(weight)
        self.linear.bias.copy_(bias)


def _dropout_words(dropout: nn.Dropout) -> str:
    return f" with dropout {dropout.p:g}" if dropout.p else ""


class NormalisedLinear(Head):
    """x = W · transform(pooled) + b + trust · names(pooled), then mixed with similar training images."""

    trust: Tensor | None

    def __init__(
        self,
        transform: FeatureTransform,
        classes: int,
        similar: SimilarImages | None = None,
        names: NameScores | None = None,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.linear = nn.Linear(transform.out_channels, classes)
        self.similar = similar
        self.names = names
        self.register_buffer("trust", None if names is None else torch.zeros(classes))

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        normalised = self.transform(pooled)
        logits = self.linear(normalised)
        if self.names is not None:
            logits = logits + self.trust * self.names(pooled.float())
        return Output(logits if self.similar is None else self.similar(normalised, logits), pooled)

    @classmethod
    def from_shapes(cls, state: Mapping[str, Tensor], prefix: str = "") -> NormalisedLinear | None:
        """Return an empty head with the shapes of a state dict, or None if the state belongs to another head."""
        names = [f"{prefix}transform.class_weight", f"{prefix}linear.weight"]
        if not all(name in state for name in names):
            return None
        (pretraining, own), (classes, width) = (state[name].shape for name in names)
        transform = FeatureTransform([size for size in (own, width - pretraining - own) if size], pretraining)
        keys = state.get(f"{prefix}similar.keys")
        similar = None if keys is None else SimilarImages(len(keys), transform.out_channels, classes)
        return cls(transform, classes, similar, NameScores.from_shapes(state, f"{prefix}names.", classes))

    def class_maps(self, maps: Tensor) -> Tensor:
        batch, _, height, width = maps.shape
        places = maps.permute(0, 2, 3, 1).flatten(0, 2)
        logits: Tensor = self.linear(self.transform(places))
        return logits.view(batch, height, width, -1).permute(0, 3, 1, 2)


class NormalisedHead(Head):
    """x = head(z) + trust · names(f), then mixed with similar training images: any head on the base of a linear fit.

    z are the normalised features or maps of `base`. The head begins at its weights where it can (`load_linear`).
    """

    def __init__(self, head: Head, base: NormalisedLinear) -> None:
        super().__init__()
        self.head, self.base = head, base.requires_grad_(False)
        self.needs_maps = head.needs_maps

    @property
    def words(self) -> str:
        return self.head.words

    @property
    def similar(self) -> SimilarImages | None:
        return self.base.similar

    def _normalise(self, features: Tensor) -> Tensor:
        transform = self.base.transform
        normalised: Tensor = transform.places(features) if features.ndim == 4 else transform(features)
        return normalised

    def forward(self, features: Tensor) -> Output:
        normalised = self._normalise(features)
        output, base = run_head(self.head, normalised), self.base
        if base.names is not None:
            with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
                named = base.trust * base.names(pool(features).float())
            maps, members = output.maps, output.members
            maps = None if maps is None else maps + named[:, :, None, None]
            members = None if members is None else members + named
            output = output._replace(logits=output.logits + named, maps=maps, members=members)
        if base.similar is not None:
            output = output._replace(logits=base.similar(pool(normalised), output.logits))
        return output

    def class_maps(self, maps: Tensor) -> Tensor:
        return self.head.class_maps(self._normalise(maps))


class MapHead(Head):
    """A head that scores the class maps A = W · features + b of each place; pooled features are maps of one cell."""

    needs_maps = True
    gain = 1.0  # the score of a map of equal cells a is gain · a

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1)

    def class_maps(self, maps: Tensor) -> Tensor:
        scores: Tensor = self.conv(maps)
        return scores

    def places(self, features: Tensor) -> Tensor:
        """(B, D, h, w) or (B, D) -> (B, D, h, w)."""
        return features if features.ndim == 4 else features[:, :, None, None]

    @torch.no_grad()
    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        self.conv.weight.copy_(weight[:, :, None, None] / self.gain)
        assert self.conv.bias is not None
        self.conv.bias.copy_(bias / self.gain)


class Weldon(MapHead):
    """x = ½ (mean of the k⁺ highest cells + mean of the k⁻ lowest cells) of each class map. Durand 2016 (WELDON).

    Class maps A = 1×1 convolution of the features, after dropout of single elements. k < 1 is a share of the cells
    (rounded, at least one), k ≥ 1 a number of cells (at most all). With k⁻ = 0, x is the mean of the highest cells.
    Pooled features (B, D) are maps of one cell, on which the head is linear.
    """

    def __init__(
        self, channels: int, classes: int, k_plus: float = 0.1, k_minus: float = 0.1, dropout: float = 0.0
    ) -> None:
        super().__init__(channels, classes)
        self.k_plus = k_plus
        self.k_minus = k_minus
        self.dropout = nn.Dropout(dropout)

    @property
    def words(self) -> str:
        return "WELDON pooling" + _dropout_words(self.dropout)

    def forward(self, features: Tensor) -> Output:
        maps = self.class_maps(self.dropout(self.places(features)))
        return Output(self._score(maps.flatten(2)), pool(features), maps)

    def _score(self, cells: Tensor) -> Tensor:
        """(B, C, h·w) -> (B, C)."""
        high = cells.topk(_cells(self.k_plus, cells.shape[2]), dim=2, sorted=False).values.mean(2)
        if self.k_minus == 0:
            return high
        low = cells.topk(_cells(self.k_minus, cells.shape[2]), dim=2, largest=False, sorted=False).values.mean(2)
        return high / 2 + low / 2  # halved first: the sum could overflow in half precision


def _cells(k: float, cells: int) -> int:
    """The number of cells that k, a share or a number, stands for."""
    return min(max(round(k * cells), 1) if k < 1 else int(k), cells)


def run_head(head: nn.Module, features: Tensor) -> Output:
    """Run a head on features or maps; an error if it does not return an Output."""
    output = head(features)
    if isinstance(output, Output):
        return output
    raise UserError(
        f"the head {type(head).__name__} returns a {type(output).__name__}, not an Output",
        "return halflabel.types.Output(logits, features)",
    )


class Ensemble(Head):
    """Heads on the same features, each with its own initial weights; x = the mean of their logits, `members`."""

    def __init__(self, members: Sequence[Head]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(members)
        self.needs_maps = any(head.needs_maps for head in members)

    @property
    def words(self) -> str:
        return f"{len(self.heads)} heads: {cast(Head, self.heads[0]).words}"

    def forward(self, features: Tensor) -> Output:
        outputs = [run_head(head, features) for head in self.heads]
        members = torch.stack([output.logits for output in outputs])
        maps = [output.maps for output in outputs if output.maps is not None]
        mean_maps = torch.stack(maps).mean(0) if len(maps) == len(outputs) else None
        return Output(members.mean(0), pool(features), mean_maps, members)

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.stack([cast(Head, head).class_maps(maps) for head in self.heads]).mean(0)

    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        for head in self.heads:
            cast(Head, head).load_linear(weight, bias)


def find_head(model: nn.Module, kind: type[H]) -> H:
    """The first head of class `kind` in a model, also inside the wrappers of training."""
    for part in model.modules():
        if isinstance(part, kind):
            return part
    raise WrongHead(f"the step needs a {kind.__name__}", "use the head that the method makes")


class Model(nn.Module):
    """Backbone and head. Without a backbone, the input is cached features or maps."""

    def __init__(self, backbone: nn.Module | None, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, view: Tensor | ImageList) -> Tensor:
        """The input of the head: (B, D) or (B, D, h, w); (B, D) for images of different shapes."""
        if self.backbone is None:
            return view  # type: ignore[return-value]  # an exported file takes images of any shapes
        if isinstance(view, ImageList):
            return view.apply(lambda images: pool(self.features(images)))
        backbone: Any = self.backbone
        features: Tensor = backbone(view) if self.head.needs_maps else backbone.pooled(view)
        return features

    def run(self, other: Model, view: Tensor) -> Output:
        """The output of another model, such as an average of this one; with several processes for the views of all."""
        output: Output = other(view)
        return output

    def take(self, view: Tensor, order: Tensor) -> Tensor:
        """The views of other images of the batch: row i is that of image order[i], with several processes of any."""
        return view[order]

    def forward(self, view: Tensor) -> Output:
        """The output of the head, in float32 at least, so that methods compute alike in every precision."""
        output = run_head(self.head, self.features(view))
        return Output(*(None if part is None else at_least_float32(part) for part in output))  # type: ignore[arg-type]
