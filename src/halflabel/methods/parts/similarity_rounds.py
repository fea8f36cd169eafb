"""imcl on frozen features: similarities and classifier are solved in turns, over all training images at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Ignore
from halflabel.methods.parts.similarity_memory import impute
from halflabel.methods.parts.similarity_method import SimilarityMethod
from halflabel.methods.parts.terms import Term
from halflabel.types import Batch, Output, Sweep, Targets

_SEARCH_SIZE = 128  # leading features (principal components) that the search for similar images uses
_GRAPH_STEPS = 20  # gradient steps of A in a round


class SimilarityRounds(Ignore):
    """Uses known labels only, and after each round solves for the similarities of all images (algorithm 1, step 1).

    Given the scores, c and c̄ are found by joint matching pursuit among all images, then A ≥ 0 by gradient steps on
    ℓ_y with tanh(x) ≈ x, as in the paper. The first round is the logistic model. Memory: 20·k bytes per image.
    """

    is_static = False
    index: Tensor  # (N, k) int64, −1 for none
    weight: Tensor  # (N, k): c
    scale: Tensor  # (): λ_y, times CE/ℓ_y of the logistic model if it is rescaled; 0 before the first search

    def __init__(self, similarity: SimilarityMethod) -> None:
        super().__init__()
        self._similarity = (similarity,)  # in a tuple: its weights are solved for here, not by L-BFGS
        for name in ("index", "weight", "scale"):
            self.register_buffer(name, torch.zeros(()), persistent=False)

    @property
    def similarity(self) -> SimilarityMethod:
        return self._similarity[0]

    def start(self, table: Table) -> None:
        similarity = self.similarity
        similarity.table = None  # A starts again for every fit
        similarity.start(table)
        self.labels = torch.from_numpy(table.dense())
        self.index = torch.full((len(table), similarity.options.k), -1)
        self.weight, self.scale = torch.zeros(len(table), similarity.options.k), torch.zeros(())

    def wants_sweep(self, epoch: int) -> bool:
        return self.similarity.options.lambda_y > 0

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        similarity, device = self.similarity, sweep.logits.device
        similarity.to(device)
        labels = self.labels.to(device)
        if epoch == 1 or similarity.options.image_similarity == "learned":
            similar = similarity.neighbours(sweep.features[:, :_SEARCH_SIZE], sweep.logits, labels)
            self.index, self.weight = similar.index, similar.weights[0]
        y = impute(labels, sweep.logits)
        if similarity.options.label_similarity == "learned":
            self._solve_graph(y)
        if epoch == 1:
            known = (labels != 0).to(y.dtype)
            entropy = float((known * torch.nn.functional.softplus(-labels * sweep.logits)).sum())
            smoothness = float(self.loss(y).detach())
            self.scale = torch.tensor(similarity.options.lambda_y, device=device)
            if similarity.options.rescale:
                self.scale = self.scale * (entropy / smoothness if smoothness > 0 else 0.0)
        return {"similar_images": float((self.index >= 0).sum(1).float().mean())}

    def mixed(self, y: Tensor) -> Tensor:
        """Σ_i' c_i'i y_i' of each image, with the gradient of y: (N, C) -> (N, C)."""
        return embedding_bag(self.index.clamp(min=0), y, per_sample_weights=self.weight.to(y.dtype), mode="sum")

    def loss(self, y: Tensor) -> Tensor:
        """Σ_i ℓ_y, a scalar (eq. 5)."""
        inferred = self.similarity.activate(
            self.similarity.graph(self.mixed(y), self.similarity.graph.weights.detach())
        )
        return ((y - inferred) * (self.index >= 0).any(1, keepdim=True)).square().sum()

    def _solve_graph(self, y: Tensor) -> None:
        """Minimise ‖y − A m‖² over A ≥ 0 by projected gradient steps."""
        graph, mixed = self.similarity.graph, self.mixed(y)
        rows = (self.index >= 0).any(1)
        y, mixed = y[rows], mixed[rows]
        step = 0.5 / torch.linalg.matrix_norm(mixed, 2).square().clamp(min=1e-12)
        with torch.enable_grad():
            for _ in range(_GRAPH_STEPS):
                weights = graph.weights.detach().requires_grad_()
                loss = (y - graph(mixed, weights)).square().sum()
                graph.weights.data.sub_(step * torch.autograd.grad(loss, weights)[0]).clamp_(min=0)


class LabelSmoothness(Term):
    """scale/(N·C) · Σ_i ℓ_y with the similarities of the last round held fixed (algorithm 1, step 2)."""

    def __init__(self, rounds: SimilarityRounds) -> None:
        super().__init__()
        self._rounds = (rounds,)

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        rounds = self._rounds[0]
        if not bool(rounds.scale > 0):
            return output.logits.new_zeros(())
        return rounds.scale * rounds.loss(impute(batch.labels, output.logits)) / max(output.logits.numel(), 1)


def alternating(similarity: SimilarityMethod) -> Method:
    """Return the method that L-BFGS fits: a batch must hold all training images, in the order of the table."""
    rounds = SimilarityRounds(similarity)
    return Method(BCE(), rounds, terms=[LabelSmoothness(rounds)], starts_from_bce=True)  # as in the paper
