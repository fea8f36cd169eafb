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
