"""Images among label vectors (Zhang 2016)."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import Loss, over_images
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.models.embedding_heads import LabelVectorHead
from halflabel.models.heads import Head
from halflabel.system.validate import MAX_SIZE, below_one, between
from halflabel.types import Targets, at_least_float32

__all__ = ["Fast0Tag", "RankNet", "fast0tag"]

_AT_ONCE = 1 << 22  # pairs that are spelled out at a time


@method(
    serves=REGIMES,
    paper="Zhang, Gong, Shah 2016: Fast zero-shot image tagging",
    lr=1e-3,
    tune={"hidden": ("", "1024")},
)
def fast0tag(
    vectors: str = "graph",
    vector_size: int = 300,
    missing: str = "error",
    hidden: str = "",
    dropout: float = 0.3,
    unknown: str = "auto",
) -> Method:
    """Maps an image to a direction in a space of label vectors, along which its labels come before all others.

    Use it where vectors say what labels are like, such as word vectors, and many labels have few examples: they borrow
    from their neighbours. It ranks the labels of one image; scores of different images are not trained for.

        x_c = t_c · φ(f),   φ a linear map or a network, t_c the given vector of label c
        L = 1/B Σ_i 1/(|P|·|N|) Σ_{p ∈ P} Σ_{n ∈ N} log(1 + exp(x_n − x_p)),   P known present, N known absent

    vectors: "graph" (from which labels are present together), a text file of word vectors (GloVe, word2vec), or
    text:MODEL, a sentence encoder; vector_size: how many numbers each has; missing: "error", or "mean" for classes the
    file does not have. The vectors are saved with the model.
    hidden: sizes of the layers of φ, such as 1024 or 8192,2048; empty = a linear map, where Huynh 2020 has a nonlinear
    one. dropout: after each.
    unknown: "ignore" leaves unknown entries out of the pairs, "negative" takes them as absent; "auto" does the latter
    where no label at all is known to be absent, since pairs need a negative.

    Figures of Huynh 2020 (Open Images, end to end, mAP): 76.34 against 75.85 of `logistic`, from which it starts there.
    Measured here from random weights (VOC 2012, frozen features, one seed, rate chosen on the test photos): with all
    labels 80.1 against 82.8 of `bce`; with 10 % known 70.9 against 75.1, and 69.2 with hidden=1024. An image counts
    only if a present and an absent label of it are known, one in seven of these images; and the vectors of 20 classes
    from so few labels may say little.
    """
    return Fast0Tag(vectors, vector_size, missing, _read_sizes(hidden), dropout, unknown)


class Fast0Tag(Method):
    """Pairs of a positive and a negative, on heads among label vectors that come with the training labels."""

    def __init__(
        self, vectors: str, vector_size: int, missing: str, hidden: tuple[int, ...], dropout: float, unknown: str
    ) -> None:
        between(1, MAX_SIZE, vector_size=vector_size)
        below_one(dropout=dropout)
        super().__init__(RankNet(), UnknownAs(unknown), head=self._make_head, reduce=over_images)
        self.source, self.vector_size, self.missing = vectors, vector_size, missing
        self.hidden, self.rate = hidden, dropout
        self.vectors: Tensor | None = None
        # Heads are told the vectors whichever comes first, head or labels; they belong to models, not to the method.
        self.made: list[weakref.ref[LabelVectorHead]] = []

    def start(self, table: LabelTable) -> None:
        from halflabel.methods.parts.label_vectors import label_vectors

        super().start(table)
        found = label_vectors(self.source, table, self.vector_size, missing=self.missing)
        before, self.vectors = self.vectors, torch.from_numpy(found).float()
        for made in self.made:
            head = made()
            # A model that goes on from another run has learned its way among that run's vectors: they stay.
            if head is not None and (not head.vectors.any() or _same(head.vectors, before)):
                head.set_vectors(self.vectors)

    def _make_head(self, channels: int, classes: int) -> Head:
        head = LabelVectorHead(channels, classes, self.vector_size, self.hidden, self.rate)
        if self.vectors is not None:
            head.set_vectors(self.vectors)
        self.made.append(weakref.ref(head))
        return head


class RankNet(Loss):
    """1/(|P|·|N|) Σ_{p present} Σ_{n absent} log(1 + exp(x_n − x_p)) of each image, each pair at its positive.

    With weights, pos_p · neg_n of a pair, and their sums in place of |P| and |N|. Memory: 12 bytes per pair of a
    positive and any class; above 2²² of them they go through in parts, which the backward pass computes again.
    """

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        x = at_least_float32(logits)
        pos, neg = targets.pos.to(x.dtype), targets.neg.to(x.dtype)
        image, positive = (pos > 0).nonzero(as_tuple=True)
        size = max(_AT_ONCE // x.shape[1], 1)
        parts = list(zip(torch.split(image, size), torch.split(positive, size), strict=True))
        if len(parts) > 1 and torch.is_grad_enabled():
            # Nothing in here is random, so the generators' states need not be kept.
            sums = [
                checkpoint(_pair_sums, x, neg, *part, use_reentrant=False, preserve_rng_state=False) for part in parts
            ]
        else:
            sums = [_pair_sums(x, neg, *part) for part in parts]
        pairs = (pos.sum(1) * neg.sum(1)).clamp(min=torch.finfo(x.dtype).tiny)
        weighted = torch.cat(sums) * (pos[image, positive] / pairs[image])
        return torch.zeros_like(x).index_put((image, positive), weighted)


def _same(vectors: Tensor, others: Tensor | None) -> bool:
    return others is not None and torch.equal(vectors.cpu(), others)


def _pair_sums(x: Tensor, neg: Tensor, image: Tensor, positive: Tensor) -> Tensor:
    """Σ_n neg_n log(1 + exp(x_n − x_p)) for each of P positives, by image and class: (P,), (P,) -> (P,)."""
    return (neg[image] * softplus(x[image] - x[image, positive][:, None])).sum(1)


def _read_sizes(text: str) -> tuple[int, ...]:
    """Layer sizes from text such as "8192,2048"; none from ""."""
    try:
        sizes = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise UserError(f"{text!r} is no list of layer sizes", "write them as in 8192,2048; empty for a linear map")
    return sizes
