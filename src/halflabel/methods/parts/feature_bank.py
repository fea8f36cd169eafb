"""Stored features of each label, and prototypes computed from them (sst, hst, sarb)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from halflabel.methods.parts.relabel import check_bytes
from halflabel.types import at_least_float32

SMALLEST_NORM = 1e-6  # shorter vectors have no direction
_ROUNDS = 20


class FeatureBank(nn.Module):
    """The features of each label in the last `size` images that showed it, as they were then: 4·C·size·W bytes.

    `kind` is a number that the caller stores with each.
    """

    features: Tensor  # (C, M, W)
    kind: Tensor  # (C, M) int8
    seen: Tensor  # (C,) int64, how many images have shown the label so far
    unit_sum: Tensor  # (C, W) float64, the sum of the stored features, each of length 1

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def start(self, classes: int, width: int) -> None:
        check_numbers(classes * self.size * width, f"a bank of {self.size} features for each of {classes} classes")
        self.register_buffer("features", torch.zeros(classes, self.size, width))
        self.register_buffer("kind", torch.zeros(classes, self.size, dtype=torch.int8))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("unit_sum", torch.zeros(classes, width, dtype=torch.float64))

    @property
    def filled(self) -> Tensor:
        """(C, M) bool: the slots in use."""
        return torch.arange(self.size, device=self.seen.device) < self.seen[:, None]

    @torch.no_grad()
    def remember(self, features: Tensor, labels: Tensor, kind: Tensor | None = None) -> None:
        """Store the features of known positives in the slots of the oldest: (B, C, W), (B, C), (B, C)."""
        present = labels > 0
        rank = present.cumsum(0) - 1
        count = present.sum(0)
        image, label = (present & (rank >= count - self.size)).nonzero(as_tuple=True)
        slot = (self.seen[label] + rank[image, label]) % self.size
        stored = features[image, label].to(self.features.dtype)
        self.unit_sum.index_add_(0, label, (_units(stored) - _units(self.features[label, slot])).double())
        self.features[label, slot] = stored
        if kind is not None:
            self.kind[label, slot] = kind[image, label].to(torch.int8)
        self.seen += count

    @torch.no_grad()
    def similarity(self, features: Tensor) -> Tensor:
        """(B, C) mean cosine between f_c and the stored features of label c; 0 if there are none."""
        return _mean_cosine(features, self.unit_sum, self.seen.clamp(max=self.size))


def _units(vectors: Tensor) -> Tensor:
    return normalize(at_least_float32(vectors), dim=-1, eps=SMALLEST_NORM)


def _mean_cosine(features: Tensor, unit_sum: Tensor, count: Tensor) -> Tensor:
    """The mean of the cosines is the product with the mean of `count` unit vectors: (B, C, W), (C, W), (C,)."""
    mean = unit_sum / count.clamp(min=1)[:, None]
    units = _units(features)
    return (units * mean.to(units.dtype)).sum(2)


def cluster_centres(points: Tensor, filled: Tensor, k: int) -> Tensor:
    """Return k cluster centres of each label's points (k-means, all labels at once): (C, M, W), (C, M) -> (C, k, W).

    The first centre is the point nearest to the mean, the others the points farthest from those chosen; then 20 rounds
    of Lloyd's algorithm. With fewer points than k some centres are equal; without points all are 0.
    """
    number = torch.arange(len(points), device=points.device)
    mean = (points * filled[:, :, None]).sum(1) / filled.sum(1).clamp(min=1)[:, None]
    distance = _squared_distances(points, mean[:, None]).squeeze(2).masked_fill(~filled, torch.inf)
    chosen = points[number, distance.argmin(1)]
    centres = [chosen]
    nearest = _squared_distances(points, chosen[:, None]).squeeze(2).masked_fill(~filled, -1)
    for _ in range(k - 1):
        chosen = points[number, nearest.argmax(1)]
        centres.append(chosen)
        nearest = torch.minimum(nearest, _squared_distances(points, chosen[:, None]).squeeze(2))
    result = torch.stack(centres, 1)
    for _ in range(_ROUNDS):
        member = (
            nn.functional.one_hot(_squared_distances(points, result).argmin(2), k).to(points.dtype) * filled[:, :, None]
        )
        count = member.sum(1)[:, :, None]
        result = torch.where(count > 0, member.transpose(1, 2) @ points / count.clamp(min=1), result)
    return result * filled.any(1)[:, None, None]


def _squared_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances: (C, M, W), (C, k, W) -> (C, M, k)."""
    size = points.square().sum(2)[:, :, None] + centres.square().sum(2)[:, None]
    return size - 2 * points @ centres.transpose(1, 2)


class Prototypes(nn.Module):
    """Typical features of each label, recomputed now and then from a feature bank.

    `by` "clusters": the centres of `count` clusters. "quadrants": the mean feature of each quarter of the picture
    (count = 4); the mean of all where a quarter has none.
    """

    centres: Tensor  # (C, k, W)
    exists: Tensor  # (C,) bool
    computed_epoch: Tensor  # () int64, the epoch in which they were computed

    def __init__(self, size: int, count: int, by: str = "clusters") -> None:
        super().__init__()
        self.bank = FeatureBank(size)
        self.count = 4 if by == "quadrants" else count
        self.by = by
        self._epoch = 0  # the epoch of the last call: reading the buffer in every step would wait for the device

    def start(self, classes: int, width: int) -> None:
        self.bank.start(classes, width)
        self._epoch = 0
        self.register_buffer("centres", torch.zeros(classes, self.count, width))
        self.register_buffer("exists", torch.zeros(classes, dtype=torch.bool))
        self.register_buffer("computed_epoch", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def refresh(self, epoch: int, first: int, every: int) -> None:
        """Recompute the prototypes at the first call in the epochs first, first + every, …"""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        if epoch < first or (epoch - first) % every or int(self.computed_epoch) == epoch:
            return
        points, filled = self.bank.features, self.bank.filled
        if self.by == "clusters":
            self.centres.copy_(cluster_centres(points, filled, self.count))
        else:
            member = (self.bank.kind[:, :, None] == torch.arange(4, device=points.device)) & filled[:, :, None]
            member = torch.where(member.any(1, keepdim=True), member, filled[:, :, None]).to(points.dtype)
            self.centres.copy_(member.transpose(1, 2) @ points / member.sum(1).clamp(min=1)[:, :, None])
        self.exists.copy_(filled.any(1))
        self.computed_epoch.fill_(epoch)

    def similarity(self, features: Tensor) -> Tensor:
        """(B, C) mean cosine between f_c and the prototypes of label c; 0 if there are none."""
        return _mean_cosine(features, _units(self.centres).sum(1), self.count * self.exists)


def check_numbers(numbers: int, name: str) -> None:
    """Raise if this many float32 numbers take more than 2·10⁹ bytes; `name` states what they are."""
    check_bytes(
        4.0 * numbers,
        f"{name} would take {{}}",
        "use a smaller width or rank, or ssgrl, which needs neither; or train on fewer classes",
    )
