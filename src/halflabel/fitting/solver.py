"""Fit a linear head on normalised features by full-batch L-BFGS: a regularisation strength, no learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from halflabel.errors import UserError
from halflabel.features.heads import Head, Model
from halflabel.fitting.lbfgs import minimise_each
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE, Loss, Reduce, over_known
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.methods.parts.relabel import Relabeler
from halflabel.methods.parts.terms import EntryTerm
from halflabel.types import Batch, Output, Sweep, Targets

ROUNDS = 4  # solves of a method that relabels by its scores
TOLERANCE = 0.03  # of the gradient of each class, as a share of the gradient where all images score the same
_FIRST_STRENGTH = 1e-3  # of the first solve, which starts from zero
_ITERATIONS = 60  # at most, of a solve
_JOINT_ITERATIONS = 30  # of a loss that ties the classes of an image together
_ROUND_ITERATIONS = 8  # of each round of such a loss with relabelling
_LAST_ITERATIONS = 20  # of its last round
_CURVATURE = 0.4  # typical second derivative of such a loss by its logit, for the preconditioner
_LEAST_CURVATURE = 0.01  # of a class, however rare
_LARGEST_BIAS = 7.0  # of the start
_BLOCK_ENTRIES = 2**20  # logits computed at once


def cross_entropy() -> Method:
    """Return cross-entropy on known labels; where only positives are known, unknown counts as absent."""
    return Method(BCE(), UnknownAs("auto"), reduce=over_known)


def is_separable(method: Method) -> bool:
    """Return whether the loss of an entry depends on its own logit alone, so that each class has its own solution."""
    has_entry_terms = all(isinstance(term, EntryTerm) for term in method.terms)
    return type(method.loss).forward is Loss.forward and has_entry_terms and _is_linear(method.reduce)


def _is_linear(reduce: Reduce) -> bool:
    """Return whether a reduction is a weighted sum of the losses, as those of the package are; tried on random ones."""
    random = torch.rand(4, 64, 8, generator=torch.Generator().manual_seed(0))
    first, second, targets = random[0], random[1], Targets((random[2] < 0.3).float(), (random[3] < 0.3).float())
    try:
        both, apart = reduce(first + second, targets), reduce(first, targets) + reduce(second, targets)
    except RuntimeError:  # a reduction of a user may need more images
        return False
    return torch.allclose(both, apart, rtol=1e-4)


class _FixedTargets(Relabeler):
    def __init__(self, targets: Targets) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return self.targets


class _PreconditionedLinear(Head):
    """x = W f + b + trust · names for rows (f, names), with W = V · scale: L-BFGS takes its steps in V."""

    scale: Tensor
    trust: Tensor

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(classes, channels))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("trust", torch.zeros(classes))

    @property
    def weight(self) -> Tensor:
        return self.steps * self.scale

    @torch.no_grad()
    def rescale(self, scale: Tensor) -> None:
        """Change the scale without changing the weights."""
        self.steps.mul_(self.scale / scale)
        self.scale.copy_(scale)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (N, D) and scores from class names: (N, C), or none (N, 0)."""
        return rows[:, : len(self.scale)], rows[:, len(self.scale) :]

    def forward(self, rows: Tensor) -> Output:
        features, names = self.split(rows)
        logits = linear(features, self.weight, self.bias)
        return Output(logits + self.trust * names if names.shape[1] else logits, features)


class LinearSolver:
    """Minimise C / a · loss(W, b) + strength / 2 · ‖W‖² over all training images at once.

    `loss` is the method's step on one batch of all images, and a its value if every entry cost 1: so one strength means
    the same for every method and table. A method that relabels is solved in rounds, between which it relabels by the
    new scores. Where the loss of an entry depends on its own logit alone, each class is solved on its own.

    `variance` (D,) is that of uncorrelated features, such as principal components: the curvature along feature d is
    then about c · variance_d + strength, and L-BFGS in units of its root needs a quarter of the iterations.
    With `trust` (C,), the last C columns of the features are scores of the classes from their names: the logits start
    from trust · names, which no strength shrinks.
    """

    def __init__(
        self,
        method: Method,
        features: Tensor,
        table: Table,
        *,
        variance: Tensor | None = None,
        tolerance: float = TOLERANCE,
        start: tuple[Tensor, Tensor] | None = None,
        trust: Tensor | None = None,
    ) -> None:
        """Take normalised features (N, D) without NaN, in the order of the table.

        `start` holds the weights (C, D) and biases (C,) that the first solve starts from, zeros by default.
        """
        self.tolerance = tolerance
        self.base: LinearSolver | None = None  # of cross-entropy, where the method starts from it
        self.method = method
        self.features = features
        self.table = table
        self.rounds = 1 if method.relabel.is_static else ROUNDS
        classes = len(table.classes)
        self.head = _PreconditionedLinear(features.shape[1] - (0 if trust is None else classes), classes)
        self.is_scaled = variance is not None
        self.variance = torch.ones_like(self.head.scale) if variance is None else variance
        if trust is not None:
            self.head.trust.copy_(trust)
        self.model = Model(None, self.head).to(features.device)
        if start is not None:
            self.head.steps.data.copy_(start[0])
            self.head.bias.data.copy_(start[1])
        self.gradients: _ClassGradients | None = None
        self.size: Tensor | None = None  # (C,) norms of the gradients where all images score the same
        index = torch.arange(len(features))
        soft = table.soft_targets(index.numpy())
        self.batch = Batch(
            index.to(features.device),
            (features,),
            torch.from_numpy(table.dense()).to(features.device),
            None if soft is None else torch.from_numpy(soft).to(features.device),
        )

    @property
    def weight(self) -> Tensor:
        return self.head.weight.detach()

    @property
    def bias(self) -> Tensor:
        return self.head.bias.detach()

    def fit(self, strength: float, iterations: int | None = None) -> None:
        """Solve for one strength from the last solution, or from that of cross-entropy (`Method.starts_from_bce`)."""
        relabel = self.method.relabel
        if self.gradients is not None and relabel.is_static:
            self._solve_classes(self.gradients, strength, iterations or _ITERATIONS)
            return
        if self.method.starts_from_bce:
            self._start_from_bce(strength, iterations)
        self.method.plan(self.rounds)
        begins = self.method.begins()
        if begins is not None and (problem := begins.problem(self.rounds, "round")):
            earlier = f"a smaller ‹{begins.option}›, or " if begins.option else ""
            raise UserError(f"{problem} of L-BFGS", f"use {earlier}‹fit=batches› ‹epochs={begins.first}›")
        self.method.start(self.table, self.model)
        self.method.to(self.features.device)
        for epoch in range(1, self.rounds + 1):
            self.gradients = None  # of the last round: frees its targets
            with torch.no_grad():
                logits = self.model(self.features).logits.float()
                if relabel.wants_sweep_first() if epoch == 1 else relabel.wants_sweep(epoch - 1):
                    relabel.absorb(Sweep(logits, self.head.split(self.features)[0]), epoch - 1)
                targets = relabel(self.batch, logits, epoch)
                del logits
            if is_separable(self.method):
                self.gradients = _ClassGradients.of(self.method, *self.head.split(self.features), targets)
                del targets
                self._solve_classes(self.gradients, strength, iterations or _ITERATIONS)
            else:
                self._solve_jointly(targets, strength, epoch, iterations or self._iterations(epoch))

    def _start_from_bce(self, strength: float, iterations: int | None) -> None:
        if self.base is None:
            trust = self.head.trust if self.features.shape[1] > len(self.head.scale) else None
            same: dict[str, Any] = {
                "variance": self.variance if self.is_scaled else None,
                "tolerance": self.tolerance,
                "trust": trust,
            }
            self.base = LinearSolver(cross_entropy(), self.features, self.table, **same)
        self.base.fit(strength, iterations)
        self.head.rescale(self.base.head.scale)
        self.head.load_state_dict(self.base.head.state_dict())

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        self.model.eval()
        logits: Tensor = self.model(features).logits.float()
        return logits

    def _iterations(self, epoch: int) -> int:
        if self.rounds == 1:
            return _JOINT_ITERATIONS
        return _LAST_ITERATIONS if epoch == self.rounds else _ROUND_ITERATIONS

    @torch.no_grad()
    def _solve_classes(self, gradients: _ClassGradients, strength: float, iterations: int) -> None:
        """Solve each class on its own: the loss of an entry depends on its own logit alone.

        The first solve goes through stronger regularisation: from zero, a weak one ends far from the optimum.
        """
        if gradients.is_empty:  # nothing is known: every solution is as good
            return
        if not bool(self.weight.any()):
            first = _FIRST_STRENGTH
            while first > 1.5 * strength:
                self._solve_strength(gradients, first, iterations)
                first /= 3
        self._solve_strength(gradients, strength, iterations)

    def _solve_strength(self, gradients: _ClassGradients, strength: float, iterations: int) -> None:
        constant, curvature = gradients.constant()
        scale = (curvature[:, None] * self.variance + strength).rsqrt()
        bias_scale = curvature.rsqrt()
        problem = gradients.scaled(torch.cat([scale, bias_scale[:, None]], 1), strength)
        if self.size is None:
            zero = torch.cat([torch.zeros_like(scale), (constant / bias_scale)[:, None]], 1)
            self.size = problem(zero).norm(dim=1)
        problem = replace(problem, trust=self.head.trust)
        names = self.head.split(self.features)[1]
        constant = constant - self.head.trust * names.mean(0) if names.shape[1] else constant
        bias = self.bias if bool(self.weight.any()) else constant
        begin = torch.cat([self.weight / scale, (bias / bias_scale)[:, None]], 1)
        solution = minimise_each(problem, begin, self.size, tolerance=self.tolerance, iterations=iterations)
        self.head.rescale(torch.ones_like(self.head.scale))
        self.head.steps.copy_(solution[:, :-1] * scale)
        self.head.bias.copy_(solution[:, -1] * bias_scale)

    def _solve_jointly(self, targets: Targets, strength: float, epoch: int, iterations: int) -> None:
        with torch.no_grad():
            charge = float(self.method.reduce((targets.pos + targets.neg).float(), targets))
        if not charge > 0:  # nothing is known: every solution is as good
            return
        if self.is_scaled:
            self.head.rescale((_CURVATURE * self.variance + strength).rsqrt())
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
        place = (self.head.steps, self.head.bias)
        lowest, kept = math.inf, [each.detach().clone() for each in place]

        def objective() -> Tensor:
            nonlocal lowest, kept
            optimizer.zero_grad()
            loss = factor * self.method.step(self.model, self.batch, epoch)
            loss = loss + strength / 2 * self.head.weight.square().sum()
            if float(loss.detach()) < lowest:
                lowest, kept = float(loss.detach()), [each.detach().clone() for each in place]
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        relabel, self.method.relabel = self.method.relabel, _FixedTargets(targets)
        try:
            optimizer.step(objective)  # type: ignore[no-untyped-call]
        finally:
            self.method.relabel = relabel
        if not all(bool(each.isfinite().all()) for each in place):  # a search along a kink of the loss may fail
            with torch.no_grad():
                for each, before in zip(place, kept, strict=True):
                    each.copy_(before)


class AverageSolver:
    """Several fits to the same labels, whose logits are averaged: one linear head again.

    `factors` are the strengths of the fits, relative to the one that is given to `fit`.
    """

    def __init__(self, solvers: Sequence[LinearSolver], factors: Sequence[float]) -> None:
        self.solvers, self.factors = solvers, factors

    @property
    def weight(self) -> Tensor:
        return torch.stack([solver.weight for solver in self.solvers]).mean(0)

    @property
    def bias(self) -> Tensor:
        return torch.stack([solver.bias for solver in self.solvers]).mean(0)

    def fit(self, strength: float, iterations: int | None = None) -> None:
        for solver, factor in zip(self.solvers, self.factors, strict=True):
            solver.fit(factor * strength, iterations)

    def score(self, features: Tensor) -> Tensor:
        total = self.solvers[0].score(features)
        for solver in self.solvers[1:]:
            total += solver.score(features)
        return total / len(self.solvers)


class _Block(NamedTuple):
    """The targets of some images, each times the weight of its entry in the loss."""

    features: Tensor  # (B, D)
    names: Tensor  # (B, C) scores of the classes from their names, or (B, 0)
    targets: Targets  # (B, C)

    def select(self, classes: Tensor) -> _Block:
        names = self.names[:, classes] if self.names.shape[1] else self.names
        return _Block(self.features, names, Targets(*(part[:, classes] for part in self.targets)))


@dataclass(frozen=True)
class _ClassGradients:
    """The gradient of each class's loss by its own weights, block by block of images."""

    method: Method
    blocks: list[_Block]
    entry_weight: float  # of an entry in a term that is a mean over entries
    positive: Tensor  # (C,) sums of the targets
    negative: Tensor
    untargeted: Tensor  # (C,) numbers of entries without a target
    trust: Tensor | None = None  # (C,) the logits start from trust · names
    scale: Tensor | None = None  # (C, D + 1): gradients are by the weights and the bias, divided by this
    strength: float = 0.0

    @classmethod
    def of(cls, method: Method, features: Tensor, names: Tensor, targets: Targets) -> _ClassGradients:
        """Fold the method's reduction, which is linear in the losses, into the targets (N, C)."""
        classes = targets.pos.shape[1]
        with torch.enable_grad():
            losses = torch.zeros_like(targets.pos, requires_grad=True)
            weights = torch.autograd.grad(method.reduce(losses, targets), losses)[0]
        size = max(1, _BLOCK_ENTRIES // classes)
        parts = list(zip(*(torch.split(part, size) for part in (features, names, weights, *targets)), strict=True))
        positive = torch.stack([(weight * pos).sum(0) for *_, weight, pos, _ in parts]).sum(0)
        negative = torch.stack([(weight * neg).sum(0) for *_, weight, _, neg in parts]).sum(0)
        factor = classes / max(float((positive + negative).sum()), 1e-30)
        blocks = [
            _Block(rows, scores, Targets(factor * weight * pos, factor * weight * neg))
            for rows, scores, weight, pos, neg in parts
        ]
        untargeted = ((targets.pos == 0) & (targets.neg == 0)).sum(0)
        entry_weight = factor / max(targets.pos.numel(), 1)
        return cls(method, blocks, entry_weight, factor * positive, factor * negative, untargeted)

    @property
    def is_empty(self) -> bool:
        return not bool((self.positive + self.negative > 0).any())

    def constant(self) -> tuple[Tensor, Tensor]:
        """Return the best bias (C,) of each class without weights, and the second derivative of the loss there."""
        low, high = torch.full_like(self.positive, -_LARGEST_BIAS), torch.full_like(self.positive, _LARGEST_BIAS)
        for _ in range(20):
            middle = (low + high) / 2
            is_falling = self._slope_of_constant(middle) < 0
            low, high = torch.where(is_falling, middle, low), torch.where(is_falling, high, middle)
        bias = (low + high) / 2
        difference = self._slope_of_constant(bias + 0.1) - self._slope_of_constant(bias - 0.1)
        return bias, (difference / 0.2).clamp(min=_LEAST_CURVATURE)

    def _slope_of_constant(self, bias: Tensor) -> Tensor:
        """Return the derivative of each class's loss if all its images have the same logit."""
        slope = self.method.loss.slope(bias, Targets(self.positive, self.negative))
        nothing = Targets(torch.zeros_like(bias), torch.zeros_like(bias))
        for term in self.method.terms:
            slope = slope + self.entry_weight * self.untargeted * cast(EntryTerm, term).slope(bias, nothing)
        return slope

    def scaled(self, scale: Tensor, strength: float) -> _ClassGradients:
        return replace(self, scale=scale, strength=strength)

    def __call__(self, parameters: Tensor) -> Tensor:
        assert self.scale is not None
        solution = parameters * self.scale
        weight, bias = solution[:, :-1], solution[:, -1]
        result = torch.cat([self.strength * weight, torch.zeros_like(bias)[:, None]], 1)
        for block in self.blocks:
            start = bias if self.trust is None or not block.names.shape[1] else bias + self.trust * block.names
            slopes = self._slope(torch.addmm(start, block.features, weight.T), block.targets)
            result[:, :-1].addmm_(slopes.T, block.features)
            result[:, -1] += slopes.sum(0)
        return result * self.scale

    def select(self, functions: Tensor) -> _ClassGradients:
        assert self.scale is not None
        return replace(
            self,
            blocks=[block.select(functions) for block in self.blocks],
            positive=self.positive[functions],
            negative=self.negative[functions],
            untargeted=self.untargeted[functions],
            trust=None if self.trust is None else self.trust[functions],
            scale=self.scale[functions],
        )

    def _slope(self, logits: Tensor, targets: Targets) -> Tensor:
        slope = self.method.loss.slope(logits, targets)
        for term in self.method.terms:
            slope += self.entry_weight * cast(EntryTerm, term).slope(logits, targets)
        return slope
