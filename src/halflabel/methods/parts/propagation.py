"""Label propagation: unknown labels are copied from the nearest labelled image in feature space (ss-rml)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.labels.table import Table
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.methods.parts.relabel import Begins, begin_early, check_size
from halflabel.system.validate import at_least
from halflabel.types import Batch, Sweep, Targets, at_least_float32

_BLOCK_IMAGES = 1 << 16  # images processed at a time


class PropagateLabels(UnknownAs):
    """Unknown labels are copied from the nearest labelled image, with weight s_i = exp(−d_i/t). Cevikalp 2019, eq. 5.

    Known + → (labelled, 0), known − → (0, labelled), copied + → (s_i, 0), copied − → (0, s_i); labels that are still
    unknown as in `UnknownAs`, with the weight of the image. It stores the nearest image and its similarity, 12 bytes
    per image; labels are looked up in the training table. A sweep has 4·(C + D) bytes per image, from 256 MB on in
    scratch files; the search takes 4·D bytes per labelled image in memory and 8·D on the device.
    """

    words = "label propagation"
    is_static = False  # copied labels change with every sweep
    neighbour: Tensor  # (N,) int64, the nearest labelled image, −1 for none
    similarity: Tensor  # (N,) float32

    def __init__(
        self, first: int, every: int, t: float, labelled: float, unknown: str, *, propagate: bool = True
    ) -> None:
        super().__init__(unknown)
        at_least(-1, start=first)
        at_least(1, every=every)
        at_least(0, t=t, labelled=labelled)
        self.first_option, self.propagates = first, propagate
        self.plan(20)
        self.every = every
        self.t = t
        self.labelled = labelled

    def plan(self, epochs: int) -> None:
        self.first = self.first_option if self.first_option >= 0 else begin_early(5, epochs)

    def begins(self) -> Begins | None:
        return Begins("label propagation", self.first + 1, "start") if self.propagates else None

    def start(self, table: Table) -> None:
        super().start(table)
        if self.propagates:
            check_size(table, 0, "ss-rml", sweeps=1)
        self.table = table
        self.register_buffer("neighbour", torch.full((len(table),), -1))
        self.register_buffer("similarity", torch.zeros(len(table)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        known = batch.labels != 0
        neighbour = self.neighbour[batch.index]
        copied = torch.from_numpy(self.table.rows(neighbour.clamp(min=0).cpu().numpy())).to(known.device)
        copied = copied.masked_fill(known | (neighbour < 0)[:, None], 0)
        dtype = at_least_float32(logits).dtype
        similarity = self.similarity[batch.index, None].to(dtype)
        has_known = known.any(1, keepdim=True)
        image_weight = torch.where(has_known, self.labelled, similarity)
        unknown = ~known & (copied == 0) & (has_known | (neighbour >= 0)[:, None])
        pos = self.labelled * (batch.labels > 0).to(dtype) + similarity * (copied > 0)
        neg = self.labelled * (batch.labels < 0).to(dtype) + similarity * (copied < 0)
        return Targets(pos, neg + self.weight.to(dtype) * image_weight * unknown)

    def wants_sweep(self, epoch: int) -> bool:
        is_due = self.propagates and self.first <= epoch and (epoch - self.first) % self.every == 0
        return is_due and self.table.known < self.table.shape[0] * self.table.shape[1]

    def wants_sweep_first(self) -> bool:
        return self.wants_sweep(0)

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        known_count = np.diff(self.table.start)
        blocks = torch.split(sweep.features, _BLOCK_IMAGES)
        readable = torch.cat([torch.isfinite(block).all(1) for block in blocks]).numpy()
        labelled = np.flatnonzero((known_count > 0) & readable)
        # Classes without any known label cannot be copied, so an image does not lack them.
        incomplete = np.flatnonzero((known_count < len(np.unique(self.table.column))) & readable)
        if len(labelled) == 1:  # an image cannot be its own neighbour
            incomplete = incomplete[incomplete != labelled[0]]
        if not len(labelled) or not len(incomplete):
            return {}
        device = self.neighbour.device
        index, distance = _nearest_labelled(sweep.features, incomplete, labelled, device)
        t = self.t or float(distance.mean()) * len(incomplete) / int(readable.sum())
        similarity = torch.exp(-distance / t) if t > 0 else torch.ones_like(distance)
        images = torch.from_numpy(incomplete).to(device)
        self.neighbour.fill_(-1)[images] = index.to(device)
        self.similarity.zero_()[images] = similarity.to(device)
        return {"propagated_images": float(len(incomplete)), "similarity": float(similarity.mean())}


def _nearest_labelled(
    features: Tensor, queries: NDArray[np.int64], labelled: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the nearest labelled image of each query other than itself: image numbers and distances, (Q,) each."""
    position = np.full(len(features), -1)
    position[labelled] = np.arange(len(labelled))
    images, skip = torch.from_numpy(queries), torch.from_numpy(position[queries])
    numbers = torch.from_numpy(labelled)
    references = features[numbers].to(device)
    neighbours = [
        nearest(features[block], references, skipped)
        for block, skipped in zip(torch.split(images, _BLOCK_IMAGES), torch.split(skip, _BLOCK_IMAGES), strict=True)
    ]
    distance, index = (torch.cat(blocks) for blocks in zip(*neighbours, strict=True))
    return numbers[index], distance


def nearest(queries: Tensor, references: Tensor, skip: Tensor, budget: int = 256 << 20) -> tuple[Tensor, Tensor]:
    """Return the Euclidean distance of each query to its nearest reference, and which it is; ties: the lower number.

    queries (Q, D), references (R, D), finite -> distances (Q,) float32 and reference numbers (Q,) int64. `skip` (Q,)
    int64 is a reference that the query must not get (itself, say), −1 for none. The search runs on the references'
    device, in about `budget` bytes; the result is on the queries' device.

    ‖r‖² − 2 q·r in float32 has a bounded rounding error, so every reference that can be the nearest is known; only the
    distances to these are computed directly, in float64.
    """
    references = references.float()
    center = references.mean(0)  # the rounding error grows with the norms, so the origin is moved to the center
    centered = references - center
    square = centered.square().sum(1)
    channels = references.shape[1]
    size = max(1, budget // (6 * len(references) + 16 * channels))
    distances, indices = [queries.new_zeros(0, dtype=torch.float32)], [queries.new_zeros(0, dtype=torch.int64)]
    for first in range(0, len(queries), size):
        block = queries[first : first + size].to(references)
        estimate = torch.addmm(square, block - center, centered.T, alpha=-2)
        skipped = skip[first : first + size].to(references.device)
        row = (skipped >= 0).nonzero().squeeze(1)
        estimate[row, skipped[row]] = torch.inf
        # D + 4 roundings of at most (‖q‖ + ‖r‖)² each; twice, for the lowest estimate and for the candidate's own.
        error = (channels + 4) * 2.0**-24 * ((block - center).norm(dim=1) + square.max().sqrt()).square()
        row, candidate = (estimate <= (estimate.amin(1) + 2 * error)[:, None]).nonzero(as_tuple=True)
        step = max(1, budget // (32 * channels + 1))
        pairs = zip(torch.split(row, step), torch.split(candidate, step), strict=True)
        exact = torch.cat([(block[q].double() - references[r].double()).square().sum(1) for q, r in pairs])
        lowest = exact.new_full((len(block),), torch.inf).scatter_reduce(0, row, exact, "amin")
        is_nearest = exact == lowest[row]
        index = torch.full_like(lowest, len(references), dtype=torch.int64)
        index = index.scatter_reduce(0, row[is_nearest], candidate[is_nearest], "amin")
        distances.append(lowest.sqrt().float().to(queries.device))
        indices.append(index.to(queries.device))
    return torch.cat(distances), torch.cat(indices)
