"""Uncertain labels: kept in rows and files, unknown in tables, trained on as stated, never evaluated."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.labels import formats
from halflabel.labels.drop import apply as hide
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import UNCERTAIN, Table
from halflabel.labels.uncertain import decide_uncertain, parse_uncertain
from halflabel.methods.base import recipe
from halflabel.types import Batch

IMAGES, CLASSES = Names(["a", "b", "c"]), Names(["cat", "dog"])


def rows(*entries: tuple[int, int, int, str]) -> Labels:
    image, column, value, source = zip(*entries, strict=True)
    sources = sorted(set(source))
    number = np.array([sources.index(name) for name in source])
    return Labels.build(IMAGES, CLASSES, np.array(image), np.array(column), np.array(value), number, sources=sources)


ROWS = rows((0, 0, 1, ""), (0, 1, UNCERTAIN, ""), (1, 0, -1, ""), (1, 1, UNCERTAIN, ""), (2, 0, UNCERTAIN, ""))


def uncertain(table: Table) -> list[list[int]]:
    return [] if table.uncertain is None else np.argwhere(table.uncertain.toarray()).tolist()


def test_uncertain_entries_are_unknown_and_listed() -> None:
    table = ROWS.training
    assert table.dense().tolist() == [[1, 0], [-1, 0], [0, 0]]
    assert uncertain(table) == [[0, 1], [1, 1], [2, 0]]
    assert table.stats.uncertain.tolist() == [1, 2]
    assert uncertain(table.subset([2, 0], [1, 0])) == [[0, 1], [1, 0]]
    assert uncertain(hide("partial", table, share=0.1)) == uncertain(table)
    assert Labels.from_table(table).select(slice(None)).training == table
    assert table.digest() != Table.from_dense(table.dense(), IMAGES, CLASSES).digest()


@pytest.mark.parametrize(
    ("later", "label"),
    [
        ((0, 1, 1, "model:bce:x"), 1),  # a model may decide what a person left open
        ((0, 1, -1, "person:ann"), -1),
        ((0, 1, 0, ""), 0),
    ],
)
def test_later_rows_decide(later: tuple[int, int, int, str], label: int) -> None:
    table = ROWS.append(rows(later)).training
    assert table.dense()[0].tolist() == [1, label]
    assert uncertain(table) == [[1, 1], [2, 0]]


def test_a_person_may_become_uncertain() -> None:
    table = ROWS.append(rows((0, 0, UNCERTAIN, ""))).training
    assert table.dense()[0].tolist() == [0, 0]
    assert [0, 0] in uncertain(table)


def test_no_evaluation_sees_them() -> None:
    with_model = ROWS.append(rows((2, 1, 1, "model:bce:x")))
    for table in (with_model.people, with_model.evaluation, with_model.choosing):
        assert table.dense().tolist() == [[1, 0], [-1, 0], [0, 0]]
    assert with_model.count_conflicts() == 0


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "wide.csv"])
def test_files_keep_them(name: str, tmp_path: Path) -> None:
    formats.write(ROWS, tmp_path / name, format="wide" if "wide" in name else "long")
    result = formats.read(tmp_path / name)
    assert result.table() == ROWS.training
    assert sum(count.entries for count in result.audit.value_counts if count.meaning == "uncertain") == 3


@pytest.mark.parametrize(("format", "name"), [("binary", "x.labels"), ("lvis", "x.json")])
def test_formats_that_cannot_hold_them_refuse(format: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3 uncertain labels"):
        formats.write(ROWS, tmp_path / name, format=format)
    formats.write(ROWS, tmp_path / name, format=format, without_uncertain=True)
    table = formats.read(tmp_path / name).table()
    assert table.uncertain is None
    assert table.known == 2


@pytest.mark.parametrize(
    ("text", "labels", "left"),
    [
        ("ignore", [[1, 0], [-1, 0], [0, 0]], 3),
        ("present", [[1, 1], [-1, 1], [1, 0]], 0),
        ("absent", [[1, -1], [-1, -1], [-1, 0]], 0),
        ("dog=present,*=ignore", [[1, 1], [-1, 1], [0, 0]], 1),
        ("dog=present; cat=absent", [[1, 1], [-1, 1], [-1, 0]], 0),
        ("dog=absent", [[1, -1], [-1, -1], [0, 0]], 1),
        ("soft", [[1, 0], [-1, 0], [0, 0]], 3),
    ],
)
def test_readings(text: str, labels: list[list[int]], left: int) -> None:
    table = decide_uncertain(ROWS.training, text)
    assert table.dense().tolist() == labels
    assert len(uncertain(table)) == left


def test_soft_targets_are_in_their_interval_and_follow_the_names() -> None:
    table = ROWS.training
    targets = decide_uncertain(table, "soft=0.6-0.8").soft_targets([0, 1, 2])
    assert targets is not None
    assert np.isnan(targets).sum() == 3
    known = targets[~np.isnan(targets)]
    assert ((known >= 0.6) & (known < 0.8)).all()
    assert len(set(known.tolist())) == 3
    turned = decide_uncertain(table.subset([2, 1, 0]), "soft=0.6-0.8").soft_targets([2, 1, 0])
    np.testing.assert_array_equal(targets, turned)
    assert decide_uncertain(table, "cat=soft,*=ignore").soft_targets([0, 1]) is None


@pytest.mark.parametrize("text", ["", "maybe", "soft=0.9-0.1", "soft=0.5-2", "soft=0.5", "dog=", "dog=ignore,,", "1"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="uncertain"):
        parse_uncertain(text)
    with pytest.raises(UserError, match="uncertain"):
        Config(uncertain=text)


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="cow"):
        decide_uncertain(ROWS.training, "cow=present")


@pytest.mark.parametrize("name", ["bce", "an", "n-ls", "csl", "plcl", "em", "asl"])
def test_soft_targets_reach_every_loss(name: str) -> None:
    table = decide_uncertain(ROWS.training, "dog=soft=0.7-0.7")
    method = recipe(name).make()
    method.plan(3)
    method.start(table)
    index = torch.arange(3)
    soft = table.soft_targets(index.numpy())
    assert soft is not None
    labels = torch.from_numpy(table.dense())
    logits = torch.randn(3, 2, generator=torch.manual_seed(0))
    plain, softened = (
        method.relabel(Batch(index, (logits,), labels, each), logits, 1) for each in (None, torch.from_numpy(soft))
    )
    entries = torch.tensor([[False, True], [False, True], [False, False]])
    for before, after, target in zip(plain, softened, (0.7, 0.3), strict=True):
        assert torch.allclose(after[entries], torch.tensor(target, dtype=after.dtype))
        assert torch.equal(after[~entries], before[~entries])


def test_readings_change_the_training_and_not_the_evaluation() -> None:
    """Half of the positives of a class are called uncertain: as present they are found, as absent they are not."""
    generator = np.random.default_rng(0)
    truth = np.where(generator.random(200) < 0.4, 1, -1)
    features = torch.from_numpy((truth[:, None] * 0.7 + generator.normal(size=(200, 8))).astype(np.float32))
    value = np.where((truth > 0) & (generator.random(200) < 0.5), UNCERTAIN, truth)
    index = np.arange(200)
    table = Table.from_entries(Names.numbered(200), Names(["x"]), index, 0 * index, value)
    config = Config(method="bce", fit="linear", l2_strength=1e-2, similar=False)
    mean = {}
    for reading in ("ignore", "present", "absent", "soft"):
        inputs = Inputs(lambda: Features(features, table.images), of_backbone=False)
        fitted = fit(Labels.of(table), inputs, dataclasses.replace(config, uncertain=reading)).crossfit
        assert fitted is not None
        mean[reading] = float(fitted.logits[value == UNCERTAIN].mean())
        assert fitted.quality > 0.5
    assert mean["absent"] < min(mean["ignore"], mean["soft"]) < max(mean["ignore"], mean["soft"]) < mean["present"]
