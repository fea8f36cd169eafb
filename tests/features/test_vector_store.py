"""The store of values per image, without a network: blocks, damage, kills, keys, listing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.features.vector_store import Block, VectorStore, stores_in

N, D = 20, 3
EXPECTED = np.arange(N * D, dtype=np.float32).reshape(N, D)
EXPECTED[5] = 0
BAD = {5: ["image 5", "path", "truncated"]}


def make(folder: Path, **key: object) -> VectorStore:
    return VectorStore(folder, "numbers", key, N)


def build(store: VectorStore) -> list[int]:
    """Build a store in batches of 2; return the rows that were computed."""
    computed: list[int] = []

    def compute(rows: NDArray[np.int64]) -> Iterator[Block]:
        for planned in np.split(rows, range(2, len(rows), 2)):
            bad = {row: BAD[row] for row in BAD if row in planned}
            yield Block(planned, EXPECTED[np.setdiff1d(planned, list(bad))], bad)
            computed.extend(planned.tolist())

    store.build(compute, batch_size=2)
    return computed


def test_values_are_computed_once_and_found_by_their_key(tmp_path: Path) -> None:
    store = make(tmp_path, weights="a")
    assert store.fault() == ""
    assert build(store) == list(range(N))
    assert store.fault() is None
    assert build(make(tmp_path, weights="a")) == []
    values = make(tmp_path, weights="a").values()
    assert isinstance(values, np.memmap)
    assert np.array_equal(values, EXPECTED)
    values[:] = 0  # which is not written
    assert store.fault() is None
    other = make(tmp_path, weights="b")
    assert other.fault() == ""
    build(other)
    assert [(found.key, found.rows) for found in stores_in(tmp_path)] == [
        (each.key, N) for each in sorted((store, other), key=lambda each: each.folder)
    ]
    store.remove()
    assert [found.key for found in stores_in(tmp_path)] == [{"weights": "b"}]


@pytest.mark.parametrize("first", [0, 8, 16])
def test_only_the_damaged_block_is_computed_again(tmp_path: Path, first: int) -> None:
    store = make(tmp_path)
    build(store)
    raw = bytearray((store.folder / "values.npy").read_bytes())
    raw[len(raw) - EXPECTED[first + 1 :].nbytes - 1] ^= 1
    (store.folder / "values.npy").write_bytes(raw)
    assert "checksum" in (store.fault() or "")
    assert build(store) == [first, first + 1]
    assert store.fault() is None
    assert np.array_equal(store.values(), EXPECTED)


def test_bytes_of_the_notes_may_be_damaged(tmp_path: Path) -> None:
    store = make(tmp_path)
    build(store)
    path = store.folder / "blocks.jsonl"
    raw = path.read_bytes()
    for place in range(0, len(raw), 3):
        for damaged in (raw[:place], raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]):
            path.write_bytes(damaged)
            if store.fault() is not None:
                build(store)
            assert store.fault() is None
            assert np.array_equal(store.values(), EXPECTED)
            assert store.unreadable() == BAD


def test_a_disk_that_loses_what_is_written_is_reported(tmp_path: Path) -> None:
    store = make(tmp_path)

    def compute(rows: NDArray[np.int64]) -> Iterator[Block]:
        yield Block(rows, EXPECTED[rows], {})
        (store.folder / "values.npy").unlink()

    with pytest.raises(UserError, match="disk"):
        store.build(compute)
