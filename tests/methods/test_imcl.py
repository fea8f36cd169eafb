"""imcl against the slow loop, its memory, its ablations, and the rules every method keeps."""

from __future__ import annotations

import importlib.util
import math
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from halflabel.data.sources import Features
from halflabel.errors import LabelError, UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.matching_pursuit import Part, joint_omp
from halflabel.methods.parts.similarity_memory import ImageVectors, impute
from halflabel.models.heads import Linear, Model
from halflabel.training.callbacks import Callback
from halflabel.training.config import Settings
from halflabel.training.loop import fit
from halflabel.types import Batch, Output, Sweep

_spec = importlib.util.spec_from_file_location(
    "step_checks", Path(__file__).parents[1] / "reference" / "step_checks.py"
)
checks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checks)
slow = checks.reference("imcl")


class Split(nn.Module):
    """A model whose logits and features are what it is given, side by side."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, view):
        return Output(view[:, : self.classes], view[:, self.classes :])


def make(**options):
    return recipe("imcl").make(**options)


def begin(labels, **options):
    """In float64, so that it can be compared with the slow loop."""
    return checks.begin(make(**{"rescale": False, **options}), labels).double()


def inputs(seed, images, classes, channels=5, ties=False):
    logits, labels = checks.inputs(seed, images, classes, ties=ties)
    features = np.abs(np.random.default_rng(seed + 100).normal(size=(images, channels)))
    return torch.cat([logits, torch.from_numpy(np.round(features) if ties else features)], 1), labels


def step(method, view, labels, epoch=1, index=None):
    """Loss, its gradient by logits and features, and by the weights of A as a (C, C) matrix."""
    classes = labels.shape[1]
    view = view.detach().clone().requires_grad_()
    method.zero_grad()
    loss = method.step(Split(classes), checks.batch(view, labels, index), epoch)
    loss.backward()
    weights = method.graph.weights
    edges = method.graph.edges()
    by_matrix = torch.zeros(classes, classes, dtype=torch.float64)
    if weights.grad is not None:
        by_matrix[edges.rows, edges.cols] = weights.grad
    return loss.detach(), view.grad, by_matrix


def matrix_of(method, classes):
    edges = method.graph.edges()
    matrix = torch.zeros(classes, classes, dtype=torch.float64)
    matrix[edges.rows, edges.cols] = torch.from_numpy(edges.weights)
    return matrix


def reference_step(method, view, labels, **options):
    classes = labels.shape[1]
    view, matrix = view.detach().clone().requires_grad_(), matrix_of(method, classes).requires_grad_()
    rows = [list(row) for row in view]
    loss = slow.imcl(
        [row[:classes] for row in rows],
        [row[classes:] for row in rows],
        labels,
        [list(row) for row in matrix],
        **options,
    )
    by_view, by_matrix = torch.autograd.grad(loss + 0 * view.sum() + 0 * matrix.sum(), (view, matrix))
    return loss.detach(), by_view, by_matrix * (matrix.detach() != 0)


@pytest.mark.parametrize("shape", [(7, 6), (1, 7), (6, 1), (1, 1), (2, 3)])
@pytest.mark.parametrize("ties", [False, True])
def test_is_the_slow_loop(shape, ties):
    view, labels = inputs(0, *shape, ties=ties)
    for options in ({}, {"lambda_y": 2.0, "lambda_f": 0.3, "k": 3}, {"lambda_y": 0.0, "k": 1}):
        method = begin(labels, k_a=2, **options)
        checks.same(step(method, view, labels), reference_step(method, view, labels, **options))


def test_is_the_slow_loop_without_label_graph():
    view, labels = inputs(1, 6, 4)
    method = begin(labels, graph="identity")
    assert torch.equal(matrix_of(method, 4), torch.eye(4, dtype=torch.float64))
    loss, by_view, by_matrix = step(method, view, labels)
    expected = reference_step(method, view, labels)
    checks.same((loss, by_view), expected[:2])
    checks.same((by_matrix,), expected[2:])


def test_an_image_without_similar_ones_is_left_alone():
    labels = np.array([[1, 0, -1], [0, 0, 0]], np.int8)
    view = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    loss, by_view, _ = step(begin(labels), view, labels)  # features at right angles
    assert math.isclose(loss, 2 * math.log(2) / 6, rel_tol=1e-12)
    assert not by_view[:, 3:].any()
    assert not by_view[1].any()


def test_imputed_labels():
    labels = torch.tensor([[1, -1, 0, 0]], dtype=torch.int8)
    logits = torch.tensor([[-9.0, 9.0, 0.0, 50.0]], requires_grad=True)
    y = impute(labels, logits)
    assert y.tolist() == [[1.0, -0.5, 0.25, 1.0]]
    y.sum().backward()
    assert logits.grad[0, :2].tolist() == [0, 0]
    assert logits.grad[0, 2] == 1.5 * 0.25


def test_gradcheck_with_similarities_held_fixed(monkeypatch):
    view, labels = inputs(2, 6, 4)
    method = begin(labels, k_a=2)
    with torch.no_grad():
        order = torch.arange(6)
        here = [order, view[:, 4:], impute(torch.from_numpy(labels), view[:, :4])]
        fixed = method.find_similar(ImageVectors(*here), None)
    monkeypatch.setattr(method, "find_similar", lambda here, recent: fixed)
    assert (fixed.index >= 0).any(1).sum() > 3

    def loss(view):
        return method.step(Split(4), checks.batch(view, labels), 1)

    assert torch.autograd.gradcheck(loss, view.clone().requires_grad_())


def bce_loss(view, labels):
    return step_loss(recipe("bce").make(), view, labels)


def step_loss(method, view, labels, epoch=1):
    return float(method.step(Split(labels.shape[1]), checks.batch(view, labels), epoch).detach())


def test_it_starts_as_the_logistic_model():
    view, labels = inputs(3, 6, 4)
    method = make(logistic_share=0.5)
    method.plan(7)
    checks.begin(method, labels)
    plain = bce_loss(view, labels)
    actual = [step_loss(method, view, labels, epoch) for epoch in range(1, 8)]
    assert actual[:4] == [plain] * 4  # round(3.5) = 4
    assert min(actual[4:]) > plain
    assert step_loss(checks.begin(make(lambda_y=0.0, lambda_f=0.0), labels), view, labels) == plain


def test_label_graph_from_a_file(tmp_path):
    view, labels = inputs(5, 6, 3)
    path = tmp_path / "graph.csv"
    path.write_text("class,class,weight\n0,1,3\n2,2,5\n2,0,5\n")
    method = begin(labels, graph=str(path))
    np.testing.assert_allclose(matrix_of(method, 3), [[0.25, 0.75, 0], [0, 1, 0], [0.5, 0, 0.5]], atol=1e-7)
    checks.same(step(method, view, labels), reference_step(method, view, labels))
    path.write_text("0,9,1\n")
    with pytest.raises(LabelError, match=r"graph.csv, line 1: no class is called '9'"):
        begin(labels, graph=str(path))
    with pytest.raises(UserError, match=r"no label graph 'wiki'.*graph=.cooccurrence."):
        begin(labels, graph="wiki")


class Meaning:
    """A synset of a toy WordNet: near those whose name starts alike."""

    def __init__(self, name):
        self.name = name

    def wup_similarity(self, other):
        return 0.75 if self.name[0] == other.name[0] else 0.25


def test_label_graph_from_wordnet(tmp_path, monkeypatch):
    table = LabelTable.from_dense(np.ones((2, 4)), classes=["cat", "cow", "dog", "x"])
    wordnet = types.SimpleNamespace(
        meanings=lambda names: [None if name == "x" else Meaning(name) for name in names],
        similarity=lambda one, other: one.wup_similarity(other),
    )
    monkeypatch.setattr("halflabel.methods.parts.label_graph.WordNet.find", lambda: wordnet)
    path = tmp_path / "wiki.csv"
    path.write_text("x,dog,3\ncat,dog,9\n")  # of labels that WordNet knows the file does not count

    def matrix(graph, **options):
        method = make(graph=graph, k_a=1, **options)
        method.start(table)
        return matrix_of(method, 4).tolist()

    cat, cow, dog = [4 / 7, 3 / 7, 0, 0], [3 / 7, 4 / 7, 0, 0], [0.2, 0, 0.8, 0]
    np.testing.assert_allclose(matrix("wordnet"), [cat, cow, dog, [0, 0, 0, 1]], atol=1e-7)
    np.testing.assert_allclose(matrix(f"wordnet+{path}"), [cat, cow, dog, [0, 0, 0.75, 0.25]], atol=1e-7)
    with pytest.raises(UserError, match=r"no label graph 'nowhere.csv'"):
        matrix("wordnet+nowhere.csv")


def test_side_information_brings_groups_together(tmp_path):
    view, labels = inputs(6, 8, 3)
    path = tmp_path / "side.csv"
    path.write_text("image,species\n" + "".join(f"{i},{'wren' if i % 2 else 'owl'}\n" for i in range(7)) + "77,crow\n")
    sides = np.array([[i % 2 == 0, i % 2 == 1] if i < 7 else [0, 0] for i in range(8)], float)
    for weight in (1.0, 10.0):
        method = begin(labels, side=str(path), side_weight=weight, k=2, graph="identity")
        loss = step(method, view, labels)
        checks.same(loss, reference_step(method, view, labels, k=2, sides=weight * sides))
    groups = torch.tensor([0, 1, 0, 1, 0, 1, 0, -1])
    index = method.neighbours(view[:, 3:], view[:, :3], torch.from_numpy(labels), groups).index[:7, 0]
    assert torch.equal(groups[index], groups[:7])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n", "side.csv, line 1: 3 fields. Fix: write image,group"),
        ("nobody,owl\n", "no image of the training labels .*'nobody'.*such as '0'"),
        ("", "the file is empty"),
    ],
)
def test_faults_of_side_files(tmp_path, text, said):
    (tmp_path / "side.csv").write_text(text)
    with pytest.raises(LabelError, match=said):
        begin(inputs(0, 4, 3)[1], side=str(tmp_path / "side.csv"))


def test_images_in_memory_can_be_similar():
    view, labels = inputs(7, 12, 4)
    method = begin(labels, dictionary=5, k=3)
    parts = [np.array([3, 0, 1, 2]), np.array([5, 4, 6]), np.array([2, 7, 6])]
    memory: list[int] = []  # oldest first
    values: dict[int, tuple[list[float], list[float]]] = {}
    for number, part in enumerate(parts):
        shifted = view[part] + 0.1 * number
        order = np.argsort(part)
        around = [values[i] for i in _by_place(method, part)]
        loss = step(method, shifted, labels[part], index=part)
        expected = reference_step(method, shifted[order], labels[part][order], k=3, memory=around)
        expected = (expected[0], expected[1][np.argsort(order)], expected[2])
        checks.same(loss, expected)
        for i in order:
            y = slow.plain(slow.impute([list(shifted[i, :4])], labels[part[i]][None]))[0]
            values[int(part[i])] = (list(y), shifted[i, 4:].tolist())
            memory = [other for other in memory if other != part[i]] + [int(part[i])]
        assert set(method.relabel.number.tolist()) - {-1} <= set(memory[-5:])
    assert sorted(method.relabel.number.tolist()) == [-1, 2, 5, 6, 7]  # where 6 was is a free place
    method.eval()
    before = method.relabel.number.clone()
    step(method, view[8:], labels[8:], index=np.arange(8, 12))
    assert torch.equal(method.relabel.number, before)


def _by_place(method, part):
    """Images in memory that are not in the batch, in the order of their places, as ties go by place."""
    return [i for i in method.relabel.number.tolist() if i >= 0 and i not in part]


def test_more_images_than_memory():
    view, labels = inputs(8, 9, 3)
    method = begin(labels, dictionary=4)
    step(method, view, labels)
    assert sorted(method.relabel.number.tolist()) == [5, 6, 7, 8]
    assert len(begin(labels, dictionary=10_000).relabel.number) == 9


def test_fixed_similarities_are_those_of_the_start():
    view, labels = inputs(9, 7, 4)
    method = begin(labels, image_similarity="fixed", k=3)
    method.plan(3)
    assert [epoch for epoch in range(1, 5) if method.relabel.wants_sweep(epoch)] == [2]
    start = view.clone()
    start[5] = math.nan  # could not be read
    plain = bce_loss(view, labels)
    assert float(step(method, view, labels, 3)[0]) == pytest.approx(plain)  # before the sweep there is nothing
    method.relabel.absorb(Sweep(start[:, :4], start[:, 4:]), 2)
    with torch.no_grad():
        method.graph.weights *= 1.7  # what A has learned does not matter for who is similar
    later = view + torch.randn(view.shape, generator=torch.Generator().manual_seed(0), dtype=view.dtype).abs()
    y = impute(torch.from_numpy(labels), view[:, :4])
    f = view[:, 4:].clone()
    y[5], f[5] = 0, 0
    matching = (y.numpy(), f.numpy(), (matrix_of(method, 4) / 1.7).numpy())
    expected = reference_step(method, later, labels, k=3, matching=matching)
    checks.same(step(method, later, labels, 3), expected)


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
            logits, features = [list(one[:4]) for one in row], [list(one[4:]) for one in row]
            cross_entropy = float(slow.imcl(logits, features, known, matrix, lambda_y=0.0, lambda_f=0.0))
            if epoch < logistic:
                assert loss == pytest.approx(cross_entropy)
                continue
            # Neighbours are looked for with what was measured before this batch.
            scale = [sums[0] / total if total else 1.0 for total in sums[1:]]
            actual = slow.smoothness(slow.impute(logits, known), features, matrix, 2.0 * scale[0], 0.3 * scale[1], 3)
            l_y, l_f = (float(total) / 24 for total in actual)
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


def test_a_loss_that_is_only_looked_at_keeps_no_graph():
    view, labels = inputs(16, 6, 4)
    method = begin(labels)
    expected = step(method, view, labels)[0]
    with torch.inference_mode():
        assert method.step(Split(4), checks.batch(view, labels), 1) == expected


def test_neighbours_of_a_set(monkeypatch):
    view, labels = inputs(12, 9, 4)
    method = begin(labels, k=3)
    logits, features = view[:, :4].clone(), view[:, 4:]
    logits[3] = math.nan
    neighbours = method.neighbours(features, logits, torch.from_numpy(labels))
    read = [i for i in range(9) if i != 3]
    y = impute(torch.from_numpy(labels), logits)[read]
    expected = joint_omp(
        [Part(y, y @ matrix_of(method, 4).T, 1.0, y), Part(features[read], features[read], 0.5)],
        3,
        allowed=~torch.eye(8, dtype=torch.bool),
    )
    numbers = torch.tensor([*read, -1])
    assert torch.equal(neighbours.index[read], numbers[expected.index])
    assert (neighbours.index[3] == -1).all()
    assert not (neighbours.index == 3).any()
    for got, want in zip(neighbours.weights, expected.weights, strict=True):
        torch.testing.assert_close(got[read], want)
    monkeypatch.setattr("halflabel.methods.parts.similarity_method._QUERIES", 2)
    again = method.neighbours(features, logits, torch.from_numpy(labels))
    assert torch.equal(again.index, neighbours.index)
    none = method.neighbours(features[:0], logits[:0], torch.from_numpy(labels[:0]))
    assert none.index.shape == (0, 3)


OPTIONS = [
    {},
    {"dictionary": 7, "rescale": True},
    {"label_similarity": "fixed"},
    {"graph": "identity", "k": 2},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_rules_of_the_house(options):
    checks.check_half(make(**options), (1, 2, 3))
    checks.check_targets(make(**options), (1, 2))
    checks.check_order(lambda: make(**options).double(), (1, 2, 3))
    checks.check_round_trip(lambda: make(**options), (1, 2, 2, 3))


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("options", [{"dictionary": 9, "rescale": True}, {"image_similarity": "fixed"}])
def test_a_broken_run_ends_where_the_unbroken_one_does(tmp_path, options, within):
    rng = np.random.default_rng(0)
    table = LabelTable.from_dense(rng.choice([-1, 0, 1], (24, 4)))
    values = torch.from_numpy(rng.random((24, 6))).float()
    settings = Settings(epochs=4, batch_size=8, lr=0.01, device="cpu", save_every=1)

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


def test_autocast_does_not_blur_similarities():
    view, labels = inputs(13, 8, 4, channels=30)
    method = checks.begin(make(rescale=False), labels)
    plain = step_loss(method, view.float(), labels)
    with torch.autocast("cpu", torch.bfloat16):
        cast = step_loss(method, view.float(), labels)
    assert cast == pytest.approx(plain, rel=1e-6)


def test_large_memories_are_refused(monkeypatch):
    view, labels = inputs(0, 6, 4)
    monkeypatch.setattr("halflabel.methods.parts.similarity_memory._LARGEST", 100)
    with pytest.raises(UserError, match=r"dictionary 6 would store 0.0 GB about 6 images"):
        step(begin(labels, dictionary=6), view, labels)
    fixed = begin(labels, image_similarity="fixed")
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        fixed.relabel.absorb(Sweep(view[:, :4], view[:, 4:]), 1)
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        step(fixed, view, labels, 1)  # not only when the logistic epochs are over
    monkeypatch.setattr("halflabel.methods.parts.similarity_memory._LARGEST", 95)  # too little for the labels alone
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        begin(labels, image_similarity="fixed")


def test_the_start_is_taken_over_piece_by_piece(monkeypatch):
    view, labels = inputs(3, 7, 4)
    view[2] = math.nan
    results = []
    for piece in (1 << 12, 3):
        monkeypatch.setattr("halflabel.methods.parts.similarity_memory._BLOCK_IMAGES", piece)
        method = begin(labels, image_similarity="fixed")
        method.relabel.absorb(Sweep(view[:, :4], view[:, 4:]), 1)
        results.append((method.relabel.start_features, method.relabel.start_labels))
    assert all(map(torch.equal, *results))
    assert torch.equal(results[0][0][3], view[3, 4:])
    assert not results[0][0][2].any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image_similarity": "some"}, "image_similarity cannot be 'some'"),
        ({"label_similarity": "yes"}, "use fixed or learned"),
        ({"k": 0}, "k cannot be 0"),
        ({"k": 99}, "use k from 1 to 8"),
        ({"lambda_f": -1.0}, "lambda_f cannot be -1"),
        ({"logistic_share": 1.5}, "logistic_share cannot be 1.5"),
    ],
)
def test_mistaken_options(options, said):
    with pytest.raises(UserError, match=said):
        make(**options)


def test_a_second_start_with_the_same_labels_keeps_what_was_learned():
    view, labels = inputs(14, 6, 4)
    method = begin(labels, dictionary=3)
    with torch.no_grad():
        method.graph.weights += 1
    step(method, view, labels)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    checks.begin(method, labels)
    assert all(torch.equal(method.state_dict()[name], value) for name, value in state.items())


def test_logits_and_features_may_differ_in_precision():
    view, labels = inputs(15, 5, 3)
    method = checks.begin(make(), labels)

    class Mixed(nn.Module):
        def forward(self, view):
            return Output(view[:, :3].half(), view[:, 3:].double())

    batch = Batch(torch.arange(5), (view,), torch.from_numpy(labels))
    assert torch.isfinite(method.step(Mixed(), batch, 1))
