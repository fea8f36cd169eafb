"""Fast0Tag against the pair loop, and its label vectors."""

import numpy as np
import pytest
import step_checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods import fast0tag as module
from halflabel.methods.base import recipe
from halflabel.methods.fast0tag import LabelVectorHead, RankNet
from halflabel.types import Targets

slow = step_checks.reference("fast0tag")


def _example(images, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-6, 7, (images, classes), generator=generator).double() / 2  # with ties
    labels = torch.randint(-1, 2, (images, classes), generator=generator)
    labels[0] = 0
    return x, labels


def _targets(labels, dtype=torch.float64):
    return Targets((labels > 0).to(dtype), (labels < 0).to(dtype))


@pytest.mark.parametrize("at_once", [1 << 22, 7], ids=["whole", "in parts"])
@pytest.mark.parametrize(("images", "classes"), [(8, 9), (2, 5), (6, 1), (12, 2), (1, 3)])
def test_value_and_gradient_are_those_of_the_pair_loop(images, classes, at_once, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_PAIRS", at_once)
    x, labels = _example(images, classes, seed=classes)
    x.requires_grad_()
    loss = RankNet()(x, _targets(labels))
    loss.sum().backward()
    for i in range(images):
        value, gradient = slow.loss(x[i].tolist(), labels[i].tolist())
        assert loss[i].sum().item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(x.grad[i], gradient, rtol=1e-9, atol=1e-9)
    assert (loss[labels <= 0] == 0).all()


def _table(classes=4):
    rng = np.random.default_rng(0)
    return Table.from_dense(rng.integers(-1, 2, (30, classes)))


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
def test_scores_are_inner_products_with_the_label_vectors(hidden):
    torch.manual_seed(0)
    head = LabelVectorHead(6, 4, 7, hidden, 0.5).double().eval()
    head.vectors.copy_(torch.randn(4, 7))
    features = torch.randn(3, 6, dtype=torch.float64)
    layers = [(part.weight.tolist(), part.bias.tolist()) for part in head.projection if hasattr(part, "weight")]
    assert len(layers) == len(hidden) + 1
    expected = [slow.score(row, layers, head.vectors.tolist()) for row in features.tolist()]
    np.testing.assert_allclose(head(features).logits.detach(), expected, rtol=1e-9)
    maps = features[:, :, None, None].expand(-1, -1, 2, 2)
    torch.testing.assert_close(head.class_maps(maps)[:, :, 1, 0], head(features).logits)


def test_vectors_of_a_trained_model_are_kept():
    trained = recipe("fast0tag").make(vector_size=6)
    trained_head = trained.head(5, 4)
    trained.start(_table(), Model(None, trained_head))
    more_labels = Table.from_dense(np.random.default_rng(1).integers(-1, 2, (30, 4)))
    method = recipe("fast0tag").make(vector_size=6)
    continued, fresh = method.head(5, 4), method.head(5, 4)
    continued.load_state_dict(trained_head.state_dict())
    for head in (continued, fresh):
        method.start(more_labels, Model(None, head))
    assert torch.equal(continued.vectors, trained_head.vectors)
    assert not torch.equal(fresh.vectors, trained_head.vectors)
