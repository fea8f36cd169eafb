"""Robust ranking with the ramp loss, and label propagation to unlabelled images (Cevikalp 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, Duration, Method, NonNegative, Share, method
from halflabel.methods.parts.ranking import Rank, Ranking, Unknown, UnknownAs, ranking_method
from halflabel.methods.parts.relabel import Begins, Relabeler, begin_early, check_size
from halflabel.methods.parts.terms import Term
from halflabel.system.validate import at_least
from halflabel.types import Batch, Output, Sweep, Targets, at_least_float32

_BLOCK_IMAGES = 1 << 16  # images processed at a time


class PropagateLabels(UnknownAs):
    """Unknown labels are copied from the nearest labelled image, with weight s_i = exp(−d_i/t). Cevikalp 2019, eq. 5.

    Labels that are still unknown count as in `UnknownAs`, with the weight of the image. It stores 12 bytes per image;
    labels are looked up in the training table. A search takes 4·D bytes per labelled image in memory and 16·D on the
    device.
    """

    is_static = False  # copied labels change with every sweep
    neighbour: Tensor  # (N,) int64, the nearest labelled image, −1 for none
    similarity: Tensor  # (N,) float32

    def __init__(
        self, first: int, every: int, t: float, labelled: float, unknown: str, *, propagate: bool = True
    ) -> None:
        super().__init__(unknown)
        at_least(-1, start=first)
        at_least(1, every=every)
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
    numbers = torch.from_numpy(labelled)
    references = features[numbers].to(device)
    blocks = (torch.split(part, _BLOCK_IMAGES) for part in map(torch.from_numpy, (queries, position[queries])))
    neighbours = [nearest(features[block], references, skipped) for block, skipped in zip(*blocks, strict=True)]
    distance, index = (torch.cat(parts) for parts in zip(*neighbours, strict=True))
    return numbers[index], distance


def nearest(queries: Tensor, references: Tensor, skip: Tensor, budget: int = 256 << 20) -> tuple[Tensor, Tensor]:
    """Return the Euclidean distance of each query to its nearest reference, and which it is; ties: the lower number.

    queries (Q, D), references (R, D), finite -> distances (Q,) float32 and reference numbers (Q,) int64. `skip` (Q,)
    int64 is a reference that the query must not get (itself, say), −1 for none. The search runs in float64 on the
    references' device, in about `budget` bytes; the result is on the queries' device.
    """
    center = references.double().mean(0)  # the rounding error grows with the norms, so the origin is moved there
    points = references.double() - center
    square, channels = points.square().sum(1), points.shape[1]
    distances, indices = [queries.new_zeros(0, dtype=torch.float32)], [queries.new_zeros(0, dtype=torch.int64)]
    size = max(1, budget // (32 * len(points) + 16 * channels))
    for block, skipped in zip(torch.split(queries, size), torch.split(skip.to(points.device), size), strict=True):
        images = block.to(points) - center
        estimate = torch.addmm(square, images, points.T, alpha=-2)  # ‖q − r‖² − ‖q‖²
        row = (skipped >= 0).nonzero().squeeze(1)
        estimate[row, skipped[row]] = torch.inf
        rounding = 1e-15 * channels * (images.square().sum(1, keepdim=True) + square)
        index = (estimate <= estimate.amin(1, keepdim=True) + rounding).to(torch.uint8).argmax(1)
        distances.append((images - points[index]).norm(dim=1).float().to(queries.device))
        indices.append(index.to(queries.device))
    return torch.cat(distances), torch.cat(indices)


class Transductive(Term):
    """η/B Σ_i Σ_j H_1(|x_ij|), H_1(t) = max(0, 1 − t), over images i without any known label (Cevikalp 2019, eq. 4)."""

    def __init__(self, eta: float) -> None:
        super().__init__()
        self.eta = eta

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        size = at_least_float32(output.logits).abs()
        unlabelled = (batch.labels == 0).all(1, keepdim=True)
        cost = torch.where(unlabelled & (size < 1), 1 - size, 0.0)
        return self.eta * cost.sum() / max(len(cost), 1)


_PAPER = "Cevikalp, Benligiray, Gerek, Saribas 2019: Semi-Supervised Robust Deep Neural Networks for Multi-Label"
_TUNE = {"kappa": (2.0, 5.0, 8.0)}


@method(serves=REGIMES, paper=f"{_PAPER} (its baseline; Gong 2014)", lr=3e-4, tune={"rank": ("sampled", "exact")})
def warp(rank: Rank = "sampled", unknown: Unknown = "auto", rounded: bool = False) -> Method:
    """Weighted approximate ranking: every known positive should score 1 above every known negative of its image.

    The hinge is unbounded, so one wrong label can dominate: use `rml` for noisy labels. It ranks the classes within an
    image; it does not train scores to be comparable between images, nor thresholds.

        L = 1/B Σ_i Σ_{j present} Σ_{k absent} L(r_j) max(0, 1 − x_j + x_k)
        L(r) = 1 + 1/2 + … + 1/r,  r_j = ⌊(m − 1)/q⌋

    m classes; q is the number of negatives drawn in random order until one violates the margin, 1 − x_j + x_k ≥ 0.

    Options: rank=sampled as above, or exact = the number of violating negatives. unknown=ignore leaves unknown entries
    out of the pairs, negative takes them as absent; auto means negative if no label at all is known to be absent,
    because pairs need a negative. rounded=true rounds (m − 1)/q to the nearest number, as the released code does.

    Differs from the released code: it divides the loss by 20.
    """
    # A ramp with leak 1 is the hinge.
    return _build(Ranking(leak=1.0, kappa=0.0, rank=rank, rounded=rounded), UnknownAs(unknown))


@method(serves=REGIMES, paper=_PAPER, lr=1e-3, weight_decay=5e-5, tune=_TUNE)
def rml(
    s: float = -0.8,
    kappa: NonNegative = 5.0,
    leak: Share = 0.0,
    rank: Rank = "sampled",
    unknown: Unknown = "auto",
    rounded: bool = False,
) -> Method:
    """Robust multi-label ranking: WARP with a ramp instead of the hinge, and a ramp that separates scores at zero.

    For labels that may be wrong: the loss of an entry is bounded, and an entry far on the wrong side has no gradient,
    so wrong labels do not dominate.

        L = 1/B Σ_i [ Σ_{j present} Σ_{k absent} L(r_j) R_s(x_j − x_k) + κ Σ_{j known} R_s(y_j x_j) ]
        R_s(t) = min(1 − s, max(0, 1 − t)),  L(r) = 1 + 1/2 + … + 1/r,  r_j = ⌊(m − 1)/q⌋        (eq. 1 – 3, 7, 8)

    m and q as in `warp`. Options: s: where the ramp becomes flat. kappa (κ): weight of the second sum; the paper finds
    2 to 8 equally good. leak: slope of the ramp beyond s, relative to 1; 0 in the paper, 0.1 in the released code.
    rank, unknown, rounded: as in `warp`.

    It ranks the classes of one image, while mAP ranks the images of one class: its strength is in top-k measures. The
    ramp is not convex, so L-BFGS starts from cross-entropy.

    Differs from the released code: it has leak=0.1 and rounded=true, and divides the loss by 20.
    """
    return _build(Ranking(s, kappa, leak, rank, rounded), UnknownAs(unknown))


@method(serves=REGIMES, paper=f"{_PAPER}, row CNN+RMLC", lr=1e-3, weight_decay=1e-2, tune=_TUNE)
def rmlc(s: float = -0.8, kappa: NonNegative = 5.0, rank: Rank = "exact", unknown: Unknown = "auto") -> Method:
    """A linear classifier on given features, trained with the robust ranking loss and weight decay.

    Use it with --tune head: the backbone stays frozen. It is `rml` with a penalty on the weights and exact ranks, which
    are cheap for a linear classifier.

        L = λ/2 ‖W‖² + 1/B Σ_i [ Σ_{j present} Σ_{k absent} L(r_j) R_s(x_j − x_k) + κ Σ_{j known} R_s(y_j x_j) ]

    λ is the weight decay (weight_decay; the paper does not give its value for this row, 0.01 is our choice, and AdamW
    applies it separately from the gradient). s, kappa, rank, unknown: as in `rml`.
    """
    return _build(Ranking(s, kappa, rank=rank), UnknownAs(unknown))


@method(
    serves=REGIMES,
    paper=f"{_PAPER}, SS-RML",
    lr=1e-3,
    weight_decay=5e-4,
    tune=_TUNE,
    options_of=rml,
    only_in={"every": ("network",)},
)
def ss_rml(
    start: Annotated[int, "after"] = -1,
    every: Duration = 20,
    t: NonNegative = 0.0,
    labelled: NonNegative = 1.0,
    eta: NonNegative = 0.0,
    propagate: bool = True,
    **ranking: Any,
) -> Method:
    """Robust ranking that also uses unlabelled images: each takes the labels of its nearest labelled image.

    For a few labelled images and many without any label. Until epoch `start` it is `rml` on the known labels; then the
    features of all training images are computed, labels are propagated, and again every `every` epochs. With frozen
    features, start=0 is the paper's procedure for given features (section 2.2): labels are propagated once, at the
    beginning.

        L = 1/B Σ_i s_i [ Σ_{j present} Σ_{k absent} L(r_j) R_s(x_j − x_k) + κ Σ_j R_s(y_j x_j) ]        (eq. 6)
        s_i = exp(−d_i/t), d_i the Euclidean distance to the nearest labelled image; 1 for labelled ones  (eq. 5)

    Known entries of partly labelled images stay, with weight 1; unknown entries are copied from the nearest other image
    with a known label. A pair of a known and a propagated label has weight √s_i.

    Options: start: the epoch, or round of L-BFGS, after which labels are first propagated; 0 = before the first; −1 =
    5, or 1 in a training of at most 5. every: epochs between two propagations. propagate: false = no label is
    propagated. t: scale of distances; 0 = mean(d)·u/(l + u) as in the released code, for u images that lack a label and
    l others. labelled: weight of known labels (5 in the released code). eta: weight of Σ_j max(0, 1 − |x_j|) on images
    without any known label (eq. 4); with propagate=false it is eq. 4 alone. s, kappa, leak, rank, unknown, rounded: as
    in `rml`; `unknown` applies to entries that are still unknown after propagation.

    It needs features in which near images have the same labels.

    Differs from the released code: it has leak=0.1, rounded=true, labelled=5 and κ = 1, and divides the loss by 200.
    """
    relabel = PropagateLabels(start, every, t, labelled, ranking.pop("unknown"), propagate=propagate)
    return _build(Ranking(**ranking), relabel, [Transductive(eta)] if eta else [])


def _build(loss: Ranking, relabel: Relabeler, terms: Sequence[Transductive] = ()) -> Method:
    return ranking_method(loss, relabel, terms=terms, starts_from_bce=True)  # the ramp is not convex
