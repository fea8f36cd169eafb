"""Normalised features for linear heads: fitted on the training features, saved and exported with the head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from halflabel.errors import UserError

# Weight (K, D) and bias (K,) of the linear classifier that a backbone was pretrained with.
Classifier = tuple[Tensor, Tensor]

CLASSIFIER_WEIGHT = 0.5  # weight of the class probabilities beside the features
BLOCK = 4096  # images normalised at once
_SUBSPACE_ITERATIONS = 4


class FeatureTransform(nn.Module):
    """Map pooled features (N, D) to centred features of mean norm 1, which one regularisation strength fits.

    f' = sign(f) √|f|, f'' = f' / ‖f'‖, g = (f'' − mean) / scale, where scale is the mean norm on the training features.
    Where the backbone was pretrained with a linear classifier on the pooled features, the square roots of its class
    probabilities, q = √softmax(V f + v), are normalised in the same way and appended with weight ½:
    (g, ½ · (q − mean) / scale) of shape (N, D + K). They cost no pass through the backbone.
    With `of_backbone` False the features may be any numbers, whose size matters: f'' = f.

    Memory: 4·(D + K) bytes, and 4·K·(D + 1) with a classifier.
    """

    mean: Tensor
    scale: Tensor
    class_weight: Tensor
    class_bias: Tensor

    def __init__(self, channels: int, pretraining_classes: int = 0, *, of_backbone: bool = True) -> None:
        super().__init__()
        self.of_backbone = of_backbone
        self.register_buffer("mean", torch.zeros(channels + pretraining_classes))
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("class_weight", torch.zeros(pretraining_classes, channels))
        self.register_buffer("class_bias", torch.zeros(pretraining_classes))

    @classmethod
    def fit(
        cls,
        features: Tensor,
        classifier: Classifier | None = None,
        *,
        of_backbone: bool = True,
        device: torch.device | str | None = None,
    ) -> FeatureTransform:
        """Fit mean and scale on the readable rows (no NaN) of the training features, block by block on a device."""
        device = features.device if device is None else device

        def blocks() -> Iterator[Tensor]:
            for part in torch.split(features, BLOCK):
                block = part.to(device).float()
                yield block[~torch.isnan(block).any(1)]

        images = sum(len(block) for block in blocks())
        if not images:
            raise UserError("no training image could be read", "check the image files")
        channels = features.shape[1]
        pretraining_classes = 0 if classifier is None else len(classifier[1])
        transform = cls(channels, pretraining_classes, of_backbone=of_backbone).to(device)
        if classifier is not None:
            transform.class_weight.copy_(classifier[0])
            transform.class_bias.copy_(classifier[1])
        for block in blocks():
            transform.mean += transform._raw(block).sum(0) / images
        scale = torch.zeros_like(transform.scale)
        for block in blocks():
            centred = transform._raw(block) - transform.mean
            scale[0] += centred[:, :channels].norm(dim=1).sum()
            scale[1] += centred[:, channels:].norm(dim=1).sum()
        transform.scale.copy_((scale / images).clamp(min=1e-6))
        if not pretraining_classes:
            transform.scale[1] = 1
        return transform

    @property
    def channels(self) -> int:
        return self.class_weight.shape[1]

    @property
    def out_channels(self) -> int:
        return len(self.mean)

    def _raw(self, features: Tensor) -> Tensor:
        if not self.of_backbone:
            return features
        root = features.sign() * features.abs().sqrt()
        unit = root / root.norm(dim=1, keepdim=True).clamp(min=1e-12)
        if not len(self.class_bias):
            return unit  # type: ignore[no-any-return]
        return torch.cat([unit, class_probabilities(features, (self.class_weight, self.class_bias)).sqrt()], 1)

    def forward(self, features: Tensor) -> Tensor:
        centred = self._raw(features.float()) - self.mean
        channels = self.channels
        normalised: Tensor = centred[:, :channels] / self.scale[0]
        if not len(self.class_bias):
            return normalised
        return torch.cat([normalised, CLASSIFIER_WEIGHT * centred[:, channels:] / self.scale[1]], 1)


def class_probabilities(features: Tensor, classifier: Classifier) -> Tensor:
    """Return the probabilities (N, K) of the pretraining classes, softmax(V f + v), from pooled features (N, D)."""
    weight, bias = classifier
    return torch.softmax(features @ weight.T + bias, 1)


def principal_components(features: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return nearly the leading principal directions (D, k) of centred features (N, D), and the variance along each.

    k = min(size, N, D). Randomised subspace iteration from a fixed seed (Halko 2011), which is much faster than all
    eigenvectors; exact where k = D.
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
