"""Similar training images: their known labels and out-of-fold probabilities, mixed into a score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from halflabel.system import memory

KEY_SIZE = 256  # dimensions of the keys that similarity is computed on
_BLOCK = 1024  # images compared at once
_ENTRIES = 1 << 24  # guesses mixed at once


class SimilarImages(nn.Module):
    """p = (1 − w) σ(x) + w Σ_j a_j q_j over the k most similar training images j, as a logit.

    Similarity s_j is the cosine of the keys, a_j = softmax(t · s_j), and q_j is 1 or 0 where the label of image j is
    known and its out-of-fold probability elsewhere. Keys are the leading principal components of the normalised
    features.
    """

    keys: Tensor
    guesses: Tensor
    projection: Tensor
    settings: Tensor

    def __init__(self, images: int, channels: int, classes: int) -> None:
        super().__init__()
        size = min(KEY_SIZE, channels, images)
        self.register_buffer("keys", torch.zeros(images, size, dtype=torch.float16))
        self.register_buffer("guesses", torch.zeros(images, classes, dtype=torch.float16))
        self.register_buffer("projection", torch.zeros(channels, size))
        self.register_buffer("settings", torch.zeros(3))
        self.weight, self.count, self.sharpness = 0.0, 1, 0.0  # w, k and t: `settings` as numbers, for exports

    @classmethod
    def build(
        cls, projection: Tensor, keys: Tensor, guesses: Tensor, *, weight: float, count: int, sharpness: float
    ) -> SimilarImages:
        """Index training images by their keys (N, KEY_SIZE) = normalised features · projection, of any length."""
        similar = cls(len(keys), len(projection), guesses.shape[1]).to(keys.device)
        similar.projection.copy_(projection)
        similar.keys.copy_(normalize(keys, dim=1))
        similar.guesses.copy_(guesses)
        similar.settings.copy_(torch.tensor([weight, float(count), sharpness]))
        similar._read_settings()
        return similar

    def _read_settings(self) -> None:
        weight, count, sharpness = self.settings.tolist()
        self.weight, self.count, self.sharpness = weight, int(count), sharpness

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._read_settings()

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Mix the guesses of similar images into the logits (N, C) of normalised features (N, D)."""
        similarity = normalize(features @ self.projection, dim=1) @ self.keys.float().T
        values, index = similarity.topk(self.count, dim=1, sorted=False)
        shares = self.weight * torch.softmax(self.sharpness * values, 1)
        blocks = [self._mix(index, shares, part.float()) for part in torch.split(self.guesses, self._columns, dim=1)]
        present, absent = (torch.cat(parts, 1) for parts in zip(*blocks, strict=True))
        # p and 1 − p apart, and σ by exp: near 0 and 1 the sigmoid of ONNX Runtime and 1 − p lose their digits.
        present = present + (1 - self.weight) / (1 + torch.exp(-logits))
        absent = absent + (1 - self.weight) / (1 + torch.exp(logits))
        return torch.log(present.clamp(min=1e-7)) - torch.log(absent.clamp(min=1e-6))

    @property
    def _columns(self) -> int:
        """Return how many classes are mixed at once: their guesses become float32."""
        return max(1, _ENTRIES // len(self.guesses))

    @staticmethod
    def _mix(index: Tensor, shares: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ_j a_j q_j and Σ_j a_j (1 − q_j) of images with these similar ones (N, k) and their shares a."""
        if torch.onnx.is_in_onnx_export():
            chosen, shares = guesses[index], shares[:, None]
            return (shares @ chosen)[:, 0], (shares @ (1 - chosen))[:, 0]
        present = embedding_bag(index, guesses, mode="sum", per_sample_weights=shares)
        return present, embedding_bag(index, 1 - guesses, mode="sum", per_sample_weights=shares)


def nearest_images(keys: Tensor, fold: Tensor, references: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the cosines (N, count) of the most similar images of other folds, and their numbers in `references`."""
    what = f"the similar images of {len(keys)} images take"
    values = memory.scratch_zeros((len(keys), count), what=what, device=keys.device)
    indices = memory.scratch_zeros((len(keys), count), torch.int64, what, keys.device)
    for number in range(int(fold.max()) + 1):
        others = (fold[references] != number).nonzero()[:, 0]
        compared = normalize(keys[references[others]], dim=1).T
        for rows in torch.split((fold == number).nonzero()[:, 0], _BLOCK):
            values[rows], nearest = (normalize(keys[rows], dim=1) @ compared).topk(count, dim=1)
            indices[rows] = others[nearest]
    return values, indices
