"""CUB-200-2011 attributes: lines of `image_id attribute_id is_present certainty_id time`.

Certainty 1 is "not visible": unknown, whatever is_present is. Any other certainty becomes the source of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import distinct_names, existing_path, numbered_fields
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

USES = ("split",)

CERTAINTIES = ("not visible", "guessing", "probably", "definitely")  # ids 1 … 4 in the file

_LABELS_FILE = Path("attributes") / "image_attribute_labels.txt"
_FIX_LAYOUT = "write the line as: image_id attribute_id is_present certainty_id time"
_FIX_FILES = "take all files from the same archive"
_MAX_FIELDS = 8  # the public file has lines with six and seven fields; with more it is another file
_MAX_DIGITS = 9


class Archive(NamedTuple):
    """The names by id; and of each line the positions of image and class, is_present and certainty (n, 4)."""

    images: dict[int, str]
    classes: dict[int, str]
    lines: NDArray[np.int64]
    ragged: int  # lines without exactly five fields


def sniff(path: Path) -> bool:
    try:
        return (path / _LABELS_FILE).is_file()
    except OSError:
        return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the attributes of all images or of a split. Only the first four fields of a line are used."""
    base = existing_path(path, folder=True)
    archive = load(base)
    audit = Audit("cub", [str(base / _LABELS_FILE), str(base / "images.txt"), str(_attributes_file(base))])
    names, lines = list(archive.images.values()), archive.lines
    selected = _split_positions(base, policy.split, list(archive.images))
    new_position = np.full(len(names), -1, np.int64)
    new_position[selected] = np.arange(len(selected))
    image, column, present, certainty = lines[new_position[lines[:, 0]] >= 0].T
    for number, value in ((number, value) for number in (4, 3, 2, 1) for value in (1, 0)):
        meaning = "unknown" if number == 1 else "present" if value else "absent"
        count = int(np.count_nonzero((present == value) & (certainty == number)))
        audit.add(f"is_present {value}, {CERTAINTIES[number - 1]}", meaning, count)
    audit.note_count(archive.ragged, "lines do not have five fields: the first four are used")
    if policy.split is not None:
        audit.note(f"{len(names) - len(selected)} of {len(names)} images are not in the split {policy.split!r}")
    repeats = len(lines) - len(np.unique(lines[:, 0] * len(archive.classes) + lines[:, 1]))
    audit.note_count(repeats, "lines repeat an image and attribute: the last known one wins")
    known = certainty > 1
    rows = Labels.build(
        Names(names[number] for number in selected),
        Names(archive.classes.values()),
        new_position[image[known]],
        column[known],
        2 * present[known] - 1,
        certainty[known] - 2,
        sources=CERTAINTIES[1:],
    )
    return LabelImport(rows, audit)


def load(base: Path) -> Archive:
    file, ragged = existing_path(base / _LABELS_FILE), 0
    images, classes = _numbered_names(base / "images.txt"), _numbered_names(_attributes_file(base))
    certainties, numbered = base / "attributes" / "certainties.txt", dict(enumerate(CERTAINTIES, 1))
    if certainties.is_file() and _numbered_names(certainties) != numbered:
        expected = ", ".join(f"{number} {name}" for number, name in numbered.items())
        raise LabelError("the certainties do not have the meanings of CUB-200-2011", f"use {expected}", certainties)
    fields_of_line = (
        ("image_id", "in images.txt", {number: place for place, number in enumerate(images)}),
        ("attribute_id", "in attributes.txt", {number: place for place, number in enumerate(classes)}),
        ("is_present", "0 or 1", {0: 0, 1: 1}),
        ("certainty_id", "1, 2, 3 or 4", {number: number for number in numbered}),
    )

    def numbers() -> Iterator[int]:
        nonlocal ragged
        with open(file, "rb") as stream:
            for line, text in enumerate(stream, 1):
                fields = text.split()
                if fields and not len(fields_of_line) <= len(fields) <= _MAX_FIELDS:
                    raise LabelError(f"{len(fields)} fields where there must be 5", _FIX_LAYOUT, file, line=line)
                ragged += len(fields) not in (0, 5)
                for field, (name, what, allowed) in zip(fields, fields_of_line, strict=False):
                    if not field.isdigit() or len(field) > _MAX_DIGITS:
                        shown = field[:20].decode("ascii", "replace")
                        raise LabelError(f"{name} {shown!r} is not a whole number", _FIX_LAYOUT, file, line=line)
                    if (number := int(field)) not in allowed:
                        raise LabelError(f"{name} {number} is not {what}", _FIX_FILES, file, line=line)
                    yield allowed[number]

    lines = np.fromiter(numbers(), np.int64).reshape(-1, len(fields_of_line))
    if not len(lines):
        raise LabelError("the file has only blank lines", "take it from the archive again", file)
    return Archive(images, classes, lines, ragged)


def _attributes_file(base: Path) -> Path:
    """The list of attributes; in the public archive it is next to the folder, not in it."""
    for place in (base / "attributes", base, base.resolve().parent):
        if (place / "attributes.txt").is_file():
            return place / "attributes.txt"
    raise LabelError("there is no attributes.txt", f"put it into {base / 'attributes'}", base)


def _numbered_names(file: Path) -> dict[int, str]:
    numbered: list[tuple[int, str, str]] = []
    for line, (key, *words) in numbered_fields(file):
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS and words):
            raise LabelError("the line is not a number and a name", "write the line as: 1 name", file, line=line)
        numbered.append((line, str(int(key)), " ".join(words)))
    ids = distinct_names(((line, key) for line, key, _ in numbered), file)
    return dict(zip(map(int, ids), distinct_names(((line, name) for line, _, name in numbered), file), strict=True))


def _split_positions(base: Path, split: str | None, image_ids: list[int]) -> NDArray[np.int64]:
    """The positions of the images to read, from train_test_split.txt: lines of `image_id is_training`."""
    if split is None:
        return np.arange(len(image_ids))
    if split not in ("train", "test"):
        raise LabelError(f"no split is called {split!r}", "use ‹split=train› or ‹split=test›, or leave it out", base)
    file = base / "train_test_split.txt"
    training = dict.fromkeys(map(str, image_ids), "")
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
