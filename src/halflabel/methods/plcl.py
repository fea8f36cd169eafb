"""Partial-BCE, a graph network over the classes, and curriculum labelling (Durand 2019)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from halflabel.errors import UserError
from halflabel.features.heads import Ensemble, Head, Linear, Weldon
from halflabel.methods.base import EpochList, Method, NonNegative, Not, Positive, Size, SizeOrZero, method
from halflabel.methods.partial_bce import BY_SHARE, PAPER, partial_bce
from halflabel.methods.parts.curriculum import STRATEGIES, Curriculum
from halflabel.methods.parts.losses import BCE, ByShare
from halflabel.system.gpu_memory import in_chunks
from halflabel.system.validate import one_of
from halflabel.types import Output

EXACT_CLASSES = 40  # with more, a node state has `node_size` numbers instead of C
_MAX_STATES = 1 << 23  # B·C·d numbers of node states; a larger batch is computed in parts


class GnnHead(Head):
    """Graph neural network on the logits of another head. Durand 2019, section 3.2 and algorithm 2, eq. 12 to 15.

    One node per class, all connected; M, b and the GRU are shared by nodes and steps. In the paper d = C and e_v is the
    v-th unit vector: so here up to 40 classes, and with `node_size` 0. With more classes d is `node_size`, and e_v a
    fixed random unit vector. With torch's initial weights y is close to (1 + 2^−T) x.

    (B, D) or (B, D, h, w) -> logits (B, C). Maps and `class_maps` are those of the inner head: they show x, not y. For
    an ensemble, put several of these into `Ensemble`, not an `Ensemble` into this. A batch of more than 2^23 numbers of
    states is computed in parts, which the backward pass computes again.
    """

    directions: Tensor  # (C, d): e_v

    def __init__(self, inner: Head, classes: int, steps: int = 3, node_size: int = 32) -> None:
        super().__init__()
        self.inner = inner
        self.needs_maps = inner.needs_maps
        self.steps = steps
        directions = torch.eye(classes)
        if node_size and classes > EXACT_CLASSES:
            random = torch.randn(classes, node_size, generator=torch.Generator().manual_seed(0))
            directions = normalize(random, dim=1)
        size = directions.shape[1]
        self.message = nn.Linear(size, size)
        self.update = nn.GRUCell(size, size)
        self.register_buffer("directions", directions, persistent=False)

    @property
    def words(self) -> str:
        return f"{self.inner.words}, graph network of {self.steps} steps"

    def forward(self, features: Tensor) -> Output:
        output: Output = self.inner(features)
        return output._replace(logits=self.propagate(output.logits), members=None)

    def class_maps(self, maps: Tensor) -> Tensor:
        return self.inner.class_maps(maps)

    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        scale = 1 + 2.0**-self.steps  # of the logits of the inner head, with torch's initial weights
        self.inner.load_linear(weight / scale, bias / scale)

    def propagate(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B, C), in parts if the whole batch would take too much memory."""
        part_size = max(_MAX_STATES // (logits.shape[1] * self.update.hidden_size), 1)
        return in_chunks(self._propagate, part_size, logits)

    def _propagate(self, logits: Tensor) -> Tensor:
        states = logits[:, :, None] * self.directions  # (B, C, d)
        for _ in range(self.steps):
            received = _mean_of_others(torch.relu(self.message(states)))
            states = self.update(received.flatten(0, 1), states.flatten(0, 1)).view_as(states)
        return logits + (states * self.directions).sum(2)


def _mean_of_others(messages: Tensor) -> Tensor:
    """The mean over the other nodes: (B, C, d) -> (B, C, d); a single node receives 0."""
    classes = messages.shape[1]
    others = max(classes - 1, 1)
    # The sum over all minus the own message, by the mean: the sum could overflow in half precision.
    return torch.sub(messages.mean(1, keepdim=True) * (classes / others), messages, alpha=1 / others)


_THETAS = {"a": (1.0, 5.0), "b": (0.2, 0.5), "c": (1.0, 2.0), "d": (1.0, 5.0), "e": (0.1, 0.5)}  # beside the defaults


@method(
    serves=("full", "partial"),
    paper=PAPER,
    tune=lambda options: {"theta": _THETAS.get(options["strategy"], ())},
    needs={
        **BY_SHARE,
        "theta": {"strategy": tuple(_THETAS)},
        "relabel_at": {"strategy": Not("none")},
        "passes": {"strategy": ("e",)},
        "block": {"strategy": ("b",)},
        "ensemble": {"strategy": ("d",)},
        "k_plus": {"pooling": ("weldon",)},
        "k_minus": {"pooling": ("weldon",)},
        "steps": {"gnn": (True,)},
        "node_size": {"gnn": (True,)},
    },
    options_of=partial_bce,
)
def plcl(
    strategy: str = "e",
    theta: float = 0.0,
    relabel_at: EpochList = "",
    passes: Size = 20,
    dropout: float = 0.5,
    block: int = 16,
    ensemble: Size = 3,
    pooling: Literal["weldon", "mean"] = "weldon",
    k_plus: Positive = 0.1,
    k_minus: NonNegative = 0.1,
    gnn: bool = True,
    steps: Size = 3,
    node_size: SizeOrZero = 32,
    **weights: Any,
) -> Method:
    """Partial-BCE, a graph network in which classes inform each other, and easy unknown entries become labels.

    Use it for partly known ± labels if training may take longer: it needs features with places (maps) unless pooling is
    mean, and stores a byte per training image and class.

        A = 1×1 convolution of the features;  x_c = ½ (mean of the highest k⁺ of A_c + mean of the lowest k⁻)
        h_v⁰ = x_v e_v;  T times: h_v ← GRU(h_v, mean over u ≠ v of ReLU(FC(h_u)));  y_v = (h_v⁰ + h_v^T)_v
        L = 1/B Σ_i g(p_i)/C Σ_{known or weak c} BCE(y),   g(p) = α p^γ + β,   p_i = the share of labels known or weak
        weak labels: before chosen epochs, the easy ones of the entries that are still unknown:
          a: y ≥ θ present, y < −θ absent (θ 2)      b: the share θ with the largest |y| of each block of images (0.8)
          c: y ≥ θ present (5)                       d: as a, on the mean logit of an ensemble (2)
          e: Var(y) ≤ θ over passes with dropout, label by the sign of the mean (0.3)     2steps: all, once

    strategy: none, a, b, c, d, e or 2steps; theta (θ): 0 = the strategy's default, as above. relabel_at: the epochs
    before which labels are added, as in 10,15 (default: at half and three quarters of training, the paper's 10 and 15
    of 20). Weak labels stay and later times add to them, as the paper's label proportions show. passes, dropout: for e.
    Dropout is before the head only, in training with every strategy. After few steps, or with little dropout, the
    variance is small and everything would be labelled. block: images per block of b, the paper's mini-batch. ensemble:
    for d, which the paper does not describe: so many heads on the same features with different initial weights and
    losses, whose mean is the model. pooling: weldon, or mean (a linear head); k_plus, k_minus (k⁺, k⁻): below 1 a share
    of the cells, else a number. gnn: use the graph network; steps (T). node_size: numbers in h_v beyond 40 classes,
    where e_v is then a random unit vector; 0 = C always, as in the paper, whose time grows with C³. g_value, g_share,
    gamma, alpha, beta: as in `partial-bce`.

    The paper trains with optimizer=sgd lr=0.01 batch_size=16 schedule=step epochs=20 size=448 tune=all, one rate for
    all layers (backbone_lr=1) and mirror images only (crop=1).
    """
    one_of(("none", *STRATEGIES), strategy=strategy)
    if not 0 <= dropout < 1 or (strategy == "e" and dropout == 0):
        raise UserError(f"dropout {dropout:g} does not fit strategy {strategy}", "use 0 ≤ dropout < 1; above 0 for e")

    def make_member(channels: int, classes: int) -> Head:
        head: Head
        if pooling == "weldon":
            head = Weldon(channels, classes, k_plus, k_minus, dropout)
        else:
            head = Linear(channels, classes, dropout)
        return GnnHead(head, classes, steps, node_size) if gnn else head

    def make_head(channels: int, classes: int) -> Head:
        return Ensemble([make_member(channels, classes) for _ in range(ensemble)])

    relabel = Curriculum(strategy, theta, relabel_at, block=block, passes=passes) if strategy != "none" else None
    is_ensemble = strategy == "d" and ensemble > 1
    reduce = ByShare.from_options(**weights)
    head = make_head if is_ensemble else make_member
    return Method(BCE(), relabel, head=head, reduce=reduce)
