"""KITTI: a folder label_2 (also in training/) with a .txt file per image: lines of a class and 14 or 15 numbers.

DontCare marks a region that nobody labelled. The last of 15 numbers is the score of a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, box_lines, files_of, finite_numbers, reader
from halflabel.labels.policy import Policy

USES = ("unlisted", "machine")

_COUNTS = (14, 15)  # of numbers on a line


def sniff(path: Path) -> bool:
    """A folder whose first label file with a line has one of KITTI."""
    try:
        return any(
            len(finite_numbers(first_line(file).split()[1:])) in _COUNTS
            for file in files_of(_folder(path), "[.]txt")[:20]
        )
    except OSError:
        return False


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The classes of each file; images are named like their files."""
    folder = _folder(path)
    files = files_of(folder, "[.]txt") if folder.is_dir() else []
    if not files:
        raise LabelError("there are no .txt files in a folder label_2", "name the folder with the labels", path)
    for file in files:
        labels = []
        for line, fields in box_lines(file):
            numbers = finite_numbers(fields[1:])
            if len(numbers) not in _COUNTS:
                raise LabelError("this is not a line of KITTI", "write a class, then 14 numbers", file, line=line)
            plain = Label(Node(fields[0], file, key=f"line {line}").name())
            label = plain if len(numbers) == _COUNTS[0] else plain._replace(source="model", score=numbers[-1])
            labels += [label] * (label.name != "DontCare")
        yield ImageRecord(Node(file.stem, file), labels, not any(label.source for label in labels))


def _folder(path: Path) -> Path:
    return next((folder for folder in (path / "label_2", path / "training" / "label_2") if folder.is_dir()), path)


read = reader("kitti", entries)
