"""L-BFGS for many functions at once: quadratic functions have a known minimum."""

from __future__ import annotations

import torch
from torch import Tensor

from halflabel.fitting.lbfgs import minimise_each


class Quadratics:
    """½ (x − centre)ᵀ H (x − centre) for each function; counts how many gradients are computed."""

    def __init__(self, hessian: Tensor, centre: Tensor, counts: list[int]) -> None:
        self.hessian, self.centre, self.counts = hessian, centre, counts

    def __call__(self, parameters: Tensor) -> Tensor:
        self.counts.append(len(parameters))
        return torch.einsum("gpq,gq->gp", self.hessian, parameters - self.centre)

    def select(self, functions: Tensor) -> Quadratics:
        return Quadratics(self.hessian[functions], self.centre[functions], self.counts)


def make_quadratics(curvatures: list[float], size: int = 8) -> Quadratics:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(len(curvatures), size, size, generator=generator, dtype=torch.float64)
    hessian = root @ root.mT / size + 0.5 * torch.eye(size, dtype=torch.float64)
    hessian = hessian * torch.tensor(curvatures, dtype=torch.float64)[:, None, None]
    return Quadratics(hessian, torch.randn(len(curvatures), size, generator=generator, dtype=torch.float64), [])


def test_functions_of_very_different_curvature_are_minimised_together() -> None:
    functions = make_quadratics([1e-3, 1.0, 50.0])
    start = torch.zeros_like(functions.centre)
    size = functions(start).norm(dim=1)
    solution = minimise_each(functions, start, size, tolerance=1e-6, iterations=60)
    torch.testing.assert_close(solution, functions.centre, atol=1e-4, rtol=0)


def test_each_solution_is_that_of_the_function_alone() -> None:
    functions = make_quadratics([0.01, 1.0, 20.0])
    start = torch.zeros_like(functions.centre)
    size = functions(start).norm(dim=1)
    together = minimise_each(functions, start, size, tolerance=1e-3, iterations=60)
    for number in range(3):
        row = torch.tensor([number])
        alone = minimise_each(functions.select(row), start[row], size[row], tolerance=1e-3, iterations=60)
        assert (functions.select(row)(alone).norm(dim=1) <= 1e-3 * size[row]).all()
        torch.testing.assert_close(together[row], alone, atol=1e-2, rtol=0)


def test_functions_at_their_minimum_are_not_evaluated_again() -> None:
    functions = make_quadratics([1.0] * 6)
    start = functions.centre.clone()
    start[0] += 1
    size = functions(torch.zeros_like(start)).norm(dim=1)
    functions.counts.clear()
    minimise_each(functions, start, size, tolerance=1e-6, iterations=60)
    assert functions.counts[0] == 6
    assert set(functions.counts[1:]) == {1}
