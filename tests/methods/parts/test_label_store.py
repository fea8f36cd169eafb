"""Numbers per image and class: in memory and in a scratch file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.parts.label_store import EntryStore, label_blocks
from halflabel.system import memory

TABLE = Table.from_dense([[1, 0, -1], [0, 0, 1], [-1, -1, 0], [0, 1, 0]])


def test_rows_state_and_counts_in_memory_and_in_an_unnamed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("halflabel.methods.parts.label_store._BLOCK_ENTRIES", 7)
    inside = nn.ModuleDict({"small": EntryStore(), "large": EntryStore()})
    inside["small"].start(TABLE, "x")
    monkeypatch.setattr(memory, "_SCRATCH_BYTES", 1)
    inside["large"].start(TABLE, "x")
    for store in inside.values():
        for rows, labels in label_blocks(TABLE):
            store.values[rows] = labels
        assert torch.equal(store.values, torch.from_numpy(TABLE.dense()))
        store.set_rows(torch.tensor([3, 1]), torch.tensor([[1, 1, 1], [0, 0, -1]]))
        assert store.rows(torch.tensor([1, 3, 1])).tolist() == [[0, 0, -1], [1, 1, 1], [0, 0, -1]]
        assert (store.count(lambda v: v > 0), store.count(lambda v: v < 0)) == (4, 4)
        loaded = EntryStore()
        loaded.start(TABLE, "x")
        loaded.load_state_dict(store.state_dict())
        assert torch.equal(loaded.values, store.values)
    assert not list(tmp_path.iterdir())
    inside.to("meta")
    assert [store.values.device.type for store in inside.values()] == ["meta", "cpu"]
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=11))
    with pytest.raises(UserError, match=r"ll-cp would remember 0\.0 GB in scratch files.*TMPDIR.*such as em"):
        inside["large"].start(TABLE, "ll-cp")
