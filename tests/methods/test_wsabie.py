"""WSABIE against the loops over numbers and pairs."""

import numpy as np
import pytest
import step_checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.wsabie import Bilinear
from halflabel.types import Batch

slow = step_checks.reference("wsabie")


def _head(channels, classes, **options):
    torch.manual_seed(channels)
    return Bilinear(channels, classes, **options).double()


@pytest.mark.parametrize("norm", [0.0, 0.7, 3.0])
def test_scores_are_inner_products_of_bounded_vectors(norm):
    head = _head(5, 4, dimensions=3, norm=norm)
    features = torch.randn(6, 5, dtype=torch.float64)
    output = head(features)
    for i in range(6):
        expected = slow.score(features[i].tolist(), head.images.tolist(), head.labels.tolist(), norm)
        np.testing.assert_allclose(output.logits[i].detach(), expected, rtol=1e-9)
    maps = features[:, :, None, None].expand(-1, -1, 2, 2)
    torch.testing.assert_close(head.class_maps(maps)[:, :, 0, 1], output.logits)
    torch.testing.assert_close(head(maps).logits, output.logits)


@pytest.mark.parametrize(("images", "classes"), [(6, 5), (1, 4), (5, 1), (8, 2)])
def test_the_whole_step_with_exact_ranks(images, classes):
    labels = np.random.default_rng(classes).integers(-1, 2, (images, classes)).astype(np.int8)
    labels[0], labels[-1, -1] = 0, -1
    method = recipe("wsabie").make(rank="exact", dimensions=3)
    method.start(Table.from_dense(labels))
    head = method.head(4, classes).double()
    features = torch.randn(images, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.arange(images), (features,), torch.from_numpy(labels))
    loss = method.step(Model(None, head), batch, 1)
    gradient = torch.autograd.grad(loss, [head.images, head.labels])
    scored = [slow.score(row, list(head.images), list(head.labels), 0.0) for row in features.tolist()]
    expected = sum(slow.loss(x, row) for x, row in zip(scored, labels.tolist(), strict=True)) / images
    assert loss.item() == pytest.approx(slow.number(expected), rel=1e-9, abs=1e-12)
    if torch.is_tensor(expected):
        expected_gradient = torch.autograd.grad(expected, [head.images, head.labels])
        for actual, expected_part in zip(gradient, expected_gradient, strict=True):
            torch.testing.assert_close(actual, expected_part, rtol=1e-9, atol=1e-9)
    else:
        assert all(not part.any() for part in gradient)
