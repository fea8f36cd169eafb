"""Joint non-negative orthogonal matching pursuit: a few items that explain the labels and the features of an image.

Huynh 2020, algorithm 2, for a whole batch at a time (imcl).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from halflabel.types import at_least_float32

MOST_ITEMS = 8  # per image


class Part(NamedTuple):
    """One kind of vectors to be explained: the targets, and the vector of each item."""

    targets: Tensor  # (B, n), y_i or f_i
    items: Tensor  # (M, n), A y_i' or f_i'
    weight: float | Tensor  # λ
    agree: Tensor | None = None  # (M, n), the vectors that step 5 compares with residuals: y_i'; None = `items`


@dataclass(frozen=True, slots=True)
class Similar:
    """The items chosen for each image, in the order of choice, and their coefficients."""

    index: Tensor  # (B, k) int64, item numbers, then −1 for none
    weights: tuple[Tensor, ...]  # one (B, k) per part, ≥ 0; 0 where there is no item


@torch.no_grad()
def joint_omp(parts: Sequence[Part], k: int, *, allowed: Tensor | None = None) -> Similar:
    """Choose at most k items per image, the same for all parts, whose weighted sums are close to the targets.

        s = argmax_i' Σ_parts λ ⟨r, a_i'⟩² / ‖a_i'‖²         r = t_i − Σ_{i' ∈ S} c_i' a_i', at first the target t_i
        stop if ⟨r, b_s⟩ ≤ 0 in any part, else S ← S ∪ {s}    b = a, or `agree` (y for a = A y)
        c = max(0, argmin ‖t_i − Σ_{i' ∈ S} c_i' a_i'‖²)       for each part

    Huynh 2020, algorithm 2. `allowed` (B, M) bool marks the items that an image may get (not itself, say).

    Not in the paper: of equal items the one with the lower number is chosen; an image stops if the best item is already
    chosen; zero vectors are never chosen; an item that is linearly dependent on earlier ones (squared sine of the angle
    at most √ε) gets 0 in that part; and ⟨r, b⟩ ≤ √ε ‖t‖ ‖b‖ counts as 0. So rounding does not affect the choice.
    """
    with torch.autocast(parts[0].targets.device.type, enabled=False):
        pursuits = [_Pursuit(part, k) for part in parts]
        (images, count), device = (len(parts[0].targets), len(parts[0].items)), parts[0].targets.device
        index = torch.full((images, k), -1, device=device)
        coefficients = torch.zeros(len(parts), images, k, dtype=pursuits[0].targets.dtype, device=device)
        if not images or not count:
            return Similar(index, tuple(coefficients))
        slack = 64 * torch.finfo(coefficients.dtype).eps * sum(p.weight * p.size.square() for p in pursuits)
        active = torch.ones(images, dtype=torch.bool, device=device)
        for step in range(k):
            score = sum((p.score() for p in pursuits[1:]), pursuits[0].score())
            if allowed is not None:
                score = score.masked_fill(~allowed, -torch.inf)
            best = score.amax(1, keepdim=True)
            pick = (score >= best - slack).to(torch.uint8).argmax(1)
            active = active & best.squeeze(1).isfinite() & (index != pick[:, None]).all(1)
            for pursuit in pursuits:
                active = active & pursuit.agrees(pick)
            index[:, step] = torch.where(active, pick, -1)
            for pursuit in pursuits:
                pursuit.take(step, pick, active)
            gram = torch.stack([p.gram[:, : step + 1, : step + 1] for p in pursuits])
            right = torch.stack([p.right[:, : step + 1] for p in pursuits])
            coefficients[:, :, : step + 1] = _least_squares(gram, right).clamp(min=0)
            for pursuit, solution in zip(pursuits, coefficients, strict=True):
                pursuit.update_residual(solution[:, : step + 1])
    return Similar(index, tuple(coefficients))


class _Pursuit:
    """The state of one part: residuals, and the chosen vectors with their inner products."""

    def __init__(self, part: Part, k: int) -> None:
        self.targets, self.items = _wide(part.targets), _wide(part.items)
        self.agree = self.items if part.agree is None else _wide(part.agree)
        self.weight = part.weight
        self.size = self.targets.norm(dim=1, keepdim=True)  # (B, 1)
        square = self.items.square().sum(1)
        self.inverse = torch.where(square > 0, 1 / square.clamp(min=torch.finfo(square.dtype).tiny), 0)  # (M,)
        self.residual = self.targets
        images, width = self.targets.shape
        self.rows = self.targets.new_zeros(images, k, width)
        self.gram = self.targets.new_zeros(images, k, k)
        self.right = self.targets.new_zeros(images, k)

    def score(self) -> Tensor:
        """Return λ ⟨r, a⟩² / ‖a‖² of each image and item, (B, M)."""
        scores: Tensor = (self.residual @ self.items.T).square_().mul_(self.inverse * self.weight)
        return scores

    def agrees(self, pick: Tensor) -> Tensor:
        """Whether the picked items have a positive inner product with the residuals, (B,) bool."""
        picked = self.agree[pick]
        least: Tensor = _tolerance(picked) * self.size.squeeze(1) * picked.norm(dim=1)
        return (self.residual * picked).sum(1) > least

    def take(self, step: int, pick: Tensor, active: Tensor) -> None:
        """Add the picked items; zeros for images that have stopped."""
        self.rows[:, step] = self.items[pick] * active[:, None]
        new = self.rows[:, step]
        products = torch.bmm(self.rows[:, : step + 1], new[:, :, None]).squeeze(2)
        self.gram[:, : step + 1, step] = products
        self.gram[:, step, : step + 1] = products
        self.right[:, step] = (self.targets * new).sum(1)

    def update_residual(self, coefficients: Tensor) -> None:
        """Compute the residual for these coefficients (B, steps) of the chosen items."""
        explained = torch.bmm(coefficients[:, None], self.rows[:, : coefficients.shape[1]]).squeeze(1)
        self.residual = self.targets - explained


def _least_squares(gram: Tensor, right: Tensor) -> Tensor:
    """Solve gram x = right by elimination in the given order: (…, k, k), (…, k) -> (…, k).

    A column that depends on earlier ones, or is zero, gets 0.
    """
    square = gram.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(square > 0, square.clamp(min=torch.finfo(gram.dtype).tiny).rsqrt(), 0)
    system = torch.cat([gram * scale[..., :, None] * scale[..., None, :], (right * scale)[..., None]], -1)
    unit = torch.eye(right.shape[-1], dtype=gram.dtype, device=gram.device)
    independent = []
    for j in range(right.shape[-1]):
        pivot = system[..., j, j]  # the square of the sine of the angle between column j and the span of earlier ones
        sound = pivot > _tolerance(gram)
        row = torch.where(sound, 1 / pivot.where(sound, 1), 0)[..., None] * system[..., j, :]
        # Column j becomes 0 in the other rows; row j minus (pivot − 1) times `row` is `row`.
        system = system - (system[..., :, j] - unit[j])[..., :, None] * row[..., None, :]
        independent.append(sound)
    return torch.where(torch.stack(independent, -1), system[..., -1], 0) * scale


def _tolerance(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps ** 0.5)


def _wide(values: Tensor) -> Tensor:
    """Detach and convert to at least float32."""
    return at_least_float32(values.detach())
