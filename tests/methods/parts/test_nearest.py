"""Nearest neighbours against the slow loop: ties, duplicates, skipped references, small budgets, bad input."""

import pytest
import step_checks
import torch

from halflabel.methods.parts.propagation import nearest

slow = step_checks.reference("neighbours")


def _check(queries, references, k, skip=None, **options):
    distance, index = nearest(queries, references, k, skip=skip, **options)
    expected = slow.nearest(
        queries.double().tolist(), references.double().tolist(), k, None if skip is None else skip.tolist()
    )
    assert index.tolist() == [[number for _, number in row] for row in expected]
    expected_distance = torch.tensor([[distance for distance, _ in row] for row in expected])
    torch.testing.assert_close(distance, expected_distance, rtol=1e-6, atol=0)
    assert distance.dtype == torch.float32


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("budget", [256 << 20, 3000, 1])
def test_equals_the_slow_loop_with_any_memory_budget(k, budget):
    torch.manual_seed(0)
    _check(torch.randn(23, 6), torch.randn(17, 6), k, budget=budget)


@pytest.mark.parametrize("k", [1, 4])
def test_equal_distances_go_to_the_lower_number(k):
    torch.manual_seed(1)
    grid = torch.randint(0, 2, (40, 4)).float()  # 16 points at most: many exact ties
    _check(torch.randint(0, 2, (30, 4)).float(), grid, k)


def test_duplicates_far_from_the_origin_are_told_apart():
    """float32 products alone lose differences of 1e-3 at 1e3 from the origin; the direct measure does not."""
    torch.manual_seed(2)
    references = 1000 + torch.randn(50, 8) * 1e-3
    references[30] = references[7]
    distance, index = nearest(references, references)
    assert distance.max() == 0
    assert index[30] == 7
    _check(1000 + torch.randn(20, 8) * 1e-3, references, 3)


def test_one_far_reference_does_not_spoil_the_order_of_the_near_ones():
    torch.manual_seed(3)
    references = torch.randn(30, 5)
    references[4] *= 1e4
    _check(torch.randn(20, 5), references, 5)


def test_a_query_never_gets_the_reference_it_skips():
    torch.manual_seed(4)
    points = torch.randn(20, 3)
    points[5] = points[6]
    _check(points, points, 2, torch.arange(20))
    skip = torch.arange(20)
    skip[::2] = -1
    _check(points, points, 2, skip)
    assert nearest(points, points, skip=torch.arange(20))[1][5] == 6


def test_all_alike():
    distance, index = nearest(torch.ones(3, 2), torch.ones(5, 2), 2)
    assert index.tolist() == [[0, 1]] * 3
    assert distance.tolist() == [[0.0, 0.0]] * 3


def test_half_precision_features_and_no_queries():
    torch.manual_seed(5)
    _check(torch.randn(4, 3).half(), torch.randn(6, 3).half(), 2)
    distance, index = nearest(torch.zeros(0, 3), torch.zeros(2, 3), 2)
    assert index.shape == distance.shape == (0, 2)


def test_too_few_references_and_nan_are_refused():
    with pytest.raises(ValueError, match="3 neighbours of 2 references"):
        nearest(torch.zeros(1, 2), torch.zeros(2, 2), 3)
    with pytest.raises(ValueError, match="1 neighbours of 0 references"):
        nearest(torch.zeros(1, 2), torch.zeros(1, 2), skip=torch.tensor([0]))
    with pytest.raises(ValueError, match="finite"):
        nearest(torch.full((1, 2), torch.nan), torch.zeros(1, 2))
