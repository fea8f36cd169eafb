"""CUB-200-2011 attributes: a folder with `attributes/image_attribute_labels.txt`, lines of
`image_id attribute_id is_present certainty_id time`.

Certainty 1 is "not visible": unknown, whatever is_present is. 2 guessing, 3 probably and 4 definitely are known; the
certainty becomes the source of the row, so that labels can be weighted by it. A pair without a line is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import distinct_names, existing_path, numbered_fields, read_lines
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

USES = ("split",)

CERTAINTIES = ("not visible", "guessing", "probably", "definitely")  # ids 1 … 4 in the file
_NUMBERED = [*enumerate(CERTAINTIES, 1)]

_LABELS_FILE = Path("attributes") / "image_attribute_labels.txt"
_FIX_LAYOUT = "write the line as: image_id attribute_id is_present certainty_id time"
_FIX_FILES = "take all files from the same archive"
_MAX_FIELDS = 8  # the public file has lines with six and seven fields; with more it is another file
_MAX_DIGITS = 9
_FIELDS = {
    "image_id": "in images.txt",
    "attribute_id": "in attributes.txt",
    "is_present": "0 or 1",
    "certainty_id": "1, 2, 3 or 4",
}  # the first four of a line, and what they must be


class Archive(NamedTuple):
    """The lists and the lines: of each line the positions of image and class, is_present and certainty (n, 4)."""

    image_ids: list[int]
    images: list[str]
    classes: list[str]
    lines: NDArray[np.int64]
    ragged: int  # lines without exactly five fields


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
    archive = load(base)
    image_ids, images, classes, lines, ragged = archive
    audit = Audit("cub", [str(base / _LABELS_FILE), str(base / "images.txt"), str(_find_attributes_file(base))])
    selected = _split_positions(base, policy.split, image_ids)
    new_position = np.full(len(images), -1, np.int64)
    new_position[selected] = np.arange(len(selected))
    image, column, present, certainty = lines[new_position[lines[:, 0]] >= 0].T
    for number, value in ((number, value) for number in (4, 3, 2, 1) for value in (1, 0)):
        meaning = "unknown" if number == 1 else "present" if value else "absent"
        count = int(np.count_nonzero((present == value) & (certainty == number)))
        audit.add(f"is_present {value}, {CERTAINTIES[number - 1]}", meaning, count)
    audit.note_count(ragged, "lines do not have five fields: the first four are used")
    if policy.split is not None:
        audit.note(f"{len(images) - len(selected)} of {len(images)} images are not in the split {policy.split!r}")
    repeats = len(lines) - len(np.unique(lines[:, 0] * len(classes) + lines[:, 1]))
    audit.note_count(repeats, "lines repeat an image and attribute: the last known one wins")
    known = certainty > 1
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


def load(base: Path) -> Archive:
    """Read and check the lists and the lines of an archive."""
    file = existing_path(base / _LABELS_FILE)
    image_ids, images = _read_numbered_names(base / "images.txt")
    class_ids, classes = _read_numbered_names(_find_attributes_file(base))
    certainties = base / "attributes" / "certainties.txt"
    if certainties.is_file() and sorted(zip(*_read_numbered_names(certainties), strict=True)) != _NUMBERED:
        expected = ", ".join(f"{number} {name}" for number, name in _NUMBERED)
        raise LabelError("the certainties do not have the meanings of CUB-200-2011", f"use {expected}", certainties)
    places = ({number: place for place, number in enumerate(ids)} for ids in (image_ids, class_ids))
    allowed: list[Mapping[int, int]] = [*places, {0: 0, 1: 1}, {number: number for number, _ in _NUMBERED}]
    ragged = 0

    def numbers() -> Iterator[int]:
        nonlocal ragged
        with open(file, "rb") as stream:
            for line, text in enumerate(stream, 1):
                if fields := text.split():
                    yield from _numbers(fields, allowed, file, line)
                    ragged += len(fields) != 5

    lines = np.fromiter(numbers(), np.int64).reshape(-1, len(_FIELDS))
    if not len(lines):
        raise LabelError("the file has only blank lines", "take it from the archive again", file)
    return Archive(image_ids, images, classes, lines, ragged)


def _numbers(fields: Sequence[bytes], allowed: Sequence[Mapping[int, int]], file: Path, line: int) -> Iterator[int]:
    """The first four fields of a line as numbers."""
    if not len(_FIELDS) <= len(fields) <= _MAX_FIELDS:
        raise LabelError(f"{len(fields)} fields where there must be 5", _FIX_LAYOUT, file, line=line)
    for (name, what), text, numbers in zip(_FIELDS.items(), fields, allowed, strict=False):
        if not text.isdigit() or len(text) > _MAX_DIGITS:
            shown = text[:20].decode("ascii", "replace")
            raise LabelError(f"{name} {shown!r} is not a whole number", _FIX_LAYOUT, file, line=line)
        if (number := int(text)) not in numbers:
            raise LabelError(f"{name} {number} is not {what}", _FIX_FILES, file, line=line)
        yield numbers[number]


def _find_attributes_file(base: Path) -> Path:
    """The list of attributes; in the public archive it is next to the folder, not in it."""
    places = (base / "attributes", base, base.resolve().parent)
    for place in places:
        if (place / "attributes.txt").is_file():
            return place / "attributes.txt"
    raise LabelError("there is no attributes.txt", f"put it into {base / 'attributes'}", base)


def _read_numbered_names(file: Path) -> tuple[list[int], list[str]]:
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
    return [int(key) for key in ids], distinct_names(((line, name) for line, _, name in numbered), file)


def _split_positions(base: Path, split: str | None, image_ids: list[int]) -> NDArray[np.int64]:
    """The positions of the images to read, from train_test_split.txt: lines of `image_id is_training`."""
    if split is None:
        return np.arange(len(image_ids))
    if split not in ("train", "test"):
        raise LabelError(f"no split is called {split!r}", "use ‹split=train› or ‹split=test›, or leave it out", base)
    file = base / "train_test_split.txt"
    training = {str(image_id): "" for image_id in image_ids}
    for line, fields in numbered_fields(file):
        if len(fields) != 2 or fields[1] not in ("0", "1"):
            message = f"{' '.join(fields)!r:.60} is not an image_id and is_training"
            raise LabelError(message, "write the line as: 1 0", file, line=line)
        if fields[0] not in training:
            raise LabelError(f"image_id {fields[0]:.20} is not in images.txt", _FIX_FILES, file, line=line)
        training[fields[0]] = fields[1]
    if (missing := next((key for key, value in training.items() if not value), None)) is not None:
        raise LabelError(f"image_id {missing} has no line", _FIX_FILES, file)
    selected = np.flatnonzero(np.array(list(training.values())) == str(int(split == "train")))
    if not len(selected):
        raise LabelError(f"no image is in the split {split!r}", "use the other split, or leave ‹split› out", file)
    return selected
