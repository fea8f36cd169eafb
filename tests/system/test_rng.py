"""Randomness as a function of names and seed: reference, stored values, uniformity."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halflabel.system.rng import bits, hash_names

# Shared machines stall: a deadline would measure them instead of the code.
quick = settings(deadline=None, max_examples=50)

WORD = (1 << 64) - 1


def slow_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def slow_bits(seed: int, *parts: int) -> int:
    golden = 0x9E3779B97F4A7C15
    state = slow_mix(((seed & WORD) + golden) & WORD)
    for part in parts:
        state = slow_mix((state * 0x100000001B3 & WORD) ^ slow_mix(((part & WORD) + golden) & WORD))
    return state


def slow_hash(name: str) -> int:
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & WORD
    return slow_mix(state)


def test_splitmix64_as_published() -> None:
    """The first outputs of splitmix64 from state 0, which are mix(golden), mix(2·golden)."""
    assert int(bits(0)[0]) == 0xE220A8397B1DCDAF
    assert int(bits(0x9E3779B97F4A7C15)[0]) == 0x6E789E6AA1B965F4


@quick
@given(st.integers(-(2**63), 2**64 - 1), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4))
def test_bits_equal_the_slow_reference(seed: int, parts: list[int]) -> None:
    assert int(bits(seed, *parts)[0]) == slow_bits(seed, *parts)


@quick
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
def test_hash_equals_the_slow_reference(names: list[str]) -> None:
    assert hash_names(names).tolist() == [slow_hash(name) for name in names]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_hash_takes_arrow_arrays_and_slices(kind: pa.DataType) -> None:
    names = ["", "cat", "Übergröße", "x" * 300, "狗"]
    array = pa.array(names, kind)
    np.testing.assert_array_equal(hash_names(array), hash_names(names))
    np.testing.assert_array_equal(hash_names(array[2:4]), hash_names(names[2:4]))
    assert hash_names(array[:0]).shape == hash_names([]).shape == (0,)


def test_parts_broadcast_and_their_order_matters() -> None:
    table = bits(1, np.arange(3)[:, None], np.arange(4))
    assert table.shape == (3, 4)
    assert int(table[2, 1]) == slow_bits(1, 2, 1) != slow_bits(1, 1, 2)
    assert len(np.unique(table)) == 12
