"""Pascal VOC: a folder with `ImageSets/Main/<class>_<split>.txt`, lines of `image flag`.

Flag 1 is present, −1 absent, and 0 means that all objects of the class in the image are difficult. That is not absent:
it is unknown unless `policy.difficult` states otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import choose_split, distinct_names, existing_path, numbered_fields
from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, Note, record_format
from halflabel.labels.policy import LABEL_VALUES, Policy
from halflabel.system.files import is_utf8

_FLAGS = ("1", "+1", "0", "-1")
_FIX_ORDER = "every class file must list the same images in the same order"


def _is_voc(path: Path) -> bool:
    main = path / "ImageSets" / "Main"
    try:
        return any((main if main.is_dir() or path.name != "Main" else path).glob("?*_?*.txt"))
    except OSError:
        return False


@record_format(("difficult", "split"), _is_voc, default="unknown", has_paths=False)
def voc(path: Path, policy: Policy) -> Iterator[ImageRecord | Note | str]:
    """The flags of one split. Classes are in alphabetical order, the same for every split."""
    base = existing_path(path, folder=True)
    main = base if base.name == "Main" and not (base / "ImageSets").is_dir() else base / "ImageSets" / "Main"
    if not main.is_dir():
        raise LabelError("there is not a folder ImageSets/Main", "name the folder VOC2007, VOC2012, …", path)
    splits = _class_files(main)
    if not splits:
        raise LabelError("no file is called <class>_<split>.txt", "name the folder VOC2007, VOC2012, …", main)
    split = choose_split(list(splits), policy.split, main)
    files = splits[split]
    listing = main / f"{split}.txt"
    if not listing.is_file():
        listing = next(iter(files.values()))
    images = distinct_names(((line, fields[0]) for line, fields in numbered_fields(listing)), listing)
    flags = [_read_flags(file, listing, images) for file in files.values()]
    values = {"1": 1, "-1": -1, "0": LABEL_VALUES[policy.difficult or "unknown"] or None}
    yield from files
    for image, of_classes in zip(images, zip(*flags, strict=True), strict=True):
        yield ImageRecord(
            Node(image, listing),
            [
                Label(name, flag, values[flag], "difficult" if flag == "0" else "")
                for name, flag in zip(files, of_classes, strict=True)
            ],
        )
    difficult = sum(column.count("0") for column in flags) if policy.difficult is None else 0
    yield Note(difficult, "flags 0 mean difficult objects only: unknown; ‹difficult=present› or absent changes that")
    others = [name for name in splits if name != split]
    yield Note(len(others), f"other splits are not read: {', '.join(others)}")


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


def _read_flags(file: Path, listing: Path, images: list[str]) -> list[str]:
    """The flags of one class file, in the order of `images`."""
    flags: list[str] = []
    line = 0
    for line, fields in numbered_fields(file):
        message, fix = "", _FIX_ORDER
        if len(fields) != 2:
            message, fix = f"{len(fields)} fields instead of an image and a flag", "write the line as: image flag"
        elif fields[1] not in _FLAGS:
            message, fix = f"flag {fields[1]!r} is not 1, 0 or -1", "use 1 present, -1 absent"
        elif len(flags) == len(images):
            message = f"image {fields[0]!r} is one more than {listing.name} lists"
        elif fields[0] != images[len(flags)]:
            message = f"image {fields[0]!r} is where {listing.name} has {images[len(flags)]!r}"
        if message:
            raise LabelError(message, fix, file, line=line)
        flags.append(fields[1].lstrip("+"))
    if len(flags) < len(images):
        message = f"the file ends after {len(flags)} images, but {listing.name} lists {len(images)}"
        raise LabelError(message, _FIX_ORDER, file, line=line)
    return flags
