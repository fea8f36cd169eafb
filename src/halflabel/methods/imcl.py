"""Interactive multi-label CNN learning: labels and features smooth over learned similarities (Huynh 2020)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.features.heads import Model
from halflabel.labels.groups import image_groups
from halflabel.labels.table import Table
from halflabel.methods.base import Count, Method, NonNegative, Not, Share, method
from halflabel.methods.parts.label_graph import LabelGraph, read_edges
from halflabel.methods.parts.label_store import label_blocks
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.matching_pursuit import MOST_ITEMS, Part, Similar, joint_omp
from halflabel.methods.parts.relabel import Begins, Ignore, check_bytes
from halflabel.system.validate import between
from halflabel.types import Batch, Sweep, at_least_float32

_QUERIES = 512  # images searched for together, when a whole set is searched


def impute(labels: Tensor, logits: Tensor) -> Tensor:
    """y: 1 where known present, −0.5 where known absent, 1.5 p − 0.5 where unknown; (B, C), with the gradient of p.

    Eq. 3, then scaled from [−1, 1] to [−0.5, 1] (section 4.3). At least float32.
    """
    logits = at_least_float32(logits)
    scores = torch.where(labels == 0, torch.sigmoid(logits), (labels > 0).to(logits.dtype))
    return 1.5 * scores - 0.5


class ImageVectors(NamedTuple):
    """Images that can be similar: their numbers in the training table, features and imputed labels."""

    number: Tensor  # (M,) int64, −1 for an empty slot
    features: Tensor  # (M, D)
    labels: Tensor  # (M, C)


class SimilarityMemory(Ignore):
    """A relabeler that uses known labels only, and stores features and imputed labels of training images.

    It stores the last `size` images seen in training, each once, with the vectors they had then: 4·(C + D) + 8 bytes
    per image. With `keep_start` it also stores all training images as they were after the logistic epochs: 4·(C + D)
    bytes per image on the device, and as much for the sweep.
    """

    late_buffers = ("features", "labels", "start_features", "start_labels")
    number: Tensor  # (M,) int64, image numbers, −1 for an empty slot
    next_slot: Tensor  # () int64, the slot of the next image
    features: Tensor | None  # (M, D)
    labels: Tensor | None  # (M, C)
    start_features: Tensor | None  # (N, D)
    start_labels: Tensor | None  # (N, C)

    def __init__(self, size: int, logistic_share: float, *, keep_start: bool) -> None:
        super().__init__()
        self.size = size
        self.logistic_share = logistic_share
        self.keep_start = keep_start
        self.logistic_epochs = 1 if keep_start else 0
        self.table: Table | None = None
        for name in self.late_buffers:
            self.register_buffer(name, None)

    def plan(self, epochs: int) -> None:
        self.logistic_epochs = max(round(self.logistic_share * epochs), 1 if self.keep_start else 0)

    def begins(self) -> Begins | None:
        if self.logistic_share == 1:  # smoothness is switched off on purpose
            return None
        return Begins("smoothness", self.logistic_epochs + 1, "logistic_share")

    def start(self, table: Table) -> None:
        if self.table == table:
            return
        self.table = table
        self.check_size(0)
        slots = min(self.size, len(table))
        self.register_buffer("number", torch.full((slots,), -1))
        self.register_buffer("next_slot", torch.zeros((), dtype=torch.int64))
        for name in self.late_buffers:
            setattr(self, name, None)

    def wants_sweep(self, epoch: int) -> bool:
        return self.keep_start and epoch == self.logistic_epochs

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        assert self.table is not None
        self.check_size(sweep.features.shape[1])
        device = self.number.device
        self.start_features = torch.empty_like(sweep.features, device=device)
        self.start_labels = torch.empty_like(sweep.logits, device=device)
        for block, known in label_blocks(self.table):
            logits = sweep.logits[block]
            # Images that could not be read get zero vectors, which are similar to none.
            self.start_features[block] = sweep.features[block].nan_to_num(0.0).to(device)
            labels = impute(known, logits).masked_fill(logits.isnan().any(1, keepdim=True), 0)
            self.start_labels[block] = labels.to(device)
        return {}

    def check_size(self, features: int) -> None:
        """Raise if storing all training images with this many features each would take too much memory."""
        if self.keep_start and self.table is not None:
            _check_images(len(self.table), features + len(self.table.classes), "image_similarity fixed")

    def remember(self, batch: ImageVectors) -> None:
        """Store these images in the slots of the oldest ones; each image is stored once."""
        slots = len(self.number)
        if not slots:
            return
        batch = ImageVectors(*(part[-slots:].detach() for part in batch))
        if self.features is None or self.labels is None:
            channels, classes = batch.features.shape[1], batch.labels.shape[1]
            _check_images(slots, channels + classes, f"dictionary {slots}")
            self.features = batch.features.new_zeros(slots, channels)
            self.labels = batch.labels.new_zeros(slots, classes)
        self.number.masked_fill_(torch.isin(self.number, batch.number), -1)
        slot = (self.next_slot + torch.arange(len(batch.number), device=self.next_slot.device)) % slots
        self.number[slot] = batch.number
        self.features[slot] = batch.features
        self.labels[slot] = batch.labels
        self.next_slot.copy_((self.next_slot + len(batch.number)) % slots)

    def recent(self, batch: ImageVectors) -> ImageVectors | None:
        """Return the stored images without those of the batch, whose vectors are newer; None if there are none yet."""
        if self.features is None or self.labels is None:
            return None
        return ImageVectors(self.number.where(~torch.isin(self.number, batch.number), -1), self.features, self.labels)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # The number of features is known only from the first batch on, so the saved state decides the shapes.
        for name in self.late_buffers:
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=self.number.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _check_images(images: int, width: int, option: str) -> None:
    check_bytes(
        4.0 * images * width,
        f"{option} would store {{}} about {images} images",
        "use a smaller ‹dictionary›, or ‹image_similarity=learned›, which stores nothing per training image",
    )


class Interactive(Method):
    """Cross-entropy plus λ_y ℓ_y + λ_f ℓ_f, with the similarities c, c̄ held fixed (eq. 5 and 6).

    Finds similar images by joint matching pursuit, keeps the label graph A and the memory of images, and rescales λ_y
    and λ_f by the measured ratio of cross-entropy to ℓ_y and ℓ_f. `options` are those of `imcl`.
    """

    relabel: SimilarityMemory
    graph: LabelGraph
    measured: Tensor  # (3,) sums of CE, ℓ_y and ℓ_f over batches; 0 before any is measured
    start_weights: Tensor  # (E,) weights of A before training
    groups: Tensor | None  # (N,) int64, −1 for none

    def __init__(self, memory: SimilarityMemory, options: SimpleNamespace) -> None:
        super().__init__(BCE(), memory)
        self.options = options
        self.weights = (options.lambda_y, options.lambda_f)
        self.table: Table | None = None

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        if self.table == table:
            return
        classes = len(table.classes)
        edges = read_edges(self.options.graph, table, self.options.k_a).with_loops(classes).normalised()
        groups = _group_numbers(self.options.side, table) if self.options.side else None
        self.table = table
        self.graph = LabelGraph(edges, classes, learned=self.options.label_similarity == "learned")
        self.register_buffer("start_weights", self.graph.weights.detach().clone(), persistent=False)
        self.register_buffer("measured", torch.zeros(3))
        self.register_buffer("groups", None if groups is None else torch.from_numpy(groups), persistent=False)
        self.group_count = 0 if groups is None else int(groups.max()) + 1

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": learned, "base_lr": self.options.graph_rate * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output = model(batch.views[0])
        self.relabel.check_size(output.features.shape[1])
        loss = self.label_loss(output.logits, batch, epoch)
        # Ordered by image number: of equal neighbours the same one is chosen, however the batch is shuffled.
        order = batch.index.argsort()
        labels = impute(batch.labels[order], output.logits[order])
        images = ImageVectors(batch.index[order], output.features[order].to(labels.dtype), labels)
        smooth, measures = epoch > self.relabel.logistic_epochs, self._measures(epoch)
        if (smooth or measures) and self._has_neighbours():
            learns = smooth and torch.is_grad_enabled()
            with torch.autocast(output.logits.device.type, enabled=False), torch.set_grad_enabled(learns):
                self.graph.clip()
                sums = self.smoothness(images, self.relabel.recent(images))
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

    def smoothness(self, batch: ImageVectors, recent: ImageVectors | None) -> tuple[Tensor, Tensor]:
        """Return Σ_i ℓ_y and Σ_i ℓ_f of the images of a batch; `recent` are the images in memory."""
        similar = self.find_similar(batch, recent)
        c, c_bar = similar.weights
        mixed_y = mix(similar.index, c, batch.labels, recent.labels if recent else None)
        mixed_f = mix(similar.index, c_bar, batch.features, recent.features if recent else None)
        has_similar = (similar.index >= 0).any(1, keepdim=True)
        l_y = ((batch.labels - torch.tanh(self.graph(mixed_y))) * has_similar).square().sum()
        return l_y, ((batch.features - mixed_f) * has_similar).square().sum()

    @torch.no_grad()
    def find_similar(self, batch: ImageVectors, recent: ImageVectors | None) -> Similar:
        """Find the similar images of each image of the batch: rows of the batch, then rows of `recent`."""
        items = (
            batch if recent is None else ImageVectors(*(torch.cat(pair) for pair in zip(batch, recent, strict=True)))
        )
        numbers = items.number.clamp(min=0)
        weights: Tensor = self.graph.weights
        if self.options.image_similarity == "fixed":
            memory = self.relabel
            assert memory.start_features is not None
            assert memory.start_labels is not None
            features, labels = (part[numbers].to(items.labels) for part in (memory.start_features, memory.start_labels))
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

    def _side(self, groups: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """One-hot vectors of the groups, of magnitude `side_weight`, 0 for images without one: (M,) -> (M, G)."""
        if groups is None:
            return None
        numbers = torch.arange(self.group_count, device=groups.device)
        one_hot: Tensor = self.options.side_weight * (groups[:, None] == numbers).to(dtype)
        return one_hot

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
        return bool(self.options.rescale and self.training and epoch == (last if before else last + 1))


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


def _group_numbers(side: str, table: Table) -> NDArray[np.int64]:
    """Return the number of the group of each image, (N,), −1 for none; `side` states groups as `--group` does."""
    groups = image_groups(side, table.images, option="side") or []
    number = {group: place for place, group in enumerate(sorted(filter(None, set(groups))))}
    return np.array([number.get(group or "", -1) for group in groups], np.int64)


_OF_SIMILARITY = (
    "lambda_y",
    "lambda_f",
    "k",
    "image_similarity",
    "label_similarity",
    "graph",
    "dictionary",
    "rescale",
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
        "side_weight": {"side": Not(""), "logistic_share": Not(1)},
    },
)
def imcl(
    lambda_y: NonNegative = 1.0,
    lambda_f: NonNegative = 0.5,
    k: int = 5,
    k_a: Count = 50,
    image_similarity: Literal["fixed", "learned"] = "learned",
    label_similarity: Literal["fixed", "learned"] = "learned",
    graph: str = "cooccurrence",
    graph_rate: NonNegative = 1.0,
    logistic_share: Share = 0.5,
    dictionary: Count = 0,
    rescale: bool = True,
    side: str = "",
    side_weight: NonNegative = 1.0,
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
    gradient of λ_y ℓ_y in the same step and clipped at 0. λ_y = λ_f = 0 gives `bce`.

    lambda_y (λ_y), lambda_f (λ_f): 1 and 0.5 for Open Images, 2 and 0.5 for CUB, 0.5 and 0.5 for COCO. k: similar
    images (5; COCO 3). k_a: other labels that each label is connected to.

    graph: cooccurrence = the k_a labels most often present with it, among images where both are known; identity, as for
    CUB; a CSV file of rows class,class,weight, where the first class is inferred from the second (k_a does not limit
    it), such as similarities in WordNet. Every label is also connected to itself. Weights start as P(j | j') or as in
    the file, 1 for itself; rows sum to 1.

    graph_rate: learning rate of A as a multiple of --lr; no weight decay. logistic_share: share of the epochs, at the
    start, with λ_y = λ_f = 0. dictionary: number of images of earlier batches that can be similar too, with the vectors
    they had then (4·(C + D) + 8 bytes each); the paper searches the batch only, its released code 10,000 more images.
    image_similarity, label_similarity, for ablations (table 4): learned; fixed = as at the end of the logistic epochs
    (at least one; 4·(C + D) bytes per training image), and A as at the start. rescale: as in the released code, λ_y and
    λ_f are multiplied by CE/ℓ_y and CE/ℓ_f, means over the last logistic epoch, or the first epoch after it where there
    is none or images are fixed; before that ℓ_y and ℓ_f are left out.

    side: groups of images (the species of a bird, say), stated as those of --group; a one-hot vector of the group, of
    magnitude side_weight, is appended to y in the search for similar images.

    The paper trains with optimizer=rmsprop schedule=plateau step_factor=0.8 lr=1e-3 and begins from a trained logistic
    model: begin_from=RUN logistic_share=0.

    Differs from the paper: λ_y and λ_f are rescaled by default; A and the network step together instead of in turns.
    Differs from the released code: it has another activation and no outer tanh, applies A before known labels replace
    predictions, does not clip c, and divides cross-entropy by the known entries of the batch.
    """
    values = {name: value for name, value in locals().items() if name not in ("logistic_share", "dictionary")}
    between(1, MOST_ITEMS, k=k)

    memory = SimilarityMemory(dictionary, logistic_share, keep_start=image_similarity == "fixed")
    return Interactive(memory, SimpleNamespace(**values))
