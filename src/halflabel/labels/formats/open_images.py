"""Open Images CSV, `ImageID,Source,LabelName,Confidence`: a row per label a person verified or a machine guessed.

Confidence 1 is verified present, 0 verified absent; a fraction, or the source "machine", is a machine's guess. A pair
without a row is unknown. The box files, which have more columns, read the same way.
"""

from __future__ import annotations

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
from halflabel.labels.formats._csv import first_line, read_records
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.formats.long import csv_text
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.rows import Rows, too_many_sources
from halflabel.system.files import atomic_write

__all__ = ["NEEDED", "USES", "display_names", "read", "sniff", "write"]

USES = ("machine",)

COLUMNS = ("ImageID", "Source", "LabelName", "Confidence")
NEEDED = ("ImageID", "LabelName", "Confidence")
MACHINE = "machine"

_LONG = "write the long form instead (--to long)"


def sniff(path: Path) -> bool:
    """A file with the three columns in its header, or a folder with a file named like the public ones."""
    if path.is_dir():
        return bool(_annotations(path))
    return set(NEEDED) <= {name.strip().strip('"') for name in first_line(path).split(",")}


def read(path: Path, policy: Policy) -> LabelImport:
    """Read verified labels; a machine's guess is unknown, or present from the confidence `policy.machine` on.

    A guess never stands against a verified label: guesses come first in the rows, so that the verified ones win.
    Streams the file in blocks and never holds its text: 60 million rows of 9 million images take 3.2 GiB at the peak.
    """
    if policy.machine is not None and not 0 < policy.machine <= 1:
        raise UserError(f"--machine {policy.machine:g} is no confidence", "use a number above 0 and up to 1")
    path = _file(Path(path))
    image, label, source = _Codes(), _Codes(), _Codes()
    values: list[NDArray[np.int8]] = []
    scores: list[NDArray[np.float32]] = []
    counts: Counter[str] = Counter()
    done = 0
    for block in _blocks(path):
        confidence = _confidence(path, block, done)
        for name in ("ImageID", "LabelName"):
            _check_named(path, block, name, done)
        value, guess = _values(block, confidence, policy, counts)
        said = np.flatnonzero(value)
        # Every image and class keeps its place, also where nothing is known of it.
        image.add(block["ImageID"], said)
        label.add(block["LabelName"], said)
        if "Source" in block:
            source.add(block["Source"], said)
        values.append(value[said])
        # A verified label is no guess and has no score.
        scores.append(np.where(guess, confidence, np.nan)[said].astype(np.float32))
        done += len(value)
    if not done:
        raise LabelError("the file has a header but no rows", "download or export the file again", path)

    audit = _audit(path, policy, counts)
    value, score = np.concatenate(values), np.concatenate(scores)
    del values, scores
    mids, column = label.join()
    classes = Names(display_names(path, mids, audit))
    ids, number = image.join()
    images = Names(ids)
    # Arrow keeps what its tables of names took; with millions of images that is a gigabyte and more.
    pa.default_memory_pool().release_unused()
    rows = _guesses_first(Rows.build(images, classes, number, column, value, *_sources(path, source, score)))
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries were called both present and absent: the last verified row wins")
    return LabelImport(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write what holds in the end, Confidence 1 or 0 and the class's name as LabelName; a machine's rows keep theirs.

    What a model filled in (sources "model:…") gets a fraction, its probability of being present: nobody verified it.
    Classes come back in the order in which they first appear. An image or a class with nothing known has no place.
    """
    rows = _holding_in_image_order(rows)
    _check_writable(rows)
    confidence = (rows.value > 0).astype(np.float32)
    machine = np.array([name == MACHINE for name in rows.sources])[rows.source]
    confidence[machine] = rows.score[machine]
    filled = np.array([name.startswith("model:") for name in rows.sources])[rows.source]
    sure = np.nan_to_num(rows.score, nan=0.5)  # of the value written
    present = np.where(rows.value > 0, sure, 1 - sure)
    confidence[filled] = present[filled].clip(0.001, 0.999)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write((",".join(COLUMNS) + "\n").encode())
        for start in range(0, len(rows), 1 << 18):
            part = slice(start, start + (1 << 18))
            block = pa.record_batch(
                [
                    rows.images.array.take(pa.array(rows.image[part])),
                    pa.array(rows.sources, pa.string()).take(pa.array(rows.source[part])),
                    rows.classes.array.take(pa.array(rows.column[part])),
                    pa.array(confidence[part]),
                ],
                names=list(COLUMNS),
            )
            file.write(csv_text(block))


class _Codes:
    """A column of strings as numbers, gathered block by block with one vocabulary per block, joined at the end.

    One table of all names is made once, from the blocks' vocabularies: rows of one image stand together, so these are
    hardly longer than the list of images, and no string of the file is looked up twice in Python.
    """

    def __init__(self) -> None:
        self.names: list[pa.Array] = []
        self.codes: list[NDArray[Any]] = []

    def add(self, column: pa.DictionaryArray, rows: NDArray[np.int64]) -> None:
        """The names of one block, and the numbers of those of its rows that say something, as small as they go."""
        codes = column.indices.to_numpy(zero_copy_only=False)[rows]
        self.names.append(column.dictionary)
        self.codes.append(codes.astype(np.min_scalar_type(len(column.dictionary))))

    def join(self) -> tuple[pa.Array, NDArray[np.int32]]:
        """(all names by first appearance, each row's number); empties itself on the way, to save memory."""
        coded = pa.chunked_array(self.names, pa.string()).dictionary_encode()
        number = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in coded.chunks])
        out = np.empty(sum(map(len, self.codes)), np.int32)
        start = first = 0
        for block, names in enumerate(self.names):
            codes, self.codes[block] = self.codes[block], np.zeros(0, np.uint8)
            out[start : start + len(codes)] = number[first : first + len(names)][codes]
            start, first = start + len(codes), first + len(names)
        self.names = []
        return coded.chunk(0).dictionary, out


def _annotations(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.glob("*annotations*labels*.csv") if file.is_file())
    except OSError:
        return []


def _file(path: Path) -> Path:
    if not path.is_dir():
        return existing_path(path)
    found = _annotations(path)
    if len(found) == 1:
        return existing_path(found[0])
    if found:
        message = f"several label files are here: {', '.join(file.name for file in found)}"
        raise LabelError(message, "name one of them", path)
    raise LabelError("no file is called *annotations*labels*.csv here", "name the label file itself", path)


def _blocks(path: Path) -> Iterator[dict[str, Any]]:
    """The needed columns of each block: names as dictionaries, Confidence as float64."""
    import pyarrow.csv as pa_csv

    header = [name.strip() for name in next(read_records(path, ","), (1, []))[1]]
    for name in NEEDED:
        if header.count(name) != 1:
            problem = f"there is no column {name!r}" if name not in header else f"the column {name!r} occurs twice"
            found = ", ".join(map(repr, header[:12]))
            raise LabelError(f"{problem}; found: {found}", f"the header must be {','.join(COLUMNS)}", path, line=1)
    # Columns are read under their numbers, so that no name can clash with Arrow's own handling of headers.
    place = {name: str(header.index(name)) for name in COLUMNS if name in header}
    text = pa.dictionary(pa.int32(), pa.string())
    types = {number: pa.float64() if name == "Confidence" else text for name, number in place.items()}
    try:
        reader = pa_csv.open_csv(
            path,
            pa_csv.ReadOptions(
                column_names=[str(number) for number in range(len(header))],
                skip_rows_after_names=1,
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
        raise _diagnose(path, header, str(error).splitlines()[0]) from None


def _diagnose(path: Path, header: list[str], reason: str) -> LabelError:
    """Find the first faulty line by reading the file slowly."""
    at = header.index("Confidence")
    try:
        for row, (line, record) in enumerate(read_records(path, ",")):
            if len(record) != len(header):
                message = f"{len(record)} fields where the first line has {len(header)}"
                return LabelError(message, "add or remove ',' on this line", path, line=line)
            if row and not _is_number(record[at]):
                message = f"Confidence {record[at]!r} is not a number"
                return LabelError(message, "use 1, 0 or a fraction", path, line=line, column="Confidence")
    except LabelError as found:
        return found
    return LabelError(f"cannot be read as CSV ({reason})", "check the quoting and the encoding", path)


def _is_number(text: str) -> bool:
    try:
        return text == text.strip() and "_" not in text and float(text) is not None
    except ValueError:
        return text == ""  # a blank has its own message


def _line(path: Path, row: int) -> int:
    """The line on which a row stands (slow, for error messages)."""
    for number, (line, _) in enumerate(read_records(path, ",")):
        if number == row + 1:
            return line
    return row + 2


def _confidence(path: Path, block: dict[str, Any], done: int) -> NDArray[np.float64]:
    confidence = np.asarray(pc.fill_null(block["Confidence"], np.nan).to_numpy(zero_copy_only=False))
    fine = (confidence >= 0) & (confidence <= 1)
    if not fine.all():
        row = int(np.argmin(fine))
        shown = "blank" if np.isnan(confidence[row]) else f"{confidence[row]:g}"
        raise LabelError(
            f"Confidence is {shown}, but it must lie from 0 to 1",
            "use 1 (verified present), 0 (verified absent) or a fraction (a machine's guess)",
            path,
            line=_line(path, done + row),
            column="Confidence",
        )
    return confidence


def _check_named(path: Path, block: dict[str, Any], name: str, done: int) -> None:
    column = block[name]
    blank = pc.index(column.dictionary, "").as_py()
    if blank >= 0:
        row = int(np.argmax(column.indices.to_numpy(zero_copy_only=False) == blank))
        raise LabelError(f"{name} is blank", "fill it in", path, line=_line(path, done + row), column=name)


def _values(
    block: dict[str, Any], confidence: NDArray[np.float64], policy: Policy, counts: Counter[str]
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """(value of each row, whether it is a guess); value 0 where nothing is said."""
    guess = (confidence > 0) & (confidence < 1)
    if "Source" in block:
        machine = pc.index(block["Source"].dictionary, MACHINE).as_py()
        if machine >= 0:
            guess |= block["Source"].indices.to_numpy(zero_copy_only=False) == machine
    value = np.where(confidence > 0, 1, -1).astype(np.int8)
    counts["present"] += int(np.count_nonzero((value > 0) & ~guess))
    counts["absent"] += int(np.count_nonzero((value < 0) & ~guess))
    taken = guess & (confidence >= policy.machine) if policy.machine is not None else np.zeros(len(guess), bool)
    value[guess] = 0
    value[taken] = 1
    counts["taken"] += int(np.count_nonzero(taken))
    counts["left"] += int(np.count_nonzero(guess & ~taken))
    return value, guess


def _audit(path: Path, policy: Policy, counts: Counter[str]) -> Audit:
    audit = Audit("open-images", [str(path)])
    audit.add("1", "present", counts["present"])
    audit.add("0", "absent", counts["absent"])
    if policy.machine is None:
        audit.add("a machine's guess", "unknown", counts["left"])
        if counts["left"]:
            audit.note("a machine's guesses are left out; --machine 0.9 would take those from 0.9 on as present")
    else:
        audit.add(f"a machine's guess of {policy.machine:g} or more", "present", counts["taken"])
        audit.add(f"a machine's guess below {policy.machine:g}", "unknown", counts["left"])
    return audit


def _sources(
    path: Path, source: _Codes, score: NDArray[np.float32]
) -> tuple[NDArray[Any], NDArray[np.float32], tuple[str, ...]]:
    if not source.names:
        return np.zeros(len(score), np.int16), score, ("",)
    names, codes = source.join()
    if message := too_many_sources(len(names)):
        raise LabelError(message, "check that Source names who said it, not each row", path, column="Source")
    return codes.astype(np.int16), score, tuple(names.to_pylist())


def display_names(path: Path, mids: pa.Array, audit: Audit) -> list[str]:
    """The name of each class from the descriptions beside the file; the class's own id where there is none."""
    ids: list[str] = mids.to_pylist()
    beside = sorted(file for file in path.parent.glob("*class-descriptions*.csv") if file.is_file())
    # The file of all classes also covers the boxable ones, so one that describes most classes is the one meant.
    described = [(file, _descriptions(file)) for file in beside if file.stat().st_size]
    if not described:
        return ids
    file, name_of = max(described, key=lambda item: sum(mid in item[1] for mid in ids))
    if not any(mid in name_of for mid in ids):
        return ids
    audit.files.append(str(file))
    shared = Counter(name_of.values())
    names = [name_of.get(mid, mid) for mid in ids]
    names = [f"{name} ({mid})" if shared[name] > 1 else name for name, mid in zip(names, ids, strict=True)]
    if bare := sum(mid not in name_of for mid in ids):
        audit.note(f"{bare} classes have no description and keep their id as name")
    return names if len(set(names)) == len(names) else [f"{name} ({mid})" for name, mid in zip(names, ids, strict=True)]


def _descriptions(path: Path) -> dict[str, str]:
    """Class id -> display name; the header line, where there is one, names no class that occurs."""
    name_of: dict[str, str] = {}
    for line, record in read_records(path, ","):
        if len(record) != 2 or not all(record):
            fix = "put the class's id and its name on each line, quoted where it contains a comma"
            raise LabelError(f"{len(record)} fields where there must be 2 filled ones", fix, path, line=line)
        mid, name = record
        if name_of.setdefault(mid, name) != name:
            raise LabelError(f"class {mid!r} has two names", "leave one line per class", path, line=line)
    return name_of


def _guesses_first(rows: Rows) -> Rows:
    """A score is given to guesses only; they come first, so that what was verified wins."""
    guess = ~np.isnan(rows.score)
    if not guess.any() or guess.all():
        return rows
    return rows.select(np.argsort(~guess, kind="stable"))


def _holding_in_image_order(rows: Rows) -> Rows:
    """Of several rows for one (image, class) the last; none where it retracts. Images in their order."""
    last = np.sort(rows.holding())
    seen, first = np.unique(rows.image[last], return_index=True)
    if len(seen) and np.any(np.diff(first) < 0):
        last = last[np.argsort(rows.image[last], kind="stable")]
    return rows.select(last)


def _check_writable(rows: Rows) -> None:
    for kind, names, used in (("image", rows.images, rows.image), ("class", rows.classes, rows.column)):
        silent = np.bincount(used, minlength=len(names)) == 0
        if silent.any():
            raise UserError(f"nothing is known of {kind} {names[int(np.argmax(silent))]!r}, so it has no row", _LONG)
        broken = pc.match_substring_regex(names.array, r"[\r\n]")
        if "" in names or pc.any(broken).as_py():
            raise UserError(f"one {kind} has no name, or a line break in it", _LONG)
    guesses = np.array([name == MACHINE for name in rows.sources])[rows.source]
    shown = (rows.score > 0) & (rows.score <= 1) & (rows.value > 0)
    if not shown[guesses].all():
        raise UserError("a row of source 'machine' is absent or has no score from 0 to 1 to show as Confidence", _LONG)
    if any("\n" in name or "\r" in name for name in rows.sources):
        raise UserError("a source has a line break in its name", _LONG)
