"""SR+CR against the slow loop, its two propositions, its ablation, and half precision, order and state."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Model
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.methods.srcr import Confident, SaliencyHead
from halflabel.types import Batch, Targets

slow = checks.reference("srcr")

SHAPES = [(3, 4, 2, 4), (1, 4, 1, 1), (2, 1, 3, 3), (4, 3, 1, 2)]


def features(images=3, channels=4, high=2, wide=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, channels, high, wide, dtype=torch.float64, generator=generator)


def make_labels(images, classes, seed=1):
    """Ternary labels; the first of several rows is wholly unknown."""
    labels = np.random.default_rng(seed).choice([-1, 0, 0, 1], (images, classes)).astype(np.int8)
    if images > 1:
        labels[0] = 0
    return labels


def given_cells(cells, **options):
    """A head of one class whose map has these cells, and its output: the one feature is the map itself."""
    head = SaliencyHead(1, 1, **options).double()
    with torch.no_grad():
        head.conv.weight.fill_(1)
        head.conv.bias.zero_()
    maps = torch.as_tensor(cells, dtype=torch.float64)[:, None, None, :].requires_grad_()
    return maps, head(maps)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("k", "alpha"), [(1, 0.5), (5, 0.5), (3, 0.0), (1000, 1.0)])
def test_scores_are_the_slow_loop(shape, k, alpha):
    maps = features(*shape)
    head = SaliencyHead(shape[1], 3, k, alpha).double()
    output = head(maps)
    expected = slow.logits(maps, head.conv.weight[:, :, 0, 0], head.conv.bias, k, alpha)
    expected = torch.stack([torch.stack(row) for row in expected])
    torch.testing.assert_close(output.logits, expected, rtol=1e-9, atol=1e-9)
    assert output.maps.shape == (shape[0], 3, *shape[2:])
    assert torch.equal(output.maps, head.class_maps(maps))
    assert torch.equal(output.features, maps.mean(dim=(2, 3)))
    gradients = torch.autograd.grad(output.logits.square().sum(), list(head.parameters()))
    expected_gradients = torch.autograd.grad(expected.square().sum(), list(head.parameters()))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(lambda x: head(x).logits, maps.requires_grad_())


def test_infer_acts_after_training_only():
    head = recipe("srcr").make(infer="mean").head(4, 3).double()
    shifted = SaliencyHead(4, 3).double()
    shifted.load_state_dict(head.state_dict())
    plain = SaliencyHead(4, 3, alpha=0.0).double()
    plain.load_state_dict(head.state_dict())
    maps = features()
    assert torch.equal(head.train()(maps).logits, shifted(maps).logits)
    assert torch.equal(head.eval()(maps).logits, plain(maps).logits)
    assert torch.equal(shifted.eval()(maps).logits, shifted.train()(maps).logits)
    assert not torch.equal(shifted(maps).logits, plain(maps).logits)


# Proposition 1: s_c is an adaptive margin on the logit a_c. The gradient of a cell outside the top k is dL/da_c / n.
HARD, EASY = [-3.0, -2.5, -2.0, -1.0, -4.0, -3.5], [3.0, 2.5, 4.0, 1.0, -1.0, 0.5]


def slope(cells, y, alpha):
    """dL/da_c with s_c held fixed, read off the smallest cell, which is not among the top 2."""
    maps, output = given_cells([cells], k=2, alpha=alpha)
    targets = Targets(*(torch.tensor([[float(has_label)]], dtype=torch.float64) for has_label in (y == 1, y == -1)))
    (grad,) = torch.autograd.grad(BCE()(output.logits, targets).sum(), maps)
    return float(grad.flatten()[int(np.argmin(cells))]) * len(cells)


@pytest.mark.parametrize("cells", [HARD, EASY], ids=["nothing salient", "salient"])
@pytest.mark.parametrize("y", [1, -1])
def test_proposition_1_the_shift_is_an_adaptive_margin(cells, y):
    a, s = np.mean(cells), np.mean(sorted(cells)[-2:])
    with_shift, without = slope(cells, y, 0.5), slope(cells, y, 0.0)
    label = (y + 1) / 2
    assert with_shift == pytest.approx(1 / (1 + np.exp(-(a + 0.5 * s))) - label, abs=1e-12)
    assert without == pytest.approx(1 / (1 + np.exp(-a)) - label, abs=1e-12)
    # A hard sample (present but not salient, absent but salient) pulls harder than without; an easy one less.
    hard = s < 0 if y == 1 else s > 0
    assert (abs(with_shift) > abs(without)) == hard


@pytest.mark.parametrize("y", [1, -1])
def test_proposition_2_salient_cells_get_the_larger_gradient(y):
    generator = torch.Generator().manual_seed(3)
    cells = torch.randn(5, 12, dtype=torch.float64, generator=generator)
    labels = torch.full((5, 1), float(y), dtype=torch.float64)
    targets = Targets((labels > 0).double(), (labels < 0).double())
    inside = torch.zeros(5, 12, dtype=torch.bool).scatter_(1, cells.topk(4).indices, True)
    pulls = {}
    for alpha in (0.0, 0.5):
        maps, output = given_cells(cells, k=4, alpha=alpha)
        (grad,) = torch.autograd.grad(BCE()(output.logits, targets).sum(), maps)
        pulls[alpha] = grad.flatten(1).abs()
    # Without SR every cell of a map gets the same gradient ...
    torch.testing.assert_close(pulls[0.0], pulls[0.0][:, :1].expand(-1, 12), rtol=1e-12, atol=0)
    # ... with it those of the top k get (1/n + α/k) / (1/n) = 1 + α n / k times that of the others.
    others = pulls[0.5][~inside].view(5, 8)
    torch.testing.assert_close(others, others[:, :1].expand(-1, 8), rtol=1e-12, atol=0)
    ratio = pulls[0.5][inside].view(5, 4) / others[:, :1]
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1 + 0.5 * 12 / 4))
    assert (pulls[0.5][inside].view(5, 4) > others.max(1, keepdim=True).values).all()


def run(options, views, labels, epoch=1):
    """(loss, gradients, method, head) of one step of `srcr` on these views."""
    method = checks.begin(recipe("srcr").make(**options), labels)
    head = seeded(0, lambda: method.head(views[0].shape[1], labels.shape[1])).double()
    batch = Batch(torch.arange(len(labels)), tuple(views[: len(method.views)]), torch.from_numpy(labels))
    loss = method.step(Model(None, head), batch, epoch)
    return loss, torch.autograd.grad(loss, list(head.parameters())), method, head


@pytest.mark.parametrize("normalise", ["batch", "image", "entries"])
@pytest.mark.parametrize("supervise", ["both", "weak", "strong"])
@pytest.mark.parametrize("shape", [(4, 4, 2, 3), (1, 3, 2, 2), (5, 3, 1, 1)])
@pytest.mark.parametrize("classes", [3, 1])
def test_step_is_the_slow_loop(normalise, supervise, shape, classes):
    weak, strong = features(*shape), features(*shape, seed=9)
    labels = make_labels(shape[0], classes)
    options = {"normalise": normalise, "supervise": supervise, "k": 2, "tau": 0.55, "weight": 0.7}
    loss, grads, _, head = run(options, (weak, strong), labels)
    weight, bias = head.conv.weight[:, :, 0, 0], head.conv.bias
    logits = [slow.logits(view, weight, bias, 2, 0.5) for view in (weak, strong)]
    expected = slow.loss(*logits, labels, 0.55, normalise, 0.7, supervise) + 0 * bias.sum()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for gradient, expected_gradient in zip(grads, torch.autograd.grad(expected, list(head.parameters())), strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


# saliency, consistency, normalise, as the page lists them; α of L_s, α of L_u, weight of L_u, is there a strong view.
ROWS = {
    "S-BCE": (("none", "none", "entries"), (0.0, 0.0, 0.0, False)),
    "BN-BCE": (("none", "none", "batch"), (0.0, 0.0, 0.0, False)),
    "PL": (("none", "pl", "batch"), (0.0, 0.0, 1.0, False)),
    "CR without SR": (("none", "cr", "batch"), (0.0, 0.0, 1.0, True)),
    "SR": (("all", "none", "batch"), (0.5, 0.5, 0.0, False)),
    "SR, CR without SR": (("known", "cr", "batch"), (0.5, 0.0, 1.0, True)),
    "SR+CR": (("all", "cr", "batch"), (0.5, 0.5, 1.0, True)),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_ablation_by_options_alone(row):
    (saliency, consistency, normalise), (alpha, guess_alpha, weight, two_views) = ROWS[row]
    weak, strong = 3 * features(6, 4, 3, 3), 3 * features(6, 4, 3, 3, seed=5)
    labels = make_labels(6, 4)
    options = {"saliency": saliency, "consistency": consistency, "normalise": normalise}
    loss, grads, method, head = run(options, (weak, strong), labels)
    assert method.views == (("weak", "strong") if two_views else ("weak",))
    strong = strong if two_views else weak
    w, b = head.conv.weight[:, :, 0, 0], head.conv.bias
    logits = [slow.logits(view, w, b, 5, alpha) for view in (weak, strong)]
    guess = [slow.logits(view, w, b, 5, guess_alpha) for view in (weak, strong)]
    expected = slow.loss(*logits, labels, 0.6, normalise, weight, "both", *guess)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for gradient, expected_gradient in zip(grads, torch.autograd.grad(expected, list(head.parameters())), strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def guesses(logits, tau, labels=None):
    logits = torch.tensor([logits], dtype=torch.float64)
    labels = torch.zeros_like(logits, dtype=torch.int8) if labels is None else torch.tensor([labels], dtype=torch.int8)
    pos, neg = Confident(tau)(Batch(torch.arange(1), (), labels), logits, 1)
    return (pos - neg)[0].tolist()


def test_pseudo_labels_at_the_threshold():
    just = np.log(0.6 / 0.4)
    assert guesses([just + 1e-9, just - 1e-9, -just + 1e-9, -just - 1e-9, 0.0], 0.6) == [1, 0, 0, -1, 0]
    # With τ = ½ every score is sure of something, but for the one in the middle.
    assert guesses([0.0, 1e-9, -1e-9], 0.5) == [0, 1, -1]
    assert guesses([-30.0, 30.0, -30.0], 0.6, [1, -1, 0]) == [1, -1, -1]
