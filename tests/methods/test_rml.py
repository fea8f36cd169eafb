"""WARP, RML, RMLC and SS-RML against the slow pair loops, the published numbers and the law of sampling."""

import importlib.util
import json
import math
from fractions import Fraction
from math import comb
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from halflabel.data.sources import Features
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.losses import over_images
from halflabel.methods.parts.propagation import PropagateLabels
from halflabel.methods.parts.ranking import Ranking, UnknownAs, harmonic, rank_of, ranking, trials, violators
from halflabel.methods.parts.terms import Transductive
from halflabel.models.heads import Linear, Model
from halflabel.training.callbacks import Callback
from halflabel.training.config import Settings
from halflabel.training.loop import fit
from halflabel.types import Batch, Output, Sweep, Targets

TESTS = Path(__file__).parent.parent


def _load(name):
    spec = importlib.util.spec_from_file_location(f"reference_{name}", TESTS / "reference" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


slow = _load("rml")
slow_propagation = _load("ss_rml")


def _example(images, classes, seed, unknown=0.3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, classes, generator=generator, dtype=torch.float64) * 2
    labels = torch.where(torch.rand(images, classes, generator=generator) < 0.3, 1, -1).to(torch.int8)
    labels[torch.rand(images, classes, generator=generator) < unknown] = 0
    return x, labels


def _batch(labels, index=None):
    labels = torch.as_tensor(labels, dtype=torch.int8)
    return Batch(torch.arange(len(labels)) if index is None else index, (), labels)


def _known(labels):
    return Targets((labels > 0).double(), (labels < 0).double())


def _check(x, targets, s=-0.8, leak=0.0, kappa=5.0):
    """Exact ranks: value per entry and gradient equal the pair loop."""
    x = x.clone().requires_grad_()
    loss = Ranking(s, kappa, leak, rank="exact")(x, targets)
    loss.sum().backward()
    for i in range(len(x)):
        row, pos, neg = x[i].tolist(), targets.pos[i].tolist(), targets.neg[i].tolist()
        negatives = [k for k, weight in enumerate(neg) if weight > 0]
        rank = {j: slow.exact_rank(row, j, negatives) for j in range(len(row))}
        value, gradient = slow.loss(row, pos, neg, rank, s, leak, kappa)
        np.testing.assert_allclose(loss[i].tolist(), value, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(x.grad[i].tolist(), gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("images", "classes"), [(6, 12), (1, 9), (5, 1), (4, 2)])
@pytest.mark.parametrize(("leak", "kappa"), [(0.0, 5.0), (0.1, 5.0), (1.0, 0.0)])
def test_value_and_gradient_are_those_of_the_pair_loop(images, classes, leak, kappa):
    x, labels = _example(images, classes, seed=images + classes)
    labels[0] = 0  # nothing known
    _check(x, _known(labels), leak=leak, kappa=kappa)


def test_ties_and_kinks():
    """All differences are multiples of ½: equal logits, pairs at t = 1 and at t = s."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (40, 7), generator=generator).double() / 2
    _, labels = _example(40, 7, seed=1)
    for leak in (0.0, 0.1, 1.0):
        _check(x, _known(labels), s=-0.5, leak=leak)


def test_weights_of_entries():
    x, labels = _example(8, 10, seed=3)
    weight = torch.rand(8, 10, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 5
    targets = _known(labels)
    _check(x, Targets(targets.pos * weight, targets.neg * weight))


def test_one_weight_per_image_is_a_factor():
    x, labels = _example(5, 9, seed=5)
    targets = _known(labels)
    scale = torch.tensor([[0.2], [1.0], [5.0], [0.0], [0.7]], dtype=torch.float64)
    loss = Ranking(rank="exact")
    weighted = loss(x, Targets(targets.pos * scale, targets.neg * scale))
    torch.testing.assert_close(weighted, loss(x, targets) * scale, rtol=1e-12, atol=1e-12)


def _golden(name):
    content = json.loads((TESTS / "golden" / "losses" / f"{name}.json").read_text())
    return [pytest.param(content, case, id=case["name"]) for case in content["cases"]]


def _check_golden(content, case, divisor, **options):
    x = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(case["labels"])
    weight = torch.tensor(case.get("example_weights", [1.0] * len(x)), dtype=torch.float64)[:, None]
    tried = torch.ones(x.shape, dtype=torch.int64)
    for given in case["ranking"]:
        row, positive = given["row"], given["positive"]
        # Our own count in the given order (≥ and > differ at ties only, of which there are none).
        q = slow.first_violator(case["logits"][row], positive, given["order"])
        assert q == given["trials"]
        tried[row, positive] = q
    rank = rank_of(tried, x.shape[1], rounded=True)
    for given in case["ranking"]:
        assert rank[given["row"], given["positive"]] == given["rank"]
        actual = harmonic(rank[given["row"], given["positive"]], x.shape[1])
        assert actual.item() == pytest.approx(given["weight"], rel=1e-14)
    targets = Targets(weight * (labels > 0), weight * (labels <= 0))
    loss = ranking(x, targets, rank, s=-0.8, **options).sum() / len(x) / divisor
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-10)
    np.testing.assert_allclose(x.grad.numpy(), case["grad"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("content", "case"), _golden("warp"))
def test_published_warp(content, case):
    _check_golden(content, case, 20, leak=1.0, kappa=0.0)


@pytest.mark.parametrize(("content", "case"), _golden("rml_supervised"))
def test_published_rml(content, case):
    _check_golden(content, case, 20, leak=0.1, kappa=5.0)


@pytest.mark.parametrize(("content", "case"), _golden("rml_weighted"))
def test_published_rml_with_weights(content, case):
    _check_golden(content, case, 200, leak=0.1, kappa=1.0)


@pytest.mark.parametrize(("content", "case"), _golden("rml_supervised"))
def test_the_paper_has_a_flat_ramp_instead(content, case):
    """The default differs from the published numbers: no leak."""
    x = torch.tensor(case["logits"], dtype=torch.float64)
    targets = _known(torch.tensor(case["labels"]))
    rank = torch.ones(x.shape, dtype=torch.int64)
    flat = ranking(x, targets, rank, s=-0.8, leak=0.0, kappa=5.0).sum()
    assert flat < ranking(x, targets, rank, s=-0.8, leak=0.1, kappa=5.0).sum()


@pytest.mark.parametrize("name", ["warp", "rml", "rmlc", "ss-rml"])
def test_gradcheck(name):
    x, labels = _example(3, 6, seed=7, unknown=0.2)
    loss = recipe(name).make().loss
    targets = _known(labels)

    def scalar(x):
        torch.manual_seed(0)
        return over_images(loss(x, targets), targets)

    assert torch.autograd.gradcheck(scalar, x.requires_grad_())


def test_ranks_are_rounded_down_or_to_the_nearest():
    q = torch.arange(1, 22)
    down, nearest = rank_of(q, 20), rank_of(q, 20, rounded=True)
    assert down.tolist() == [19 // n for n in range(1, 22)]
    assert nearest.tolist() == [int(Fraction(19, n) + Fraction(1, 2)) for n in range(1, 22)]
    assert harmonic(torch.tensor([0, 1, 3]), 4).tolist() == pytest.approx([0, 1, 1 + 1 / 2 + 1 / 3])


def test_violators_count_ties_in():
    x = torch.tensor([[1.0, 0.0, 0.5, -3.0]])
    neg = torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    assert violators(x, neg)[0, 0] == 2  # 1 − 1 + 0 = 0 counts


@pytest.mark.parametrize(("n", "v"), [(7, 1), (7, 3), (7, 7), (12, 2), (1, 1)])
def test_trials_follow_the_draw_without_replacement(n, v):
    """P(q) = C(n − q, v − 1) / C(n, v); 5 standard errors, and a random-order loop obeys the same law."""
    draws = 20_000
    torch.manual_seed(0)
    q = trials(torch.full((draws,), v), torch.full((draws,), n))
    actual = torch.bincount(q, minlength=n + 2)[1 : n + 1] / draws
    expected = torch.tensor([comb(n - place, v - 1) / comb(n, v) for place in range(1, n + 1)], dtype=torch.float64)
    error = (expected * (1 - expected) / draws).sqrt()
    assert (actual - expected).abs().le(5 * error + 1e-12).all()
    rng = np.random.default_rng(0)
    x = [0.0] + [5.0] * v + [-5.0] * (n - v)
    loop = np.bincount([slow.first_violator(x, 0, 1 + rng.permutation(n)) for _ in range(5000)], minlength=n + 2)
    assert (np.abs(loop[1 : n + 1] / 5000 - expected.numpy()) <= 5 * error.numpy() * 2 + 1e-12).all()


def test_without_a_violator_all_are_tried_in_vain():
    assert trials(torch.tensor([0, 0]), torch.tensor([5, 0])).tolist() == [6, 1]


def test_sampled_loss_is_the_loss_with_the_drawn_ranks():
    x, labels = _example(6, 15, seed=9)
    targets = _known(labels)
    torch.manual_seed(1)
    loss = Ranking()(x, targets)
    torch.manual_seed(1)
    image, positive = (targets.pos > 0).nonzero(as_tuple=True)
    q = trials(violators(x, targets.neg)[image, positive], (labels < 0).sum(1)[image])
    rank = torch.zeros(x.shape, dtype=torch.int64)
    rank[image, positive] = 14 // q
    assert len(set(q.tolist())) > 2
    for i in range(len(x)):
        ranks = dict(enumerate(rank[i].tolist()))
        value, _ = slow.loss(x[i].tolist(), targets.pos[i].tolist(), targets.neg[i].tolist(), ranks)
        np.testing.assert_allclose(loss[i].tolist(), value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["warp", "rml", "rmlc", "ss-rml"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_logits_in_half_precision(name, dtype):
    x = (torch.tensor([[1.0, -1, 1, -1], [-1, 1, 1, 1]]) * 1e4).to(dtype).requires_grad_()
    targets = Targets(torch.tensor([[1.0, 0, 0, 1], [1, 0, 0, 0]]), torch.tensor([[0.0, 1, 1, 0], [0, 0, 1, 1]]))
    loss = recipe(name).make().loss(x, targets)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite().all()
    assert x.grad.isfinite().all()


def test_many_classes_in_float32_are_as_good_as_in_float64():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3000, generator=generator) * 5
    targets = _known(torch.where(torch.rand(2, 3000, generator=generator) < 0.01, 1, -1))
    loss = Ranking(rank="exact")
    torch.testing.assert_close(loss(x, targets).double(), loss(x.double(), targets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["warp", "rml", "rmlc", "ss-rml"])
def test_exact_ranks_do_not_depend_on_the_order_of_images(name):
    x, labels = _example(7, 8, seed=11)
    method = recipe(name).make(rank="exact")
    assert not getattr(method, "samples", False)
    assert recipe(name).make(rank="sampled").samples
    targets, order = _known(labels), torch.randperm(7, generator=torch.Generator().manual_seed(0))
    moved = Targets(targets.pos[order], targets.neg[order])
    torch.testing.assert_close(method.loss(x[order], moved), method.loss(x, targets)[order], rtol=1e-12, atol=0)


def test_unknown_entries_in_pairs():
    table = LabelTable.from_dense([[1, 0, 0], [0, 0, 0], [0, 1, 1]])
    batch, x = _batch(table.dense()), torch.zeros(3, 3)
    for how, absent in (("ignore", 0), ("negative", 1), ("auto", 1)):
        relabel = UnknownAs(how)
        relabel.start(table)
        targets = relabel(batch, x, 1)
        assert targets.pos.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
        assert targets.neg.tolist() == [[0, absent, absent], [0, 0, 0], [absent, 0, 0]]
    relabel.start(LabelTable.from_dense([[1, -1, 0]]))
    assert relabel(_batch([[1, -1, 0]]), x[:1], 1).neg.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("bad", [{"rank": "best"}, {"unknown": "yes"}, {"s": -1.0}, {"leak": 2.0}, {"every": 0}])
def test_impossible_options_are_refused(bad):
    with pytest.raises(UserError, match=r"Fix: (use|give)"):
        recipe("ss-rml").make(**bad)


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
    relabel.start(LabelTable.from_dense(labels))
    logits = torch.zeros(labels.shape, dtype=torch.float64)
    before = relabel(_batch(labels), logits, 1)
    pos, neg = slow_propagation.targets(labels.tolist(), {}, labelled, unknown == "negative")
    assert before.pos.tolist() == pos
    assert before.neg.tolist() == neg
    log = relabel.absorb(Sweep(logits.float(), features), 1)
    passed = slow_propagation.propagate(features.tolist(), labels.tolist(), t)
    assert relabel.neighbour.tolist() == [passed.get(i, (-1, 0))[0] for i in range(len(labels))]
    assert log["propagated_images"] == len(passed)
    assert log["similarity"] == pytest.approx(np.mean([s for _, s in passed.values()]), rel=1e-5)
    targets = relabel(_batch(labels), logits, 2)
    pos, neg = slow_propagation.targets(labels.tolist(), passed, labelled, unknown == "negative")
    np.testing.assert_allclose(targets.pos, pos, rtol=1e-5)
    np.testing.assert_allclose(targets.neg, neg, rtol=1e-5)
    assert (targets.pos >= 0).all()
    assert (targets.neg >= 0).all()
    assert torch.equal(targets.pos[labels > 0], torch.full(((labels > 0).sum(),), labelled, dtype=torch.float64))
    # Any batch in any order gives the same rows.
    some = torch.tensor([9, 0, 4, 4])
    part = relabel(_batch(labels[some], some), logits[some], 2)
    assert torch.equal(part.pos, targets.pos[some])
    assert torch.equal(part.neg, targets.neg[some])


def test_unreadable_images_neither_give_nor_take():
    labels, features = _scattered()
    features[[0, 9]] = torch.nan
    relabel = PropagateLabels(1, 20, 0.0, 1.0, "auto")
    relabel.start(LabelTable.from_dense(labels))
    relabel.absorb(Sweep(torch.zeros(labels.shape), features), 1)
    assert relabel.neighbour[0] == -1
    assert relabel.neighbour[1] >= 0
    assert not (relabel.neighbour == 9).any()
    assert relabel.similarity.isfinite().all()


def test_neighbours_are_the_same_looked_for_part_by_part(monkeypatch):
    labels, features = _scattered()
    features[[0, 9]] = torch.nan
    results = []
    for piece in (1 << 16, 2):
        monkeypatch.setattr("halflabel.methods.parts.propagation._BLOCK_IMAGES", piece)
        relabel = PropagateLabels(1, 20, 0.0, 1.0, "auto")
        relabel.start(LabelTable.from_dense(labels))
        log = relabel.absorb(Sweep(torch.zeros(labels.shape), features), 1)
        results.append((relabel.neighbour, relabel.similarity))
    assert all(map(torch.equal, *results))
    assert log["propagated_images"] > 2


def test_sweeps_without_room_are_refused(monkeypatch):
    nothing = np.zeros(0, np.int64)
    table = LabelTable.from_entries(Names.numbered(500_000), Names.numbered(1000), nothing, nothing, nothing)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**9))
    PropagateLabels(-1, 20, 0.0, 1.0, "auto").start(table)  # it never sweeps
    with pytest.raises(UserError, match=r"ss-rml would score 500000 images × 1000 classes at once: 2\.0 GB"):
        PropagateLabels(1, 20, 0.0, 1.0, "auto").start(table)


def test_equal_features():
    labels, features = _scattered()
    relabel = PropagateLabels(1, 20, 0.0, 1.0, "auto")
    relabel.start(LabelTable.from_dense(labels))
    relabel.absorb(Sweep(torch.zeros(labels.shape), torch.ones_like(features)), 1)
    assert relabel.similarity[relabel.neighbour >= 0].tolist() == [1.0] * int((relabel.neighbour >= 0).sum())


@pytest.mark.parametrize("known", [5, 3])
def test_one_labelled_image_is_the_nearest_of_all_others(known):
    labels, features = _scattered()
    labels[:] = 0
    labels[4, :known] = 1
    relabel = PropagateLabels(1, 20, 0.0, 1.0, "auto")
    relabel.start(LabelTable.from_dense(labels))
    log = relabel.absorb(Sweep(torch.zeros(labels.shape), features), 1)
    assert relabel.neighbour.tolist() == [4] * 4 + [-1] + [4] * 7
    distance = (features - features[4]).norm(dim=1)
    t = distance[distance > 0].mean() * 11 / 12
    expected = torch.exp(-distance / t).where(distance > 0, 0)
    torch.testing.assert_close(relabel.similarity, expected)
    assert log["propagated_images"] == 11
    relabel.start(LabelTable.from_dense(labels * 0))
    assert relabel.absorb(Sweep(torch.zeros(labels.shape), features), 1) == {}


def test_a_class_nobody_has_labelled_changes_nothing():
    """Images that lack only such a class receive nothing: they are not among the u in the scale of distances."""
    labels, features = _scattered()
    results = []
    for more in (0, 2):
        wide = np.pad(labels, ((0, 0), (0, more)))
        relabel = PropagateLabels(1, 20, 0.0, 1.0, "ignore")
        relabel.start(LabelTable.from_dense(wide))
        relabel.absorb(Sweep(torch.zeros(wide.shape), features), 1)
        results.append(relabel(_batch(wide), torch.zeros(wide.shape, dtype=torch.float64), 2))
    assert torch.equal(results[0].pos, results[1].pos[:, :5])
    assert torch.equal(results[0].neg, results[1].neg[:, :5])
    assert not results[1].pos[:, 5:].any()


def test_when_features_are_wanted():
    relabel = PropagateLabels(3, 20, 0.0, 1.0, "auto")
    relabel.start(LabelTable.from_dense([[1, -1], [0, 0]]))
    assert [epoch for epoch in range(1, 50) if relabel.wants_sweep(epoch)] == [3, 23, 43]
    relabel.start(LabelTable.from_dense([[1, -1], [1, 1]]))
    assert not relabel.wants_sweep(3)  # nothing is unknown
    at_once = PropagateLabels(0, 20, 0.0, 1.0, "auto")
    at_once.start(LabelTable.from_dense([[1, -1], [0, 0]]))
    assert [epoch for epoch in range(50) if at_once.wants_sweep(epoch)] == [0, 20, 40]
    assert at_once.wants_sweep_first()
    assert not relabel.wants_sweep_first()
    never = PropagateLabels(-1, 20, 0.0, 1.0, "auto")
    never.start(LabelTable.from_dense([[1, -1], [0, 0]]))
    assert not any(never.wants_sweep(epoch) for epoch in range(50))
    assert never.idle(3) == ""


@pytest.mark.parametrize("broken", [False, True])
def test_given_features_pass_labels_on_before_the_first_epoch(tmp_path, broken):
    """Section 2.2: similarities are computed at the beginning, and what is passed on stays until the end."""
    labels, features = _scattered()
    table = LabelTable.from_dense(labels)
    seen = []

    class Recorder(Callback):
        def on_epoch_start(self, epoch, epochs, images):
            seen.append((relabel.neighbour.tolist(), relabel.similarity.tolist()))

        def on_step_end(self, images, loss):
            if broken and len(seen) == 1:
                raise KeyboardInterrupt

    def go(**more):
        method = recipe("ss-rml").make(start=0)
        nonlocal relabel
        relabel = method.relabel
        model = Model(None, seeded(0, lambda: method.head(4, labels.shape[1])))
        settings = Settings(epochs=2, batch_size=4, device="cpu", save_every=1)
        fit(model, method, Features(features, table.images), table, settings, folder=tmp_path, **more)

    relabel = None
    if broken:
        with pytest.raises(KeyboardInterrupt):
            go(callback=Recorder())
    go(callback=Recorder(), resume=broken)
    takers, givers = [i for i in range(12) if (labels[i] == 0).any()], [i for i in range(12) if labels[i].any()]
    near, distance = [-1] * 12, {}
    for i in takers:
        distance[i], near[i] = min((float((features[i] - features[j]).norm()), j) for j in givers if j != i)
    t = sum(distance.values()) / len(takers) * len(takers) / 12
    assert len(seen) == 2 + broken
    for neighbour, similarity in seen:
        assert neighbour == near
        assert similarity == pytest.approx([math.exp(-distance[i] / t) if i in distance else 0.0 for i in range(12)])


def test_what_is_remembered_survives():
    labels, features = _scattered()
    table = LabelTable.from_dense(labels)
    method, other = recipe("ss-rml").make(), recipe("ss-rml").make()
    method.start(table)
    method.relabel.absorb(Sweep(torch.zeros(labels.shape), features), 5)
    other.start(table)
    other.load_state_dict(method.state_dict())
    torch.manual_seed(0)
    model = Model(None, Linear(4, labels.shape[1]))
    batch = Batch(torch.arange(len(labels)), (features,), torch.from_numpy(labels))
    losses = []
    for each in (method, other):
        torch.manual_seed(3)
        losses.append(each.step(model, batch, 6).item())
    assert losses[0] == losses[1]
    other.start(table)
    torch.manual_seed(3)
    assert other.step(model, batch, 6).item() != losses[0]


def test_full_labels_make_ss_rml_the_same_as_rml():
    x, labels = _example(6, 7, seed=2, unknown=0.0)
    table = LabelTable.from_dense(labels.numpy())
    values = []
    for name in ("rml", "ss-rml"):
        method = recipe(name).make(rank="exact")
        method.start(table)
        targets = method.relabel(_batch(labels), x, 30)
        values.append(method.reduce(method.loss(x, targets), targets).item())
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_transductive_term():
    x = torch.tensor([[0.5, -0.25, 3.0], [0.1, 0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    batch = _batch([[0, 0, 0], [0, 1, 0]])
    value = Transductive(2.0)(Output(x, x), batch, Targets(x, x))
    assert value.item() == pytest.approx(2 * (0.5 + 0.75) / 2)
    value.backward()
    assert x.grad.tolist() == [[-1, 1, 0], [0, 0, 0]]
    assert len(recipe("ss-rml").make(eta=2.0).terms) == 1


class _Stop(Exception):
    pass


class _StopAfter(Callback):
    """Told how training goes, it breaks it off after an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, log):
        if log["epoch"] == self.epoch:
            raise _Stop


def test_ss_rml_trains_in_the_loop_and_resumes_exactly(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((60, 4)) < 0.4, 1, -1).astype(np.int8)
    features = torch.from_numpy(truth @ rng.normal(size=(4, 8)) + rng.normal(size=(60, 8)) * 0.3).float()
    labels = truth.copy()
    labels[15:] = 0
    table = LabelTable.from_dense(labels)
    assert table.stats().regime in recipe("ss-rml").serves
    settings = Settings(epochs=4, batch_size=16, lr=1e-2, device="cpu")

    def train(folder, callback=None, resume=False):
        model = Model(None, seeded(0, lambda: Linear(8, 4)))
        source = Features(features, table.images)
        method = recipe("ss-rml").make(start=2, every=1)
        return fit(model, method, source, table, settings, callback=callback, folder=folder, resume=resume)

    whole = train(None)
    assert [line.get("propagated_images") for line in whole.log] == [None, 45, 45, 45]
    with pytest.raises(_Stop):
        train(tmp_path, _StopAfter(3))
    resumed = train(tmp_path, resume=True)
    assert [line["loss"] for line in resumed.log] == [line["loss"] for line in whole.log]
    for name, weight in whole.weights.items():
        assert torch.equal(weight, resumed.weights[name])
