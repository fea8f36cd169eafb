"""L-BFGS for many independent functions at once, from their gradients alone."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor

_HISTORY = 10  # steps that the curvature is estimated from
_CURVED = 1e-6  # least cosine of a step and its change of the gradient


class Gradients(Protocol):
    """The gradients of G independent functions."""

    def __call__(self, parameters: Tensor) -> Tensor:
        """Return the gradient of each function at its own row of the parameters: (G, P) -> (G, P)."""

    def select(self, functions: Tensor) -> Self:
        """Return the gradients of these functions only, by number."""


def minimise_each(gradients: Gradients, start: Tensor, size: Tensor, *, tolerance: float, iterations: int) -> Tensor:
    """Return the minimiser (G, P) of each function, starting at the rows of `start`.

    Each function has its own curvature, step length and end: its gradient falls below `tolerance` · `size` (G,). One
    gradient is computed per iteration. Where a step went so far that the slope along it is now steeper upwards than it
    was downwards, the function stays where it was, and the step only adds to what is known of its curvature.
    """
    result = start.clone()
    rows = torch.arange(len(start), device=start.device)
    x, g = start, gradients(start)
    history: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(iterations):
        active = g.norm(dim=1) > tolerance * size
        if 2 * int(active.sum()) <= len(rows):  # leave out the others, which saves their gradients
            result[rows] = x
            if not bool(active.any()):
                return result
            rows, x, g, size = rows[active], x[active], g[active], size[active]
            history = [(s[active], y[active], rho[active]) for s, y, rho in history]
            gradients = gradients.select(active.nonzero()[:, 0])
        step = _direction(g, history)
        slope = (g * step).sum(1)
        moved = gradients(x + step)
        new_slope = (moved * step).sum(1)
        change = moved - g
        curvature = new_slope - slope
        is_curved = curvature > _CURVED * step.norm(dim=1) * change.norm(dim=1)
        history = [*history[1 - _HISTORY :], (step, change, torch.where(is_curved, 1 / curvature, 0.0))]
        accepted = (new_slope <= -slope)[:, None]
        x, g = torch.where(accepted, x + step, x), torch.where(accepted, moved, g)
    result[rows] = x
    return result


def _direction(gradient: Tensor, history: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the step of each function: minus the gradient times the inverse Hessian that the history describes."""
    step = -gradient
    shares = []
    scale = torch.ones(len(gradient), device=gradient.device)
    for s, y, rho in reversed(history):
        share = rho * (s * step).sum(1)
        step = step - share[:, None] * y
        shares.append(share)
    for _, y, rho in history:  # the newest step with a curvature decides
        scale = torch.where(rho > 0, 1 / (rho * y.square().sum(1)), scale)
    step = step * scale[:, None]
    for (s, y, rho), share in zip(history, reversed(shares), strict=True):
        step = step + (share - rho * (y * step).sum(1))[:, None] * s
    return step
