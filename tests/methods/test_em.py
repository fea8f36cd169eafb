"""Entropy maximisation and asymmetric pseudo-labels against the slow loops and the golden vectors."""

import json
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import step_checks
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.methods.em import APL
from halflabel.methods.parts.terms import entropy
from halflabel.system import memory
from halflabel.system.rng import hash_names
from halflabel.types import Batch, Output, Sweep

TESTS = Path(__file__).parents[1]
reference = step_checks.reference("em")


def run(method: Method, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.detach().clone().requires_grad_()
    loss = method.step(lambda view: Output(view, view), Batch(torch.arange(len(x)), (x,), labels), 1)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def make_labels(images: int, classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(images * 31 + classes)
    labels = torch.randint(-1, 2, (images, classes), generator=generator, dtype=torch.int8)
    labels[images // 2] = 0  # nothing known of one image
    return labels


def test_entropy_and_its_gradient_are_exact_at_large_logits():
    x = torch.tensor([-1e4, -300.0, -30.0, -2.0, 0.0, 2.0, 30.0, 300.0, 1e4], dtype=torch.float64, requires_grad=True)
    value = entropy(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    q = 1 / (1 + math.exp(30))  # the small side; 1 − p would have lost its digits
    assert value[2].item() == pytest.approx(-q * math.log(q) - (1 - q) * math.log1p(-q), rel=1e-9)
    assert value[4].item() == pytest.approx(math.log(2))
    p = torch.sigmoid(x.detach())
    torch.testing.assert_close(slope, -x.detach() * p * torch.sigmoid(-x.detach()), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(value, value.flip(0), rtol=0, atol=0)
    assert entropy(x.detach().float()).isfinite().all()


@pytest.mark.parametrize("shape", [(12, 5), (9, 1), (1, 4), (1, 1)])
@pytest.mark.parametrize("tied", [False, True])
def test_em_apl_equals_the_slow_loop_sweep_after_sweep(shape, tied):
    """Pseudo-labels, loss and gradient over the whole schedule, with equal scores and an unreadable image."""
    labels = make_labels(*shape)
    table = Table.from_dense(labels.numpy(), images=[f"photo {i * 7 % 13}" for i in range(shape[0])])
    rank = np.argsort(np.argsort(hash_names(table.images.array))).tolist()
    method = recipe("em-apl").make(alpha=0.3, beta=0.4, theta=0.8, apl_from=2, apl_to=5, few_absent=1.0)
    method.start(table)
    generator = torch.Generator().manual_seed(2)
    soft: list[list[float | None]] = [[None] * shape[1] for _ in labels]
    for epoch in range(1, 7):
        logits = torch.randn(shape, dtype=torch.float64, generator=generator) * 3
        logits = logits.round() if tied else logits
        x = logits.clone().requires_grad_()
        loss = reference.em_apl(x, labels.tolist(), soft, 0.3, 0.4)
        expected = loss.detach(), torch.autograd.grad(loss, x)[0]
        torch.testing.assert_close(run(method, logits, labels), expected, rtol=1e-9, atol=1e-9)
        assert method.relabel.wants_sweep(epoch) == (2 <= epoch < 5)
        if method.relabel.wants_sweep(epoch):
            swept = (torch.randn(shape, generator=generator) * 3).round() if tied else logits.float()
            if shape[0] > 1:
                swept[0] = math.nan
            scores = [[None if v != v else torch.tensor(v).sigmoid().item() for v in row] for row in swept.tolist()]
            soft = reference.apl_sweep(scores, labels.tolist(), soft, Fraction(8, 10), 3, rank)
            log = method.relabel.absorb(Sweep(swept, swept), epoch)
            assert log["pseudo_labels"] == sum(s is not None for row in soft for s in row)
    if shape == (12, 5):
        assert log["pseudo_labels"] > 0
        assert 0 < log["pseudo_share"] <= 0.8


def test_unreadable_images_stay_unknown_and_known_labels_known_when_the_quota_exceeds_the_rest():
    relabel = APL(0.5, 1.0, 1, 2)
    labels = torch.tensor([0, 0, 0, 1, -1, 1, -1, 1, -1])[:, None]
    relabel.start(Table.from_dense(labels.numpy()))
    logits = torch.tensor([0.0, math.nan, math.nan, -5, -5, -5, -5, -5, -5])[:, None]
    log = relabel.absorb(Sweep(logits, logits), 1)
    assert log == {"pseudo_labels": 1, "pseudo_share": pytest.approx(1 / 3)}
    expected = torch.tensor([0.5, math.nan, math.nan, -1, -1, -1, -1, -1, -1])[:, None]
    torch.testing.assert_close(relabel.labels.values, expected, equal_nan=True)


@pytest.mark.parametrize("file", ["em", "em_apl"])
def test_golden(file):
    golden = json.loads((TESTS / "golden" / "losses" / f"{file}.json").read_text())
    method = recipe(file.replace("_", "-")).make(**golden["options"])
    for case in golden["cases"]:
        labels = torch.tensor(case["labels"], dtype=torch.int8)
        method.start(Table.from_dense(labels.numpy()))
        if file == "em_apl":
            soft = torch.tensor(case["soft_labels"], dtype=torch.float64)
            method.relabel.labels.values = soft.where(torch.tensor(case["soft_mask"]) == 1, math.nan)
        loss, grad = run(method, torch.tensor(case["logits"], dtype=torch.float64), labels)
        assert loss.item() == pytest.approx(case["loss"], abs=1e-10), case["name"]
        torch.testing.assert_close(grad, torch.tensor(case["grad"], dtype=torch.float64), rtol=0, atol=1e-10)


def test_large_tables_are_refused(monkeypatch):
    nothing = np.zeros(0, np.int64)
    table = Table.from_entries(Names.numbered(2_100_000), Names.numbered(1000), nothing, nothing, nothing)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**10))
    # Four bytes of each score and of each soft label.
    with pytest.raises(UserError, match=r"em-apl would score 2100000 .*: 16\.8 GB in scratch files.*such as em"):
        recipe("em-apl").make().start(table)


LOGITS = {
    "plain": lambda x: x,
    "tied": lambda x: x.round(),
    "half": lambda x: x.half().float(),
    "all equal": lambda x: torch.zeros_like(x),
    "signed zeros": lambda x: 0.0 * x.sign(),
    "wide": lambda x: 1e30 * x**9,
    "tiny": lambda x: 1e-40 * x,
    "infinite": lambda x: torch.where(x < -3, -math.inf, x),
}


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_cut_offs_by_blocks_are_those_of_sorting(kind, place, monkeypatch, tmp_path):
    """Class by class: still unknown and readable entries in the order of logit, then of name; the first of them."""
    for name, value in (("_BLOCK_ENTRIES", 37), ("_CLASSES", 4), ("_DIGIT_BITS", 5)):
        monkeypatch.setattr(f"halflabel.methods.parts.label_store.{name}", value)
    if place == "file":
        monkeypatch.setattr("halflabel.system.memory._SCRATCH_BYTES", 1)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    labels = make_labels(50, 9)
    labels[:, 0], labels[:, 1], labels[:, 2] = 0, 1, -1  # nothing known, everything
    labels[3:, 3] = 1  # fewer unknown than there are images in a block
    table = Table.from_dense(labels.numpy(), images=[f"photo {i * 7 % 53}" for i in range(50)])
    rank = np.argsort(np.argsort(hash_names(table.images.array)))
    relabel = APL(0.5, 0.9, 1, 4)
    relabel.start(table)
    generator = torch.Generator().manual_seed(5)
    expected = torch.where(labels != 0, -1.0, math.nan)
    for epoch in range(1, 4):
        logits = LOGITS[kind](4 * torch.randn(50, 9, generator=generator))
        logits[torch.rand(50, generator=generator) < 0.1] = math.nan  # could not be read
        for c in range(9):
            quota = int(Fraction(9, 10) * int((labels[:, c] == 0).sum()) / 3)
            free = [i for i in range(50) if expected[i, c].isnan() and not logits[i, c].isnan()]
            for i in sorted(free, key=lambda i: (float(logits[i, c]), rank[i]))[:quota]:
                expected[i, c] = logits[i, c].sigmoid()
        swept = memory.scratch_zeros(logits.shape).copy_(logits)
        log = relabel.absorb(Sweep(swept, swept), epoch)
        assert log["pseudo_labels"] == int((expected >= 0).sum())
        assert log["pseudo_share"] == log["pseudo_labels"] / int((labels == 0).sum())
    assert (relabel.labels.is_mapped) == (place == "file")
    torch.testing.assert_close(relabel.labels.values, expected, rtol=0, atol=1e-7, equal_nan=True)
    assert log["pseudo_labels"] > 50


def test_few_known_negatives_have_a_small_weight_and_many_the_full_one():
    logits = torch.zeros((1, 4), dtype=torch.float64)
    for labels, charged in (([[1, 1, -1, 0]], 0.1), ([[1, -1, -1, 0]], 1.0), ([[1, -1, 0, 0]], 1.0)):
        held = torch.tensor(labels, dtype=torch.int8)
        for name in ("em", "em-apl"):
            relabel = recipe(name).make().relabel
            relabel.start(Table.from_dense(held.numpy()))
            pos, neg = relabel(Batch(torch.arange(1), (), held), logits, 1)
            assert torch.equal(pos > 0, held > 0)
            assert torch.equal(neg, charged * (held < 0).double())


def test_it_can_start_again_on_a_table_of_another_size():
    small, large = make_labels(5, 4), make_labels(40, 6)
    relabel = APL(0.5, 0.9, 1, 4)
    for labels in (small, large, small):
        relabel.start(Table.from_dense(labels.numpy()))
        logits = torch.randn(labels.shape, generator=torch.Generator().manual_seed(1))
        log = relabel.absorb(Sweep(logits, logits), 1)
        fresh = APL(0.5, 0.9, 1, 4)
        fresh.start(Table.from_dense(labels.numpy()))
        assert fresh.absorb(Sweep(logits, logits), 1) == log
        assert list(relabel.state_dict()) == list(fresh.state_dict())
        batch = Batch(torch.arange(len(labels)), (), labels)
        for restarted, expected in zip(relabel(batch, logits, 2), fresh(batch, logits, 2), strict=True):
            assert torch.equal(restarted, expected)
