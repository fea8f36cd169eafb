"""CUB-200-2011 attributes: a folder with `attributes/image_attribute_labels.txt`, lines of
`image_id attribute_id is_present certainty_id time`.

Certainty 1 is "not visible": unknown, whatever is_present is. 2 guessing, 3 probably and 4 definitely are known; the
certainty becomes the source of the row, so that labels can be weighted by it. A pair without a line is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import distinct_names, read_lines
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

USES = ("split",)

CERTAINTIES = ("not visible", "guessing", "probably", "definitely")  # ids 1 … 4 in the file
FIELDS = ("image_id", "attribute_id", "is_present", "certainty_id")

_LABELS_FILE = Path("attributes") / "image_attribute_labels.txt"
_FIX_LAYOUT = "write the line as: image_id attribute_id is_present certainty_id time"
_MAX_FIELDS = 8  # the public file has lines with six and seven fields; with more it is another file
_MAX_DIGITS = 9


def sniff(path: Path) -> bool:
    """A folder with attributes/image_attribute_labels.txt."""
    try:
        return (path / _LABELS_FILE).is_file()
    except OSError:
        return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the attributes of all images, or of the split train or test; images and classes in the order of their lists.

    Only the first four fields of a line are used: the public file has lines with stray fields before the time.
    """
    base = existing_path(path, folder=True)
    file = existing_path(base / _LABELS_FILE)
    image_ids, images = read_numbered_names(base / "images.txt")
    class_ids, classes = read_numbered_names(find_attributes_file(base))
    _check_certainties(base / "attributes" / "certainties.txt")
    fields, ragged = parse_labels(file)
    image = find_positions(fields[:, 0], image_ids)
    column = find_positions(fields[:, 1], class_ids)
    present, certainty = fields[:, 2], fields[:, 3]
    for wrong, number, what in (
        (image < 0, 0, "is not in images.txt"),
        (column < 0, 1, "is not in attributes.txt"),
        (present > 1, 2, "is not 0 or 1"),
        ((certainty < 1) | (certainty > 4), 3, "is not 1, 2, 3 or 4"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"{FIELDS[number]} {fields[row, number]} {what}"
            line, _ = next(islice(_read_fields(file), row, None))
            raise LabelError(message, "take all files from the same archive", file, line=line)

    audit = Audit("cub", [str(file), str(base / "images.txt"), str(find_attributes_file(base))])
    selected = _split_positions(base, policy.split, image_ids)
    new_position = np.full(len(images), -1, np.int64)
    new_position[selected] = np.arange(len(selected))
    known = (certainty > 1) & (new_position[image] >= 0)
    _audit_values(audit, present[new_position[image] >= 0], certainty[new_position[image] >= 0])
    audit.note_count(ragged, "lines do not have five fields: the first four are used")
    if policy.split is not None:
        audit.note(f"{len(images) - len(selected)} of {len(images)} images are not in the split {policy.split!r}")
    pair = np.sort(image * len(classes) + column)
    repeats = int(np.count_nonzero(pair[1:] == pair[:-1]))
    audit.note_count(repeats, "lines repeat an image and attribute: the last known one wins")
    rows = Labels.build(
        Names(images[number] for number in selected),
        Names(classes),
        new_position[image[known]],
        column[known],
        2 * present[known] - 1,
        certainty[known] - 2,
        sources=CERTAINTIES[1:],
    )
    return LabelImport(rows, audit)


def find_attributes_file(base: Path) -> Path:
    """The list of attributes; in the public archive it is next to the folder, not in it."""
    places = (base / "attributes", base, base.resolve().parent)
    for place in places:
        if (place / "attributes.txt").is_file():
            return place / "attributes.txt"
    raise LabelError("there is no attributes.txt", f"put it into {base / 'attributes'}", base)


def read_numbered_names(file: Path) -> tuple[NDArray[np.int64], list[str]]:
    """The numbers and names of a file with lines of `number name`."""
    numbered: list[tuple[int, str, str]] = []
    for line, text in enumerate(read_lines(existing_path(file)), 1):
        key, name = (*text.split(None, 1), "", "")[:2]
        if not key:
            continue
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS and name and "\x00" not in name):
            raise LabelError("the line is not a number and a name", "write the line as: 1 name", file, line=line)
        numbered.append((line, str(int(key)), name.strip()))
    ids = distinct_names(((line, key) for line, key, _ in numbered), file)
    names = distinct_names(((line, name) for line, _, name in numbered), file)
    return np.array(ids, np.int64), names


def _check_certainties(file: Path) -> None:
    """Raise LabelError if certainties.txt exists and gives the certainties other meanings."""
    if file.is_file():
        ids, names = read_numbered_names(file)
        if dict(zip(ids.tolist(), names, strict=True)) != dict(enumerate(CERTAINTIES, 1)):
            expected = ", ".join(f"{number} {name}" for number, name in enumerate(CERTAINTIES, 1))
            raise LabelError("the certainties do not have the meanings of CUB-200-2011", f"use {expected}", file)


def _split_positions(base: Path, split: str | None, image_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the images to read, from train_test_split.txt: lines of `image_id is_training`."""
    if split is None:
        return np.arange(len(image_ids))
    if split not in ("train", "test"):
        raise LabelError(f"no split is called {split!r}", "use ‹split=train› or ‹split=test›, or leave it out", base)
    file = base / "train_test_split.txt"
    training = np.full(len(image_ids), -1)
    position_of = {str(image_id): position for position, image_id in enumerate(image_ids.tolist())}
    for number, line in enumerate(read_lines(existing_path(file)), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or fields[1] not in ("0", "1"):
            message = f"{line.strip()!r:.60} is not an image_id and is_training"
            raise LabelError(message, "write the line as: 1 0", file, line=number)
        if fields[0] not in position_of:
            message = f"image_id {fields[0]:.20} is not in images.txt"
            raise LabelError(message, "take all files from the same archive", file, line=number)
        training[position_of[fields[0]]] = int(fields[1])
    if (training < 0).any():
        missing = int(image_ids[np.argmax(training < 0)])
        raise LabelError(f"image_id {missing} has no line", "take all files from the same archive", file)
    selected = np.flatnonzero(training == (split == "train"))
    if not len(selected):
        raise LabelError(f"no image is in the split {split!r}", "use the other split, or leave ‹split› out", file)
    return selected


def find_positions(wanted: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position of each wanted id in `ids`, −1 if it is not there."""
    order = np.argsort(ids)
    candidate = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[candidate] == wanted, candidate, -1)


def parse_labels(file: Path) -> tuple[NDArray[np.int64], int]:
    """((n, 4) first four fields as numbers, number of lines without exactly five fields)."""
    ragged = 0

    def numbers() -> Iterator[int]:
        nonlocal ragged
        for line, fields in _read_fields(file):
            if not len(FIELDS) <= len(fields) <= _MAX_FIELDS:
                raise LabelError(f"{len(fields)} fields where there must be 5", _FIX_LAYOUT, file, line=line)
            values = fields[: len(FIELDS)]
            if not b"".join(values).isdigit() or max(map(len, values)) > _MAX_DIGITS:
                wrong = next(n for n, value in enumerate(values) if not value.isdigit() or len(value) > _MAX_DIGITS)
                text = values[wrong][:20].decode("ascii", "replace")
                raise LabelError(f"{FIELDS[wrong]} {text!r} is not a whole number", _FIX_LAYOUT, file, line=line)
            yield from map(int, values)
            ragged += len(fields) != 5

    table = np.fromiter(numbers(), np.int64).reshape(-1, len(FIELDS))
    if not len(table):
        raise LabelError("the file has only blank lines", "take it from the archive again", file)
    return table, ragged


def _read_fields(file: Path) -> Iterator[tuple[int, list[bytes]]]:
    """The number and the fields of each line that is not blank."""
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, 1):
            if fields := line.split():
                yield number, fields


def _audit_values(audit: Audit, present: NDArray[np.int64], certainty: NDArray[np.int64]) -> None:
    for number in (4, 3, 2, 1):
        for value in (1, 0):
            meaning = "unknown" if number == 1 else "present" if value else "absent"
            raw = f"is_present {value}, {CERTAINTIES[number - 1]}"
            audit.add(raw, meaning, int(np.count_nonzero((present == value) & (certainty == number))))
