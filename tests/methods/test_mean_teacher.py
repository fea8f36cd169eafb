"""The mean teacher against the slow loop."""

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Linear, Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.types import Batch

slow = checks.reference("mean_teacher")


def flat(model):
    return [value for parameter in model.parameters() for value in parameter.reshape(-1).tolist()]


def layers(model):
    return model.head.linear.weight.tolist(), model.head.linear.bias.tolist()


@pytest.mark.parametrize(("ramp_up", "decay"), [(0.5, 0.3), (0.0, 0.9)])
def test_losses_and_teacher_are_those_of_the_slow_loop(ramp_up, decay):
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 0, 1], (6, 4))
    torch.manual_seed(0)
    model = Model(None, Linear(5, 4)).double()
    method = recipe("mean-teacher").make(weight=3.0, decay=decay, ramp_up=ramp_up)
    method.plan(4)
    method.start(Table.from_dense(labels), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    teacher = Model(None, Linear(5, 4)).double()
    teacher.load_state_dict(model.state_dict())
    for step in range(4):
        weak, strong = rng.normal(size=(2, 6, 5))
        batch = Batch(torch.arange(6), (torch.from_numpy(weak), torch.from_numpy(strong)), torch.from_numpy(labels))
        scores = [
            slow.score(*layers(network), view) for network, view in ((model, weak), (model, strong), (teacher, weak))
        ]
        expected = slow.loss(*scores, labels.tolist(), slow.weight_in(step + 1, 4, 3.0, ramp_up))
        loss = method.step(model, batch, step + 1)
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step(model)
        averaged = slow.average(flat(teacher), flat(model), step, decay)
        np.testing.assert_allclose(flat(method.teacher.model), averaged, rtol=1e-12)
        teacher.load_state_dict(method.teacher.model.state_dict())
    assert method.evaluated(model) is method.teacher.model


def test_only_the_model_learns():
    model = Model(None, Linear(5, 4))
    method = recipe("mean-teacher").make()
    method.start(Table.from_dense(np.eye(4, dtype=np.int64)), model)
    assert [group["params"] for group in method.parameter_groups(0.1)] == [[]]
    method.train()
    assert not method.teacher.model.training
