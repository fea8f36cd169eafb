"""Label rules: a dog is an animal, day excludes night. What follows from them, and which known labels contradict them.

`implies`: where the first class is present the second is too; where the second is absent the first is. `excludes`: the
two are never present together; `*` stands for all other classes (`No Finding,excludes,*`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import detect_delimiter, existing_path, first_line, read_records
from halflabel.labels.formats._json import load_json
from halflabel.labels.names import Names, class_number
from halflabel.labels.table import Table
from halflabel.system.intervals import wilson

Kind = Literal["implies", "excludes"]
Mask = NDArray[np.bool_]

_BLOCK_CLASSES = 256  # classes counted at a time
_SIGNIFICANCE = 0.05  # of all suggestions together
_LEAST_LIFT = 2.0
_BLOCK_ENTRIES = 1 << 21  # labels processed at a time
_EXAMPLES = 5  # of contradictions


class Consequences(NamedTuple):
    """The labels that follow from labels (B, C), each mask (B, C), and where rules and labels contradict each other."""

    present: Mask
    absent: Mask
    contradiction: Mask  # entries both present and absent, by rules or by a rule and a label


@dataclass(frozen=True)
class Rules:
    """The rules of C classes with everything that follows from them, as sparse matrices.

    `implied` (C, C): [a, b] if a present makes b present, through any number of rules, a itself included. `excluded`
    (C, C): [a, b] if a present makes b absent.
    """

    implied: Any
    excluded: Any
    count: int  # rules before derivation
    ignored: int = 0  # classes of a hierarchy that the labels do not have

    def consequences(self, labels: NDArray[np.int8]) -> Consequences:
        """What follows from the labels of a block of images (B, C). All consequences are found in one step:

        present = P·I,   absent = N·Iᵀ or P·X        P, N: known present, absent; I implied, X excluded, both closed
        """
        present, absent = self._derive(labels > 0, labels < 0)
        contradiction = present & absent
        return Consequences(present & ~contradiction, absent & ~contradiction, contradiction)

    def conflicting(self, present: Mask, absent: Mask) -> tuple[Mask, Mask]:
        """Which of the proposed labels (B, C) cannot be true together: every label that another one contradicts."""
        must_be_present, must_be_absent = self._derive(present, absent)
        return present & must_be_absent, absent & must_be_present

    def _derive(self, present: Mask, absent: Mask) -> tuple[Mask, Mask]:
        known_present, known_absent = csr_array(present), csr_array(absent)
        derived_absent = (known_absent @ self.implied.T).toarray() | (known_present @ self.excluded).toarray()
        return (known_present @ self.implied).toarray(), derived_absent

    def strongest_premises(
        self, labels: NDArray[np.int8], score: NDArray[np.float32], derived: NDArray[np.int8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(image, class, class it follows from) of each entry of `derived` (B, C) that follows from `labels` (B, C).

        If it follows from several labels, the one with the highest score (B, C) is returned; NaN is lowest, ties go to
        the first class.
        """
        rows = np.flatnonzero(derived.any(1))
        premises, targets, premise_score = labels[rows], derived[rows], score[rows]
        links = [
            _links(self.implied, premises > 0, targets > 0),
            _links(self.implied.T.tocsr(), premises < 0, targets < 0),
            _links(self.excluded, premises > 0, targets < 0),
        ]
        row, origin, target = (np.concatenate(parts) for parts in zip(*links, strict=True))
        entry = row * derived.shape[1] + target
        order = np.lexsort((-origin, np.nan_to_num(premise_score[row, origin], nan=-1.0), entry))
        last = order[np.flatnonzero(np.diff(entry[order], append=-1))]
        return rows[row[last]], target[last], origin[last]


def _links(
    matrix: Any, premises: Mask, targets: Mask
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(image, premise class, target class) for every pair of the matrix that links a premise to a target."""
    row, column = np.nonzero(premises)
    count = np.diff(matrix.indptr)[column]
    before = np.cumsum(count) - count
    target = matrix.indices[np.arange(int(count.sum())) + np.repeat(matrix.indptr[column] - before, count)]
    row, column = np.repeat(row, count), np.repeat(column, count)
    is_link = targets[row, target]
    return row[is_link], column[is_link], target[is_link].astype(np.int64)


def read_rules(path: str | Path, classes: Names) -> Rules:
    """Read rules from a CSV file `class,rule,class`, or implications from an Open Images hierarchy (.json).

    In CSV every class must be a class of the labels. A hierarchy may name others: they are counted in `ignored`, and
    their children imply the next ancestor that is a class. Cycles and impossible classes are errors with file and line.
    """
    path = existing_path(path)
    return _read_hierarchy(path, classes) if path.suffix == ".json" else _read_csv(path, classes)


class _Rule(NamedTuple):
    first: int
    kind: Kind
    second: int
    line: int | None


def _read_csv(path: Path, classes: Names) -> Rules:
    number = {name: position for position, name in enumerate(classes)}
    rules: list[_Rule] = []
    line_of: dict[tuple[str, frozenset[int], int], int] = {}
    for record_number, (line, record) in enumerate(read_records(path, detect_delimiter(first_line(path)))):
        fields = [field.strip() for field in record]
        if len(fields) != 3:
            raise LabelError(f"{len(fields)} fields", "write class,rule,class, as dog,implies,animal", path, line=line)
        if fields[1] not in ("implies", "excludes"):
            if record_number == 0 and fields[0] not in number:
                continue  # a header
            fix = "write implies or excludes between two classes"
            raise LabelError(f"{fields[1]!r} is not a rule", fix, path, line=line)
        first = class_number(fields[0], number, path, line)
        kind: Kind = "implies" if fields[1] == "implies" else "excludes"
        if kind == "excludes" and fields[2] == "*" and "*" not in number:
            rules += [_Rule(first, kind, other, line) for other in range(len(classes)) if other != first]
            continue
        second = class_number(fields[2], number, path, line)
        if first == second:
            raise LabelError(f"{fields[0]!r} {kind} itself", "remove the line, or name another class", path, line=line)
        key = kind, frozenset((first, second)), first if kind == "implies" else -1
        if (before := line_of.setdefault(key, line)) != line:
            raise LabelError(f"the rule is already on line {before}", "remove one of the two lines", path, line=line)
        rules.append(_Rule(first, kind, second, line))
    if not rules:
        raise LabelError("the file has no rules", "add rows such as dog,implies,animal", path)
    return _close(rules, classes, path)


def _read_hierarchy(path: Path, classes: Names) -> Rules:
    """Read an Open Images hierarchy: {"LabelName": …, "Subcategory": [ … ], "Part": [ … ]}.

    A subcategory implies its category. A part does not imply the whole: a wheel in the image does not prove a car.
    LabelName is the id of the class (/m/0…); a file of class descriptions next to the hierarchy names the classes.
    """
    root = load_json(path).value
    number = _numbers_by_id(path.parent, classes)
    pairs: set[tuple[int, int]] = set()
    ignored = 0
    for name, ancestors in _walk_hierarchy(root, path):
        if name not in number:
            ignored += 1
            continue
        parent = next((number[ancestor] for ancestor in reversed(ancestors) if ancestor in number), None)
        if parent is not None and parent != number[name]:
            pairs.add((number[name], parent))
    if not pairs:
        raise LabelError(
            "no class of the labels is a subcategory of another one here",
            "put the file of class descriptions into the same folder, or use labels with the same ids",
            path,
        )
    rules = [_Rule(first, "implies", second, None) for first, second in sorted(pairs)]
    return replace(_close(rules, classes, path), ignored=ignored)


def _numbers_by_id(folder: Path, classes: Names) -> dict[str, int]:
    """Class name -> class index, and class id -> class index from the class descriptions in the folder."""
    number = {name: position for position, name in enumerate(classes)}
    files = [file for file in sorted(folder.glob("*class-descriptions*.csv")) if file.is_file() and file.stat().st_size]
    described = [record for file in files for _, record in read_records(file, ",") if len(record) == 2]
    for mid, name in described:
        for display_name in (name, f"{name} ({mid})"):
            if display_name in number:
                number.setdefault(mid, number[display_name])
    return number


def _walk_hierarchy(root: Any, path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every class of the tree with its ancestors, topmost first; a part starts without ancestors."""
    stack: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
    while stack:
        node, ancestors = stack.pop()
        name = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(name, str):
            fix = 'use the layout {"LabelName": …, "Subcategory": [ … ]}'
            raise LabelError(f"a node below {ancestors[-1] if ancestors else 'the top'!r} has no LabelName", fix, path)
        yield name, ancestors
        if name in ancestors:
            raise LabelError(f"{name!r} is below itself: a cycle", "remove one of the two places", path)
        subcategories, parts = node.get("Subcategory", []), node.get("Part", [])
        if not (isinstance(subcategories, list) and isinstance(parts, list)):
            raise LabelError(f"the content of {name!r} is not a list", "write a list of nodes", path)
        stack += [(child, (*ancestors, name)) for child in subcategories]
        stack += [(child, ()) for child in parts]


def _close(rules: list[_Rule], classes: Names, path: Path) -> Rules:
    """Add everything that follows from the rules; raises LabelError for a cycle or an impossible class."""
    from scipy.sparse.csgraph import connected_components

    size = len(classes)

    def matrix(kind: Kind) -> Any:
        ends = np.array([(rule.first, rule.second) for rule in rules if rule.kind == kind], np.int64).reshape(-1, 2)
        return csr_array((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(size, size))

    implies, excludes = matrix("implies"), matrix("excludes")
    count, component = connected_components(implies, connection="strong")
    if count < size:
        in_cycles = [r for r in rules if r.kind == "implies" and component[r.first] == component[r.second]]
        cycle = [r for r in in_cycles if component[r.first] == component[in_cycles[0].first]]
        chain = ", ".join(f"{classes[r.first]} → {classes[r.second]}" for r in cycle[:6])
        line = cycle[-1].line
        places = "" if line is None else f" (lines {', '.join(str(r.line) for r in cycle[:6])})"
        fix = "remove one of these lines; classes that always occur together are one class"
        raise LabelError(f"a cycle of implications: {chain}{places}", fix, path, line=line)
    implied = eye_array(size, format="csr", dtype=bool) + implies
    while True:  # squaring closes a chain of length n after log2 n rounds
        wider = implied @ implied
        if wider.nnz == implied.nnz:
            break
        implied = wider
    symmetric = excludes + excludes.T
    excluded = csr_array(implied @ symmetric @ implied.T)
    impossible = np.flatnonzero(excluded.diagonal())
    if len(impossible):
        means = set(implied[impossible[:1]].indices.tolist())
        rule = next(r for r in rules if r.kind == "excludes" and r.first in means and r.second in means)
        raise LabelError(
            f"{classes[impossible[0]]!r} could never be present: it implies both {classes[rule.first]!r} and "
            f"{classes[rule.second]!r}, which exclude each other",
            "remove this line, or one of the implications that lead to it",
            path,
            line=rule.line,
        )
    return Rules(csr_array(implied), excluded, len(rules))


def find_contradictions(rules: Rules, table: Table) -> tuple[int, list[str]]:
    """Count the entries where known labels contradict each other by the rules; with examples "image: class"."""
    count = 0
    examples: list[str] = []
    step = max(1, _BLOCK_ENTRIES // max(len(table.classes), 1))
    for first in range(0, len(table), step):
        index = np.arange(first, min(first + step, len(table)))
        row, column = np.nonzero(rules.consequences(table.rows(index)).contradiction)
        count += len(row)
        free = max(0, _EXAMPLES - len(examples))
        pairs = zip(row[:free].tolist(), column[:free].tolist(), strict=True)
        examples += [f"{table.images[first + r]}: {table.classes[c]}" for r, c in pairs]
    return count, examples


class RuleSuggestion(NamedTuple):
    """A rule that holds in `holds` of `seen` images, with 95 % confidence in the share `bound` of all; or by chance."""

    first: str
    kind: Kind
    second: str
    holds: int
    seen: int
    bound: float
    expected: float


def suggest_rules(table: Table, *, bound: float = 0.95, top: int = 50) -> list[RuleSuggestion]:
    """Rules that the known labels support, by lift; a person decides, they are never applied automatically.

    For a → b: of the images where a is present and b is known, those where b is present; for a × b: where b is absent.
    `bound` is the smallest Wilson lower bound at 95 %. By chance, a → b would hold as often as b is present at all, and
    a × b as often as b is absent where other classes than a are present. The lift says how many times rarer exceptions
    are than by chance, at the upper end of what the counts allow; it must be 2 or more, and exceptions so few must be
    improbable by chance: a binomial test at 5 %, divided by the number of rules tested.
    """
    from scipy.stats import binom

    present, absent = (part.astype(np.int32) for part in (table.values > 0, table.values < 0))
    image, column, value = table.entries()
    positives = np.bincount(column[value > 0], minlength=len(table.classes))
    known = np.bincount(column, minlength=len(table.classes))
    rate = (positives + 1) / (known + 2)
    # Over all other present classes of an image: how often b is present, and known.
    others = np.bincount(image[value > 0], minlength=len(table))[image] - (value > 0)
    with_others, seen_others = (
        np.bincount(column[mask], others[mask], len(table.classes)) for mask in (value > 0, value != 0)
    )
    level = _SIGNIFICANCE / max(2 * len(table.classes) * (len(table.classes) - 1), 1)
    by_class = present.tocsc()
    candidates: list[tuple[float, RuleSuggestion, tuple[int, int]]] = []
    for first in range(0, len(table.classes), _BLOCK_CLASSES):
        block = by_class[:, first : first + _BLOCK_CLASSES].T.tocsr()
        with_b, without_b = (block @ present).toarray(), (block @ absent).toarray()
        diagonal = (np.arange(block.shape[0]), first + np.arange(block.shape[0]))
        with_b[diagonal] = without_b[diagonal] = 0
        seen = with_b + without_b
        beside_others = (with_others - with_b + 1) / (seen_others - seen + 2)
        kinds: tuple[tuple[Kind, NDArray[Any], NDArray[Any]], ...] = (
            ("implies", with_b, np.broadcast_to(rate, seen.shape)),
            ("excludes", without_b, 1 - beside_others),
        )
        for kind, holds, expected in kinds:
            lower = np.nan_to_num(wilson(holds, seen, z=1.645).low)  # one-sided; 0 for pairs without images
            lift = (1 - expected) / np.maximum(1 - lower, 1e-12)
            a, b = np.nonzero((seen > 0) & (lower >= bound) & (lift >= _LEAST_LIFT))
            is_rare = binom.cdf((seen - holds)[a, b], seen[a, b], 1 - expected[a, b]) <= level
            a, b = a[is_rare], b[is_rare]
            for k in np.lexsort((-seen[a, b], -lift[a, b]))[: 2 * top]:
                pair, at = (first + int(a[k]), int(b[k])), (a[k], b[k])
                ends, counts = (table.classes[pair[0]], kind, table.classes[pair[1]]), (int(holds[at]), int(seen[at]))
                rule = RuleSuggestion(*ends, *counts, float(lower[at]), float(expected[at]))
                candidates.append((float(lift[at]), rule, pair))
    candidates.sort(key=lambda each: (-each[0], -each[1].seen, *each[2]))
    # An exclusion is found from both ends: keep the stronger one.
    unique: dict[Any, RuleSuggestion] = {}
    for _, rule, pair in candidates:
        unique.setdefault((rule.kind, pair if rule.kind == "implies" else frozenset(pair)), rule)
    return list(unique.values())[:top]
