"""ss-rml: labels passed on between similar images, and its training."""

import math

import numpy as np
import pytest
import step_checks
import torch
from rml_examples import make_batch

from halflabel.features.heads import Model
from halflabel.fitting.callbacks import Callback
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.methods.rml import PropagateLabels, Transductive
from halflabel.types import Output, Sweep, Targets

slow_propagation = step_checks.reference("ss_rml")


def _scattered(seed=0, images=12, classes=5):
    """Images with all, some and no labels."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((images, classes)) < 0.4, 1, -1)
    labels[:3] = 0
    labels[3:8][rng.random((5, classes)) < 0.5] = 0
    labels[3:, 0] = -1
    features = torch.from_numpy(rng.normal(size=(images, 4))).float()
    return labels.astype(np.int8), features


@pytest.mark.parametrize("unknown", ["ignore", "negative"])
@pytest.mark.parametrize(("t", "labelled"), [(0.0, 1.0), (1.5, 5.0)])
def test_labels_are_passed_on_as_in_the_loop(unknown, t, labelled):
    labels, features = _scattered()
    relabel = PropagateLabels(first=1, every=1, t=t, labelled=labelled, unknown=unknown)
    relabel.start(Table.from_dense(labels))
    logits = torch.zeros(labels.shape, dtype=torch.float64)
    before = relabel(make_batch(labels), logits, 1)
    pos, neg = slow_propagation.targets(labels.tolist(), {}, labelled, unknown == "negative")
    assert before.pos.tolist() == pos
    assert before.neg.tolist() == neg
    log = relabel.absorb(Sweep(logits.float(), features), 1)
    passed = slow_propagation.propagate(features.tolist(), labels.tolist(), t)
    assert relabel.neighbour.tolist() == [passed.get(i, (-1, 0))[0] for i in range(len(labels))]
    assert log["propagated_images"] == len(passed)
    assert log["similarity"] == pytest.approx(np.mean([s for _, s in passed.values()]), rel=1e-5)
    targets = relabel(make_batch(labels), logits, 2)
    pos, neg = slow_propagation.targets(labels.tolist(), passed, labelled, unknown == "negative")
    np.testing.assert_allclose(targets.pos, pos, rtol=1e-5)
    np.testing.assert_allclose(targets.neg, neg, rtol=1e-5)
    assert (targets.pos >= 0).all()
    assert (targets.neg >= 0).all()
    assert torch.equal(targets.pos[labels > 0], torch.full(((labels > 0).sum(),), labelled, dtype=torch.float64))
    # Any batch in any order gives the same rows.
    index = torch.tensor([9, 0, 4, 4])
    part = relabel(make_batch(labels[index], index), logits[index], 2)
    assert torch.equal(part.pos, targets.pos[index])
    assert torch.equal(part.neg, targets.neg[index])


def test_unreadable_images_neither_give_nor_get_labels():
    labels, features = _scattered()
    features[[0, 9]] = torch.nan
    relabel = PropagateLabels(1, 20, 0.0, 1.0, "auto")
    relabel.start(Table.from_dense(labels))
    relabel.absorb(Sweep(torch.zeros(labels.shape), features), 1)
    assert relabel.neighbour[0] == -1
    assert relabel.neighbour[1] >= 0
    assert not (relabel.neighbour == 9).any()
    assert relabel.similarity.isfinite().all()


def test_epochs_that_want_a_sweep():
    relabel = PropagateLabels(3, 20, 0.0, 1.0, "auto")
    relabel.start(Table.from_dense([[1, -1], [0, 0]]))
    assert [epoch for epoch in range(1, 50) if relabel.wants_sweep(epoch)] == [3, 23, 43]
    relabel.start(Table.from_dense([[1, -1], [1, 1]]))
    assert not relabel.wants_sweep(3)  # nothing is unknown
    at_once = PropagateLabels(0, 20, 0.0, 1.0, "auto")
    at_once.start(Table.from_dense([[1, -1], [0, 0]]))
    assert [epoch for epoch in range(50) if at_once.wants_sweep(epoch)] == [0, 20, 40]
    assert at_once.wants_sweep_first()
    assert not relabel.wants_sweep_first()
    never = PropagateLabels(3, 20, 0.0, 1.0, "auto", propagate=False)
    never.start(Table.from_dense([[1, -1], [0, 0]]))
    assert not any(never.wants_sweep(epoch) for epoch in range(50))
    assert never.begins() is None
    later = PropagateLabels(-1, 20, 0.0, 1.0, "auto")
    for epochs, first in ((4, 1), (20, 5)):
        later.plan(epochs)
        assert later.first == first


@pytest.mark.parametrize("broken", [False, True])
def test_given_features_pass_labels_on_before_the_first_epoch(tmp_path, broken):
    """Section 2.2: similarities are computed at the beginning, and what is passed on stays until the end."""
    labels, features = _scattered()
    table = Table.from_dense(labels)
    states = []

    class Recorder(Callback):
        def on_epoch_start(self, epoch, epochs, images):
            states.append((relabel.neighbour.tolist(), relabel.similarity.tolist()))

        def on_step_end(self, images, loss):
            if broken and len(states) == 1:
                raise KeyboardInterrupt

    def go(**more):
        method = recipe("ss-rml").make(start=0)
        nonlocal relabel
        relabel = method.relabel
        model = Model(None, seeded(0, lambda: method.head(4, labels.shape[1])))
        settings = Config(epochs=2, batch_size=4, device="cpu", save_every=1)
        fit(model, method, Features(features, table.images), table, settings, folder=tmp_path, **more)

    relabel = None
    if broken:
        with pytest.raises(KeyboardInterrupt):
            go(callback=Recorder())
    go(callback=Recorder(), resume=broken)
    takers, givers = [i for i in range(12) if (labels[i] == 0).any()], [i for i in range(12) if labels[i].any()]
    nearest, distance = [-1] * 12, {}
    for i in takers:
        distance[i], nearest[i] = min((float((features[i] - features[j]).norm()), j) for j in givers if j != i)
    t = sum(distance.values()) / len(takers) * len(takers) / 12
    assert len(states) == 2 + broken
    for neighbour, similarity in states:
        assert neighbour == nearest
        assert similarity == pytest.approx([math.exp(-distance[i] / t) if i in distance else 0.0 for i in range(12)])


def test_transductive_term():
    x = torch.tensor([[0.5, -0.25, 3.0], [0.1, 0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    batch = make_batch([[0, 0, 0], [0, 1, 0]])
    value = Transductive(2.0)(Output(x, x), batch, Targets(x, x))
    assert value.item() == pytest.approx(2 * (0.5 + 0.75) / 2)
    value.backward()
    assert x.grad.tolist() == [[-1, 1, 0], [0, 0, 0]]
    assert len(recipe("ss-rml").make(eta=2.0).terms) == 1
