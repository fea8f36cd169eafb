"""NUS-WIDE: a folder with a file of 0/1 lines per class, which belong to the lines of a list of images.

`Groundtruth/AllLabels/Labels_<class>.txt` belongs to `ImageList/Imagelist.txt`, and
`Groundtruth/TrainTestLabels/Labels_<class>_Train.txt` to `ImageList/TrainImagelist.txt` (Test likewise).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import distinct_names, existing_path, read_lines
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.system.files import is_utf8

USES = ("split",)

_FIX_ALIGNMENT = (
    "labels belong to images by line number alone: take both files from the same archive, and never remove lost images "
    "from one of them only"
)
_IMAGE = re.compile(r"[^\0]+"), "the line has no image, so all labels after it would shift", _FIX_ALIGNMENT
_ZERO_OR_ONE = re.compile("[01]"), "{!r} is not 0 or 1", "write one 0 or 1 on each line"


def sniff(path: Path) -> bool:
    return any(_find(path, "Groundtruth", name) for name in ("AllLabels", "TrainTestLabels"))


def read(path: Path, policy: Policy) -> LabelImport:
    """Read all labels, or those of the split Train or Test. Classes are in alphabetical order."""
    base = existing_path(path, folder=True)
    split = (policy.split or "all").lower()
    if split not in ("all", "train", "test"):
        raise LabelError(f"no split is called {policy.split!r}", "use ‹split=all›, Train or Test", base)
    _require(base, "Groundtruth")
    if policy.split is None and _find(base, "Groundtruth", "AllLabels") is None:
        message = "there is no Groundtruth/AllLabels, and no split is stated"
        raise LabelError(message, "add ‹split=Train› or ‹split=Test›", base)
    part = "" if split == "all" else split.title()
    files = _class_files(_require(base, "Groundtruth", "TrainTestLabels" if part else "AllLabels"), part)
    listing = _require(base, "ImageList", f"{part}Imagelist.txt")
    names = (name.replace("\\", "/") for name in _lines(listing, _IMAGE))  # the public lists have backslashes
    images = distinct_names(enumerate(names, 1), listing)
    labels = np.empty((len(images), len(files)), np.int8)
    for number, file in enumerate(files.values()):
        values = _lines(file, _ZERO_OR_ONE)
        if len(values) != len(images):
            message = f"{len(values)} lines, but {listing.name} names {len(images)} images"
            raise LabelError(message, _FIX_ALIGNMENT, file)
        labels[:, number] = 2 * np.array(values, np.int8) - 1
    audit = Audit("nus-wide", [str(listing), *map(str, files.values())])
    present = int(np.count_nonzero(labels > 0))
    audit.add("1", "present", present)
    audit.add("0", "absent", labels.size - present)
    image, column = np.nonzero(labels)
    return LabelImport(Labels.build(Names(images), Names(files), image, column, labels.reshape(-1)), audit)


def _find(base: Path, *names: str) -> Path | None:
    """The path base/names, ignoring case, in which copies of the archive differ; None if it is missing."""
    for name in names:
        try:
            entry = next((entry for entry in sorted(base.iterdir()) if entry.name.lower() == name.lower()), None)
        except OSError:
            return None
        if entry is None:
            return None
        base = entry
    return base


def _require(base: Path, *names: str) -> Path:
    place = _find(base, *names)
    if place is None:
        raise LabelError(f"there is no {'/'.join(names)}", "unpack the whole archive into this folder", base)
    return place


def _class_files(folder: Path, part: str) -> dict[str, Path]:
    """The label files of a split by class, in alphabetical order; LabelError if there are none."""
    if not folder.is_dir():
        raise LabelError("this is a file, but a folder is needed", "unpack the archive again", folder)
    ending = f"_{part}" if part else ""
    files = {}
    for file in folder.iterdir():
        match = re.fullmatch(rf"Labels_(.+){ending}\.txt", file.name, re.IGNORECASE)
        if match and file.is_file():
            if not is_utf8(match[1]):
                raise LabelError("the file's name is not UTF-8", "rename it", folder / ascii(file.name))
            files[match[1]] = file
    if not files:
        raise LabelError(f"no file is called Labels_<class>{ending}.txt", "unpack the archive again", folder)
    return dict(sorted(files.items()))


def _lines(file: Path, form: tuple[re.Pattern[str], str, str]) -> list[str]:
    """The lines without outer blanks; LabelError for one that has not the form. Blank lines at the end are left out."""
    pattern, message, fix = form
    lines = [line.strip() for line in read_lines(existing_path(file))]
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not pattern.fullmatch(line):
            raise LabelError(message.format(line), fix, file, line=number)
    return lines
