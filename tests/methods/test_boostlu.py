"""BoostLU against the slow loop, and half precision, order and state."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.methods.base import recipe
from halflabel.methods.boostlu import BoostedMaps
from halflabel.types import Batch

slow = checks.reference("boostlu")
large = checks.reference("large_loss")


def features(images=3, channels=4, high=2, wide=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, channels, high, wide, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("shape", [(3, 4, 2, 3), (1, 4, 1, 1), (2, 1, 3, 3)])
@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_scores_are_the_slow_loop(shape, alpha):
    maps = features(*shape)
    head = BoostedMaps(shape[1], 3, alpha).double()
    output = head(maps)
    weight, bias = head.conv.weight[:, :, 0, 0], head.conv.bias
    expected = slow.scores(maps, weight, bias, alpha)
    torch.testing.assert_close(output.logits, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.maps.mean(dim=(2, 3)), output.logits)
    assert output.features.shape == shape[:2]
    gradients = torch.autograd.grad(output.logits.square().sum(), list(head.parameters()))
    expected_gradients = torch.autograd.grad(expected.square().sum(), list(head.parameters()))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(lambda x: head(x).logits, maps.requires_grad_())


def test_boost_of_scores_only_leaves_training_plain():
    method = recipe("boostlu").make(while_training=False)
    head = method.head(4, 3).double()
    boosted = BoostedMaps(4, 3, 5.0).double()
    boosted.load_state_dict(head.state_dict())
    plain = BoostedMaps(4, 3, 1.0).double()
    plain.load_state_dict(head.state_dict())
    torch.testing.assert_close(head(features()).logits, plain(features()).logits)
    torch.testing.assert_close(head.eval()(features()).logits, boosted(features()).logits)
    assert (boosted(features()).logits >= plain(features()).logits).all()
    assert head.needs_maps


@pytest.mark.parametrize(
    ("scheme", "kind", "delta"), [("ll-r", "reject", 0.5), ("ll-ct", "correct", 0.2), ("ll-cp", "keep", 0.1)]
)
def test_step_is_the_slow_loop(scheme, kind, delta):
    labels = np.array([[1, 0, -1], [0, 0, 0], [0, 1, 0]], np.int8)
    method = checks.begin(recipe("boostlu").make(scheme=scheme), labels)
    model = Model(None, method.head(4, 3)).double()
    batch = Batch(torch.arange(3), (features(),), torch.from_numpy(labels))
    loss = method.step(model, batch, 5)
    conv = model.head.conv
    x = slow.scores(features(), conv.weight[:, :, 0, 0], conv.bias, 5.0)
    expected, _ = large.large_loss([list(row) for row in x], labels, 5, kind, delta)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)


def test_schemes():
    assert recipe("boostlu").make(scheme="ll-ct").relabel.delta == 0.2
    assert recipe("boostlu").make(scheme="ll-cp", delta=1.5).relabel.delta == 1.5
    logits, labels = checks.inputs(0, 4, 5)
    an = recipe("an").make()
    checks.same(
        checks.step(recipe("boostlu").make(scheme="an"), logits, labels, 3), checks.step(an, logits, labels, 3), 0
    )
    with pytest.raises(UserError, match="ll-r, ll-ct, ll-cp"):
        recipe("boostlu").make(scheme="ll")
    with pytest.raises(UserError, match="alpha"):
        recipe("boostlu").make(alpha=0.5)
