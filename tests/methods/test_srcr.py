"""SR+CR against the slow loop, its two propositions, its ablation, and half precision, order and state."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.names import Names
from halflabel.labels.table import Table
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


def test_scores_by_hand():
    _, output = given_cells([[1.0, 5.0, 3.0, -1.0]], k=2, alpha=0.5)
    assert output.logits.item() == 2.0 + 0.5 * 4.0
    _, fewer = given_cells([[1.0, 5.0, 3.0, -1.0]], k=9, alpha=0.5)
    assert fewer.logits.item() == 2.0 + 0.5 * 2.0


def test_equal_cells_give_one_score_and_k_of_them_the_larger_gradient():
    maps, output = given_cells([[2.0] * 7, [3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0]], k=3, alpha=0.5)
    torch.testing.assert_close(output.logits[:, 0], torch.tensor([3.0, 12 / 7 + 1.5], dtype=torch.float64))
    (grad,) = torch.autograd.grad(output.logits.sum(), maps)
    for row in grad.flatten(1):
        torch.testing.assert_close(
            row.sort().values, torch.tensor([1 / 7] * 4 + [1 / 7 + 0.5 / 3] * 3, dtype=torch.float64)
        )
    assert (grad.flatten(1)[1, 4:] == 1 / 7).all()


def test_pooled_features_are_maps_of_one_cell():
    head = SaliencyHead(4, 3).double()
    pooled = features().mean(dim=(2, 3))
    output = head(pooled)
    torch.testing.assert_close(output.logits, 1.5 * (pooled @ head.conv.weight[:, :, 0, 0].T + head.conv.bias))
    assert torch.equal(output.logits, head(pooled[:, :, None, None]).logits)
    assert output.maps.shape == (3, 3, 1, 1)
    assert torch.equal(output.features, pooled)
    assert head.needs_maps


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


def test_proposition_1_the_margin_changes_sides_as_the_object_lights_up():
    pulls = []
    for rise in np.arange(0, 8, 0.4):
        cells = [cell + rise for cell in HARD]
        salient = float(np.mean(sorted(cells)[-2:]))
        assert salient != 0
        with_shift, without = slope(cells, 1, 0.5), slope(cells, 1, 0.0)
        assert (abs(with_shift) > abs(without)) == (salient < 0)
        pulls.append(abs(with_shift))
    assert pulls == sorted(pulls, reverse=True)
    assert pulls[0] > 0.95
    assert pulls[-1] < 0.05


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


def test_the_rows_of_the_ablation_differ():
    views, labels = (3 * features(6, 4, 3, 3), 3 * features(6, 4, 3, 3, seed=5)), make_labels(6, 4)
    losses = [
        float(run({"saliency": s, "consistency": c, "normalise": n}, views, labels)[0].detach())
        for (s, c, n), _ in ROWS.values()
    ]
    assert len({round(loss, 9) for loss in losses}) == len(ROWS)


@pytest.mark.parametrize(("name", "normalise"), [("bce", "entries"), ("bn-bce", "batch")])
def test_without_saliency_and_consistency_it_is_the_plain_method(name, normalise):
    labels = make_labels(6, 4)
    options = {"saliency": "none", "consistency": "none", "normalise": normalise}
    loss, _, _, head = run(options, (features(6, 4, 3, 3),), labels)
    logits = head(features(6, 4, 3, 3)).logits
    plain, _ = checks.step(recipe(name).make(), logits, labels, 1)
    torch.testing.assert_close(loss.detach(), plain, rtol=1e-12, atol=1e-12)


def test_weight_zero_keeps_both_views_and_drops_the_guesses():
    views, labels = (features(6, 4, 3, 3), features(6, 4, 3, 3, seed=5)), make_labels(6, 4)
    loss, *_ = run({"weight": 0.0}, views, labels)
    alone = [float(run({"consistency": "none"}, (view,), labels)[0].detach()) for view in views]
    assert float(loss.detach()) == pytest.approx(np.mean(alone), abs=1e-12)


def test_equal_views_make_consistency_plain_pseudo_labelling():
    view, labels = 3 * features(6, 4, 3, 3), make_labels(6, 4)
    cr, cr_grads, *_ = run({}, (view, view), labels)
    pl, pl_grads, *_ = run({"consistency": "pl"}, (view,), labels)
    checks.same([cr.detach(), *cr_grads], [pl.detach(), *pl_grads], 1e-12)


def test_no_gradient_flows_through_the_pseudo_labels_of_the_weak_view():
    labels = np.zeros((4, 3), np.int8)
    method = checks.begin(recipe("srcr").make(), labels)
    weak, strong = (3 * features(4, 4, 2, 3, seed=seed) for seed in (0, 1))
    weak.requires_grad_()
    strong.requires_grad_()
    model = Model(None, seeded(0, lambda: method.head(4, 3)).double())
    loss = method.step(model, Batch(torch.arange(4), (weak, strong), torch.from_numpy(labels)), 1)
    from_weak, from_strong = torch.autograd.grad(loss, (weak, strong))
    assert not from_weak.any()
    assert from_strong.any()


def test_one_pass_for_all_views():
    class Counting(Model):
        sizes = ()

        def forward(self, view):
            self.sizes = (*self.sizes, len(view))
            return super().forward(view)

    method = checks.begin(recipe("srcr").make(), make_labels(4, 3))
    model = Counting(None, method.head(4, 3).double())
    views = (features(4), features(4, seed=1))
    method.step(model, Batch(torch.arange(4), views, torch.from_numpy(make_labels(4, 3))), 1)
    assert model.sizes == (8,)


@pytest.mark.parametrize("normalise", ["batch", "image", "entries"])
def test_nothing_known_and_nothing_sure_costs_nothing(normalise):
    labels = np.zeros((3, 3), np.int8)
    loss, grads, *_ = run({"normalise": normalise, "tau": 1.0}, (features(), features(seed=1)), labels)
    assert float(loss.detach()) == 0
    assert not any(bool(grad.any()) for grad in grads)


def test_all_known_leaves_saliency_alone():
    labels = np.where(make_labels(6, 4) > 0, 1, -1).astype(np.int8)
    views = (features(6, 4, 3, 3), features(6, 4, 3, 3, seed=5))
    first, second = run({}, views, labels), run({"weight": 0.0}, views, labels)
    checks.same([first[0].detach(), *first[1]], [second[0].detach(), *second[1]], 0)


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


def test_a_later_start_leaves_unknown_entries_alone_until_then():
    views, labels = (3 * features(6, 4, 3, 3), 3 * features(6, 4, 3, 3, seed=5)), make_labels(6, 4)
    before, never = run({"cr_from": 3}, views, labels, epoch=2), run({"weight": 0.0}, views, labels)
    checks.same([before[0].detach(), *before[1]], [never[0].detach(), *never[1]], 1e-12)
    after, always = run({"cr_from": 3}, views, labels, epoch=3), run({}, views, labels)
    checks.same([after[0].detach(), *after[1]], [always[0].detach(), *always[1]], 0)
    assert abs(after[0] - before[0]) > 1e-3


@pytest.mark.parametrize("options", [{}, {"consistency": "pl"}, {"consistency": "none"}, {"normalise": "image"}])
def test_half_precision_order_and_state(options):
    def make():
        return recipe("srcr").make(**options)

    checks.check_half(make(), (1, 3))
    checks.check_targets(make(), (1, 2))
    checks.check_order(make, (1, 2))
    assert make().state_dict() == {}  # it remembers nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_head_is_finite_in_half_precision(dtype):
    head = SaliencyHead(1, 2).to(dtype)
    with torch.no_grad():
        head.conv.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        head.conv.bias.zero_()
    # (1 + α) · 5e4 is more than float16 holds.
    output = head(torch.full((1, 1, 4, 4), 5e4, dtype=dtype))
    assert output.logits.dtype == torch.float32
    torch.testing.assert_close(output.logits, torch.tensor([[7.5e4, -7.5e4]]), rtol=1e-2, atol=0)
    labels = torch.tensor([[-1.0, 1.0]])  # both wrong; a small loss, for the gradient is as large as the features
    BCE()(output.logits, Targets((labels > 0).float(), (labels < 0).float())).sum().mul(1e-3).backward()
    assert torch.isfinite(head.conv.weight.grad).all()
    assert head.conv.weight.grad.any()


def test_gradcheck_of_the_whole_step():
    labels = make_labels(3, 3)
    method = checks.begin(recipe("srcr").make(k=2, normalise="image"), labels)
    model = Model(None, seeded(0, lambda: method.head(2, 3)).double())
    weak, strong = features(3, 2, 2, 2), features(3, 2, 2, 2, seed=1)

    def step(weak, strong):
        return method.step(model, Batch(torch.arange(3), (weak, strong), torch.from_numpy(labels)), 1)

    # Small steps: the pseudo-labels are piecewise constant, and no score lies at a threshold.
    assert torch.autograd.gradcheck(step, (weak.requires_grad_(), strong.requires_grad_()))


def test_it_trains_on_cached_features_with_and_without_strong_views():
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((60, 3)) < 0.4, 1, -1)
    maps = rng.normal(0, 0.3, (60, 5, 3, 3)).astype(np.float32)
    for c in range(3):  # an object fills one cell
        at = np.flatnonzero(truth[:, c] > 0)
        maps[at, c, rng.integers(0, 3, len(at)), rng.integers(0, 3, len(at))] += 4
    table = Table.from_dense(truth * (rng.random(truth.shape) < 0.5))
    strong = [maps + rng.normal(0, 0.2, maps.shape).astype(np.float32) for _ in range(2)]
    weights = {}
    for name, copies in (("none", None), ("two", strong)):
        method = recipe("srcr").make(k=1)
        model = Model(None, seeded(0, lambda made=method: made.head(5, 3)))
        source = Features(maps, Names.numbered(60), strong=copies)
        settings = Config(epochs=30, batch_size=16, lr=0.05, device="cpu")
        with nullcontext() if copies else pytest.warns(UserWarning, match="no strong views"):
            fitted = fit(model, method, source, table, settings)
        logits = model.eval()(torch.from_numpy(maps)).logits
        assert float(((logits > 0) == torch.from_numpy(truth > 0)).float().mean()) > 0.95
        weights[name] = fitted.weights["head.conv.weight"]
    assert not torch.equal(weights["none"], weights["two"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"saliency": "some"}, "use one of: all, known, none"),
        ({"consistency": "yes"}, "use one of: cr, pl, none"),
        ({"normalise": "classes"}, "use one of: batch, image, entries"),
        ({"supervise": "plain"}, "use one of: both, weak, strong"),
        ({"infer": "max"}, "use one of: shifted, mean"),
        ({"tau": 0.4}, "from 0.5 to 1"),
        ({"tau": 1.5}, "from 0.5 to 1"),
        ({"cr_from": 0}, "cr_from ≥ 1"),
        ({"k": 0}, "k ≥ 1"),
        ({"alpha": -0.5}, "alpha ≥ 0"),
        ({"weight": -1.0}, "weight ≥ 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        recipe("srcr").make(**options)


def test_positives_alone_are_refused():
    assert set(recipe("srcr").serves) == {"full", "partial"}
    with pytest.raises(UserError, match="use one of"):
        recipe("srcr").check_regime("single-positive")
