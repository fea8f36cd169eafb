"""Fit a linear head on normalised features by full-batch L-BFGS: a regularisation strength, no learning rate."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method
from halflabel.methods.parts.relabel import Relabeler
from halflabel.models.heads import Head, Linear, Model
from halflabel.types import Batch, Output, Sweep, Targets

__all__ = ["ROUNDS", "LinearSolver", "can_solve"]

ROUNDS = 4  # solves of a method that relabels by its scores
_ITERATIONS = 30  # of the only solve of other methods
_ROUND_ITERATIONS = 8  # of each round of a method that relabels
_LAST_ITERATIONS = 20  # of its last round
_WITHOUT_VARIANCE = 4  # times as many iterations where the features are not known to be uncorrelated
_CURVATURE = 0.4  # typical second derivative of a loss by its logit, for the preconditioner


def can_solve(method: Method) -> bool:
    """Return whether L-BFGS can fit the method: one view, a linear head, no weights of its own, the ordinary step."""
    return (
        type(method).step is Method.step
        and type(method).after_step is Method.after_step
        and method.make_head is Linear
        and len(method.views) == 1
        and not any(True for _ in method.parameters())
        and method.relabel.passes == 0
    )


class _FixedTargets(Relabeler):
    """Targets that stay the same during one solve."""

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return self.targets


class _PreconditionedLinear(Head):
    """A linear head with weights V · scale: L-BFGS takes its steps in V."""

    scale: Tensor

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(classes, channels))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("scale", torch.ones(channels))

    @property
    def weight(self) -> Tensor:
        return self.steps * self.scale

    @torch.no_grad()
    def rescale(self, scale: Tensor) -> None:
        """Change the scale without changing the weights."""
        self.steps.mul_(self.scale / scale)
        self.scale.copy_(scale)

    def forward(self, features: Tensor) -> Output:
        return Output(linear(features, self.weight, self.bias), features)


class LinearSolver:
    """Minimise C / a · loss(W, b) + strength / 2 · ‖W‖² over all training images at once.

    `loss` is the method's step on one batch of all images, and a its value if every entry cost 1: so one strength means
    the same for every method, number of classes and share of known labels. A method that relabels is solved in rounds:
    its targets are fixed during a solve, then it relabels by the new scores; each round starts from the last solution.
    Repeated calls of `fit` with falling strengths start from the last solution too. Deterministic.

    `variance` (D,) is that of uncorrelated features, such as principal components: the curvature along feature d is
    then about 0.4 · variance_d + strength, and L-BFGS in units of its root needs a quarter of the iterations.
    """

    def __init__(
        self,
        method: Method,
        features: Tensor,
        table: LabelTable,
        *,
        variance: Tensor | None = None,
        rounds: int = ROUNDS,
        start: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Take normalised features (N, D) without NaN, in the order of the table.

        `start` holds the weights (C, D) and biases (C,) that the first solve starts from, zeros by default.
        """
        self.variance = variance
        self.method = method
        self.features = features
        self.table = table
        self.rounds = 1 if method.relabel.is_static else rounds
        self.head = _PreconditionedLinear(features.shape[1], len(table.classes))
        self.model = Model(None, self.head).to(features.device)
        if start is not None:
            self.head.steps.data.copy_(start[0])
            self.head.bias.data.copy_(start[1])
        self.batch = Batch(
            torch.arange(len(features), device=features.device),
            (features,),
            torch.from_numpy(table.dense()).to(features.device),
        )

    @property
    def weight(self) -> Tensor:
        """The weights (C, D) of the last solution."""
        return self.head.weight.detach()

    @property
    def bias(self) -> Tensor:
        return self.head.bias.detach()

    def fit(self, strength: float, iterations: int | None = None) -> None:
        """Solve for one strength, starting from the last solution, in at most so many iterations per round."""
        with warnings.catch_warnings():  # a schedule in epochs that never starts is no fault of the user here
            warnings.filterwarnings("ignore", ".* never starts in ")
            self.method.plan(self.rounds)
        self.method.start(self.table, self.model)
        self.method.to(self.features.device)
        if self.variance is not None:
            self.head.rescale((_CURVATURE * self.variance + strength).rsqrt())
        relabel = self.method.relabel
        for epoch in range(1, self.rounds + 1):
            with torch.no_grad():
                logits = self.model(self.features).logits
                if epoch == 1 and relabel.wants_sweep_first():
                    relabel.absorb(Sweep(logits.float(), self.features), 0)
                targets = relabel(self.batch, logits, epoch)
            self.method.relabel = _FixedTargets(targets)
            try:
                self._solve(targets, strength, epoch, iterations or self._iterations(epoch))
            finally:
                self.method.relabel = relabel
            if epoch < self.rounds and relabel.wants_sweep(epoch):
                with torch.no_grad():
                    relabel.absorb(Sweep(self.model(self.features).logits.float(), self.features), epoch)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Return the logits (N, C) of normalised features."""
        self.model.eval()
        logits: Tensor = self.model(features).logits.float()
        return logits

    def _iterations(self, epoch: int) -> int:
        factor = _WITHOUT_VARIANCE if self.variance is None else 1
        if self.rounds == 1:
            return factor * _ITERATIONS
        return factor * (_LAST_ITERATIONS if epoch == self.rounds else _ROUND_ITERATIONS)

    def _solve(self, targets: Targets, strength: float, epoch: int, iterations: int) -> None:
        with torch.no_grad():
            charge = float(self.method.reduce((targets.pos + targets.neg).float(), targets))
        if not charge > 0:  # nothing is known: every solution is as good
            return
        factor = len(self.table.classes) / charge
        optimizer = torch.optim.LBFGS(
            [self.head.steps, self.head.bias],
            max_iter=iterations,
            history_size=10,
            tolerance_grad=1e-5,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )
        self.model.train()

        def objective() -> Tensor:
            optimizer.zero_grad()
            loss = factor * self.method.step(self.model, self.batch, epoch)
            loss = loss + strength / 2 * self.head.weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(objective)  # type: ignore[no-untyped-call]
