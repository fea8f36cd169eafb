"""Fit the head of a tuned network again by L-BFGS. Used with `--tune all` by `train`, `compare` and `study`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.evaluation.ranking import ranking_quality
from halflabel.features.feature_transform import FeatureTransform
from halflabel.features.heads import NormalisedLinear
from halflabel.fitting.crossfit import MakeMethod, best_strength, to_components
from halflabel.fitting.solver import LinearSolver
from halflabel.labels.table import Table
from halflabel.system.threads import use_free_cores


@dataclass(frozen=True)
class Refit:
    """A head on the features of a tuned network, and its quality on the held-out images."""

    head: NormalisedLinear
    logits: Tensor  # (M, C) of the held-out images
    strength: float
    quality: float  # `ranking_quality` of these logits

    def on_features(self) -> tuple[Tensor, Tensor]:
        """Return weights (C, D) and biases (C,) for the features themselves, where the transform is affine."""
        transform, linear = self.head.transform, self.head.linear
        weight = linear.weight.detach() / transform.scale[0]
        return weight, linear.bias.detach() - weight @ transform.mean


def refit_head(
    features: Tensor,
    table: Table,
    make_method: MakeMethod,
    held_out: NDArray[np.int64],
    *,
    evaluation: Table,
    blocks: Sequence[int] | None = None,
    device: str = "cpu",
) -> Refit:
    """Fit a linear head to tuned features (N, D), NaN rows for unreadable images, without the held-out images.

    `blocks` are those of the pooled vector of a network; without them the features may be any numbers.
    The held-out images choose the strength, by their labels in `evaluation`. The network was tuned on the labels of the
    other images, so their own out-of-fold scores would be too good.
    """
    inside = ~torch.isnan(features).any(1)
    inside[torch.from_numpy(held_out)] = False
    labels = torch.from_numpy(evaluation.subset(held_out).dense()).to(device)
    fits: dict[float, tuple[Tensor, Tensor, Tensor]] = {}

    with use_free_cores():
        rows = np.flatnonzero(inside.numpy())
        transform = FeatureTransform.fit(features[inside], blocks=blocks, of_backbone=blocks is not None, device=device)
        components, directions, variance = to_components(transform, features, torch.from_numpy(rows))
        judged = transform(features[torch.from_numpy(held_out)].to(device)) @ directions
        solver = LinearSolver(make_method(), components, table.subset(rows), variance=variance)

        def quality(strength: float) -> float:
            solver.fit(strength)
            fits[strength] = solver.score(judged), solver.weight.clone(), solver.bias.clone()
            return ranking_quality(fits[strength][0], labels)

        strength, tried = best_strength(quality)
    logits, weight, bias = fits[strength]
    head = NormalisedLinear(transform, len(table.classes))
    head.linear.weight.data = weight @ directions.T
    head.linear.bias.data = bias
    return Refit(head.cpu().eval(), logits.cpu(), strength, tried[strength])
