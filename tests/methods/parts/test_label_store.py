"""Weak labels in two bits, soft ones in one byte: stored and read back, in memory and in a scratch file."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.parts import label_store
from halflabel.methods.parts.label_store import PackedLabels, SoftLabels
from halflabel.system import memory


def make_labels(images: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, 2, (images, classes)).astype(np.int8)


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if request.param == "file":
        monkeypatch.setattr(memory, "_SCRATCH_BYTES", 1)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return str(request.param)


@pytest.mark.parametrize("classes", [1, 3, 4, 5, 17])
def test_packed_against_a_plain_table(classes: int, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "_BLOCK_ENTRIES", 7)  # several pieces, none of whole images
    labels = make_labels(23, classes)
    table = Table.from_dense(labels)
    store = PackedLabels()
    store.start(table)
    assert store.is_mapped == (place == "file")
    assert store.codes.shape == (23, math.ceil(classes / 4))
    plain = torch.from_numpy(labels.copy())
    generator = torch.Generator().manual_seed(classes)
    for _ in range(5):
        assert torch.equal(store.dense(), plain)
        index = torch.randperm(23, generator=generator)[:6]
        assert torch.equal(store.rows(index), plain[index])
        assert store.rows(index).dtype == torch.int8
        assert store.counts() == (int((plain > 0).sum()), int((plain < 0).sum()))
        new = torch.randint(-1, 2, (6, classes), generator=generator)
        store.set_rows(index, new)
        plain[index] = new.to(torch.int8)
    repeated = store.rows(torch.tensor([2, 2]))  # to look twice is fine
    assert torch.equal(repeated[0], repeated[1])
    store.start(table, known=False)
    assert store.counts() == (0, 0)


@given(st.integers(0, 5), st.integers(0, 9), st.integers(0, 99))
def test_packed_of_any_shape(images: int, classes: int, seed: int) -> None:
    store = PackedLabels()
    labels = make_labels(images, classes, seed)
    store.start(Table.from_dense(labels))
    assert np.array_equal(store.dense().numpy(), labels)


@pytest.mark.parametrize("kind", [PackedLabels, SoftLabels])
def test_state_is_saved_and_loaded(
    kind: type[PackedLabels | SoftLabels], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "file":
        monkeypatch.setattr(label_store, "FLOAT32_BELOW", 1)
    table = Table.from_dense(make_labels(6, 5))
    saved, loaded = kind(), kind()
    for store in (saved, loaded):
        store.start(table)
    if isinstance(saved, PackedLabels):
        saved.set_rows(torch.tensor([3]), torch.tensor([[1, -1, 0, 1, 1]]))
    else:
        saved.put(slice(None), slice(2, 3), torch.ones(6, 1, dtype=torch.bool), torch.full((6, 1), 0.25))
    index = torch.arange(6)
    assert not torch.equal(saved.rows(index), loaded.rows(index))
    loaded.load_state_dict(saved.state_dict())
    torch.testing.assert_close(saved.rows(index), loaded.rows(index), rtol=0, atol=0, equal_nan=True)


def test_the_scratch_file_is_unnamed_and_stays_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = Table.from_dense(make_labels(6, 5))
    inside = nn.ModuleDict({"small": PackedLabels()})
    inside["small"].start(table)
    monkeypatch.setattr(memory, "_SCRATCH_BYTES", 1)
    inside["large"] = PackedLabels()
    inside["large"].start(table)
    assert not list(tmp_path.iterdir())
    inside.to("meta")
    assert inside["small"].codes.device.type == "meta"
    assert inside["large"].codes.device.type == "cpu"
    monkeypatch.setattr(label_store, "LARGEST", 11)
    with pytest.raises(UserError, match=r"ll-cp would need 0\.0 GB to store labels of 6 images.*such as em"):
        inside["large"].start(table, "ll-cp")
    monkeypatch.setattr(label_store, "LARGEST", 12)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=11))
    with pytest.raises(UserError, match=r"ll-cp would remember 0\.0 GB in scratch files.*TMPDIR.*such as em"):
        inside["large"].start(table, "ll-cp")


def test_soft_labels_are_right_to_one_in_506(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_store, "FLOAT32_BELOW", 1)
    monkeypatch.setattr(label_store, "_BLOCK_ENTRIES", 7)
    labels = make_labels(40, 6)
    store = SoftLabels()
    store.start(Table.from_dense(labels))
    known = torch.from_numpy(labels) != 0
    index, everything = torch.arange(40), slice(None)
    assert torch.equal(store.rows(index) == -1, known)
    assert torch.equal(store.rows(index).isnan(), ~known)
    soft = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    soft[0], soft[1], soft[2] = 0.0, 1.0, math.nan
    chosen = ~known[5:35, 2:4] & ~soft.isnan()
    chosen[5, 0] = False
    store.put(slice(5, 35), slice(2, 4), chosen, soft)
    rows = store.rows(index)
    assert torch.equal(rows < 0, known)
    part = rows[5:35, 2:4]
    assert torch.equal(part >= 0, chosen)
    assert int((rows >= 0).sum()) == int(chosen.sum()) > 15
    assert torch.equal(part[:2][chosen[:2]], soft[:2][chosen[:2]])
    assert 0 < (part - soft)[chosen].abs().max() <= 1 / 506 + 1e-6
    assert torch.equal(store.unknown(slice(7, 30), slice(1, 5)), rows[7:30, 1:5].isnan())
    store.put(everything, everything, rows >= 0, rows)  # what was rounded once stays
    torch.testing.assert_close(store.rows(index), rows, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(store.rows(torch.tensor([7, 3])).nan_to_num(9), rows[[7, 3]].nan_to_num(9))


def test_two_bits_for_many_images() -> None:
    nothing = np.zeros(0, np.int64)
    store = PackedLabels()
    store.start(Table.from_entries(Names.numbered(100_000), Names.numbered(1000), nothing, nothing, nothing))
    assert store.codes.nbytes == 25_000_000
