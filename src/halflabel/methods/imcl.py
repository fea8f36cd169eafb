"""Interactive multi-label CNN learning: labels and features smooth over learned similarities (Huynh 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, method
from halflabel.methods.parts.label_graph import Edges, LabelGraph, from_cooccurrence, from_file, from_wordnet, identity
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.matching_pursuit import MOST, Part, Similar, Solve, joint_omp
from halflabel.methods.parts.similarity_memory import Items, Memory, impute, read_groups
from halflabel.models.heads import Model
from halflabel.types import Batch

__all__ = ["Interactive", "imcl"]

Use = Literal["off", "fixed", "learned"]
_AT_ONCE = 512  # images whose neighbours are looked for together, when a whole set is asked for


def _is_smooth(given: Mapping[str, Any]) -> bool:
    """Whether options leave anything to be smooth over, and an epoch for it."""
    alone = given["label_similarity"] == "off" or given["graph"] == "identity"
    return given["logistic_share"] < 1 and not (alone and given["image_similarity"] == "off")


@method(
    serves=("full", "partial"),
    paper="Huynh 2020 (Interactive Multi-Label CNN Learning with Partial Labels)",
    tune=lambda given: {"lambda_y": (0.1, 0.3, 1.0)} if _is_smooth(given) else {},
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
    solve: str = "clipped",
    logistic_share: float = 0.5,
    dictionary: int = 0,
    rescale: bool = True,
    side: str = "",
    side_weight: float = 1.0,
) -> Method:
    """Cross-entropy on known labels, and each image's labels and features must follow from those of similar images.

    In every step each image finds up to k similar ones in its batch; what it predicts where labels are unknown is then
    drawn towards what they and the related labels say. Use it for partly known ± labels when classes come together, or
    when images of a kind are in one batch often: large batches help, or a `dictionary`.

        L = 1/(B·C) Σ_i [ Σ_{j known} BCE + λ_y ℓ_y + λ_f ℓ_f ]
        ℓ_y = ‖y_i − tanh(Σ_i' c_i'i A y_i')‖²,   ℓ_f = ‖f_i − Σ_i' c̄_i'i f_i'‖²              (eq. 5 and 6)
        y = the known label, or 2p − 1, from [−1, 1] to [−0.5, 1];   f = the features

    c and c̄ ≥ 0 are zero for all but the same k images; each step finds them for its batch by joint non-negative
    orthogonal matching pursuit, with the present network and tanh(x) ≈ x (algorithm 2). With c, c̄ held fixed the
    gradient goes to the network through y and f of the image and of those similar to it in the batch. A ≥ 0, sparse,
    is learned by the gradient of λ_y ℓ_y in the same step and cut off at 0. With frozen features ℓ_f has no gradient,
    but it still has its say in who is similar. Dividing by B·C keeps the step independent of batch size, and makes
    λ_y = λ_f = 0 the method `bce`, the paper's "Logistic", from which it starts.

    lambda_y λ_y and lambda_f λ_f: 1 and 0.5 for Open Images, 2 and 0.5 for CUB, 0.5 and 0.5 for COCO. k: similar images
    (5; COCO 3). k_a: other labels each label is connected to. graph: cooccurrence = the k_a labels most often present
    with it, among images where both are known; identity, as for CUB; a CSV file of rows class,class,weight, where the
    first class is inferred from the second (from Wikipedia, say; k_a does not cut it); wordnet = the k_a labels nearest
    in WordNet (needs nltk and its data); or wordnet+FILE, where the CSV file serves the labels that WordNet does not
    know (table 3). Every label is connected to itself too. Weights start as P(j | j'), as the similarity of Wu and
    Palmer or as in the file, 1 for itself, rows summing to 1.
    graph_rate: the learning rate of A as a multiple of --lr; weight decay does not act on it.
    logistic_share: share of the epochs, first ones, with λ_y = λ_f = 0.
    solve: how c ≥ 0 is kept: clipped = least squares cut off at 0, as algorithm 2 prints it; exact = non-negative
    least squares.
    dictionary: so many images of earlier batches can be similar too, with the features and labels they had then; the
    paper looks in the batch alone, its released code in 10,000 images beside it. 4·(C + D) + 8 bytes each, and A goes
    over all of them in each step.
    image_similarity and label_similarity, for ablations (table 4): learned; fixed = as the network has them at the end
    of the logistic epochs (at least one; 4·(C + D) bytes per training image), and A as it starts; off = for images: the
    image itself in place of similar ones, and no label inferred from itself; for labels: A = identity. With both off it
    is logistic.
    rescale: as the released code does, λ_y and λ_f are multiplied by CE/ℓ_y and CE/ℓ_f, so that they do not depend on
    the size of features and the number of labels. CE, ℓ_y and ℓ_f are means over the batches with a known label in the
    last logistic epoch; where there is none, or images are fixed by it, in the first epoch after: over those so far
    while it lasts, and then kept. Before any is measured, ℓ_y and ℓ_f are left out. false is the formula as printed.
    side: a CSV file of rows image,group (the species of a bird, say); a one-hot vector of the group, of magnitude
    side_weight, is appended to y where similar images are looked for, so that images of a group find each other. It has
    no gradient, so it is left out of the reported loss.

    The paper's settings: RMSProp, rate 1e-3 (CUB and COCO 1e-2; COCO 1e-3 after two epochs), × 0.8 when validation
    falls: --optimizer rmsprop --schedule plateau --step-factor 0.8. It refines a trained logistic model for 1 epoch
    (CUB 3, COCO 4): --begin-from RUN --logistic-share 0, where RUN is one of `bce` or `logistic`. Batches of 32, and of
    1 for COCO: there no image is similar, and all is logistic, unless there is a `dictionary`. Its figures (mAP, Open
    Images, 5,000 classes): 78.07 against 75.85 of logistic, 76.72 with frozen features; on the fifth of classes with
    most annotations (table 4; it does not say of which features) 86.26 against 85.83 with images fixed, 85.99 with
    labels fixed, 85.49 with both off.

    Measured here (VOC 2012 photos, 2 of 20 labels known, linear head on frozen features, 20 epochs, test mAP, two
    seeds): `bce` 75.1; the defaults 74.2, A = identity 73.5: the graph of labels helps as in the paper, but not beyond
    `bce`; lambda_y 0.1 75.1. Without rescale 64.9, and end to end features collapse to one point (16): there ℓ_f of
    1,280 features drowns cross-entropy. The reason it does not gain: what similar images say of the hidden labels
    reads 58 mAP when looked for in a batch of 32, 71 in 256, 73 among all images, and the network itself 76. Expect
    more where classes are many and the network knows each of them badly.

    Differs from the paper: λ_y and λ_f are rescaled unless told otherwise; A and network step together, not in turns.
    Where it is silent: A ≥ 0, and what it starts from; an image without any similar one has no ℓ_y and ℓ_f (with c = 0
    they would pull its features and unknown labels to 0); `parts/matching_pursuit.py` has the finer points of algorithm
    2.

    Differs from the released code: that has another activation and no tanh around the sum, applies A before known
    labels replace predictions, does not clip c, weighs cross-entropy by the known entries of the batch, and keeps the
    features of its dictionary fresh by a pass over it every 250 steps.
    """
    for name, value in (("image_similarity", image_similarity), ("label_similarity", label_similarity)):
        if value not in ("off", "fixed", "learned"):
            raise UserError(f"{name} cannot be {value!r}", "use off, fixed or learned")
    if solve not in ("clipped", "exact"):
        raise UserError(f"solve cannot be {solve!r}", "use clipped or exact")
    if not 1 <= k <= MOST:
        raise UserError(f"k is {k}", f"use 1 … {MOST} similar images")
    for name, amount in (
        ("lambda_y", lambda_y),
        ("lambda_f", lambda_f),
        ("k_a", k_a),
        ("graph_rate", graph_rate),
        ("dictionary", dictionary),
        ("side_weight", side_weight),
    ):
        if amount < 0:
            raise UserError(f"{name} is {amount:g}", "use 0 or more")
    if not 0 <= logistic_share <= 1:
        raise UserError(f"logistic_share is {logistic_share:g}", "use a share of the epochs, from 0 to 1")
    return Interactive(
        Memory(dictionary, logistic_share, keeps=image_similarity == "fixed"),
        lambda_y=lambda_y,
        lambda_f=lambda_f,
        k=k,
        k_a=k_a,
        images=cast(Use, image_similarity),
        labels=cast(Use, label_similarity),
        graph=graph,
        graph_rate=graph_rate,
        solve=cast(Solve, solve),
        rescale=rescale,
        side=side,
        side_weight=side_weight,
    )


class Interactive(Method):
    """Similarities and network, each learned with the other fixed. Its step adds λ_y ℓ_y + λ_f ℓ_f to cross-entropy."""

    relabel: Memory
    graph: LabelGraph
    measured: Tensor  # (3,) sums of CE, ℓ_y and ℓ_f over batches; 0 before any
    start_weights: Tensor  # (E,) of A before it learned anything
    groups: Tensor | None  # (N,) int64, −1 for none

    def __init__(
        self,
        memory: Memory,
        *,
        lambda_y: float,
        lambda_f: float,
        k: int,
        k_a: int,
        images: Use,
        labels: Use,
        graph: str,
        graph_rate: float,
        solve: Solve,
        rescale: bool,
        side: str,
        side_weight: float,
    ) -> None:
        super().__init__(BCE(), memory)
        self.weights = (lambda_y, lambda_f)
        self.k = k
        self.k_a = k_a
        self.images = images
        self.labels = labels
        self.graph_source = graph
        self.graph_rate = graph_rate
        self.solve = solve
        self.rescale = rescale
        self.side = side
        self.side_weight = side_weight
        self.table: LabelTable | None = None

    def start(self, table: LabelTable) -> None:
        super().start(table)
        if self.table == table:
            return
        edges = self._edges(table)
        groups = read_groups(self.side, table) if self.side else None
        self.table = table
        self.graph = LabelGraph(edges, len(table.classes), learned=self.labels == "learned")
        self.register_buffer("start_weights", self.graph.weights.detach().clone(), persistent=False)
        self.register_buffer("measured", torch.zeros(3))
        self.register_buffer("groups", None if groups is None else torch.from_numpy(groups), persistent=False)
        self.group_count = 0 if groups is None else int(groups.max()) + 1

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": learned, "base_lr": self.graph_rate * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output = model(batch.views[0])
        self.relabel.check(output.features.shape[1])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        loss = self.reduce(self.loss(output.logits, targets), targets)
        # In the order of the images' numbers: of equal neighbours the same is chosen, however a batch is shuffled.
        order = batch.index.argsort()
        labels = impute(batch.labels[order], output.logits[order])
        here = Items(batch.index[order], output.features[order].to(labels.dtype), labels)
        smooth, measures = epoch > self.relabel.logistic_epochs, self._measures(epoch)
        if (smooth or measures) and self._smooths():
            learns = smooth and torch.is_grad_enabled()
            with torch.autocast(output.logits.device.type, enabled=False), torch.set_grad_enabled(learns):
                l_y, l_f = (total / max(output.logits.numel(), 1) for total in self._smoothness(here))
            if measures:
                # A batch without any known label has no cross-entropy that smoothness could be compared with.
                now = torch.stack([loss.detach(), l_y.detach(), l_f.detach()])
                self.measured += now * (now[0] > 0)
            if smooth:
                lambda_y, lambda_f = self._lambdas()
                loss = loss + lambda_y * l_y + lambda_f * l_f
        if self.training:
            self.relabel.remember(here)
        return loss

    @torch.no_grad()
    def neighbours(self, features: Tensor, logits: Tensor, labels: Tensor, groups: Tensor | None = None) -> Similar:
        """The similar images of each image of a set, among all others: (N, D), (N, C), (N, C) -> Similar.

        `index` (N, k) are row numbers, −1 for none; `weights` are c and c̄. Looked for as in a step, with the present A
        even where images are fixed or off; rows with NaN (images that could not be read) have no neighbours and are
        none. `groups` (N,) are those of the
        side information, −1 for none.
        """
        device = self.graph.weights.device
        read = (features.isfinite().all(1) & logits.isfinite().all(1)).nonzero().squeeze(1)
        known = impute(labels[read].to(device), logits[read].to(device))
        items = Items(read.to(device), features[read].to(known), known)
        side = self._side(None if groups is None else groups[read].to(device), known.dtype)
        self.graph.clip()
        said = self.graph(items.labels)
        index = torch.full((len(features), self.k), -1, device=device)
        weights = known.new_zeros(2, len(features), self.k)
        for first in range(0, len(read), _AT_ONCE):
            found = self._match(items, said, slice(first, first + _AT_ONCE), side)
            at = items.number[first : first + _AT_ONCE]
            index[at] = torch.where(found.index >= 0, items.number[found.index.clamp(min=0)], -1)
            weights[:, at] = torch.stack(found.weights)
        return Similar(index, tuple(weights))

    def _edges(self, table: LabelTable) -> Edges:
        classes = len(table.classes)
        source, _, path = self.graph_source.partition("+")
        if self.labels == "off" or self.graph_source == "identity":
            edges = identity(classes)
        elif self.graph_source == "cooccurrence":
            edges = from_cooccurrence(table, self.k_a)
        elif source == "wordnet":
            edges = from_wordnet(table.classes, self.k_a)
            if path:
                edges = edges.or_else(_read_edges(path, table))
        else:
            edges = _read_edges(self.graph_source, table)
        edges = edges.with_loops(classes)
        return (edges.without_loops() if self.images == "off" else edges).normalised()

    def _smooths(self) -> bool:
        """Whether there is anything to be smooth over."""
        if self.images == "fixed" and self.relabel.start_features is None:
            return False
        return any(self.weights) and len(self.graph.cols) > 0

    def _smoothness(self, here: Items) -> tuple[Tensor, Tensor]:
        """Σ_i ℓ_y and Σ_i ℓ_f of the images of a batch."""
        self.graph.clip()
        if self.images == "off":
            said = torch.tanh(self.graph(here.labels))
            return (here.labels - said).square().sum(), here.features.new_zeros(())
        recent = self.relabel.recent()
        if recent is not None:
            # What is in the batch is known better than as it was when it was remembered.
            recent = recent._replace(number=recent.number.where(~torch.isin(recent.number, here.number), -1))
        similar = self._similar(here, recent)
        found = (similar.index >= 0).any(1, keepdim=True)
        labels = self._sum(similar.index, similar.weights[0], here.labels, recent.labels if recent else None)
        features = self._sum(similar.index, similar.weights[1], here.features, recent.features if recent else None)
        l_y = ((here.labels - torch.tanh(self.graph(labels))) * found).square().sum()
        return l_y, ((here.features - features) * found).square().sum()

    @torch.no_grad()
    def _similar(self, here: Items, recent: Items | None) -> Similar:
        """The similar images of each image of the batch: places in the batch, then in memory."""
        items = here if recent is None else Items(*(torch.cat(pair) for pair in zip(here, recent, strict=True)))
        numbers = items.number.clamp(min=0)
        weights: Tensor = self.graph.weights
        if self.images == "fixed":
            assert self.relabel.start_features is not None
            assert self.relabel.start_labels is not None
            features, labels = (kept[numbers] for kept in (self.relabel.start_features, self.relabel.start_labels))
            items, weights = Items(items.number, features.to(here.features), labels.to(here.labels)), self.start_weights
        side = self._side(None if self.groups is None else self.groups[numbers], items.labels.dtype)
        return self._match(items, self.graph(items.labels, weights), slice(len(here.number)), side)

    def _match(self, items: Items, said: Tensor, at: slice, side: Tensor | None) -> Similar:
        """Algorithm 2 for the items at these places, among all others; `said` (M, C) is A y."""
        labels = items.labels
        if side is not None:
            labels, said = torch.cat([labels, side], 1), torch.cat([said, side], 1)
        # Before anything is measured they are as given: neighbours are needed to measure by.
        lambda_y, lambda_f = self._lambdas(unmeasured=1.0)
        return joint_omp(
            [Part(labels[at], said, lambda_y, labels), Part(items.features[at], items.features, lambda_f)],
            self.k,
            allowed=(items.number >= 0) & (items.number != items.number[at, None]),
            solve=self.solve,
        )

    @staticmethod
    def _sum(index: Tensor, weights: Tensor, here: Tensor, recent: Tensor | None) -> Tensor:
        """Σ_i' c_i'i v_i' of each image, with gradient for those of the batch: (B, k), (B, k), (B, n) -> (B, n)."""
        size = len(here)
        inside = (index >= 0) & (index < size)
        mixture = here.new_zeros(size, size).scatter_add(1, index.where(inside, 0), weights * inside)
        total = mixture @ here
        if recent is not None:
            rows = recent[(index - size).clamp(min=0)]
            total = total + torch.bmm((weights * (index >= size))[:, None], rows).squeeze(1)
        return total

    def _side(self, groups: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """One-hot vectors of the groups, of magnitude `side_weight`, 0 for images without one: (M,) -> (M, G)."""
        if groups is None:
            return None
        numbers = torch.arange(self.group_count, device=groups.device)
        return self.side_weight * (groups[:, None] == numbers).to(dtype)

    def _lambdas(self, unmeasured: float = 0.0) -> tuple[float | Tensor, float | Tensor]:
        """λ_y and λ_f as they count now: times CE/ℓ, or times `unmeasured` where that ratio is not known yet."""
        if not self.rescale:
            return self.weights
        smoothness = self.measured[1:]
        ratio = torch.where(smoothness > 0, self.measured[0] / smoothness.where(smoothness > 0, 1), unmeasured)
        return self.weights[0] * ratio[0], self.weights[1] * ratio[1]

    def _measures(self, epoch: int) -> bool:
        """Whether CE, ℓ_y and ℓ_f are compared in this epoch: before ℓ_y and ℓ_f are trained for, where that can be."""
        last = self.relabel.logistic_epochs
        before = last > 0 and self.images != "fixed"
        return self.rescale and self.training and epoch == (last if before else last + 1)


def _read_edges(path: str, table: LabelTable) -> Edges:
    if not Path(path).exists():
        raise UserError(
            f"there is no label graph {path!r}",
            "use --graph cooccurrence, wordnet or identity, or name a CSV file of rows class,class,weight",
        )
    return from_file(path, table.classes)
