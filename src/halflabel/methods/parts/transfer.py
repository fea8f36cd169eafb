"""What one image's labels say about its others and about other images': co-occurrence, similarity, prototypes, blends.

Everything here is about features of each label, `Output.per_class` (B, C, W), and known labels (B, C).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from halflabel.errors import UserError
from halflabel.methods.parts.losses import ASL
from halflabel.methods.parts.relabel import Ignore, never_starts
from halflabel.methods.parts.semantic import computed_again
from halflabel.types import Targets, at_least_float32

__all__ = [
    "Bank",
    "Blend",
    "Cooccurrence",
    "Prototypes",
    "Warm",
    "blend_images",
    "blend_prototypes",
    "cluster",
    "contrast",
    "falling",
    "with_guesses",
]

_LARGEST = 2 * 10**9  # bytes that may be learned or remembered about classes
_TOGETHER = 1 << 24  # numbers above which pairs of classes go through in parts
_SMALL = 1e-6  # length below which a vector has no direction
_ROUNDS = 20


def falling(epoch: int, warm: int, start: float, fall: float, floor: float) -> float:
    """The threshold of an epoch: `start` in the first after the warm ones, less `fall` each epoch, never below `floor`.

    >>> [round(falling(epoch, 5, 0.95, 0.025, 0.75), 3) for epoch in (6, 7, 14, 20)]
    [0.95, 0.925, 0.75, 0.75]
    """
    return max(start - fall * (epoch - warm - 1), floor)


def with_guesses(labels: Tensor, present: Tensor, dtype: torch.dtype) -> Targets:
    """Known labels as they are, unknown ones that are guessed present → (1, 0): (B, C), (B, C) bool."""
    pos = (labels > 0) | ((labels == 0) & present)
    return Targets(pos.to(dtype), (labels < 0).to(dtype))


def contrast(found: Tensor, labels: Tensor) -> Tensor:
    """Features of a label are alike where it is present, and unlike otherwise; a scalar. Chen 2022 (SST), CST loss.

        1 − cos(f_c^n, f_c^m) for images n, m that both show c;   1 + cos for one that does and one that does not
        (or neither); known labels only

    The released code draws pairs so that there are three of each of the last two kinds to one of the first; here each
    kind's mean over the batch is weighted so, over the kinds there are. (B, C, W), (B, C). Memory: C·B² numbers.
    """
    unit = normalize(at_least_float32(found), dim=2, eps=_SMALL).transpose(0, 1)
    near = unit @ unit.transpose(1, 2)
    present, absent = ((labels > 0).T, (labels < 0).T)
    after = torch.ones(near.shape[1:], dtype=torch.bool, device=near.device).triu(1)
    mixed = present[:, :, None] & absent[:, None, :]
    kinds = (
        (present[:, :, None] & present[:, None, :] & after, -1, 1),
        ((mixed | mixed.transpose(1, 2)) & after, 1, 3),
        (absent[:, :, None] & absent[:, None, :] & after, 1, 3),
    )
    total, weights = near.new_zeros(()), near.new_zeros(())
    for pairs, sign, weight in kinds:
        count = pairs.sum()
        total = total + weight * ((1 + sign * near) * pairs).sum() / count.clamp(min=1)
        weights = weights + weight * (count > 0)
    return total / weights.clamp(min=1)


class Warm(Ignore):
    """Known labels alone; says so where training ends with the warm epochs, before `what` begins."""

    def __init__(self, what: str, warm: int) -> None:
        super().__init__()
        self.what = what
        self.warm = warm

    def idle(self, epochs: int) -> str:
        return never_starts(self.what, self.warm + 1, epochs, f"--warm {epochs - 1}")


class Cooccurrence(nn.Module):
    """How likely two labels are in one image together, seen from its features: (B, C, W) -> (B, C(C−1)/2) logits.

        p_cc' = σ(u_cc' · ReLU(Q f_c + R f_c') + b_cc'),   c < c'                      (Chen 2022, SST, IST module)

    The paper's last layer before u_cc', a linear one, is part of u here: the same functions. Memory: 4·k·C²/2 bytes of
    weights, k the rank; in training B·k·C²/2 numbers, beyond 2^24 in parts that the backward pass computes again.
    """

    pairs: Tensor  # (2, P) int64: c and c'
    weight: nn.Parameter  # (P, k)
    bias: nn.Parameter  # (P,)

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.one = nn.Linear(width, rank)
        self.other = nn.Linear(width, rank, bias=False)
        self.rank = rank
        self.loss = ASL(gamma_neg=2.0, gamma_pos=1.0)

    def start(self, classes: int) -> None:
        pairs = torch.triu_indices(classes, classes, 1)
        _check(pairs.shape[1] * self.rank, f"a co-occurrence network of {classes} classes")
        self.register_buffer("pairs", pairs, persistent=False)
        bound = self.rank**-0.5
        spread = torch.rand(pairs.shape[1], self.rank, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter((2 * spread - 1) * bound)
        self.bias = nn.Parameter(torch.zeros(pairs.shape[1]))

    def forward(self, found: Tensor) -> Tensor:
        one, other = self.one(found), self.other(found)
        count = self.pairs.shape[1]
        together = max(_TOGETHER // max(len(found) * self.rank, 1), 1)
        if count <= together:
            return self._score(one, other, self.pairs, self.weight, self.bias)
        parts = (slice(first, first + together) for first in range(0, count, together))
        return torch.cat(
            [
                computed_again(self._score, one, other, self.pairs[:, at], self.weight[at], self.bias[at])
                for at in parts
            ],
            1,
        )

    @staticmethod
    def _score(one: Tensor, other: Tensor, pairs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = torch.relu(one[:, pairs[0]] + other[:, pairs[1]])
        return (hidden * weight).sum(2) + bias

    def charge(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss (γ⁺ = 1, γ⁻ = 2) of pairs of labels that are both known, over all pairs; a scalar.

        The released code takes every pair that is not known to be present for absent, and divides by all of them too:
        a pair that is known weighs as much here as there.
        """
        one, other = labels[:, self.pairs[0]], labels[:, self.pairs[1]]
        known, both = (one != 0) & (other != 0), (one > 0) & (other > 0)
        present, absent = self.loss.pair(at_least_float32(logits))
        return (torch.where(both, present, absent) * known).sum() / max(known.numel(), 1)

    @torch.no_grad()
    def scores(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) mean of p_cc' over the other labels c' known to be present, 0 without any; and where there are any."""
        classes = labels.shape[1]
        together = at_least_float32(logits).new_zeros(len(labels), classes, classes)
        together[:, self.pairs[0], self.pairs[1]] = torch.sigmoid(at_least_float32(logits))
        together = together + together.transpose(1, 2)
        present = (labels > 0).to(together.dtype)
        others = present.sum(1, keepdim=True) - present
        said = (together @ present[:, :, None]).squeeze(2)
        return said / others.clamp(min=1), others > 0


class Bank(nn.Module):
    """The features of each label in the images that last showed it: `size` per label, as they were then.

    Memory: 4·C·size·W bytes; with 100 and W = 256 that is 100 kB per label. `kind` is what the caller says of each.
    """

    features: Tensor  # (C, M, W)
    kind: Tensor  # (C, M) int8
    seen: Tensor  # (C,) int64, how many there have been so far

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def start(self, classes: int, width: int) -> None:
        _check(classes * self.size * width, f"a bank of {self.size} features for each of {classes} classes")
        self.register_buffer("features", torch.zeros(classes, self.size, width))
        self.register_buffer("kind", torch.zeros(classes, self.size, dtype=torch.int8))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.int64))

    @property
    def there(self) -> Tensor:
        """(C, M) bool: the places that are taken."""
        return torch.arange(self.size, device=self.seen.device) < self.seen[:, None]

    @torch.no_grad()
    def remember(self, found: Tensor, labels: Tensor, kind: Tensor | None = None) -> None:
        """Put the features of known positives in the places of the oldest: (B, C, W), (B, C), (B, C)."""
        present = labels > 0
        rank = present.cumsum(0) - 1
        count = present.sum(0)
        image, label = (present & (rank >= count - self.size)).nonzero(as_tuple=True)
        place = (self.seen[label] + rank[image, label]) % self.size
        self.features[label, place] = found[image, label].to(self.features.dtype)
        if kind is not None:
            self.kind[label, place] = kind[image, label].to(torch.int8)
        self.seen += count

    @torch.no_grad()
    def similarity(self, found: Tensor) -> Tensor:
        """(B, C) mean cosine between f_c and what the bank has of label c; 0 where it has nothing."""
        return _similarity(found, self.features, self.there)


def _similarity(found: Tensor, features: Tensor, there: Tensor) -> Tensor:
    # The mean of cosines is one product with the mean of the unit vectors: (B, C, M, W) is never spelled out.
    unit = normalize(features, dim=2, eps=_SMALL) * there[:, :, None]
    mean = unit.sum(1) / there.sum(1).clamp(min=1)[:, None]
    return (normalize(at_least_float32(found), dim=2, eps=_SMALL) * mean).sum(2)


def cluster(points: Tensor, there: Tensor, k: int) -> Tensor:
    """k centres of each label's points by Lloyd's algorithm, all labels at once: (C, M, W), (C, M) -> (C, k, W).

    It starts with the point nearest to the mean, then the point farthest from those chosen, k − 1 times; 20 rounds. Of
    fewer points than k some centres are equal; of none, all are 0.
    """
    number = torch.arange(len(points), device=points.device)
    mean = (points * there[:, :, None]).sum(1) / there.sum(1).clamp(min=1)[:, None]
    far = _distances(points, mean[:, None]).squeeze(2).masked_fill(~there, torch.inf)
    chosen = points[number, far.argmin(1)]
    centres = [chosen]
    nearest = _distances(points, chosen[:, None]).squeeze(2).masked_fill(~there, -1)
    for _ in range(k - 1):
        chosen = points[number, nearest.argmax(1)]
        centres.append(chosen)
        nearest = torch.minimum(nearest, _distances(points, chosen[:, None]).squeeze(2))
    found = torch.stack(centres, 1)
    for _ in range(_ROUNDS):
        member = nn.functional.one_hot(_distances(points, found).argmin(2), k).to(points.dtype) * there[:, :, None]
        count = member.sum(1)[:, :, None]
        found = torch.where(count > 0, member.transpose(1, 2) @ points / count.clamp(min=1), found)
    return found * there.any(1)[:, None, None]


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances: (C, M, W), (C, k, W) -> (C, M, k)."""
    size = points.square().sum(2)[:, :, None] + centres.square().sum(2)[:, None]
    return size - 2 * points @ centres.transpose(1, 2)


class Prototypes(nn.Module):
    """Stable examples of each label, made anew every so often from a bank: clusters, or means by quadrant.

    `by` "clusters": the centres of `count` clusters. "quadrants": the means of what was seen in each quarter of the
    picture (count = 4); where nothing was, of all. Memory: 4·C·(size + count)·W bytes.
    """

    centres: Tensor  # (C, k, W)
    there: Tensor  # (C,) bool
    made: Tensor  # () int64, the epoch they were made in

    def __init__(self, size: int, count: int, by: str = "clusters") -> None:
        super().__init__()
        self.bank = Bank(size)
        self.count = 4 if by == "quadrants" else count
        self.by = by
        self._epoch = 0  # the epoch last looked at: asking the buffer in every step would wait for the device

    def start(self, classes: int, width: int) -> None:
        self.bank.start(classes, width)
        self._epoch = 0
        self.register_buffer("centres", torch.zeros(classes, self.count, width))
        self.register_buffer("there", torch.zeros(classes, dtype=torch.bool))
        self.register_buffer("made", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def refresh(self, epoch: int, first: int, every: int) -> None:
        """Make them anew at the first call in the epochs first, first + every, …"""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        if epoch < first or (epoch - first) % every or int(self.made) == epoch:
            return
        points, there = self.bank.features, self.bank.there
        if self.by == "clusters":
            self.centres.copy_(cluster(points, there, self.count))
        else:
            member = (self.bank.kind[:, :, None] == torch.arange(4, device=points.device)) & there[:, :, None]
            member = torch.where(member.any(1, keepdim=True), member, there[:, :, None]).to(points.dtype)
            self.centres.copy_(member.transpose(1, 2) @ points / member.sum(1).clamp(min=1)[:, :, None])
        self.there.copy_(there.any(1))
        self.made.fill_(epoch)

    def similarity(self, found: Tensor) -> Tensor:
        """(B, C) mean cosine between f_c and the prototypes of label c; 0 where there are none."""
        return _similarity(found, self.centres, self.there[:, None].expand(-1, self.count))


class Blend(NamedTuple):
    """Features of each label with others mixed in, and what they are charged with."""

    found: Tensor  # (B, C, W)
    targets: Targets


def blend_images(found: Tensor, labels: Tensor, partner: Tensor, alpha: Tensor) -> Blend:
    """A label unknown in one image takes over 1 − α of its features in another that shows it. Pu 2022 (SARB), ILRB.

        where y_c^n = 0 and y_c^m = 1:   f_c ← α f_c^n + (1 − α) f_c^m,   y_c ← 1 − α;   all else stays

    `partner` (B,): the number m of each image n. The gradient goes to both images' features and to α.
    """
    mixed = (labels == 0) & (labels[partner] > 0)
    share = torch.where(mixed, alpha.to(found.dtype), 1.0)[:, :, None]
    return Blend(share * found + (1 - share) * found[partner], _softened(labels, mixed, alpha))


def blend_prototypes(found: Tensor, labels: Tensor, chosen: Tensor, prototypes: Tensor, beta: Tensor) -> Blend:
    """Unknown labels that are `chosen` (B, C) take over 1 − β of a prototype (B, C, W). Pu 2022 (SARB), PLRB.

    f_c ← β f_c + (1 − β) prototype_c,   y_c ← 1 − β
    """
    mixed = chosen & (labels == 0)
    share = torch.where(mixed, beta.to(found.dtype), 1.0)[:, :, None]
    return Blend(share * found + (1 - share) * prototypes.to(found.dtype), _softened(labels, mixed, beta))


def _softened(labels: Tensor, mixed: Tensor, share: Tensor) -> Targets:
    pos = torch.where(mixed, 1 - share, (labels > 0).to(share.dtype))
    neg = torch.where(mixed, share, (labels < 0).to(share.dtype))
    return Targets(pos, neg)


def _check(numbers: int, what: str) -> None:
    if 4 * numbers > _LARGEST:
        raise UserError(
            f"{what} would take {4 * numbers / 1e9:.1f} GB",
            "use a smaller width or rank, or ssgrl, which keeps neither; or train on fewer classes",
        )
