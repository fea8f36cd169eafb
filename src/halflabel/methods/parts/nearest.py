"""Exact nearest neighbours by matrix products, in blocks of queries (ss-rml)."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(
    queries: Tensor, references: Tensor, k: int = 1, *, skip: Tensor | None = None, budget: int = 256 << 20
) -> tuple[Tensor, Tensor]:
    """Return the k references with the smallest Euclidean distance to each query; ties go to the lower number.

    queries (Q, D), references (R, D), finite -> distances (Q, k) float32 and reference numbers (Q, k) int64, nearest
    first. `skip` (Q,) int64 is a reference that the query must not get (itself, say), −1 for none. The search runs on
    the references' device, in about `budget` bytes; the result is on the queries' device.

    ‖r‖² − 2 q·r in float32 has a bounded rounding error, so every reference that can be among the k nearest is known;
    only the distances to these are computed directly, in float64.
    """
    available = len(references) - int(skip is not None)
    if not 1 <= k <= available:
        raise ValueError(f"{k} neighbours of {available} references")
    if not (bool(torch.isfinite(queries).all()) and bool(torch.isfinite(references).all())):
        raise ValueError("queries and references must be finite")
    references = references.float()
    center = references.mean(0)  # the rounding error grows with the norms, so the origin is moved to the center
    centered = references - center
    square = centered.square().sum(1)
    channels = references.shape[1]
    size = max(1, budget // (6 * len(references) + 16 * channels))
    distances, indices = [queries.new_zeros(0, k, dtype=torch.float32)], [queries.new_zeros(0, k, dtype=torch.int64)]
    for first in range(0, len(queries), size):
        block = queries[first : first + size].to(references)
        estimate = torch.addmm(square, block - center, centered.T, alpha=-2)
        if skip is not None:
            skipped = skip[first : first + size].to(references.device)
            row = (skipped >= 0).nonzero().squeeze(1)
            estimate[row, skipped[row]] = torch.inf
        # D + 4 roundings of at most (‖q‖ + ‖r‖)² each; twice, for the k-th estimate and for the candidate's own.
        error = (channels + 4) * 2.0**-24 * ((block - center).norm(dim=1) + square.max().sqrt()).square()
        limit = estimate.topk(k, largest=False).values[:, -1] + 2 * error
        row, candidate = (estimate <= limit[:, None]).nonzero(as_tuple=True)  # by row, then by number
        step = max(1, budget // (32 * channels + 1))
        pairs = zip(torch.split(row, step), torch.split(candidate, step), strict=True)
        exact = torch.cat([(block[q].double() - references[r].double()).square().sum(1) for q, r in pairs])
        count = torch.bincount(row, minlength=len(block))
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        table = exact.new_full((len(block), int(count.max())), torch.inf)
        table[row, place] = exact
        table, order = table.sort(stable=True)  # of equal distances the lower number stays first
        distances.append(table[:, :k].sqrt().float().to(queries.device))
        indices.append(candidate[(count.cumsum(0) - count)[:, None] + order[:, :k]].to(queries.device))
    return torch.cat(distances), torch.cat(indices)
