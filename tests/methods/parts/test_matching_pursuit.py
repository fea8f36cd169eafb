"""Joint non-negative OMP against algorithm 2 run image by image, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks
import torch

from halflabel.methods.parts.matching_pursuit import Part, joint_omp

slow = step_checks.reference("omp")


def case(seed, images=8, items=None, classes=6, channels=7, kind="normal"):
    """Targets and items of both parts; by default the images are the items, and none is its own."""
    rng = np.random.default_rng(seed)
    count = images if items is None else items
    y, f = rng.normal(size=(images, classes)), np.abs(rng.normal(size=(images, channels)))
    if kind == "ties":
        y, f = rng.choice([-0.5, 1.0], (images, classes)), np.round(f)
    if kind == "duplicates":
        y[4:6], f[4:6] = y[2:4], f[2:4]
    if kind == "zeros":
        y[0], f[-1] = 0, 0
    other_y, other_f = (y, f) if items is None else (rng.normal(size=(count, classes)), rng.random((count, channels)))
    graph = np.eye(classes) + rng.random((classes, classes)) * (rng.random((classes, classes)) < 0.3)
    allowed = ~np.eye(images, dtype=bool) if items is None else np.ones((images, count), bool)
    return [(y, other_y @ graph.T, 1.0, other_y), (f, other_f, 0.5, other_f)], allowed


def run(parts, k, allowed, dtype=torch.float64):
    tensors = [
        Part(
            *(torch.from_numpy(array).to(dtype) for array in (targets, items)),
            weight,
            torch.from_numpy(agree).to(dtype),
        )
        for targets, items, weight, agree in parts
    ]
    return joint_omp(tensors, k, allowed=None if allowed is None else torch.from_numpy(allowed))


def check(parts, allowed, k):
    solution = run(parts, k, allowed)
    index, weights = slow.joint_omp(parts, k, allowed)
    np.testing.assert_array_equal(solution.index.numpy(), index)
    for actual, expected in zip(solution.weights, weights, strict=True):
        np.testing.assert_allclose(actual.numpy(), expected, atol=1e-8)
    return solution


@pytest.mark.parametrize("kind", ["normal", "ties", "duplicates", "zeros"])
def test_is_algorithm_2_image_by_image(kind):
    longest = 0
    for seed in range(6):
        actual = check(*case(seed, kind=kind), 5)
        longest = max(longest, int((actual.index >= 0).sum(1).max()))
    assert longest >= 3


def test_nothing_to_choose_from():
    parts, _ = case(0)
    for allowed in (np.zeros((8, 8), bool), np.eye(8, dtype=bool) & False):
        solution = run(parts, 3, allowed)
        assert (solution.index == -1).all()
        assert not any(part.any() for part in solution.weights)
    none = [(targets, items[:0], weight, agree[:0]) for targets, items, weight, agree in parts]
    assert run(none, 3, None).index.shape == (8, 3)
    no_images = [(targets[:0], items, weight, agree) for targets, items, weight, agree in parts]
    assert run(no_images, 3, None).index.shape == (0, 3)


def test_single_precision_is_close_and_half_is_widened():
    parts, allowed = case(3, 20, classes=30, channels=40)
    wide, single = run(parts, 4, allowed), run(parts, 4, allowed, torch.float32)
    assert torch.equal(wide.index, single.index)
    np.testing.assert_allclose(single.weights[0], wide.weights[0], atol=1e-5, rtol=1e-4)
    half = run(parts, 4, allowed, torch.bfloat16)
    assert half.weights[0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        cast = run(parts, 4, allowed, torch.float32)
    assert torch.equal(cast.weights[1], single.weights[1])
