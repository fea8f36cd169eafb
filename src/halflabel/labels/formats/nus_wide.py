"""NUS-WIDE: a folder with one file of 0/1 lines per class, aligned line by line with a list of images.

`Groundtruth/AllLabels/Labels_<class>.txt` belongs to `ImageList/Imagelist.txt`, and
`Groundtruth/TrainTestLabels/Labels_<class>_Train.txt` to `ImageList/TrainImagelist.txt` (Test likewise). 1 is present,
0 absent, and nothing is unknown.
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
    """A folder with Groundtruth/AllLabels or Groundtruth/TrainTestLabels."""
    truth = _find_entry(path, "Groundtruth")
    return truth is not None and bool(_find_entry(truth, "AllLabels") or _find_entry(truth, "TrainTestLabels"))


def read(path: Path, policy: Policy) -> LabelImport:
    """Read all labels, or those of the split Train or Test. Classes are in alphabetical order."""
    base = existing_path(path, folder=True)
    split = _choose_split(base, policy.split)
    files = _class_files(base, split)
    listing = _require(base, "ImageList", "Imagelist.txt" if split == "all" else f"{split}Imagelist.txt")
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
    image = np.repeat(np.arange(len(images), dtype=np.int32), len(files))
    column = np.tile(np.arange(len(files), dtype=np.int32), len(images))
    return LabelImport(Labels.build(Names(images), Names(files), image, column, labels.reshape(-1)), audit)


def _find_entry(folder: Path, name: str) -> Path | None:
    """An entry of a folder, ignoring case: copies of the archive differ in it."""
    try:
        return next((entry for entry in sorted(folder.iterdir()) if entry.name.lower() == name.lower()), None)
    except OSError:
        return None


def _require(base: Path, *names: str) -> Path:
    """The path base/names, ignoring case; LabelError if it is missing."""
    place = base
    for name in names:
        entry = _find_entry(place, name)
        if entry is None:
            raise LabelError(f"there is no {'/'.join(names)}", "unpack the whole archive into this folder", base)
        place = entry
    return place


def _choose_split(base: Path, wanted: str | None) -> str:
    """The split to read: "all", "Train" or "Test"."""
    if wanted is None:
        if _find_entry(_require(base, "Groundtruth"), "AllLabels") is None:
            message = "there is no Groundtruth/AllLabels, and no split is stated"
            raise LabelError(message, "add ‹split=Train› or ‹split=Test›", base)
        return "all"
    for split in ("all", "Train", "Test"):
        if wanted.lower() == split.lower():
            return split
    raise LabelError(f"no split is called {wanted!r}", "use ‹split=all›, Train or Test", base)


def _class_files(base: Path, split: str) -> dict[str, Path]:
    """The label files of a split by class, in alphabetical order; LabelError if there are none."""
    folder = _require(base, "Groundtruth", "AllLabels" if split == "all" else "TrainTestLabels")
    if not folder.is_dir():
        raise LabelError("this is a file, but a folder is needed", "unpack the archive again", folder)
    ending = "" if split == "all" else f"_{split}"
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
