"""LogicMix against the slow loop."""

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Linear, Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.types import Batch, Output

slow = checks.reference("logic_mix")


@pytest.mark.parametrize("images", [2, 3])
@pytest.mark.parametrize("values", [[-1, 0, 1], [0, 1]])
def test_loss_is_that_of_the_slow_loop(images, values):
    rng = np.random.default_rng(0)
    labels, features = rng.choice(values, (7, 4)), rng.normal(size=(7, 5))
    torch.manual_seed(0)
    model = Model(None, Linear(5, 4)).double()
    method = recipe("logic-mix").make(members=images, weight=0.7)
    method.start(Table.from_dense(labels), model)
    weight, bias = model.head.linear.weight.detach().numpy(), model.head.linear.bias.detach().numpy()
    torch.manual_seed(3)
    orders = [torch.randperm(7).tolist() for _ in range(images - 1)]
    expected = slow.loss(lambda x: weight @ x + bias, features.tolist(), labels.tolist(), orders, 0.7, -1 not in values)
    torch.manual_seed(3)
    batch = Batch(torch.arange(7), (torch.from_numpy(features),), torch.from_numpy(labels))
    assert method.step(model, batch, 1).item() == pytest.approx(expected, rel=1e-12)


def test_mixed_photos_are_bytes(monkeypatch):
    views = []

    class Photos(Model):
        def forward(self, view):
            views.append(view)
            logits = self.head.linear(view.float().mean((2, 3)))
            return Output(logits, logits)

    model = Photos(None, Linear(3, 2))
    method = recipe("logic-mix").make()
    labels = torch.tensor([[1, -1], [-1, 0]])
    method.start(Table.from_dense(labels.numpy()), model)
    photos = torch.stack([torch.full((3, 2, 2), 255), torch.full((3, 2, 2), 100)]).to(torch.uint8)
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: torch.tensor([1, 0]))
    method.step(model, Batch(torch.arange(2), (photos,), labels), 1)
    assert views[0].dtype == torch.uint8
    assert views[0][2:].unique().tolist() == [178]
