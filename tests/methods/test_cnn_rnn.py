"""CNN-RNN against one path at a time: the loss, the beam search, and unknown labels."""

import math

import numpy as np
import pytest
import step_checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.cnn_rnn import Ordered, RecurrentHead
from halflabel.types import Batch

slow = step_checks.reference("cnn_rnn")

SMALL = {"dimensions": 4, "hidden": 3, "dropout": 0.0}


def _head(classes, channels=5, seed=0, **options):
    torch.manual_seed(seed)
    head = RecurrentHead(channels, classes, **{**SMALL, **options}).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def _features(images, channels=5):
    return torch.randn(images, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _labels(images, classes, seed=1):
    labels = np.random.default_rng(seed).integers(-1, 2, (images, classes)).astype(np.int8)
    labels[0] = 0
    labels[-1] = -1
    return labels


@pytest.mark.parametrize("order", ["frequent", "rare", "learned"])
@pytest.mark.parametrize(("images", "classes"), [(7, 5), (1, 4), (4, 1), (2, 2)])
def test_value_and_gradient_are_those_of_one_path_at_a_time(images, classes, order):
    labels = _labels(images, classes)
    method = recipe("cnn-rnn").make(order=order, **SMALL)
    method.start(Table.from_dense(labels))
    head = _head(classes).train()
    features = _features(images)
    batch = Batch(torch.arange(images), (features,), torch.from_numpy(labels))
    loss = method.step(Model(None, head), batch, 1)
    positives = (labels > 0).sum(0)
    expected = 0.0 * head.labels.sum()
    for i in range(images):
        first = [value.item() for value in slow.scores(head, features[i], [])]
        key = {"frequent": -positives, "rare": positives, "learned": [-value for value in first[:-1]]}[order]
        ranked = sorted(range(classes), key=lambda c, key=key: key[c])
        expected = expected + slow.loss(head, features[i], labels[i].tolist(), ranked) / images
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    parameters = list(head.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    expected_gradients = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def _probabilities(head, features):
    with torch.no_grad():
        return torch.sigmoid(head.eval()(features).logits)


@pytest.mark.parametrize(("beam", "length"), [(1, 1), (1, 3), (2, 3), (3, 6), (4, 2)])
def test_the_beam_is_that_of_lists_of_paths(beam, length):
    head = _head(6, beam=beam, length=length)
    features = _features(5)
    probabilities = _probabilities(head, features)
    for i in range(5):
        expected = slow.beam_search(head, features[i], beam, length)
        np.testing.assert_allclose(probabilities[i], expected, rtol=1e-9)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_an_exhaustive_beam_gives_exact_probabilities(classes):
    """64 > 4! paths: every path is followed to its end."""
    head = _head(classes, beam=64)
    features = _features(3)
    probabilities = _probabilities(head, features)
    for i in range(3):
        np.testing.assert_allclose(probabilities[i], slow.named(head, features[i]), rtol=1e-9)


def test_paths_follow_the_order():
    table = Table.from_dense(np.array([[1, 0, 1], [0, 0, 1], [-1, 1, 1], [1, 0, 0]]))
    present = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 9.0, 6.0], [1.0, 2.0, 3.0]])
    expected = {
        "frequent": [[2, 0, 1], [2, 0, 3], [3, 3, 3]],
        "rare": [[1, 0, 2], [0, 2, 3], [3, 3, 3]],
        "learned": [[1, 2, 0], [2, 0, 3], [3, 3, 3]],
    }
    for order, paths in expected.items():
        ordered = Ordered(order, "auto")
        ordered.start(table)
        assert ordered.path(present, logits).tolist() == paths
    assert ordered.path(present[2:], logits[2:]).shape == (1, 0)


def test_the_logit_is_that_of_the_probability():
    head = _head(3, beam=1, length=1).eval()
    features = _features(1)
    p = slow.next_probabilities(head, features[0], ())[2]
    with torch.no_grad():
        assert head(features).logits[0, 2].item() == pytest.approx(math.log(p / (1 - p)), rel=1e-9)
