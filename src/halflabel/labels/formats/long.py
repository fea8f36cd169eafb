"""Long rows, `image,class,value,source,score`, as CSV or Parquet: halflabel's own format, and others like it.

In our own files, which have all five columns, value is 1 (present), -1 (absent), uncertain (2 in Parquet), 0 (retracts
an earlier label) or blank, and a row without an image or a class declares the other: declared names come first. The
column `inclusion_weight` is 0 for an answer to a chosen question, for a random one the entries that it stands for.
In other files, whose names are trimmed, a row without an answer never removes the label of another row, and the meaning
of values other than 1 and -1 must be stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import IMAGE_COLUMNS, csv_line, first_line, header_fields
from halflabel.labels.formats._entries import mark_unlisted_absent, require_unlisted
from halflabel.labels.formats._sheets import (
    CsvTable,
    ParquetTable,
    open_sheet,
    parquet_columns,
    possible_values,
    refuse_values,
    write_ignored,
)
from halflabel.labels.formats._write import check_names
from halflabel.labels.formats.unsupported import QUESTION_COLUMNS, own_output_error
from halflabel.labels.labels import WEIGHT_COLUMN, Labels, model_source, too_many_sources
from halflabel.labels.names import Names
from halflabel.labels.policy import (
    LABEL_VALUES,
    MINUS_ONE,
    ONE,
    ZERO,
    Meaning,
    Policy,
    UndecidedValue,
    read_value,
    shorten_cell,
)
from halflabel.labels.table import UNCERTAIN
from halflabel.system.files import atomic_write

HOLDS_UNCERTAIN = HOLDS_WEIGHTS = True
USES = ("unlisted", "minus_one", "zero", "values", "image_column", "ignore", "where", "encoding", "machine")

_ALIASES = {
    "image": IMAGE_COLUMNS,
    "class": ("class", "label", "tag", "category", "class_name", "label_name"),
    "value": ("value", "present", "presence", "is_present"),
    "source": ("source", "annotator", "tag_source", "label_source"),
    "score": ("score", "confidence"),
    WEIGHT_COLUMN: (WEIGHT_COLUMN,),
}
COLUMNS = ("image", "class", "value", "source", "score")
_TYPES = (pa.string(), pa.string(), pa.int8(), pa.string(), pa.float32(), pa.float32())
_SCHEMA = pa.schema(list(zip((*COLUMNS, WEIGHT_COLUMN), _TYPES, strict=True)))
_BLOCK = 1 << 18
_FIX_WEIGHT = "use the inclusion weight of the question, 0 if it was chosen, or blank if nobody was asked"
MOST_COLUMNS = 8  # a table with more is wide: it has a column per class


def sniff(path: Path) -> bool:
    """A table with a column that names the image, one that names the class, and at most a few others."""
    is_parquet = path.suffix == ".parquet" or path.is_dir()
    return _is_long_header(parquet_columns(path, flat=True) if is_parquet else header_fields(first_line(path)))


def has_values(header: list[str]) -> bool:
    """Whether a file is long by its header alone: image, class and value, and at most a few other columns."""
    return _is_long_header(header) and "value" in find_roles(header, None)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read long rows in their order. Values of our own files are exact; others are read by the stated policy."""
    sheet, audit = open_sheet(path, policy.encoding), Audit("long", [str(path)])
    sheet.note_form(audit)
    is_own_format = set(COLUMNS) <= set(sheet.header)
    if is_own_format:  # the values of these files have fixed meanings
        policy.check(set(USES) - {"minus_one", "zero", "values"}, "long, in halflabel's own columns")
    if (own_output := own_output_error(sheet.header)) is not None:
        raise LabelError(*own_output, path)
    sheet.check_columns(policy.ignore)
    header = [name for name in sheet.header if name not in policy.ignore]
    roles = find_roles(header, policy.image_column)
    sheet.check_columns(role for role in ("image", "class") if role not in roles)
    for role in ("class", "value"):
        fitting = [name for name in header if name.lower() in _ALIASES[role]]
        if len(fitting) > 1:
            message = f"both {fitting[0]!r} and {fitting[1]!r} may hold the {role}"
            raise sheet.error(message, f"add ‹ignore={fitting[1]}›, or rename it", line=1)
    unused = [name for name in header if name not in roles.values() and name not in policy.where]
    if "value" not in roles:
        if values := possible_values(sheet, unused):
            if "score" not in roles:
                require_unlisted(policy, "every row says present", path, also=write_ignored(values))
            refuse_values(sheet, values)
        if "score" in roles and policy.machine is None:
            name = roles["score"]
            by_model = "add ‹machine=0.5› (the scores of a model: present from 0.5 on)"
            fix = f"{by_model} or ‹ignore={name}› (every row says present)"
            refuse_values(sheet, possible_values(sheet, [name]), fix)
    if policy.machine is not None and ("value" in roles or "score" not in roles):
        raise sheet.error("there is no column of scores without one of values", "leave ‹machine› out", line=1)
    sheet.select(policy.where, audit)
    cells = {role: sheet.column(name) for role, name in roles.items()}
    if not is_own_format:
        for role in ("image", "class"):
            trimmed = pc.utf8_trim_whitespace(cells[role])
            removed = pc.sum(pc.not_equal(trimmed, cells[role])).as_py() or 0
            audit.note_count(removed, f"rows have blanks around the name of the {role}, which are removed")
            cells[role] = trimmed

    has_image = pc.not_equal(cells["image"], "").to_numpy(zero_copy_only=False)
    has_class = pc.not_equal(cells["class"], "").to_numpy(zero_copy_only=False)
    if not (has_image | has_class).all():
        row = int(np.argmin(has_image | has_class))
        raise sheet.error("neither an image nor a class is named", "remove the row or fill it in", row=row)
    is_label = has_image & has_class
    _check_declarations(sheet, roles, cells, has_image, is_label)
    images, image = _encode(cells["image"], has_image, is_declared=~has_class)
    classes, column = _encode(cells["class"], has_class, is_declared=~has_image)

    is_like_own = set(COLUMNS[:3]) <= set(sheet.header) <= {*COLUMNS, *QUESTION_COLUMNS}
    if is_like_own and not is_own_format and policy.minus_one is None:
        values = pc.unique(cells["value"].filter(pa.array(is_label))).to_pylist()
        unanswered = {""} if WEIGHT_COLUMN in sheet.header else set()  # a question without its answer
        if {value.strip() for value in values} <= {*ONE, *MINUS_ONE, *unanswered}:
            policy = replace(policy, minus_one="absent")
    value = np.ones(len(sheet), np.int8)
    if "value" in cells:
        value = _read_values(sheet, roles["value"], cells["value"], is_label, policy, is_own_format, audit)
    elif policy.machine is None:
        require_unlisted(policy, "every row says present and none says absent", path)
        audit.add("listed", "present", int(is_label.sum()))
    sources: tuple[str, ...] = ("",)
    source = np.zeros(len(sheet), np.int16)
    if "source" in cells:
        coded = pc.dictionary_encode(cells["source"])
        if message := too_many_sources(len(coded.dictionary)):
            raise sheet.error(message, "name fewer sources, or remove the column", column=roles["source"])
        sources, source = tuple(coded.dictionary.to_pylist()), np.asarray(coded.indices).astype(np.int16)
    score = sheet.numbers(roles.get("score"), "use a number from 0 to 1, or blank")
    weight = sheet.numbers(roles.get(WEIGHT_COLUMN), _FIX_WEIGHT, least=0)
    if policy.machine is not None:
        is_accepted = is_label & (score >= policy.machine)
        audit.add(f"a model's label of {policy.machine:g} or more", "present", int(is_accepted.sum()))
        audit.add(f"a model's label below {policy.machine:g}", "unknown", int((is_label & ~is_accepted).sum()))
        sources, is_label = tuple(map(model_source, sources)), is_accepted
    parts = (part[is_label] for part in (image, column, value, source, score, weight))
    image, column, value, source, score, weight = parts
    rows = Labels.build(images, classes, image, column, value, source, score, sources, weight)
    if "value" in cells:
        says_nothing = rows.value == 0
        if is_own_format:
            is_zero = pc.is_in(pc.utf8_trim_whitespace(cells["value"]), pa.array(ZERO))
            says_nothing &= ~is_zero.to_numpy(zero_copy_only=False)[is_label]
        rows = _without_answer_first(rows, says_nothing, audit)
    if policy.unlisted == "absent":
        rows = mark_unlisted_absent(rows, audit)
    audit.note_count(
        rows.count_conflicts(),
        "entries are both present and absent: a person's row wins over a model's, else the last row wins; all are kept",
    )
    if "value" not in roles:
        lists = classes.array.filter(pc.match_substring_regex(classes.array, "[^,;|]+[,;|][^,;|]+"))
        example = shorten_cell(lists[0].as_py()) if len(lists) else ""
        audit.note_count(len(lists), f"classes look like lists, such as {example!r}: if they are, add ‹format=tags›")
    audit.note_names("columns not used", (name for name in sheet.header if name in {*unused, *policy.ignore}))
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write all rows, and rows that declare classes and images where readers would order them otherwise."""
    check_names(rows)
    classes = Names([]) if appear_in_order(rows.column, len(rows.classes)) else rows.classes
    images = Names([]) if appear_in_order(rows.image, len(rows.images)) else rows.images
    declarations = declaration_blocks("class", classes), declaration_blocks("image", images)
    write_blocks(chain(record_batches(rows), *declarations), path, columns_of(rows))


def _is_long_header(header: list[str]) -> bool:
    return {"image", "class"} <= set(find_roles(header, None)) and len(header) <= MOST_COLUMNS


def find_roles(header: list[str], image_column: str | None) -> dict[str, str]:
    """The column for each role; the image column that the user stated has priority."""
    lower = {name.lower(): name for name in reversed(header)}
    first = {role: next((alias for alias in aliases if alias in lower), None) for role, aliases in _ALIASES.items()}
    roles = {role: lower[alias] for role, alias in first.items() if alias is not None}
    if image_column is not None:
        roles["image"] = image_column
    return roles


def _without_answer_first(rows: Labels, says_nothing: NDArray[np.bool_], audit: Audit) -> Labels:
    """The rows in an order in which those without an answer do not retract the label of another row."""
    if not says_nothing.any():
        return rows
    key = rows.image.astype(np.int64) * len(rows.classes) + rows.column
    answered = int(np.count_nonzero(np.isin(key[says_nothing], key[~says_nothing])))
    audit.note_count(answered, "rows have no answer where another row has one: they change nothing")
    return rows.select(np.argsort(~says_nothing, kind="stable"))


def _check_declarations(
    sheet: CsvTable, roles: dict[str, str], cells: dict[str, pa.Array], has_image: np.ndarray, is_label: np.ndarray
) -> None:
    """Raise LabelError if a row without an image or class has a value, source, score or weight."""
    for role in ("value", "source", "score", WEIGHT_COLUMN):
        if role in cells:
            has_text = pc.not_equal(pc.utf8_trim_whitespace(cells[role]), "").to_numpy(zero_copy_only=False) & ~is_label
            if has_text.any():
                row = int(np.argmax(has_text))
                missing = "class" if has_image[row] else "image"
                message = f"{role} {shorten_cell(cells[role][row].as_py())!r} has no {missing}"
                names = ", ".join(name for r, name in roles.items() if r not in ("image", "class"))
                fix = f"name the {missing}, or leave {names} blank"
                raise sheet.error(message, fix, row=row, column=roles[missing])


def _encode(column: pa.Array, present: np.ndarray, is_declared: np.ndarray) -> tuple[Names, np.ndarray]:
    """Names in order of first appearance, declared ones first; and the index of each row's name (0 without one)."""
    cells = pc.if_else(pa.array(present), column, None)
    order = np.argsort(~(present & is_declared), kind="stable")
    coded = pc.dictionary_encode(cells.take(pa.array(order)))
    index = np.empty(len(order), np.int32)
    index[order] = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    return Names(coded.dictionary), index


def _read_values(
    sheet: CsvTable,
    name: str,
    column: pa.Array,
    is_label: np.ndarray,
    policy: Policy,
    is_own_format: bool,
    audit: Audit,
) -> np.ndarray:
    coded = pc.dictionary_encode(column)
    codes = coded.indices.to_numpy(zero_copy_only=False)
    raws = coded.dictionary.to_pylist()
    counts = np.bincount(codes[is_label], minlength=len(raws))
    if is_own_format:
        numbers: dict[str, Meaning] = {str(UNCERTAIN): "uncertain"} if isinstance(sheet, ParquetTable) else {}
        policy = Policy(minus_one="absent", zero="unknown", values=numbers)
    value_of = np.zeros(len(raws), np.int8)
    for code, raw in enumerate(raws):
        if not counts[code]:
            continue
        try:
            if not is_own_format and policy.zero is None and raw.strip() in ZERO and raw.strip() not in policy.values:
                raise UndecidedValue(
                    "value 0 may mean absent, or unknown (as in halflabel's own files)",
                    "add ‹zero=absent› or ‹zero=unknown›",
                )
            meaning = read_value(raw, policy, frozenset(raws))
        except UndecidedValue as undecided:
            row = int(np.argmax(is_label & (codes == code)))
            fix = (
                "use 1 (present), -1 (absent), uncertain or 0 (retracts an earlier label)"
                if is_own_format
                else undecided.fix
            )
            raise sheet.error(undecided.message, fix, row=row, column=name) from None
        value_of[code] = LABEL_VALUES[meaning]
        is_retraction = is_own_format and raw.strip() in ZERO
        audit.add(raw or "blank", "retracted" if is_retraction else meaning, counts[code])
    return np.asarray(value_of[codes])


# ---- writing, block by block; also for `fill` and its undo


def appear_in_order(index: NDArray[np.int32], count: int) -> bool:
    """Whether all of 0 … count − 1 appear, each for the first time after the one before."""
    first = np.full(count, -1)
    seen, first_row = np.unique(index, return_index=True)
    first[seen] = first_row
    return bool(np.all(first >= 0) and np.all(np.diff(first) > 0))


def columns_of(*parts: Labels | None) -> Sequence[str]:
    """The columns of a file with these rows: the inclusion weight only if somebody was asked."""
    is_answered = any(bool(rows.is_answer().any()) for rows in parts if rows is not None)
    return (*COLUMNS, WEIGHT_COLUMN) if is_answered else COLUMNS


def write_blocks(parts: Iterable[pa.RecordBatch], path: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Write these columns of blocks as they come, one in memory at a time: Parquet if the name ends so, else CSV."""
    with atomic_write(path) as temporary:
        if Path(path).suffix == ".parquet":
            import pyarrow.parquet as pq

            schema = pa.schema([_SCHEMA.field(name) for name in columns])
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for block in parts:
                    writer.write_batch(block.select(columns))
        else:
            with open(temporary, "wb") as file:
                file.write((",".join(columns) + "\n").encode())
                for block in parts:
                    file.write(csv_text(block.select(columns)))


def record_batches(rows: Labels) -> Iterator[pa.RecordBatch]:
    """The rows in blocks for `write_blocks`, with names instead of indices."""
    sources = pa.array(rows.sources, pa.string())
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        columns = [
            rows.images.array.take(pa.array(rows.image[part])).cast(pa.string()),
            rows.classes.array.take(pa.array(rows.column[part])).cast(pa.string()),
            pa.array(rows.value[part]),
            sources.take(pa.array(rows.source[part])),
            *(pa.array(numbers[part], from_pandas=True) for numbers in (rows.score, rows.weight)),
        ]
        yield pa.record_batch(columns, schema=_SCHEMA)


def declaration_blocks(role: str, names: Names) -> Iterator[pa.RecordBatch]:
    """Rows that declare classes (or images), without a label."""
    for start in range(0, len(names), _BLOCK):
        part = names.array.slice(start, _BLOCK).cast(pa.string())
        blank = pa.repeat("", len(part))
        image, label = (part, blank) if role == "image" else (blank, part)
        value, number = pa.nulls(len(part), pa.int8()), pa.nulls(len(part), pa.float32())
        yield pa.record_batch([image, label, value, blank, number, number], schema=_SCHEMA)


def csv_text(block: pa.RecordBatch) -> bytes:
    """CSV lines of a block; only names that need it are quoted, so that files are easy to read and to compare."""
    import pyarrow.csv as pa_csv

    # Arrow writes the fewest digits that give the same number: 0.7, not 0.699999988.
    columns = [column.cast(pa.string()) for column in block.columns]
    if (value := block.schema.get_field_index("value")) >= 0:
        columns[value] = pc.replace_substring(columns[value], str(UNCERTAIN), "uncertain")
    block = pa.record_batch(columns, names=block.schema.names)
    try:
        text = pa.BufferOutputStream()
        pa_csv.write_csv(block, text, pa_csv.WriteOptions(include_header=False, quoting_style="none"))
        return bytes(text.getvalue())
    except pa.ArrowInvalid:
        rows = zip(*(pc.fill_null(column, "").to_pylist() for column in columns), strict=True)
        return "".join(map(csv_line, rows)).encode()
