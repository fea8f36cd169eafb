"""Open Images CSV, `ImageID,Source,LabelName,Confidence`: one row per label, verified by a person or machine-generated.

Confidence 1 is verified present, 0 verified absent; a fraction, or the source "machine", marks a machine-generated
label. A pair without a row is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import check_quotes, csv_fault, existing_path, first_line, parse_float, read_records
from halflabel.labels.labels import Labels, too_many_sources
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

USES = ("machine",)

COLUMNS = ("ImageID", "Source", "LabelName", "Confidence")
REQUIRED_COLUMNS = ("ImageID", "LabelName", "Confidence")
MACHINE = "machine"


def sniff(path: Path) -> bool:
    return set(REQUIRED_COLUMNS) <= {name.strip().strip('"') for name in first_line(path).split(",")}


def read(path: Path, policy: Policy) -> LabelImport:
    """Read verified labels; machine-generated ones are unknown, or present from the confidence `policy.machine`.

    Machine-generated rows come first, so that verified labels win. The file is read in blocks and its text is never
    kept: 60 million rows of 9 million images take at most 3.2 GiB.
    """
    if policy.machine is not None and not 0 < policy.machine <= 1:
        raise UserError(f"‹machine={policy.machine:g}› is not a confidence", "use a number above 0 and up to 1")
    path = existing_path(path)
    parts: dict[str, list[Any]] = {}  # of each block: names with known labels as dictionary arrays, values and scores
    counts: Counter[str] = Counter()
    row_count = 0
    for block in _blocks(path):
        confidence = np.asarray(pc.fill_null(block.pop("Confidence"), np.nan).to_numpy(zero_copy_only=False))
        has_blank = any(pc.index(block[name].dictionary, "").as_py() >= 0 for name in ("ImageID", "LabelName"))
        if has_blank or not ((confidence >= 0) & (confidence <= 1)).all():
            raise _fault(path, ValueError("a cell is blank, or a Confidence not from 0 to 1"))
        row_count += len(confidence)
        value, is_machine = _values(block, confidence, policy, counts)
        known = np.flatnonzero(value)
        # Only machine-generated labels have a score. Dictionaries keep images and classes without known labels.
        block |= {"value": value, "score": np.where(is_machine, confidence, np.nan).astype(np.float32)}
        for name, column in block.items():
            parts.setdefault(name, []).append(column.take(known))
    if not row_count:
        raise LabelError("the file has a header but no rows", "download or export the file again", path)

    audit = Audit("open-images", [str(path)])
    guess = "a machine's guess" + ("" if policy.machine is None else f" below {policy.machine:g}")
    audit.add("1", "present", counts["present"])
    audit.add("0", "absent", counts["absent"])
    audit.add(f"a machine's guess of {policy.machine or 0:g} or more", "present", counts["accepted"])
    audit.add(guess, "unknown", counts["ignored"])
    if counts["ignored"] and policy.machine is None:
        audit.note("machine-generated labels are left out; ‹machine=0.9› would read those from 0.9 as present")
    value, score = (np.concatenate(parts.pop(name)) for name in ("value", "score"))
    sources, source = _join(parts.pop("Source")) if "Source" in parts else (pa.array([""]), np.zeros(len(value)))
    if message := too_many_sources(len(sources)):
        raise LabelError(message, "check that Source names the annotator, not each row", path, column="Source")
    mids, column = _join(parts.pop("LabelName"))
    classes = Names(display_names(path, mids, audit))
    ids, number = _join(parts.pop("ImageID"))
    images = Names(ids)
    # Arrow keeps the memory of its hash tables: more than a gigabyte for millions of images.
    pa.default_memory_pool().release_unused()
    rows = Labels.build(images, classes, number, column, value, source, score, sources.to_pylist())
    is_machine = ~np.isnan(rows.score)  # they come first, so that verified labels win
    if is_machine.any() and not is_machine.all():
        rows = rows.select(np.argsort(~is_machine, kind="stable"))
    audit.note_count(rows.count_conflicts(), "entries are both present and absent: the last verified row wins")
    return LabelImport(rows, audit)


def _join(blocks: list[pa.DictionaryArray]) -> tuple[pa.Array, NDArray[np.int32]]:
    """(all names by first appearance, the index of each row's name) of blocks with one vocabulary each."""
    coded = pa.chunked_array(blocks).unify_dictionaries()
    return coded.chunk(0).dictionary, np.concatenate([part.indices.to_numpy() for part in coded.chunks])


def _blocks(path: Path) -> Iterator[dict[str, Any]]:
    """The needed columns of each block: names as dictionaries, Confidence as float64."""
    import pyarrow.csv as pa_csv

    check_quotes(path, ",")
    line, record = next(read_records(path, ","), (1, []))  # blank lines may be above the header
    header = [name.strip() for name in record]
    for name in REQUIRED_COLUMNS:
        if header.count(name) != 1:
            problem = f"there is no column {name!r}" if name not in header else f"the column {name!r} occurs twice"
            columns = ", ".join(map(repr, header[:12]))
            raise LabelError(f"{problem}; found: {columns}", f"the header must be {','.join(COLUMNS)}", path, line=line)
    # Columns get their numbers as names, so that no name can collide with Arrow's handling of headers.
    place = {name: str(header.index(name)) for name in COLUMNS if name in header}
    text = pa.dictionary(pa.int32(), pa.string())
    types = {number: pa.float64() if name == "Confidence" else text for name, number in place.items()}
    try:
        reader = pa_csv.open_csv(
            path,
            pa_csv.ReadOptions(
                column_names=[str(number) for number in range(len(header))],
                skip_rows_after_names=line,
                block_size=1 << 24,
            ),
            pa_csv.ParseOptions(newlines_in_values=False),
            pa_csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
            ),
        )
        for batch in reader:
            yield {name: batch.column(number) for name, number in place.items()}
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise _fault(path, error) from None


def _fault(path: Path, error: Exception) -> LabelError:
    """The error for the first faulty line. Slow: reads the file again."""
    records = read_records(path, ",")
    header = [name.strip() for name in next(records)[1]]
    for line, record in records:
        if len(record) != len(header):
            break
        for name in REQUIRED_COLUMNS:
            cell = record[header.index(name)]
            if not cell:
                return LabelError(f"{name} is blank", "fill it in", path, line=line, column=name)
            if name == "Confidence" and not 0 <= _number(cell) <= 1:
                fix = "use 1 (verified present), 0 (verified absent) or a fraction (machine-generated)"
                message = f"Confidence {cell!r:.60} is not a number from 0 to 1"
                return LabelError(message, fix, path, line=line, column=name)
    return csv_fault(path, header, error, ",")


def _number(text: str) -> float:
    try:
        return parse_float(text) if text == text.strip() else math.nan
    except ValueError:
        return math.nan


def _values(
    block: dict[str, Any], confidence: NDArray[np.float64], policy: Policy, counts: Counter[str]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """(value of each row, whether it is machine-generated); value 0 for unknown."""
    is_machine = (confidence > 0) & (confidence < 1)
    if "Source" in block:
        machine = pc.index(block["Source"].dictionary, MACHINE).as_py()
        if machine >= 0:
            is_machine |= block["Source"].indices.to_numpy(zero_copy_only=False) == machine
    is_accepted = is_machine & (confidence >= (2 if policy.machine is None else policy.machine))
    value = np.where(is_machine, is_accepted, np.where(confidence > 0, 1, -1)).astype(np.int8)
    accepted, present, known = (int(np.count_nonzero(part)) for part in (is_accepted, value > 0, value))
    counts.update(accepted=accepted, present=present - accepted, absent=known - present, ignored=len(value) - known)
    return value, is_machine


def display_names(path: Path, mids: pa.Array, audit: Audit) -> list[str]:
    """The display name of each class from the descriptions next to the file; the id of a class without one."""
    ids: list[str] = mids.to_pylist()
    files = sorted(file for file in path.parent.glob("*class-descriptions*.csv") if file.is_file())
    # The file of all classes also covers the boxable ones, so use the file that describes most classes.
    described = [(file, _descriptions(file)) for file in files if file.stat().st_size]
    if not described:
        return ids
    file, name_of = max(described, key=lambda item: sum(mid in item[1] for mid in ids))
    if not any(mid in name_of for mid in ids):
        return ids
    audit.files.append(str(file))
    name_counts = Counter(name_of.values())
    names = [name_of.get(mid, mid) for mid in ids]
    names = [f"{name} ({mid})" if name_counts[name] > 1 else name for name, mid in zip(names, ids, strict=True)]
    audit.note_count(sum(mid not in name_of for mid in ids), "classes have no description and keep their id as name")
    return names if len(set(names)) == len(names) else [f"{name} ({mid})" for name, mid in zip(names, ids, strict=True)]


def _descriptions(path: Path) -> dict[str, str]:
    """Class id -> display name. A header line does no harm: no class has its id."""
    name_of: dict[str, str] = {}
    for line, record in read_records(path, ","):
        if len(record) != 2 or not all(record):
            fix = "put the class's id and its name on each line, quoted where it contains a comma"
            raise LabelError(f"{len(record)} fields where there must be 2 filled ones", fix, path, line=line)
        mid, name = record
        if name_of.setdefault(mid, name) != name:
            raise LabelError(f"class {mid!r} has two names", "leave one line per class", path, line=line)
    return name_of
