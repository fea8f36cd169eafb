"""Pascal VOC: a folder with `ImageSets/Main/<class>_<split>.txt`, lines of `image flag`.

Flag 1 is present, −1 absent, and 0 means that all objects of the class in the image are difficult. That is not absent:
it is unknown unless `policy.difficult` states otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import distinct_names, read_lines
from halflabel.labels.formats._paths import choose_split, existing_path
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import LABEL_VALUES, Policy
from halflabel.system.files import is_utf8

USES = ("difficult", "split")

_FLAGS = {"1": 1, "+1": 1, "0": 0, "-1": -1}
_FIX_ORDER = "every class file must list the same images in the same order"


def sniff(path: Path) -> bool:
    """A folder with ImageSets/Main, or the folder Main itself, with files named <class>_<split>.txt."""
    main = path / "ImageSets" / "Main"
    try:
        return any((main if main.is_dir() or path.name != "Main" else path).glob("?*_?*.txt"))
    except OSError:
        return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read one split. Classes are in alphabetical order, the same for every split."""
    main = _main_folder(existing_path(path, folder=True))
    splits = _class_files(main)
    if not splits:
        raise LabelError("no file is called <class>_<split>.txt", "name the folder VOC2007, VOC2012, …", main)
    split = choose_split(list(splits), policy.split, main)
    files = splits[split]
    listing = main / f"{split}.txt"
    if not listing.is_file():
        listing = next(iter(files.values()))
    images = _image_list(listing)
    flags = np.stack([_read_flags(file, listing, images) for file in files.values()], axis=1)

    meaning = policy.difficult or "unknown"
    audit = Audit("voc", [str(file) for file in files.values()])
    audit.add("1", "present", int(np.count_nonzero(flags == 1)))
    audit.add("-1", "absent", int(np.count_nonzero(flags == -1)))
    difficult = flags == 0
    audit.add("0", meaning, int(np.count_nonzero(difficult)))
    if difficult.any() and policy.difficult is None:
        audit.note("flag 0 means difficult objects only: read as unknown; ‹difficult=present› or absent changes that")
    audit.note_names("splits not read", [name for name in splits if name != split])
    labels = np.where(difficult, LABEL_VALUES[meaning], flags).astype(np.int8)
    image, column = np.nonzero(labels)
    source = difficult[image, column].astype(np.int16)
    rows = Labels.build(
        Names(images), Names(files), image, column, labels[image, column], source, sources=("", "difficult")
    )
    return LabelImport(rows, audit)


def _main_folder(path: Path) -> Path:
    """The folder ImageSets/Main."""
    main = path / "ImageSets" / "Main"
    if main.is_dir():
        return main
    if path.name == "Main":
        return path
    raise LabelError("there is not a folder ImageSets/Main", "name the folder VOC2007, VOC2012, …", path)


def _class_files(main: Path) -> dict[str, dict[str, Path]]:
    """Split -> class -> file. A class may contain underscores: the split follows the last one."""
    files: dict[str, dict[str, Path]] = {}
    for file in sorted(main.glob("?*_?*.txt"), key=lambda file: file.stem.rpartition("_")[0]):
        name, _, split = file.stem.rpartition("_")
        if name and split and file.is_file():
            if not is_utf8(name):
                raise LabelError("the file's name is not UTF-8", "rename the file", main / ascii(file.name))
            files.setdefault(split, {})[name] = file
    return files


def _image_list(file: Path) -> list[str]:
    """The images of a split, from the list or from the first field of a class file."""

    def names() -> Iterator[tuple[int, str]]:
        for number, line in enumerate(read_lines(file), 1):
            if "\x00" in line:
                message = "byte 0x00 is not allowed in a text file"
                raise LabelError(message, "download the file again", file, line=number)
            if fields := line.split():
                yield number, fields[0]

    return distinct_names(names(), file)


def _read_flags(file: Path, listing: Path, images: list[str]) -> NDArray[np.int8]:
    """The flags of one class file, in the order of `images`: −1, 0 or 1."""
    flags: list[int] = []
    number = 0
    for number, line in enumerate(read_lines(file), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2:
            message = f"{len(fields)} fields instead of an image and a flag"
            raise LabelError(message, "write the line as: image flag", file, line=number)
        name, flag = fields
        if flag not in _FLAGS:
            raise LabelError(f"flag {flag!r} is not 1, 0 or -1", "use 1 present, -1 absent", file, line=number)
        if len(flags) == len(images):
            raise LabelError(f"image {name!r} is one more than {listing.name} lists", _FIX_ORDER, file, line=number)
        if name != images[len(flags)]:
            message = f"image {name!r} is where {listing.name} has {images[len(flags)]!r}"
            raise LabelError(message, _FIX_ORDER, file, line=number)
        flags.append(_FLAGS[flag])
    if len(flags) < len(images):
        message = f"the file ends after {len(flags)} images, but {listing.name} lists {len(images)}"
        raise LabelError(message, _FIX_ORDER, file, line=number)
    return np.array(flags, np.int8)
