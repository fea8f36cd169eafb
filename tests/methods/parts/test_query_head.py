"""The query head against a slow loop."""

import pytest
import step_checks
import torch

from halflabel.methods.ml_decoder import QueryHead

slow = step_checks.reference("query_head")


def make(classes=5, **options):
    torch.manual_seed(0)
    head = QueryHead(6, classes, width=8, heads=2, **options).double().eval()
    for parameter in head.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return head


@pytest.mark.parametrize(("classes", "queries", "count"), [(5, 0, 5), (5, 2, 2), (5, 4, 3), (1, 0, 1), (3, 9, 3)])
def test_logits_and_gradients_are_those_of_the_slow_loop(classes, queries, count):
    head = make(classes, queries=queries)
    assert len(head.queries) == count
    maps = torch.randn(3, 6, 2, 2, dtype=torch.float64)
    logits = head(maps).logits
    expected = torch.stack([torch.stack(slow.logits(image.flatten(1), head)) for image in maps])
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(logits)
    grads = (torch.autograd.grad((x * direction).sum(), list(head.parameters())) for x in (logits, expected))
    for gradient, expected_gradient in zip(*grads, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-9)


def test_maps_are_the_attention_and_pooled_features_one_place():
    head = make(queries=2)
    maps = torch.randn(2, 6, 2, 3, dtype=torch.float64)
    class_maps = head.class_maps(maps)
    assert class_maps.shape == (2, 5, 2, 3)
    torch.testing.assert_close(class_maps.sum((2, 3)), torch.ones(2, 5, dtype=torch.float64))
    assert torch.equal(class_maps[:, 0], class_maps[:, 2])  # classes 0 to 2 share a query
    assert not torch.equal(class_maps[:, 0], class_maps[:, 3])
    pooled = maps.mean((2, 3))
    torch.testing.assert_close(head(pooled).logits, head(pooled[:, :, None, None]).logits)
