"""Exact nearest neighbours by matrix products, on any device and within a memory budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Neighbours", "nearest"]

_ROUNDING = 2.0**-24  # of one float32 operation


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The k nearest references of each query, nearest first."""

    distance: Tensor  # (Q, k) float32, Euclidean
    index: Tensor  # (Q, k) int64, reference numbers


def nearest(
    queries: Tensor,
    references: Tensor,
    k: int = 1,
    *,
    skip: Tensor | None = None,
    device: torch.device | str | None = None,
    budget: int = 256 << 20,
) -> Neighbours:
    """The k references with the smallest Euclidean distance to each query; equal distances by the lower number.

    queries (Q, D) and references (R, D) are finite. `skip` (Q,) int64 names a reference that a query must not get
    (itself, say), −1 for none. Work is done on `device` (by default the references') and the answer comes back to the
    queries' device.

    ‖q − r‖² = ‖q‖² − 2 q·r + ‖r‖² is computed in float32 by matrix products. Its rounding error is bounded, so that all
    references which could still be among the k nearest are known; only those are measured again, directly and in
    float64. Hence the answer is that of the direct loop, and a distance of 0 is 0.

    Memory: about `budget` bytes and, on `device`, 4·D per reference. Time: 2·Q·R·D operations of the matrix products.
    """
    room = len(references) - int(skip is not None)
    if not 1 <= k <= room:
        raise ValueError(f"{k} neighbours of {room} references")
    if not (bool(torch.isfinite(queries).all()) and bool(torch.isfinite(references).all())):
        raise ValueError("queries and references must be finite")
    device = torch.device(device) if device is not None else references.device
    references = references.to(device, torch.float32)
    # Distances do not change when the origin moves to the middle, but the rounding error shrinks with the norms.
    middle = references.mean(0)
    shifted = references - middle
    square = shifted.square().sum(1)
    # An entry of `estimate` takes 4 bytes, its comparison 1, and what is sorted out of it some more.
    step = max(1, budget // (6 * len(references) + 16 * references.shape[1]))
    parts = [
        _nearest(
            queries[at : at + step].to(device, torch.float32),
            references,
            k,
            None if skip is None else skip[at : at + step].to(device),
            middle,
            shifted,
            square,
            budget,
        )
        for at in range(0, len(queries), step)
    ]
    if not parts:
        return Neighbours(queries.new_zeros(0, k, dtype=torch.float32), queries.new_zeros(0, k, dtype=torch.int64))
    return Neighbours(*(torch.cat(column).to(queries.device) for column in zip(*parts, strict=True)))


def _nearest(
    queries: Tensor,
    references: Tensor,
    k: int,
    skip: Tensor | None,
    middle: Tensor,
    shifted: Tensor,
    square: Tensor,
    budget: int,
) -> tuple[Tensor, Tensor]:
    here = queries - middle
    estimate = torch.addmm(square, here, shifted.T, alpha=-2)  # ‖q − r‖² − ‖q‖²: the order of references is the same
    if skip is not None:
        rows = (skip >= 0).nonzero().squeeze(1)
        estimate[rows, skip[rows]] = torch.inf
    # |error| ≤ bound by the usual analysis of inner products, (D + 4) roundings of at most (‖q‖ + ‖r‖)² each. If the
    # k-th smallest estimate is e, the k-th smallest distance is ≤ e + bound, so its estimate is ≤ e + 2·bound.
    reach = (here.norm(dim=1) + square.max().sqrt()).square()
    bound = (here.shape[1] + 4) * _ROUNDING * reach
    limit = estimate.topk(k, largest=False).values[:, -1] + 2 * bound
    row, number = (estimate <= limit[:, None]).nonzero(as_tuple=True)
    size = max(1, budget // (32 * here.shape[1] + 1))
    exact = torch.cat(
        [
            (queries[r].double() - references[n].double()).square().sum(1)
            for r, n in zip(row.split(size), number.split(size), strict=True)
        ]
    )
    # By row, then distance, then number: pairs come by row and number, and both sorts are stable.
    order = exact.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    count = torch.bincount(row, minlength=len(queries))
    first = count.cumsum(0) - count
    chosen = order[first[:, None] + torch.arange(k, device=first.device)]
    return exact[chosen].sqrt().float(), number[chosen]
