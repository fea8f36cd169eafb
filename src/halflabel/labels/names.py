"""Names: the ordered, distinct names of images or classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import UserError

__all__ = ["Names"]


class Names:
    """Distinct strings in a fixed order, held as one Arrow array: 4 bytes and the text itself per name.

    >>> names = Names(["cat", "dog", "007"])
    >>> len(names), names[2], names.index(["dog", "cow"]).tolist()
    (3, '007', [1, -1])
    """

    __slots__ = ("array",)

    def __init__(self, names: Iterable[str] | pa.Array) -> None:
        array = names if isinstance(names, pa.Array) else pa.array([str(name) for name in names], pa.string())
        if pa.types.is_large_string(array.type) and array.nbytes < 2**31:
            array = array.cast(pa.string())
        if len(array) != pc.count_distinct(array).as_py():
            counts = array.value_counts()
            repeated = counts.filter(pc.greater(counts.field(1), 1)).field(0)[0].as_py()
            raise UserError(f"the name {repeated!r} is given twice", "give every image and every class its own name")
        self.array = array

    @classmethod
    def numbered(cls, count: int) -> Names:
        """The names "0", "1", … for tables made from plain arrays."""
        return cls(pa.array(np.arange(count)).cast(pa.string()))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, position: int) -> str:
        return str(self.array[int(position)].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self.array.to_pylist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and len(self) == len(other) and bool(self.array.equals(other.array))

    __hash__ = None  # type: ignore[assignment]  # holds an array: compared by content, never a key

    def __repr__(self) -> str:
        head = ", ".join(repr(self[i]) for i in range(min(3, len(self))))
        return f"Names([{head}{', …' if len(self) > 3 else ''}], {len(self)})"

    def index(self, names: Iterable[str] | pa.Array) -> NDArray[np.int64]:
        """The position of each given name, −1 where it is not among these."""
        wanted = names if isinstance(names, pa.Array) else pa.array(list(names), pa.string())
        if wanted.type != self.array.type:
            wanted = wanted.cast(self.array.type)
        found = pc.index_in(wanted, value_set=self.array)
        return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)

    def take(self, positions: NDArray[Any]) -> Names:
        return Names(self.array.take(pa.array(np.asarray(positions, dtype=np.int64))))

    def union(self, other: Names) -> Names:
        """These names, then those of `other` that are new, in their order."""
        if self == other:
            return self
        fresh = np.flatnonzero(self.index(other.array) < 0)
        return Names(pa.concat_arrays([self.array, other.array.cast(self.array.type).take(pa.array(fresh))]))
