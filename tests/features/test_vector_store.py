"""The store of values per image, without a network: blocks, damage, kills, keys, listing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from halflabel.errors import NoReadableImage, UserError
from halflabel.features import vector_store
from halflabel.features.vector_store import Block, VectorStore, stores_in

N, D = 20, 3
EXPECTED = np.arange(N * D, dtype=np.float32).reshape(N, D)


class Compute:
    """Computes EXPECTED in batches of 2, but for some images; stops before a batch."""

    def __init__(self, bad: tuple[int, ...] = (), stop: int = N) -> None:
        self.bad, self.stop = bad, stop
        self.rows: list[int] = []

    def __call__(self, rows: NDArray[np.int64]) -> Iterator[Block]:
        for planned in np.split(rows, range(2, len(rows), 2)):
            if planned[0] >= self.stop:
                raise KeyboardInterrupt
            self.rows += planned.tolist()
            images = np.setdiff1d(planned, self.bad)
            bad = {row: [f"image {row}", "path", "truncated"] for row in np.intersect1d(planned, self.bad).tolist()}
            yield Block(planned, images, EXPECTED[images] if len(images) else None, bad)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "_NOTE_ROWS", 4)


def make(folder: Path, **key: object) -> VectorStore:
    return VectorStore(folder, "numbers", key, N)


def build(store: VectorStore, bad: tuple[int, ...] = (), stop: int = N) -> list[int]:
    """Build a store; return the rows that were computed."""
    compute = Compute(bad, stop)
    store.build(compute, batch_size=2)
    return compute.rows


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
    assert other.difference() == "the weights changed"
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
    assert build(store) == list(range(first, first + 4))
    assert store.fault() is None
    assert np.array_equal(store.values(), EXPECTED)


def test_every_byte_of_the_notes_may_be_damaged(tmp_path: Path) -> None:
    store = make(tmp_path)
    build(store, bad=(5,))
    path = store.folder / "blocks.jsonl"
    raw = path.read_bytes()
    expected = EXPECTED.copy()
    expected[5] = 0
    for place in range(len(raw)):
        for damaged in (raw[:place], raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]):
            path.write_bytes(damaged)
            if store.fault() is not None:
                build(store, bad=(5,))
            assert store.fault() is None
            assert np.array_equal(store.values(), expected)
            assert store.unreadable() == {5: ["image 5", "path", "truncated"]}


def test_a_stopped_build_continues(tmp_path: Path) -> None:
    store = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build(store, stop=10, bad=(1,))
    assert store.noted_rows == 10
    assert build(store) == list(range(10, N))
    assert list(store.unreadable()) == [1]
    with open(store.folder / "blocks.jsonl", "a") as file:
        file.write("[0, 4, 1")  # a line that a kill broke off
    assert store.fault() is None


def test_images_without_values(tmp_path: Path) -> None:
    store = make(tmp_path)
    with pytest.raises(NoReadableImage):
        build(store, bad=tuple(range(N)))
    bad = (0, 1, 2, 3, 4, 5, 11, 19)
    build(store, bad=bad)
    assert store.unreadable() == {row: [f"image {row}", "path", "truncated"] for row in bad}
    assert not store.values()[list(bad)].any()


def test_a_disk_that_loses_what_is_written_is_reported(tmp_path: Path) -> None:
    store = make(tmp_path)

    def compute(rows: NDArray[np.int64]) -> Iterator[Block]:
        yield Block(rows, rows, EXPECTED[rows], {})
        (store.folder / "values.npy").unlink()

    with pytest.raises(UserError, match="disk"):
        store.build(compute)
