"""Long rows, `image,class,value,source,score`, as CSV or Parquet: halflabel's own form, and others like it.

In our own files value is 1 (present), -1 (absent) or 0 (retracts what was said before). A row without an image names a
class and a row without a class names an image, so that classes and images with nothing known keep their place.

Source and score may be left out. In a file with just `image,class,value` and no value but 1 and -1, -1 is absent unless
stated otherwise; beside any other value, such as the 0 that others write for absent, it has to be stated.

Names in our own files, which have all five columns, are exact. In others blanks around a name do not count.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import CsvTable, ParquetTable, csv_line, detect_delimiter, first_line, read_records
from halflabel.labels.formats._unlisted import mark_unlisted_absent, unlisted_not_stated
from halflabel.labels.formats._write import check_names
from halflabel.labels.names import Names
from halflabel.labels.policy import LABEL_VALUES, MINUS_ONE, ONE, ZERO, Policy, UndecidedValue, read_value, shorten
from halflabel.labels.rows import Rows, too_many_sources
from halflabel.system.files import atomic_write

__all__ = [
    "COLUMNS",
    "IMAGE_COLUMNS",
    "USES",
    "blocks",
    "csv_text",
    "declared",
    "has_values",
    "read",
    "sniff",
    "write",
    "write_blocks",
]

USES = ("unlisted", "minus_one", "zero", "values", "image_column", "where", "encoding")

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

_CELLS = frozenset(("", *ONE, *ZERO, *MINUS_ONE))


def sniff(path: Path) -> bool:
    """Long: a column that names the image, one that names the class, and at most a few besides.

    A wide table may have a class called "tag". So without a column of values the cells are looked at: where there is
    nothing but 1, 0, -1 and blank in columns such as "tag" and "score", they are classes.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            return _fits(pq.read_schema(path).names)
        except (pa.ArrowException, OSError):
            return False
    line = first_line(path)
    if not _fits([name.strip() for name in _fields(line)]):
        return False
    rows = read_records(path, detect_delimiter(line))
    try:
        header = [name.strip() for name in next(rows)[1]]  # the first line may end within quotes
        if not _fits(header) or has_values(header):
            return _fits(header)
        ours = [at for at, name in enumerate(header) if _role(name) not in (None, "image")]
        empty = True
        for _, record in rows:
            if any(record[at].strip() not in _CELLS for at in ours if at < len(record)):
                return True
            empty = False
        return empty
    except LabelError:  # to be told by the reader, with its place
        return True


def has_values(header: list[str]) -> bool:
    """Whether a file is long by its header alone: image, class and value, and at most a few columns besides."""
    return _fits(header) and "value" in _roles(header, None)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read long rows, in their order. Values of our own files are exact; others go by the stated policy."""
    sheet = ParquetTable(path) if Path(path).suffix == ".parquet" else CsvTable(path, encoding=policy.encoding)
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
    if not own:
        _take_blanks_off(taken, audit)

    has_image = pc.not_equal(taken["image"], "").to_numpy(zero_copy_only=False)
    has_class = pc.not_equal(taken["class"], "").to_numpy(zero_copy_only=False)
    if not (has_image | has_class).all():
        row = int(keep[np.argmin(has_image | has_class)])
        raise sheet.error("neither an image nor a class is named", "remove the row or fill it in", row=row)
    spoken = has_image & has_class
    _check_declarations(sheet, roles, taken, keep, has_image, spoken)
    images, image = _encode(taken["image"], has_image)
    classes, column = _encode(taken["class"], has_class)

    short = not own and set(COLUMNS[:3]) <= set(sheet.header) <= set(COLUMNS)
    if short and policy.minus_one is None and _values_of(taken["value"], spoken) <= {*ONE, *MINUS_ONE}:
        policy = replace(policy, minus_one="absent")
    if "value" in taken:
        value = _values(sheet, roles["value"], taken["value"], keep, spoken, policy, own, audit)
    elif policy.unlisted is None:
        raise LabelError(*unlisted_not_stated("every row says present and none says absent"), path)
    else:
        value = np.ones(len(keep), np.int8)
        audit.add("listed", "present", int(spoken.sum()))
    sources, source = _sources(sheet, roles.get("source"), taken.get("source"), len(keep))
    score = _scores(sheet, roles.get("score"), taken.get("score"), keep)
    image, column, value, source, score = (part[spoken] for part in (image, column, value, source, score))
    rows = Rows.build(images, classes, image, column, value, source, score, sources)
    if policy.unlisted == "absent":
        rows = mark_unlisted_absent(rows, audit)
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries were called both present and absent: the last row wins, all rows are kept")
    if own:
        _note_twins(images, "images", audit)
        _note_twins(classes, "classes", audit)
    if "value" not in roles:
        _note_lists(classes, audit)
    unused = [name for name in sheet.header if name not in roles.values() and name not in policy.where]
    if unused:
        audit.note(f"columns not used: {', '.join(unused)}")
    return LabelImport(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write all rows: CSV, or Parquet where the name ends in .parquet. Classes are named first, in their order."""
    check_names(rows)
    # An image keeps its place by first appearance: declare all when rows are not in image order or an image has none.
    first = np.full(len(rows.images), -1)
    seen, at = np.unique(rows.image, return_index=True)
    first[seen] = at
    in_place = bool(np.all(first >= 0) and np.all(np.diff(first) > 0))
    images = Names([]) if in_place else rows.images
    write_blocks(chain(declared("class", rows.classes), declared("image", images), blocks(rows)), path)


def write_blocks(parts: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write blocks of rows as they come, one in memory at a time: CSV, or Parquet where the name ends in .parquet.

    The file is there once all are written; what raises on the way leaves what was there before.
    """
    with atomic_write(path) as temporary:
        if Path(path).suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer:
                for block in parts:
                    writer.write_batch(block)
        else:
            with open(temporary, "wb") as file:
                file.write((",".join(COLUMNS) + "\n").encode())
                for block in parts:
                    file.write(csv_text(block))


def _fits(header: list[str]) -> bool:
    return {"image", "class"} <= set(_roles(header, None)) and len(header) <= len(_ALIASES) + 3


def _role(name: str) -> str | None:
    return next((role for role, aliases in _ALIASES.items() if name.lower() in aliases), None)


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=detect_delimiter(line)), [])
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


def _take_blanks_off(taken: dict[str, pa.Array], audit: Audit) -> None:
    for role in ("image", "class"):
        plain = pc.utf8_trim_whitespace(taken[role])
        if count := pc.sum(pc.not_equal(plain, taken[role])).as_py():
            audit.note(f"blanks around the name of the {role} taken off in {count} rows")
        taken[role] = plain


def _note_twins(names: Names, several: str, audit: Audit) -> None:
    """In our own files names are exact, but two that look the same are worth a word."""
    if same := len(names) - pc.count_distinct(pc.utf8_trim_whitespace(names.array)).as_py():
        audit.note(f"{same} {several} differ from another by blanks around the name only")


def _check_declarations(
    sheet: CsvTable,
    roles: dict[str, str],
    taken: dict[str, pa.Array],
    keep: np.ndarray,
    has_image: np.ndarray,
    spoken: np.ndarray,
) -> None:
    """A row without an image, or without a class, only names the other: it must say nothing besides."""
    for role in ("value", "source", "score"):
        if role in taken:
            says = pc.not_equal(pc.utf8_trim_whitespace(taken[role]), "").to_numpy(zero_copy_only=False) & ~spoken
            if says.any():
                at = int(np.argmax(says))
                missing = "class" if has_image[at] else "image"
                message = f"{role} {shorten(taken[role][at].as_py())!r} is said of no {missing}"
                fix = f"name the {missing}, or leave {', '.join(roles[r] for r in COLUMNS[2:] if r in roles)} blank"
                raise sheet.error(message, fix, row=int(keep[at]), column=roles[missing])


def _note_lists(classes: Names, audit: Audit) -> None:
    """Names with a separator in them may be lists of names: that is for the user to say."""
    lists = classes.array.filter(pc.match_substring_regex(classes.array, "[^,;|]+[,;|][^,;|]+"))
    if len(lists):
        one = shorten(lists[0].as_py())
        audit.note(f"{len(lists)} classes look like lists, such as {one!r}: if they are, add --format tags")


def _values_of(column: pa.Array, spoken: np.ndarray) -> set[str]:
    return {value.strip() for value in pc.unique(column.filter(pa.array(spoken))).to_pylist()}


def _encode(column: pa.Array, present: np.ndarray) -> tuple[Names, np.ndarray]:
    """Names in order of first appearance, and each row's number (0 where the row has none)."""
    coded = pc.dictionary_encode(pc.if_else(pa.array(present), column, None))
    names = Names(coded.dictionary)
    return names, np.asarray(pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False), dtype=np.int32)


def _values(
    sheet: CsvTable,
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
                raise UndecidedValue(
                    "value 0 may mean absent, or unknown (as in halflabel's own files)",
                    "add --zero absent or --zero unknown",
                )
            meaning = read_value(raw, stated, frozenset(raws))
        except UndecidedValue as problem:
            row = int(keep[np.flatnonzero(spoken & (codes == code))[0]])
            fix = "use 1 (present), -1 (absent) or 0 (takes back what was said before)" if own else problem.fix
            raise sheet.error(problem.message, fix, row=row, column=name) from None
        value_of[code] = LABEL_VALUES[meaning]
        audit.add(raw, "retracted" if own and meaning == "unknown" else meaning, counts[code])
    return np.asarray(value_of[codes])


def _sources(
    sheet: CsvTable, name: str | None, column: pa.Array | None, count: int
) -> tuple[tuple[str, ...], np.ndarray]:
    if column is None:
        return ("",), np.zeros(count, np.int16)
    coded = pc.dictionary_encode(column)
    if message := too_many_sources(len(coded.dictionary)):
        raise sheet.error(message, "name fewer sources, or remove the column", column=name)
    return tuple(coded.dictionary.to_pylist()), np.asarray(coded.indices).astype(np.int16)


def _scores(sheet: CsvTable, name: str | None, column: pa.Array | None, keep: np.ndarray) -> np.ndarray:
    if column is None:
        return np.full(len(keep), np.nan, np.float32)
    given = pc.if_else(pc.equal(column, ""), None, column)
    try:
        score = np.asarray(pc.cast(given, pa.float32()).to_numpy(zero_copy_only=False), dtype=np.float32)
    except pa.ArrowInvalid:
        score = _scores_one_by_one(sheet, name, column, keep)
    if np.isinf(score).any():
        at = int(np.argmax(np.isinf(score)))
        message = f"score {column[at].as_py()!r} is too large"
        raise sheet.error(message, "use a number from 0 to 1, or blank", row=int(keep[at]), column=name)
    return score


def _scores_one_by_one(sheet: CsvTable, name: str | None, column: pa.Array, keep: np.ndarray) -> np.ndarray:
    """Python reads numbers that Arrow does not, such as those with blanks around them."""
    score = np.full(len(keep), np.nan)
    for position, text in enumerate(column.to_pylist()):
        try:
            score[position] = float(text.strip() or "nan")
        except ValueError:
            message = f"score {text!r} is not a number"
            raise sheet.error(message, "use a number or blank", row=int(keep[position]), column=name) from None
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return score.astype(np.float32)


def blocks(rows: Rows) -> Iterator[pa.RecordBatch]:
    """The rows in blocks for `write_blocks`, with names in the place of numbers."""
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


def declared(role: str, names: Names) -> Iterator[pa.RecordBatch]:
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
