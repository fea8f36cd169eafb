"""Long rows, `image,class,value,source,score`, as CSV or Parquet: halflabel's own form, and others like it.

In our own files value is 1 (present), -1 (absent) or 0 (retracts what was said before). A row without an image names a
class and a row without a class names an image, so that classes and images with nothing known keep their place.

Source and score may be left out. In a file with just `image,class,value` and no value but 1 and -1, -1 is absent unless
stated otherwise; beside any other value, such as the 0 that others write for absent, it has to be stated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halflabel.errors import LabelError, UserError
from halflabel.files import replacing
from halflabel.labels.audit import Audit, Import
from halflabel.labels.names import Names
from halflabel.labels.policy import MINUS_ONE, VALUE, ZERO, Policy, Undecided, read_value
from halflabel.labels.rows import Rows
from halflabel.labels.sheet import ParquetSheet, Sheet, csv_line, delimiter_of, first_line

__all__ = ["IMAGE_COLUMNS", "USES", "csv_text", "read", "sniff", "write"]

USES = ("unlisted", "minus_one", "zero", "values", "image_column", "where", "encoding")

MOST_ENTRIES = 1_000_000_000  # spelled out, absent entries take 16 bytes each

COLUMNS = ("image", "class", "value", "source", "score")

_SCHEMA = pa.schema(list(zip(COLUMNS, (pa.string(), pa.string(), pa.int8(), pa.string(), pa.float32()), strict=True)))
_BLOCK = 1 << 18

IMAGE_COLUMNS = ("image", "image_id", "imageid", "id", "file", "filename", "file_name", "path")

_ALIASES = {
    "image": IMAGE_COLUMNS,
    "class": ("class", "label", "tag", "category", "class_name", "label_name"),
    "value": ("value",),
    "source": ("source", "annotator"),
    "score": ("score", "confidence"),
}


def sniff(path: Path) -> bool:
    """Long: a column that names the image, one that names the class, and at most a few besides."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            header = pq.read_schema(path).names
        except (pa.ArrowException, OSError):
            return False
    else:
        header = [name.strip() for name in _fields(first_line(path))]
    roles = _roles(header, None)
    return "image" in roles and "class" in roles and len(header) <= len(_ALIASES) + 3


def read(path: Path, policy: Policy) -> Import:
    """Read long rows, in their order. Values of our own files are exact; others go by the stated policy."""
    sheet = ParquetSheet(path) if Path(path).suffix == ".parquet" else Sheet(path, encoding=policy.encoding)
    own = set(COLUMNS) <= set(sheet.header)
    if own:  # these files say what their values mean
        policy.check(set(USES) - {"minus_one", "zero", "values"}, "long, in halflabel's own columns")
    roles = _roles(sheet.header, policy.image_column)
    for role in ("image", "class"):
        if role not in roles:
            sheet.column(role)  # raises, naming the columns there are
    audit = Audit("long", [str(path)])
    keep = sheet.filter(policy.where) if policy.where else np.arange(len(sheet))
    taken = {role: sheet.column(name).take(pa.array(keep)) for role, name in roles.items()}

    has_image = pc.not_equal(taken["image"], "").to_numpy(zero_copy_only=False)
    has_class = pc.not_equal(taken["class"], "").to_numpy(zero_copy_only=False)
    if not (has_image | has_class).all():
        row = int(keep[np.argmin(has_image | has_class)])
        raise sheet.error("neither an image nor a class is named", "remove the row or fill it in", row=row)
    spoken = has_image & has_class
    images, image = _encode(taken["image"], has_image)
    classes, column = _encode(taken["class"], has_class)

    short = not own and set(COLUMNS[:3]) <= set(sheet.header) <= set(COLUMNS)
    if short and policy.minus_one is None and _values_of(taken["value"], spoken) <= {"1", "1.0", *MINUS_ONE}:
        policy = replace(policy, minus_one="absent")
    if "value" in taken:
        value = _values(sheet, roles["value"], taken["value"], keep, spoken, policy, own, audit)
    elif policy.unlisted is None:
        raise LabelError(
            "every row says present and none says absent, so what is not listed may be absent or unknown",
            "add --unlisted unknown (nobody looked) or --unlisted absent (the lists are complete)",
            path,
        )
    else:
        value = np.ones(len(keep), np.int8)
        audit.add("listed", "present", int(spoken.sum()))
    sources, source = _sources(sheet, roles.get("source"), taken.get("source"), len(keep))
    score = _scores(sheet, roles.get("score"), taken.get("score"), keep)
    image, column, value, source, score = (part[spoken] for part in (image, column, value, source, score))
    rows = Rows.build(images, classes, image, column, value, source, score, sources)
    if policy.unlisted == "absent":
        rows = complete(rows, audit)
    if conflicts := rows.conflicts():
        audit.note(f"{conflicts} entries were called both present and absent: the last row wins, all rows are kept")
    unused = [name for name in sheet.header if name not in roles.values() and name not in policy.where]
    if unused:
        audit.note(f"columns not used: {', '.join(unused)}")
    return Import(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write all rows: CSV, or Parquet where the name ends in .parquet. Classes are named first, in their order."""
    if "" in rows.images or "" in rows.classes:
        raise UserError("an image or a class has no name", "give every image and every class a name")
    with replacing(path) as temporary:
        if Path(path).suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer:
                for block in _blocks(rows):
                    writer.write_batch(block)
        else:
            with open(temporary, "wb") as file:
                file.write((",".join(COLUMNS) + "\n").encode())
                for block in _blocks(rows):
                    file.write(csv_text(block))


def complete(rows: Rows, audit: Audit) -> Rows:
    """Say "absent" for every pair that no row speaks of: the policy `unlisted = absent`."""
    entries = len(rows.images) * len(rows.classes)
    if entries > MOST_ENTRIES:
        raise UserError(
            f"{len(rows.images)} images × {len(rows.classes)} classes are too many to call each unlisted one absent",
            "use --unlisted unknown, with a method that assumes absence in training, such as an",
        )
    listed = np.zeros((len(rows.images), len(rows.classes)), bool)
    listed[rows.image, rows.column] = True
    image, column = np.nonzero(~listed)
    audit.add("not listed", "absent", len(image))
    absent = np.full(len(image), -1, np.int8)
    return rows.append(Rows.build(rows.images, rows.classes, image, column, absent, "unlisted"))


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter_of(line)), [])
    except csv.Error:
        return []


def _roles(header: list[str], image_column: str | None) -> dict[str, str]:
    """Which column plays which part; the user's word for the image column comes first."""
    lower = {name.lower(): name for name in reversed(header)}
    roles = {}
    for role, aliases in _ALIASES.items():
        for alias in aliases:
            if alias in lower:
                roles[role] = lower[alias]
                break
    if image_column is not None:
        roles["image"] = image_column
    return roles


def _values_of(column: pa.Array, spoken: np.ndarray) -> set[str]:
    return {value.strip() for value in pc.unique(column.filter(pa.array(spoken))).to_pylist()}


def _encode(column: pa.Array, present: np.ndarray) -> tuple[Names, np.ndarray]:
    """Names in order of first appearance, and each row's number (0 where the row has none)."""
    coded = pc.dictionary_encode(pc.if_else(pa.array(present), column, None))
    names = Names(coded.dictionary)
    return names, np.asarray(pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False), dtype=np.int32)


def _values(
    sheet: Sheet,
    name: str,
    column: pa.Array,
    keep: np.ndarray,
    spoken: np.ndarray,
    policy: Policy,
    own: bool,
    audit: Audit,
) -> np.ndarray:
    coded = pc.dictionary_encode(column)
    codes = coded.indices.to_numpy(zero_copy_only=False)
    raws = coded.dictionary.to_pylist()
    counts = np.bincount(codes[spoken], minlength=len(raws))
    stated = Policy(minus_one="absent", zero="unknown") if own else policy
    value_of = np.zeros(len(raws), np.int8)
    for code, raw in enumerate(raws):
        if not counts[code]:
            continue
        try:
            if not own and policy.zero is None and raw.strip() in ZERO and raw.strip() not in policy.values:
                raise Undecided(
                    "value 0 may mean absent, or unknown (as in halflabel's own files)",
                    "add --zero absent or --zero unknown",
                )
            meaning = read_value(raw, stated, frozenset(raws))
        except Undecided as problem:
            row = int(keep[np.flatnonzero(spoken & (codes == code))[0]])
            fix = "use 1 (present), -1 (absent) or 0 (takes back what was said before)" if own else problem.fix
            raise sheet.error(problem.message, fix, row=row, column=name) from None
        value_of[code] = VALUE[meaning]
        audit.add(raw, "retracted" if own and meaning == "unknown" else meaning, counts[code])
    return np.asarray(value_of[codes])


def _sources(sheet: Sheet, name: str | None, column: pa.Array | None, count: int) -> tuple[tuple[str, ...], np.ndarray]:
    if column is None:
        return ("",), np.zeros(count, np.int16)
    coded = pc.dictionary_encode(column)
    if len(coded.dictionary) > np.iinfo(np.int16).max:
        message = f"{len(coded.dictionary)} different sources are more than the 32,767 there is room for"
        raise sheet.error(message, "name fewer sources, or remove the column", column=name)
    return tuple(coded.dictionary.to_pylist()), np.asarray(coded.indices).astype(np.int16)


def _scores(sheet: Sheet, name: str | None, column: pa.Array | None, keep: np.ndarray) -> np.ndarray:
    if column is None:
        return np.full(len(keep), np.nan, np.float32)
    given = pc.if_else(pc.equal(column, ""), None, column)
    try:
        score = pc.cast(given, pa.float32())
    except pa.ArrowInvalid:
        return _scores_one_by_one(sheet, name, column, keep)
    return np.asarray(score.to_numpy(zero_copy_only=False), dtype=np.float32)


def _scores_one_by_one(sheet: Sheet, name: str | None, column: pa.Array, keep: np.ndarray) -> np.ndarray:
    """Python reads numbers that Arrow does not, such as those with blanks around them."""
    score = np.full(len(keep), np.nan, np.float32)
    for position, text in enumerate(column.to_pylist()):
        try:
            score[position] = float(text.strip() or "nan")
        except ValueError:
            message = f"score {text!r} is not a number"
            raise sheet.error(message, "use a number or blank", row=int(keep[position]), column=name) from None
    return score


def _blocks(rows: Rows) -> Iterator[pa.RecordBatch]:
    """Class declarations, image declarations where images would else lose their place, then the rows, in blocks."""
    # An image keeps its place by first appearance: declare all when rows are not in image order or an image has none.
    first = np.full(len(rows.images), -1)
    seen, at = np.unique(rows.image, return_index=True)
    first[seen] = at
    yield from _declared("class", rows.classes)
    if not (np.all(first >= 0) and np.all(np.diff(first) > 0)):
        yield from _declared("image", rows.images)
    sources = pa.array(rows.sources, pa.string())
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        columns = [
            rows.images.array.take(pa.array(rows.image[part])).cast(pa.string()),
            rows.classes.array.take(pa.array(rows.column[part])).cast(pa.string()),
            pa.array(rows.value[part]),
            sources.take(pa.array(rows.source[part])),
            pa.array(rows.score[part], from_pandas=True),
        ]
        yield pa.record_batch(columns, schema=_SCHEMA)


def _declared(role: str, names: Names) -> Iterator[pa.RecordBatch]:
    """Rows that name a class (or an image) and say nothing of it."""
    for start in range(0, len(names), _BLOCK):
        part = names.array.slice(start, _BLOCK).cast(pa.string())
        blank = pa.repeat("", len(part))
        image, label = (part, blank) if role == "image" else (blank, part)
        value, score = pa.nulls(len(part), pa.int8()), pa.nulls(len(part), pa.float32())
        yield pa.record_batch([image, label, value, blank, score], schema=_SCHEMA)


def csv_text(block: pa.RecordBatch) -> bytes:
    """Lines of plain fields, quoted only where a name needs it, so that files stay easy to read and to compare."""
    import pyarrow.csv as pa_csv

    # Arrow writes a number in as few digits as bring it back: 0.7, not 0.699999988.
    columns = [column.cast(pa.string()) for column in block.columns]
    block = pa.record_batch(columns, names=block.schema.names)
    try:
        text = pa.BufferOutputStream()
        pa_csv.write_csv(block, text, pa_csv.WriteOptions(include_header=False, quoting_style="none"))
        return bytes(text.getvalue())
    except pa.ArrowInvalid:
        rows = zip(*(pc.fill_null(column, "").to_pylist() for column in columns), strict=True)
        return "".join(map(csv_line, rows)).encode()
