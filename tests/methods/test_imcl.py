"""imcl against the slow loop, its memory, its ablations, and half precision, order and state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from imcl_examples import Split, bce_loss, begin, checks, inputs, make, matrix_of, reference_step, slow, step

from halflabel.features.heads import Linear, Model
from halflabel.fitting.callbacks import Callback
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import seeded


@pytest.mark.parametrize("shape", [(7, 6), (1, 7), (6, 1), (1, 1), (2, 3)])
@pytest.mark.parametrize("ties", [False, True])
def test_is_the_slow_loop(shape, ties):
    view, labels = inputs(0, *shape, ties=ties)
    for options in ({}, {"lambda_y": 2.0, "lambda_f": 0.3, "k": 3}, {"lambda_y": 0.0, "k": 1}):
        method = begin(labels, k_a=2, **options)
        checks.same(step(method, view, labels), reference_step(method, view, labels, **options))


def test_an_image_without_similar_ones_is_left_alone():
    labels = np.array([[1, 0, -1], [0, 0, 0]], np.int8)
    view = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    loss, by_view, _ = step(begin(labels), view, labels)  # features at right angles
    assert math.isclose(loss, 2 * math.log(2) / 6, rel_tol=1e-12)
    assert not by_view[:, 3:].any()
    assert not by_view[1].any()


def test_smoothness_is_left_out_until_it_is_measured():
    view, labels = inputs(10, 6, 4)
    method = begin(labels, rescale=True)
    loss, by_view, by_matrix = step(method, view, np.zeros_like(labels))
    assert not method.measured.any()  # no cross-entropy to compare with
    assert loss == 0
    assert not by_view.any()
    assert not by_matrix.any()
    method.eval()
    assert float(step(method, view, labels)[0]) == pytest.approx(bce_loss(view, labels))
    method.train()
    assert float(step(method, view, labels)[0]) == pytest.approx(bce_loss(view, labels) * (1 + 1.0 + 0.5))


@pytest.mark.parametrize("logistic", [0, 2])
def test_rescaling_is_by_means_over_the_last_logistic_epoch_or_the_first_after(logistic):
    options = {"lambda_y": 2.0, "lambda_f": 0.3, "k": 3}
    views, labels = zip(*(inputs(seed, 6, 4) for seed in range(20, 26)), strict=True)
    labels = list(labels)
    labels[0] = labels[3] = np.zeros_like(labels[0])
    method = begin(labels[1], rescale=True, logistic_share=logistic / 4, **options)
    method.plan(4)
    matrix = [list(row) for row in matrix_of(method, 4)]
    rows = [[list(row) for row in view] for view in views]
    sums = np.zeros(3)
    for epoch in range(1, 5):
        for view, row, known in zip(views, rows, labels, strict=True):
            loss = float(step(method, view, known, epoch)[0])
            logits, features = [list(values[:4]) for values in row], [list(values[4:]) for values in row]
            cross_entropy = float(slow.imcl(logits, features, known, matrix, lambda_y=0.0, lambda_f=0.0))
            if epoch < logistic:
                assert loss == pytest.approx(cross_entropy)
                continue
            # Neighbours are looked for with what was measured before this batch.
            scale = [sums[0] / total if total else 1.0 for total in sums[1:]]
            smoothness = slow.smoothness(
                slow.impute(logits, known), features, matrix, 2.0 * scale[0], 0.3 * scale[1], 3
            )
            l_y, l_f = (float(total) / 24 for total in smoothness)
            if epoch == max(logistic, 1) and known.any():
                sums += [cross_entropy, l_y, l_f]
            if epoch == logistic:
                assert loss == pytest.approx(cross_entropy)
                continue
            rescaled = 2.0 * l_y * sums[0] / sums[1] + 0.3 * l_f * sums[0] / sums[2] if sums.any() else 0.0
            assert loss == pytest.approx(cross_entropy + rescaled)
    np.testing.assert_allclose(method.measured, sums)
    assert sums[0] > 0


def test_a_is_learned_at_its_own_rate_and_stays_above_zero():
    view, labels = inputs(11, 12, 5)
    method = checks.begin(make(k_a=4, graph_rate=7.0, lambda_f=0.0), labels)
    (group,) = method.parameter_groups(0.02)
    assert group["base_lr"] == pytest.approx(0.14)
    assert group["weight_decay"] == 0
    assert [p.shape for p in group["params"]] == [method.graph.weights.shape]
    optimizer = torch.optim.RMSprop(method.parameters(), lr=0.02)
    plain, smooth = bce_loss(view.float(), labels), []
    for number in range(100):
        epoch = 1 if number == 0 else 2  # the scale is measured by the first step alone
        loss = method.step(Split(5), checks.batch(view.float(), labels), epoch)
        assert (method.graph.weights >= 0).all()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth.append(float(loss.detach()) - plain)
    assert smooth[-1] < 0.97 * smooth[0]
    assert (method.graph.edges().weights == 0).any()


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("options", [{"dictionary": 9, "rescale": True}, {"image_similarity": "fixed"}])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, options, within):
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice([-1, 0, 1], (24, 4)))
    values = torch.from_numpy(rng.random((24, 6))).float()
    settings = Config(epochs=4, batch_size=8, lr=0.01, device="cpu", save_every=1)

    class Break(Callback):
        """At the end of epoch 3, or after the second of three batches of the epoch in which the scale is measured."""

        def __init__(self):
            self.epoch, self.steps = 0, 0

        def on_epoch_start(self, epoch, epochs, images):
            self.epoch, self.steps = epoch, 0

        def on_step_end(self, images, loss):
            self.steps += 1
            if self.epoch == (3 if options.get("image_similarity") else 2) and self.steps == 2 and within:
                raise KeyboardInterrupt

        def on_epoch_end(self, log):
            if log["epoch"] == 3:
                raise KeyboardInterrupt

    def go(**more):
        method = make(**options)
        model = Model(None, seeded(0, lambda: Linear(6, 4)))
        fit(model, method, Features(values, table.images), table, settings, **more)
        return {**model.state_dict(), **method.state_dict()}

    expected = go()
    with pytest.raises(KeyboardInterrupt):
        go(folder=tmp_path, callback=Break())
    fitted = go(folder=tmp_path, resume=True)
    assert fitted.keys() == expected.keys()
    assert all(torch.equal(fitted[name], value) for name, value in expected.items())
