"""Label rules: a dog is an animal, day is not night. What follows from them, what contradicts them, what they may be.

`implies`: where the first class is present the second is too; so where the second is absent the first is too.
`excludes`: the two are never present together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import csv_line, detect_delimiter, existing_path, first_line, read_records
from halflabel.labels.names import Names, class_number
from halflabel.labels.table import LabelTable
from halflabel.metrics.wilson import wilson

__all__ = [
    "Consequences",
    "Kind",
    "RuleSuggestion",
    "Rules",
    "find_contradictions",
    "format_suggestions",
    "read_rules",
    "suggest_rules",
]

Kind = Literal["implies", "excludes"]
Mask = NDArray[np.bool_]

_BLOCK = 256  # classes counted at a time
_ENTRIES = 1 << 21  # labels looked at at a time
_FIX_CYCLE = "remove one of these lines; classes that always come together are one class"


class Consequences(NamedTuple):
    """What follows from labels (B, C), all (B, C): consequences of what is known, and where these disagree."""

    present: Mask
    absent: Mask
    contradiction: Mask  # entries called both present and absent, by rules or by a rule and a label


class Rules:
    """The closed rules of C classes, sparse.

    `implied` (C, C): [a, b] where a present makes b present, through any number of rules, itself included; `excluded`
    (C, C): [a, b] where a present makes b absent. Memory: 5 bytes per pair that follows; a tree of 5,000 classes and
    depth d has 5,000·(d + 1) implied pairs. An exclusion between two groups holds for every pair of their members.
    """

    def __init__(self, implied: Any, excluded: Any, count: int, ignored: int = 0) -> None:
        self.implied = implied
        self.excluded = excluded
        self.count = count  # rules as given
        self.ignored = ignored  # rules of a hierarchy about classes that the labels do not have

    @classmethod
    def none(cls, classes: int) -> Rules:
        """No rule at all."""
        from scipy.sparse import csr_array, eye_array

        return cls(eye_array(classes, format="csr", dtype=bool), csr_array((classes, classes), dtype=bool), 0)

    def consequences(self, labels: NDArray[np.int8]) -> Consequences:
        """What follows from the labels of a block of images (B, C). Every consequence is found in one step:

        present = P·I,   absent = N·Iᵀ or P·X        P, N: known present, absent; I implied, X excluded, both closed
        """
        from scipy.sparse import csr_array

        known_present, known_absent = csr_array(labels > 0), csr_array(labels < 0)
        present = (known_present @ self.implied).toarray()
        absent = (known_absent @ self.implied.T).toarray() | (known_present @ self.excluded).toarray()
        contradiction = present & absent
        return Consequences(present & ~contradiction, absent & ~contradiction, contradiction)

    def clashing(self, present: Mask, absent: Mask) -> tuple[Mask, Mask]:
        """Which of some proposed labels (B, C) cannot hold together: each one that another speaks against."""
        from scipy.sparse import csr_array

        said_present, said_absent = csr_array(present), csr_array(absent)
        forbids = (said_absent @ self.implied.T).toarray() | (said_present @ self.excluded).toarray()
        demands = (said_present @ self.implied).toarray()
        return present & forbids, absent & demands

    def surest(
        self, labels: NDArray[np.int8], score: NDArray[np.float32], late: NDArray[np.int8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(image, class, which class it follows from) of each entry of `late` (B, C) that follows from `labels` (B, C).

        Of several labels that it follows from it is the one with the highest score (B, C), NaN lowest, then the first.
        """
        rows = np.flatnonzero(late.any(1))
        said, wanted, sure = labels[rows], late[rows], score[rows]
        found = [
            _chains(self.implied, said > 0, wanted > 0),
            _chains(self.implied.T.tocsr(), said < 0, wanted < 0),
            _chains(self.excluded, said > 0, wanted < 0),
        ]
        row, origin, to = (np.concatenate(parts) for parts in zip(*found, strict=True))
        entry = row * late.shape[1] + to
        order = np.lexsort((-origin, np.nan_to_num(sure[row, origin], nan=-1.0), entry))
        last = order[np.flatnonzero(np.diff(entry[order], append=-1))]
        return rows[row[last]], to[last], origin[last]


def _chains(matrix: Any, said: Mask, wanted: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(image, class said, class wanted) for every pair of the matrix of which one is said and the other wanted."""
    row, column = np.nonzero(said)
    count = np.diff(matrix.indptr)[column]
    before = np.cumsum(count) - count
    to = matrix.indices[np.arange(int(count.sum())) + np.repeat(matrix.indptr[column] - before, count)]
    row, column = np.repeat(row, count), np.repeat(column, count)
    hit = wanted[row, to]
    return row[hit], column[hit], to[hit].astype(np.int64)


def read_rules(path: str | Path, classes: Names) -> Rules:
    """Rules from a CSV file `class,rule,class`, or implications from an Open Images hierarchy (.json).

    In CSV every class must be one of the labels'. A hierarchy, which is of a whole data set, may name others: they are
    counted in `ignored`, and a child of theirs implies the next ancestor that is a class. A circle of implications, a
    rule against itself, and a class that its own consequences exclude are errors with file and line.
    """
    path = existing_path(path)
    return _hierarchy(path, classes) if path.suffix == ".json" else _csv(path, classes)


class _Given(NamedTuple):
    first: int
    kind: Kind
    second: int
    line: int | None


def _csv(path: Path, classes: Names) -> Rules:
    number = {name: position for position, name in enumerate(classes)}
    given: list[_Given] = []
    seen: dict[tuple[int, str, int], int] = {}
    for place, (line, record) in enumerate(read_records(path, detect_delimiter(first_line(path)))):
        fields = [field.strip() for field in record]
        if len(fields) != 3:
            raise LabelError(f"{len(fields)} fields", "write class,rule,class, as dog,implies,animal", path, line=line)
        if fields[1] not in ("implies", "excludes"):
            if place == 0 and fields[0] not in number:
                continue  # a header
            raise LabelError(
                f"{fields[1]!r} is no rule", "write implies or excludes between two classes", path, line=line
            )
        first, second = (class_number(name, number, path, line) for name in (fields[0], fields[2]))
        kind: Kind = "implies" if fields[1] == "implies" else "excludes"
        if first == second:
            raise LabelError(f"{fields[0]!r} {kind} itself", "remove the line, or name another class", path, line=line)
        ends = (first, second) if kind == "implies" else (min(first, second), max(first, second))
        key = (ends[0], kind, ends[1])
        if key in seen:
            raise LabelError(f"the rule is already on line {seen[key]}", "remove one of the two lines", path, line=line)
        seen[key] = line
        given.append(_Given(first, kind, second, line))
    if not given:
        raise LabelError("there is not one rule", "add rows such as dog,implies,animal", path)
    return _closed(given, classes, path)


def _hierarchy(path: Path, classes: Names) -> Rules:
    """Open Images: {"LabelName": …, "Subcategory": [ … ], "Part": [ … ]}. A subcategory implies what it is one of.

    A part does not: a wheel in the picture is no proof of a car. LabelName is the class's id (/m/0…); labels read with
    descriptions beside them are called by display names, and the same file of descriptions is used here.
    """
    try:
        root = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise LabelError(f"not JSON ({error})", "download the hierarchy again", path) from None
    number = {name: position for position, name in enumerate(classes)}
    for file in sorted(path.parent.glob("*class-descriptions*.csv")):
        if file.is_file() and file.stat().st_size:
            described = (record for _, record in read_records(file, ",") if len(record) == 2)
            for mid, name in described:
                for shown in (name, f"{name} ({mid})"):
                    if shown in number:
                        number.setdefault(mid, number[shown])
    pairs: set[tuple[int, int]] = set()
    ignored = 0
    for name, above in _nodes(root, path):
        if name not in number:
            ignored += 1
            continue
        parent = next((number[other] for other in reversed(above) if other in number), None)
        if parent is not None and parent != number[name]:
            pairs.add((number[name], parent))
    if not pairs:
        raise LabelError(
            "no two classes of the labels are one above the other here",
            "put the file of class descriptions beside it, or use labels with the same ids",
            path,
        )
    given = [_Given(first, "implies", second, None) for first, second in sorted(pairs)]
    rules = _closed(given, classes, path)
    return Rules(rules.implied, rules.excluded, rules.count, ignored)


def _nodes(root: Any, path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every class of the tree with those above it, topmost first; parts stand beside what they are parts of."""
    waiting: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
    while waiting:
        node, above = waiting.pop()
        name = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(name, str):
            fix = 'use the layout {"LabelName": …, "Subcategory": [ … ]}'
            raise LabelError(f"a node below {above[-1] if above else 'the top'!r} has no LabelName", fix, path)
        yield name, above
        if name in above:
            raise LabelError(f"{name!r} is below itself: a circle", "remove one of the two places", path)
        below = node.get("Subcategory", []), node.get("Part", [])
        if not all(isinstance(children, list) for children in below):
            raise LabelError(f"what is below {name!r} is no list", "write a list of nodes", path)
        waiting += [(child, (*above, name)) for child in below[0]]
        waiting += [(child, ()) for child in below[1]]


def _closed(given: list[_Given], classes: Names, path: Path) -> Rules:
    from scipy.sparse import csr_array, eye_array
    from scipy.sparse.csgraph import connected_components

    size = len(classes)

    def matrix(kind: Kind) -> Any:
        ends = np.array([(rule.first, rule.second) for rule in given if rule.kind == kind], np.int64).reshape(-1, 2)
        return csr_array((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(size, size))

    implies, excludes = matrix("implies"), matrix("excludes")
    count, component = connected_components(implies, connection="strong")
    if count < size:
        _raise_circle(given, component, classes, path)
    implied = eye_array(size, format="csr", dtype=bool) + implies
    while True:  # squaring: a chain of length n is closed after log2 n rounds
        wider = implied @ implied
        if wider.nnz == implied.nnz:
            break
        implied = wider
    both = excludes + excludes.T
    excluded = csr_array(implied @ both @ implied.T)
    impossible = np.flatnonzero(excluded.diagonal())
    if len(impossible):
        _raise_impossible(given, int(impossible[0]), implied, classes, path)
    return Rules(csr_array(implied), excluded, len(given))


def _raise_circle(given: list[_Given], component: NDArray[Any], classes: Names, path: Path) -> None:
    rules = [r for r in given if r.kind == "implies" and component[r.first] == component[r.second]]
    circle = [r for r in rules if component[r.first] == component[rules[0].first]]
    shown = ", ".join(f"{classes[r.first]} → {classes[r.second]}" for r in circle[:6])
    lines = ", ".join(str(r.line) for r in circle[:6])
    at = circle[-1].line
    where = f" (lines {lines})" if at is not None else ""
    raise LabelError(f"a circle of implications: {shown}{where}", _FIX_CYCLE, path, line=at)


def _raise_impossible(given: list[_Given], which: int, implied: Any, classes: Names, path: Path) -> None:
    means = set(implied[[which]].indices.tolist())
    rule = next(r for r in given if r.kind == "excludes" and r.first in means and r.second in means)
    raise LabelError(
        f"{classes[which]!r} could never be present: it implies both {classes[rule.first]!r} and "
        f"{classes[rule.second]!r}, which exclude each other",
        "remove this line, or one of the implications that lead to it",
        path,
        line=rule.line,
    )


def find_contradictions(rules: Rules, table: LabelTable, *, most: int = 5) -> tuple[int, list[str]]:
    """How many entries known labels and what follows from them disagree about, and some of them: "image: class".

    Images are looked at in blocks of about two million entries.
    """
    count = 0
    examples: list[str] = []
    step = max(1, _ENTRIES // max(len(table.classes), 1))
    for first in range(0, len(table), step):
        index = np.arange(first, min(first + step, len(table)))
        row, column = np.nonzero(rules.consequences(table.rows(index)).contradiction)
        count += len(row)
        room = max(0, most - len(examples))
        pairs = zip(row[:room].tolist(), column[:room].tolist(), strict=True)
        examples += [f"{table.images[first + r]}: {table.classes[c]}" for r, c in pairs]
    return count, examples


class RuleSuggestion(NamedTuple):
    """A rule that the known labels speak for: in `holds` of `seen` images, and in at least `bound` of all, with 95 %
    confidence. `usual` is what would be expected if the two classes had nothing to do with each other."""

    first: str
    kind: Kind
    second: str
    holds: int
    seen: int
    bound: float
    usual: float


def suggest_rules(table: LabelTable, *, bound: float = 0.95, top: int = 50) -> list[RuleSuggestion]:
    """Rules that the known labels speak for, strongest first; they are for a person to judge and never applied.

    For a → b: of the images where a is present and b is known, those where b is present; for a × b: where b is absent.
    The lower bound is Wilson's at 95 %. Left out: what follows from b alone (most images have b, or have not), judged
    by whether the rule is broken less than half as often as chance would break it, also at the upper end of what the
    counts allow. Where nothing is known to be absent no rule can be judged, and there is none.

    Memory: counts of 256 classes at a time, and the pairs that pass; never C × C.
    """
    present, absent = table.matrix(table.value > 0), table.matrix(table.value < 0)
    positives = np.bincount(table.column[table.value > 0], minlength=len(table.classes))
    known = np.bincount(table.column, minlength=len(table.classes))
    rate = (positives + 1) / (known + 2)
    by_class = present.tocsc()
    found: list[tuple[Any, ...]] = []
    for first in range(0, len(table.classes), _BLOCK):
        here = by_class[:, first : first + _BLOCK].T.tocsr()
        with_b, without_b = (here @ present).toarray(), (here @ absent).toarray()
        own = (np.arange(here.shape[0]), first + np.arange(here.shape[0]))
        with_b[own] = without_b[own] = 0
        seen = with_b + without_b
        kinds: tuple[tuple[Kind, NDArray[Any], NDArray[Any]], ...] = (
            ("implies", with_b, rate[None, :]),
            ("excludes", without_b, 1 - rate[None, :]),
        )
        for kind, holds, usual in kinds:
            low = np.nan_to_num(wilson(holds, seen, z=1.645).low)  # one-sided; 0 where nothing was seen
            # What the counts still allow of breaches, against what chance would make of them.
            a, b = np.nonzero((seen > 0) & (low >= bound) & (1 - low <= 0.5 * (1 - usual)))
            best = np.lexsort((-seen[a, b], -low[a, b]))[: 2 * top]
            found += [
                (i + first, kind, j, int(holds[i, j]), int(seen[i, j]), float(low[i, j]), float(usual[0, j]))
                for i, j in zip(a[best].tolist(), b[best].tolist(), strict=True)
            ]
    found.sort(key=lambda item: (-item[5], -item[4], item[0], item[2]))
    # An exclusion is found from both ends: the stronger one speaks for it.
    once: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for item in found:
        a, kind, b = item[:3]
        once.setdefault((kind, a, b) if kind == "implies" else (kind, min(a, b), max(a, b)), item)
    return [
        RuleSuggestion(table.classes[a], kind, table.classes[b], holds, seen, low, usual)
        for a, kind, b, holds, seen, low, usual in list(once.values())[:top]
    ]


def format_suggestions(found: list[RuleSuggestion]) -> str:
    """The suggestions as a rules file, each line ready to be kept or removed."""
    return "".join(csv_line((rule.first, rule.kind, rule.second)) for rule in found)
