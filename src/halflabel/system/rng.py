"""Random numbers as a function of (seed, purpose, …), without a generator state: 64-bit integer arithmetic.

A number drawn for an image depends only on the seed and the image's name: not on its position in the file, the number
of workers, or a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halflabel.errors import UserError

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


def _mix(x: U64) -> U64:
    """Apply the splitmix64 finaliser: every input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(seed: int | NDArray[Any], *parts: int | NDArray[Any]) -> U64:
    """Return 64 random bits per broadcast element of `parts` (integers or integer arrays), at least 1-d."""
    if isinstance(seed, int) and not -(2**63) <= seed < 2**64:
        raise UserError(f"a seed of {len(str(abs(seed)))} digits is too large", "use a seed below 2**63")
    state = np.atleast_1d(np.asarray(seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64))
    state = _mix(state + _GOLDEN)
    for part in parts:
        word = np.atleast_1d(np.asarray(part & 0xFFFFFFFFFFFFFFFF if isinstance(part, int) else part))
        # The product makes the order of parts matter: with xor alone, (1, 2) and (2, 1) would give the same bits.
        state = _mix((state * _FNV_PRIME) ^ _mix(word.astype(np.uint64, copy=False) + _GOLDEN))
    return state


def uniform(seed: int | NDArray[Any], *parts: int | NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers in [0, 1) with 53 random bits, one per broadcast element of `parts`."""
    return (bits(seed, *parts) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hash_names(names: Sequence[str] | Any) -> U64:
    """Return a 64-bit hash (FNV-1a, then mixed) of the UTF-8 bytes of each string in a list or pyarrow array."""
    array = names if isinstance(names, pa.Array) else pa.array(list(names), pa.large_string())
    array = array.cast(pa.large_string())
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    data_buffer = array.buffers()[2]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    state = np.full(len(array), _FNV_START)
    alive = np.flatnonzero(lengths > 0)
    position = 0
    while alive.size:
        state[alive] = (state[alive] ^ data[starts[alive] + position].astype(np.uint64)) * _FNV_PRIME
        position += 1
        alive = alive[lengths[alive] > position]
    return _mix(state)
