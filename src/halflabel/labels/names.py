"""Names: the ordered, distinct names of images or classes, stored as one Arrow array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError

_CHUNK = 1 << 16
_INVISIBLE = "[\u00ad\u200b-\u200f\u2060\ufe0e\ufe0f\ufeff]"


class Names:
    """Distinct strings in a fixed order, stored as one Arrow array: 4 bytes plus the text per name.

    >>> names = Names(["cat", "dog", "007"])
    >>> len(names), names[2], names.index(["dog", "cow"]).tolist()
    (3, '007', [1, -1])
    """

    __slots__ = ("array",)

    def __init__(self, names: Iterable[str] | pa.Array) -> None:
        array = names if isinstance(names, pa.Array) else pa.array([str(name) for name in names], pa.string())
        if pa.types.is_large_string(array.type) and array.nbytes < 2**31:
            array = array.cast(pa.string())
        if len(array.unique()) < len(array):
            counts = array.value_counts()
            duplicate = counts.filter(pc.greater(counts.field(1), 1)).field(0)[0].as_py()
            raise UserError(f"the name {duplicate!r} is given twice", "give every image and every class its own name")
        self.array = array

    @classmethod
    def numbered(cls, count: int) -> Names:
        """The names "0", "1", …, for tables built from arrays without names."""
        return cls._trusted(pa.array(np.arange(count)).cast(pa.string()))

    @classmethod
    def _trusted(cls, array: pa.Array) -> Names:
        names = cls.__new__(cls)
        names.array = array
        return names

    def __len__(self) -> int:
        return len(self.array)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(pc.index(self.array, pa.scalar(name, self.array.type)).as_py() >= 0)

    def __getitem__(self, position: int) -> str:
        return str(self.array[int(position)].as_py())

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self.array), _CHUNK):  # in chunks: millions of Python strings take gigabytes
            yield from self.array.slice(first, _CHUNK).to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and len(self) == len(other) and bool(self.array.equals(other.array))

    __hash__ = None  # type: ignore[assignment]  # mutable content; compared by value, never a dict key

    def __repr__(self) -> str:
        head = ", ".join(repr(self[i]) for i in range(min(3, len(self))))
        return f"Names([{head}{', …' if len(self) > 3 else ''}], {len(self)})"

    def index(self, names: Iterable[str] | pa.Array) -> NDArray[np.int64]:
        """The position of each of `names`, −1 for a name that is not here."""
        wanted = names if isinstance(names, pa.Array) else pa.array(list(names), pa.string())
        return find_names(wanted.cast(self.array.type), self.array)

    def look_alikes(self, *, ignore_case: bool = False) -> tuple[str, str] | None:
        """Two names that differ only in how characters are composed, in outer blanks or in characters that nobody sees.

        `ignore_case` also finds names that differ in capital letters or in the width of letters. None if no two do.

        >>> Names(["café", "cafe\\u0301", "dog"]).look_alikes() == ("café", "cafe\\u0301")
        True
        >>> Names(["dog ", "cat", " dog"]).look_alikes(), Names(["dog", "Dog"]).look_alikes(ignore_case=True)
        (('dog ', ' dog'), ('dog', 'Dog'))
        """
        parts = (self.array.slice(first, _CHUNK) for first in range(0, len(self.array), _CHUNK))
        if all(_visible(part, ignore_case).equals(part) for part in parts):  # no copy of millions of names
            return None
        coded = pc.dictionary_encode(_visible(self.array, ignore_case))
        if len(coded.dictionary) == len(coded):
            return None
        repeated = int(np.argmax(np.bincount(coded.indices.to_numpy()) > 1))
        pair = self.array.filter(pc.equal(coded.indices, repeated))
        return pair[0].as_py(), pair[1].as_py()

    def merge_look_alikes(self, weights: NDArray[Any]) -> NDArray[np.int64]:
        """For each name, the number of the heaviest one among those that differ in capitals or blanks."""
        group = pc.dictionary_encode(_visible(self.array, ignore_case=True)).indices.to_numpy()
        order = np.lexsort((-np.asarray(weights), group))
        return np.asarray(order[np.unique(group[order], return_index=True)[1]][group])

    def take(self, positions: NDArray[Any]) -> Names:
        """The names at `positions`, in that order."""
        positions = np.asarray(positions, dtype=np.int64)
        chosen = self.array.take(pa.array(positions))
        # Distinct positions have distinct names; comparing millions of names would take seconds.
        if (np.diff(positions) <= 0).any() and np.bincount(positions).max() > 1:
            return Names(chosen)
        return Names._trusted(chosen)

    def union(self, other: Names) -> Names:
        """These names, then the names of `other` that are new, in their order."""
        if self == other:
            return self
        fresh = np.flatnonzero(self.index(other.array) < 0)
        new = other.array.cast(self.array.type).take(pa.array(fresh))
        return Names._trusted(pa.concat_arrays([self.array, new]))


def find_names(wanted: pa.Array, names: pa.Array) -> NDArray[np.int64]:
    """The first position of each wanted name among `names`, −1 for a name that is not there."""
    return np.asarray(pc.fill_null(pc.index_in(wanted, value_set=names), -1), dtype=np.int64)


def _visible(names: pa.Array, ignore_case: bool) -> Any:
    """The names as people see them."""
    visible = names
    if not pc.all(pc.string_is_ascii(names)).as_py():
        visible = pc.utf8_normalize(names, "NFKC" if ignore_case else "NFC")
        visible = pc.replace_substring_regex(visible, _INVISIBLE, "")
    visible = pc.utf8_trim_whitespace(visible)
    return pc.utf8_lower(visible) if ignore_case else visible


def first_duplicate(names: Iterable[str]) -> str | None:
    """The first name that occurs a second time; None if all are distinct."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def class_number(name: str, classes: Mapping[str, int], path: Path, line: int) -> int:
    """The index of the class `name` from line `line` of a file; LabelError with the closest name if there is none."""
    if name not in classes:
        close = get_close_matches(name, classes, 1)
        fix = f"write {close[0]!r}, or remove the line" if close else "use a class of the labels, or remove the line"
        raise LabelError(f"no class is called {name!r}", fix, path, line=line)
    return classes[name]
