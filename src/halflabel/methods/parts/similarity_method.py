"""Training steps that alternate between finding similar images and learning from them (imcl)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.label_graph import LabelGraph, read_edges
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.matching_pursuit import Part, Similar, joint_omp
from halflabel.methods.parts.similarity_memory import ImageVectors, SimilarityMemory, group_numbers, impute
from halflabel.types import Batch

_QUERIES = 512  # images searched for together, when a whole set is searched


@dataclass(frozen=True)
class SimilarityOptions:
    """Options of imcl, which explains them."""

    lambda_y: float
    lambda_f: float
    k: int
    k_a: int
    image_similarity: str
    label_similarity: str
    graph: str
    graph_rate: float
    rescale: bool
    updates: str
    activation: str
    side: str
    side_weight: float


class SimilarityMethod(Method):
    """Cross-entropy plus λ_y ℓ_y + λ_f ℓ_f; a subclass computes ℓ_y and ℓ_f in `smoothness`.

    Finds similar images by joint matching pursuit, keeps the label graph A and the memory of images, and rescales λ_y
    and λ_f by the measured ratio of cross-entropy to ℓ_y and ℓ_f.
    """

    relabel: SimilarityMemory
    graph: LabelGraph
    measured: Tensor  # (3,) sums of CE, ℓ_y and ℓ_f over batches; 0 before any is measured
    start_weights: Tensor  # (E,) weights of A before training
    groups: Tensor | None  # (N,) int64, −1 for none

    def __init__(self, memory: SimilarityMemory, options: SimilarityOptions) -> None:
        super().__init__(BCE(), memory)
        self.options = options
        self.weights = (options.lambda_y, options.lambda_f)
        self.rate = 0.0  # learning rate of A
        self.table: Table | None = None

    def activate(self, inferred: Tensor) -> Tensor:
        """tanh, or its first-order approximation."""
        return inferred if self.options.activation == "linear" else torch.tanh(inferred)

    def smoothness(self, batch: ImageVectors, recent: ImageVectors | None) -> tuple[Tensor, Tensor]:
        """Return Σ_i ℓ_y and Σ_i ℓ_f of the images of a batch; `recent` are the images in memory."""
        raise TypeError(f"{type(self).__name__} does not define smoothness")

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        if self.table == table:
            return
        classes = len(table.classes)
        edges = read_edges(self.options.graph, table, self.options.k_a).with_loops(classes).normalised()
        groups = group_numbers(self.options.side, table) if self.options.side else None
        self.table = table
        self.graph = LabelGraph(edges, classes, learned=self.options.label_similarity == "learned")
        self.register_buffer("start_weights", self.graph.weights.detach().clone(), persistent=False)
        self.register_buffer("measured", torch.zeros(3))
        self.register_buffer("groups", None if groups is None else torch.from_numpy(groups), persistent=False)
        self.group_count = 0 if groups is None else int(groups.max()) + 1

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        self.rate = self.options.graph_rate * lr
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": learned, "base_lr": self.options.graph_rate * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output = model(batch.views[0])
        self.relabel.check_size(output.features.shape[1])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        loss = self.reduce(self.loss(output.logits, targets), targets)
        # Ordered by image number: of equal neighbours the same one is chosen, however the batch is shuffled.
        order = batch.index.argsort()
        labels = impute(batch.labels[order], output.logits[order])
        images = ImageVectors(batch.index[order], output.features[order].to(labels.dtype), labels)
        smooth, measures = epoch > self.relabel.logistic_epochs, self._measures(epoch)
        if (smooth or measures) and self._has_neighbours():
            learns = smooth and torch.is_grad_enabled()
            with torch.autocast(output.logits.device.type, enabled=False), torch.set_grad_enabled(learns):
                self.graph.clip()
                sums = self.smoothness(images, self._recent(images))
                l_y, l_f = (total / max(output.logits.numel(), 1) for total in sums)
            if measures:
                # A batch without any known label has no cross-entropy to compare with.
                values = torch.stack([loss.detach(), l_y.detach(), l_f.detach()])
                self.measured += values * (values[0] > 0)
            if smooth:
                lambda_y, lambda_f = self._lambdas()
                loss = loss + lambda_y * l_y + lambda_f * l_f
        if self.training:
            self.relabel.remember(images)
        return loss

    @torch.no_grad()
    def find_similar(self, batch: ImageVectors, recent: ImageVectors | None) -> Similar:
        """Find the similar images of each image of the batch: rows of the batch, then rows of `recent`."""
        items = (
            batch if recent is None else ImageVectors(*(torch.cat(pair) for pair in zip(batch, recent, strict=True)))
        )
        numbers = items.number.clamp(min=0)
        weights: Tensor = self.graph.weights
        if self.options.image_similarity == "fixed":
            features, labels = self.relabel.at_start(numbers, batch)
            items, weights = ImageVectors(items.number, features, labels), self.start_weights
        side = self._side(None if self.groups is None else self.groups[numbers], items.labels.dtype)
        return self._match(items, self.graph(items.labels, weights), slice(len(batch.number)), side)

    @torch.no_grad()
    def neighbours(self, features: Tensor, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> Similar:
        """Find the similar images of each image of a set, among all others: (N, D), (N, C), (N, C) -> Similar.

        `index` (N, k) are row numbers, −1 for none; `weights` are c and c̄. The search is that of a step with the
        present A, even if image similarity is fixed. Rows with NaN (images that could not be read) have no
        neighbours and are not neighbours of others. `groups` (N,) are the groups of the side information, −1 for none.
        """
        device = self.graph.weights.device
        readable = (features.isfinite().all(1) & logits.isfinite().all(1)).nonzero().squeeze(1)
        imputed = impute(labels[readable].to(device), logits[readable].to(device))
        items = ImageVectors(readable.to(device), features[readable].to(imputed), imputed)
        side = self._side(None if groups is None else groups[readable].to(device), imputed.dtype)
        self.graph.clip()
        inferred = self.graph(items.labels)
        index = torch.full((len(features), self.options.k), -1, device=device)
        weights = imputed.new_zeros(2, len(features), self.options.k)
        for first in range(0, len(readable), _QUERIES):
            queries = slice(first, first + _QUERIES)
            similar = self._match(items, inferred, queries, side)
            rows = items.number[queries]
            index[rows] = torch.where(similar.index >= 0, items.number[similar.index.clamp(min=0)], -1)
            weights[:, rows] = torch.stack(similar.weights)
        return Similar(index, tuple(weights))

    def _match(self, items: ImageVectors, inferred: Tensor, queries: slice, side: Tensor | None) -> Similar:
        """Algorithm 2 for the items in `queries`, among all other items; `inferred` (M, C) is A y."""
        labels = items.labels
        if side is not None:
            labels, inferred = torch.cat([labels, side], 1), torch.cat([inferred, side], 1)
        # Before anything is measured λ_y and λ_f are the options: neighbours are needed for measuring.
        lambda_y, lambda_f = self._lambdas(unmeasured=1.0)
        return joint_omp(
            [
                Part(labels[queries], inferred, lambda_y, labels),
                Part(items.features[queries], items.features, lambda_f),
            ],
            self.options.k,
            allowed=(items.number >= 0) & (items.number != items.number[queries, None]),
        )

    def _has_neighbours(self) -> bool:
        if self.options.image_similarity == "fixed" and self.relabel.start_features is None:
            return False
        return any(self.weights) and len(self.graph.cols) > 0

    def _recent(self, batch: ImageVectors) -> ImageVectors | None:
        """Return the images in memory without those of the batch, whose vectors are newer."""
        recent = self.relabel.recent()
        if recent is None:
            return None
        return recent._replace(number=recent.number.where(~torch.isin(recent.number, batch.number), -1))

    def _side(self, groups: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """One-hot vectors of the groups, of magnitude `side_weight`, 0 for images without one: (M,) -> (M, G)."""
        if groups is None:
            return None
        numbers = torch.arange(self.group_count, device=groups.device)
        return self.options.side_weight * (groups[:, None] == numbers).to(dtype)

    def _lambdas(self, unmeasured: float = 0.0) -> tuple[float | Tensor, float | Tensor]:
        """Return λ_y and λ_f times CE/ℓ; times `unmeasured` where that ratio is not known yet."""
        if not self.options.rescale:
            return self.weights
        smoothness = self.measured[1:]
        ratio = torch.where(smoothness > 0, self.measured[0] / smoothness.where(smoothness > 0, 1), unmeasured)
        return self.weights[0] * ratio[0], self.weights[1] * ratio[1]

    def _measures(self, epoch: int) -> bool:
        """Whether CE, ℓ_y and ℓ_f are measured in this epoch: the last logistic one if possible, else the next."""
        last = self.relabel.logistic_epochs
        before = last > 0 and self.options.image_similarity != "fixed"
        return self.options.rescale and self.training and epoch == (last if before else last + 1)


def mix(index: Tensor, weights: Tensor, batch: Tensor, recent: Tensor | None) -> Tensor:
    """Σ_i' c_i'i v_i' for each image, with gradient for those of the batch: (B, k), (B, k), (B, n) -> (B, n)."""
    size = len(batch)
    in_batch = (index >= 0) & (index < size)
    mixture = batch.new_zeros(size, size).scatter_add(1, index.where(in_batch, 0), weights * in_batch)
    total = mixture @ batch
    if recent is not None:
        rows = recent[(index - size).clamp(min=0)]
        total = total + torch.bmm((weights * (index >= size))[:, None], rows).squeeze(1)
    return total
