"""Normalised features for linear heads: fitted on the training features, saved and exported with the head."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from halflabel.errors import UserError

# Weight (K, D) and bias (K,) of the linear classifier that a backbone was pretrained with.
Classifier = tuple[Tensor, Tensor]

CLASSIFIER_WEIGHT = 0.5  # weight of the class probabilities beside the features
MEAN_WEIGHT = 0.5  # weight of a second block, the mean over places, beside the network's own vector
BLOCK = 4096  # images normalised at once
_SUBSPACE_ITERATIONS = 4


class FeatureTransform(nn.Module):
    """Map pooled features (N, D) to centred features of mean norm 1, which one regularisation strength fits.

    f' = sign(f) √|f|, f'' = f' / ‖f'‖, g = (f'' − mean) / scale, where scale is the mean norm on the training features.
    The square roots of the class probabilities of the pretraining classifier, if there is one, q = √softmax(V f + v),
    are normalised in the same way and appended with weight ½: (g, ½ · (q − mean) / scale) of shape (N, D + K). Features
    of two `blocks` are normalised block by block; the second has the weight ½, which is part of its scale, and the
    classifier belongs to the first. With `of_backbone` False the features may be any numbers, whose size matters: f'' =
    f.
    """

    mean: Tensor
    scale: Tensor
    class_weight: Tensor
    class_bias: Tensor

    def __init__(self, blocks: Sequence[int], pretraining_classes: int = 0, *, of_backbone: bool = True) -> None:
        super().__init__()
        self.of_backbone = of_backbone
        self.blocks = list(blocks)
        self.register_buffer("mean", torch.zeros(sum(blocks) + pretraining_classes))
        self.register_buffer("scale", torch.ones(len(blocks) + 1))
        self.register_buffer("class_weight", torch.zeros(pretraining_classes, blocks[0]))
        self.register_buffer("class_bias", torch.zeros(pretraining_classes))

    @classmethod
    def fit(
        cls,
        features: Tensor,
        classifier: Classifier | None = None,
        *,
        blocks: Sequence[int] | None = None,
        of_backbone: bool = True,
        device: torch.device | str | None = None,
    ) -> FeatureTransform:
        """Fit mean and scale on the readable rows (no NaN) of the training features, block by block on a device."""
        device = features.device if device is None else device

        def batches() -> Iterator[Tensor]:
            for part in torch.split(features, BLOCK):
                block = part.to(device).float()
                yield block[~torch.isnan(block).any(1)]

        images = sum(len(block) for block in batches())
        if not images:
            raise UserError("no training image could be read", "check the image files")
        pretraining_classes = 0 if classifier is None else len(classifier[1])
        transform = cls(blocks or [features.shape[1]], pretraining_classes, of_backbone=of_backbone).to(device)
        if classifier is not None:
            transform.class_weight.copy_(classifier[0])
            transform.class_bias.copy_(classifier[1])
        for block in batches():
            transform.mean += transform._raw(block).sum(0) / images
        scale = torch.zeros_like(transform.scale)
        for block in batches():
            parts = transform._split(transform._raw(block) - transform.mean)
            scale += torch.stack([part.norm(dim=1).sum() for part in parts])
        scale[1:-1] /= MEAN_WEIGHT
        transform.scale.copy_((scale / images).clamp(min=1e-6))
        if not pretraining_classes:
            transform.scale[-1] = 1
        return transform

    def without(self, block: int) -> FeatureTransform:
        """Return the same transform with zeros in place of a block: its scale is infinite."""
        other = copy.deepcopy(self)
        other.scale[block] = math.inf
        return other

    @property
    def words(self) -> str:
        """Which of two blocks are used, for people; "" for one block."""
        if len(self.blocks) == 1:
            return ""
        names = ("the network's own vector", "the mean over places")
        used = [name for name, scale in zip(names, self.scale.tolist(), strict=False) if math.isfinite(scale)]
        return " and ".join(used)

    @property
    def out_channels(self) -> int:
        return len(self.mean)

    def _raw(self, features: Tensor) -> Tensor:
        if not self.of_backbone:
            return features
        roots = torch.split(features.sign() * features.abs().sqrt(), self.blocks, 1)
        parts = [root / root.norm(dim=1, keepdim=True).clamp(min=1e-12) for root in roots]
        if len(self.class_bias):
            parts.append(class_probabilities(features, (self.class_weight, self.class_bias)).sqrt())
        return torch.cat(parts, 1)

    def _split(self, values: Tensor) -> Sequence[Tensor]:
        """Return the blocks of normalised features, then the part of the class probabilities."""
        return torch.split(values, [*self.blocks, len(self.class_bias)], 1)

    def forward(self, features: Tensor) -> Tensor:
        *parts, classes = self._split(self._raw(features.float()) - self.mean)
        normalised = [part / scale for part, scale in zip(parts, self.scale[:-1], strict=True)]
        if len(self.class_bias):
            normalised.append(CLASSIFIER_WEIGHT * classes / self.scale[-1])
        return torch.cat(normalised, 1)

    def places(self, maps: Tensor) -> Tensor:
        """Return normalised maps (B, D + K, h, w), whose mean over places is the normalised vector of the mean.

        Each place adds how its f'' differs from the mean of the f''; the class probabilities are those of the image.
        """
        _, channels, height, width = maps.shape
        pooled = self(maps.mean((2, 3)))[:, :, None, None].expand(-1, -1, height, width)
        roots = maps.sign() * maps.abs().sqrt() if self.of_backbone else maps
        unit = roots / roots.norm(dim=1, keepdim=True).clamp(min=1e-12) if self.of_backbone else roots
        deviation = (unit - unit.mean((2, 3), keepdim=True)) / self.scale[0]
        return torch.cat([pooled[:, :channels] + deviation, pooled[:, channels:]], 1)


def class_probabilities(features: Tensor, classifier: Classifier) -> Tensor:
    """Return the probabilities (N, K) of the pretraining classes, softmax(V f + v), f the first block of features."""
    weight, bias = classifier
    return torch.softmax(features[:, : weight.shape[1]] @ weight.T + bias, 1)


def principal_components(features: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return nearly the leading principal directions (D, k) of centred features (N, D), and the variance along each.

    Randomised subspace iteration from a fixed seed (Halko 2011); exact where k = min(size, N, D) is D.
    """
    images, channels = features.shape
    size = min(size, images, channels)
    covariance = features.T @ features / images if channels <= 2 * images else None

    def multiply(directions: Tensor) -> Tensor:
        return covariance @ directions if covariance is not None else features.T @ (features @ directions) / images

    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(channels, size, generator=generator).to(features.device)
    for _ in range(_SUBSPACE_ITERATIONS):
        directions = torch.linalg.qr(multiply(directions))[0]
    variance, rotation = torch.linalg.eigh(directions.T @ multiply(directions))
    return (directions @ rotation).flip(1), variance.flip(0).clamp(min=0)
