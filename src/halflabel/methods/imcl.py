"""Interactive multi-label CNN learning: labels and features smooth over learned similarities (Huynh 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, Not, method
from halflabel.methods.parts.label_graph import LabelGraph, read_edges
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.matching_pursuit import MOST_ITEMS, Part, Similar, joint_omp
from halflabel.methods.parts.similarity_memory import ImageVectors, SimilarityMemory, group_numbers, impute
from halflabel.system.validate import at_least, between, one_of
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


class Interactive(SimilarityMethod):
    """ℓ_y and ℓ_f with the similarities c, c̄ held fixed (eq. 5 and 6)."""

    words = "labels inferred from similar images and related classes"

    def smoothness(self, batch: ImageVectors, recent: ImageVectors | None) -> tuple[Tensor, Tensor]:
        y, f = batch.labels, batch.features
        similar = self.find_similar(batch, recent)  # algorithm 2
        c, c_bar = similar.weights
        mixed_y = mix(similar.index, c, y, recent.labels if recent else None)
        mixed_f = mix(similar.index, c_bar, f, recent.features if recent else None)
        has_similar = (similar.index >= 0).any(1, keepdim=True)
        if self.options.updates == "turns":
            self._step_graph((y * has_similar).detach(), (mixed_y * has_similar).detach())
        weights = self.graph.weights.detach() if self.options.updates == "turns" else None
        l_y = ((y - self.activate(self.graph(mixed_y, weights))) * has_similar).square().sum()
        return l_y, ((f - mixed_f) * has_similar).square().sum()

    def _step_graph(self, y: Tensor, mixed: Tensor) -> None:
        """One gradient step of A on λ_y ℓ_y with tanh(x) ≈ x, the network fixed; then the network follows."""
        if not (self.training and torch.is_grad_enabled() and self.options.label_similarity == "learned"):
            return
        weights = self.graph.weights.detach().requires_grad_()
        loss = self._lambdas()[0] * (y - self.graph(mixed, weights)).square().sum() / max(y.numel(), 1)
        self.graph.weights.data.sub_(self.rate * torch.autograd.grad(loss, weights)[0]).clamp_(min=0)


_OF_SIMILARITY = (
    "lambda_y",
    "lambda_f",
    "k",
    "image_similarity",
    "label_similarity",
    "graph",
    "dictionary",
    "rescale",
    "activation",
    "side",
)


@method(
    serves=("full", "partial"),
    paper="Huynh 2020 (Interactive Multi-Label CNN Learning with Partial Labels)",
    tune={"lambda_y": (0.1, 0.3, 1.0)},
    needs={name: {"logistic_share": Not(1)} for name in _OF_SIMILARITY}
    | {
        "k_a": {"graph": Not("identity"), "logistic_share": Not(1)},
        "graph_rate": {"label_similarity": ("learned",), "logistic_share": Not(1)},
        "updates": {"label_similarity": ("learned",), "logistic_share": Not(1)},
        "side_weight": {"side": Not(""), "logistic_share": Not(1)},
    },
)
def imcl(
    lambda_y: float = 1.0,
    lambda_f: float = 0.5,
    k: int = 5,
    k_a: int = 50,
    image_similarity: str = "learned",
    label_similarity: str = "learned",
    graph: str = "cooccurrence",
    graph_rate: float = 1.0,
    logistic_share: float = 0.5,
    dictionary: int = 0,
    rescale: bool = True,
    updates: str = "together",
    activation: str = "tanh",
    side: str = "",
    side_weight: float = 1.0,
) -> Method:
    """Cross-entropy on known labels; labels and features of an image must also follow from those of similar images.

    In every step each image finds up to k similar ones in its batch; its predictions for unknown labels are drawn
    towards what these images and related labels suggest. Use it for partly known ± labels when classes occur together,
    or when similar images are often in one batch: large batches help, or a `dictionary`.

        L = 1/(B·C) Σ_i [ Σ_{j known} BCE + λ_y ℓ_y + λ_f ℓ_f ]
        ℓ_y = ‖y_i − tanh(Σ_i' c_i'i A y_i')‖²,   ℓ_f = ‖f_i − Σ_i' c̄_i'i f_i'‖²              (eq. 5 and 6)
        y = the known label, or 2p − 1, scaled from [−1, 1] to [−0.5, 1];   f = the features

    c, c̄ ≥ 0 are non-zero for the same k images; each step finds them for its batch by joint non-negative orthogonal
    matching pursuit with the present network and tanh(x) ≈ x (algorithm 2). With c, c̄ fixed, the gradient reaches the
    network through y and f of the image and of its similar images in the batch. A ≥ 0, sparse, is learned by the
    gradient of λ_y ℓ_y in the same step and clipped at 0. With frozen features ℓ_f has no gradient but still affects
    which images are similar. λ_y = λ_f = 0 gives `bce`, the paper's "Logistic", from which training starts.

    lambda_y (λ_y), lambda_f (λ_f): 1 and 0.5 for Open Images, 2 and 0.5 for CUB, 0.5 and 0.5 for COCO. k: similar
    images (5; COCO 3). k_a: other labels that each label is connected to.

    graph: cooccurrence = the k_a labels most often present with it, among images where both are known; identity, as for
    CUB; a CSV file of rows class,class,weight, where the first class is inferred from the second (k_a does not limit
    it), such as similarities in WordNet. Every label is also connected to itself. Weights start as P(j | j') or as in
    the file, 1 for itself; rows sum to 1.

    graph_rate: learning rate of A as a multiple of --lr; no weight decay. logistic_share: share of the epochs, at the
    start, with λ_y = λ_f = 0.
    dictionary: number of images of earlier batches that can be similar too, with the vectors they had then (4·(C + D) +
    8 bytes each); the paper searches the batch only, its released code 10,000 more images.
    image_similarity, label_similarity, for ablations (table 4): learned; fixed = as at the end of the logistic epochs
    (at least one; 4·(C + D) bytes per training image), and A as at the start.
    rescale: as in the released code, λ_y and λ_f are multiplied by CE/ℓ_y and CE/ℓ_f, so that they do not depend on the
    scale of the features and the number of labels; the means are taken over the last logistic epoch, or the first epoch
    after it where there is none or images are fixed; before that ℓ_y and ℓ_f are left out.

    updates: together = A and the network take their steps at once; turns = first A, by plain gradient descent with
    tanh(x) ≈ x, then the network with A fixed, as in the paper. activation: tanh, or linear = tanh(x) ≈ x in ℓ_y too.
    side: groups of images (the species of a bird, say), stated as those of --group; a one-hot vector of the group, of
    magnitude side_weight, is appended to y in the search for similar images.

    The paper's settings: RMSProp, lr 1e-3 (CUB and COCO 1e-2; COCO 1e-3 after two epochs), × 0.8 when validation falls:
    optimizer=rmsprop schedule=plateau step_factor=0.8. It refines a trained logistic model for 1 epoch (CUB 3, COCO 4):
    begin_from=RUN logistic_share=0, where RUN was trained with `bce` or `logistic`. Batches of 32, and of 1 for COCO,
    which needs a `dictionary`.

    End to end without rescale the features collapse to one point, as ℓ_f outweighs cross-entropy.

    Differs from the paper: λ_y and λ_f are rescaled by default; in batches A and the network step together by default.
    Not in the paper: A ≥ 0 and its start; an image without similar ones has no ℓ_y and ℓ_f; for the details of
    algorithm 2 see `parts/matching_pursuit.py`. Differs from the released code: it has another activation and no outer
    tanh, applies A before known labels replace predictions, does not clip c, divides cross-entropy by the known entries
    of the batch, and recomputes the features of its dictionary every 250 steps.
    """
    values = {name: value for name, value in locals().items() if name not in ("logistic_share", "dictionary")}
    one_of(("fixed", "learned"), image_similarity=image_similarity, label_similarity=label_similarity)
    one_of(("together", "turns"), updates=updates)
    one_of(("tanh", "linear"), activation=activation)
    between(1, MOST_ITEMS, k=k)
    at_least(0, lambda_y=lambda_y, lambda_f=lambda_f, k_a=k_a, graph_rate=graph_rate, dictionary=dictionary)
    at_least(0, side_weight=side_weight)
    between(0, 1, logistic_share=logistic_share)

    memory = SimilarityMemory(dictionary, logistic_share, keep_start=image_similarity == "fixed")
    return Interactive(memory, SimilarityOptions(**values))
