"""The nearest neighbour against the slow loop: ties, duplicates, skipped references, small budgets."""

import pytest
import step_checks
import torch

from halflabel.methods.rml import nearest

slow = step_checks.reference("neighbours")


def _check(queries, references, skip=None, **options):
    skip = torch.full((len(queries),), -1) if skip is None else skip
    distance, index = nearest(queries, references, skip, **options)
    expected = slow.nearest(queries.double().tolist(), references.double().tolist(), skip.tolist())
    assert index.tolist() == [number for _, number in expected]
    torch.testing.assert_close(distance, torch.tensor([distance for distance, _ in expected]), rtol=1e-6, atol=0)
    assert distance.dtype == torch.float32
    return distance, index


@pytest.mark.parametrize("budget", [256 << 20, 3000, 1])
def test_equals_the_slow_loop_with_any_memory_budget(budget):
    torch.manual_seed(0)
    _check(torch.randn(23, 6), torch.randn(17, 6), budget=budget)


def test_equal_distances_go_to_the_lower_number():
    torch.manual_seed(1)
    grid = torch.randint(0, 2, (40, 4)).float()  # 16 points at most: many exact ties
    _check(torch.randint(0, 2, (30, 4)).float(), grid)
    distance, index = _check(torch.ones(3, 2), torch.ones(5, 2))
    assert (distance.tolist(), index.tolist()) == ([0.0] * 3, [0] * 3)


def test_duplicates_far_from_the_origin_are_distinguished():
    """float32 products alone lose differences of 1e-3 at 1e3 from the origin; the direct measure does not."""
    torch.manual_seed(2)
    references = 1000 + torch.randn(50, 8) * 1e-3
    references[30] = references[7]
    distance, index = _check(references, references)
    assert distance.max() == 0
    assert index[30] == 7
    _check(1000 + torch.randn(20, 8) * 1e-3, references)


def test_one_far_reference_does_not_spoil_the_order_of_the_near_ones():
    torch.manual_seed(3)
    references = torch.randn(30, 5)
    references[4] *= 1e4
    _check(torch.randn(20, 5), references)


def test_a_query_never_gets_the_reference_it_skips():
    torch.manual_seed(4)
    points = torch.randn(20, 3)
    points[5] = points[6]
    skip = torch.arange(20)
    _, index = _check(points, points, skip)
    assert index[5] == 6
    skip[::2] = -1
    _check(points, points, skip)


def test_half_precision_features_and_no_queries():
    torch.manual_seed(5)
    _check(torch.randn(4, 3).half(), torch.randn(6, 3).half())
    _check(torch.zeros(0, 3), torch.zeros(2, 3))
