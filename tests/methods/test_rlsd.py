"""RLSD on fixed windows against one region at a time; its windows, its ends, and what it learns."""

import numpy as np
import pytest
import step_checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.rlsd import Regional, windows
from halflabel.types import Batch

slow = step_checks.reference("rlsd")

SMALL = {"dimensions": 4, "hidden": 3}


def _head(classes, seed=0, **options):
    torch.manual_seed(seed)
    head = Regional(5, classes, **{**SMALL, **options}).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.9)
    return head


def _maps(images, height=4, width=3, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(images, 5, height, width, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("height", "width"), [(4, 3), (1, 1), (7, 2), (14, 14)])
@pytest.mark.parametrize("levels", [1, 2, 3, 5])
def test_windows_are_means_over_boxes(height, width, levels):
    maps = _maps(2, height, width)
    regions = windows(maps, levels)
    boxes = list(slow.regions(levels))
    assert regions.shape == (2, sum(n * n for n in range(1, levels + 1)), 5) == (2, len(boxes), 5)
    for r, box in enumerate(boxes):
        torch.testing.assert_close(regions[1, r], slow.mean_over(maps[1], box), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(regions[:, 0], maps.mean((2, 3)), rtol=1e-9, atol=1e-9)


def _labels(images, classes):
    labels = np.random.default_rng(1).integers(-1, 2, (images, classes)).astype(np.int8)
    labels[0] = 0
    labels[-1] = -1
    return labels


@pytest.mark.parametrize(
    ("images", "classes", "levels", "length"), [(4, 6, 2, 4), (1, 4, 3, 2), (3, 1, 2, 3), (3, 5, 2, 1)]
)
def test_value_and_gradient_are_those_of_one_region_at_a_time(images, classes, levels, length):
    labels = _labels(images, classes)
    method = recipe("rlsd").make(unknown="ignore", levels=levels, length=length, **SMALL)
    method.start(Table.from_dense(labels))
    head, maps = _head(classes, levels=levels, length=length).train(), _maps(images)
    loss = method.step(Model(None, head), Batch(torch.arange(images), (maps,), torch.from_numpy(labels)), 1)
    expected, known = 0.0 * head.labels.sum(), 0
    for i in range(images):
        for c, x in enumerate(slow.logits(head, maps[i], levels, length)):
            if labels[i, c]:
                known += 1
                expected = expected - torch.log(torch.sigmoid(int(labels[i, c]) * x))
    expected = expected / max(known, 1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    parameters = list(head.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    expected_gradients = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def test_a_region_that_names_nothing_has_no_second_step():
    """All margins of the first step are below 0: later steps do not count."""
    head, maps = _head(5, length=5), _maps(3)
    head.labels.data[:5] = -head.labels.data[5 + 1].abs() - 1
    head.labels.data[5 + 1] = head.labels.data[5 + 1].abs() + 1
    short = _head(5, length=1)
    short.load_state_dict(head.state_dict())
    with torch.no_grad():
        assert (head(maps).logits <= 0).all()
        torch.testing.assert_close(head(maps).logits, short(maps).logits, rtol=0, atol=0)
