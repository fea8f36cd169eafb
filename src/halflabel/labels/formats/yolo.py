"""YOLO: folders `images` and `labels`, or images and .txt files side by side, with data.yaml or a list of classes.

A line of a .txt file is the number of a class and a box, an outline or keypoints; a sixth number after a box is the
confidence of a model. An image without a .txt file is not labelled; one with an empty file shows none of the classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import (
    choose_split,
    existing_path,
    first_line,
    numbered_fields,
    read_lines,
)
from halflabel.labels.formats._json import Node, head_and_tail
from halflabel.labels.formats._records import ImageRecord, Label, finite_numbers, reader
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS, SPLITS
from halflabel.labels.policy import Policy
from halflabel.system.files import is_utf8, read_yaml

USES = ("unlisted", "machine", "split")

_YAML = (".yaml", ".yml")
_LISTS = ("classes.txt", "predefined_classes.txt", "obj.names", "classes.names", "_darknet.labels")
_OTHERS = {*_LISTS, "train.txt", "val.txt", "valid.txt", "test.txt"}
_NAMES = re.compile("^names *:", re.MULTILINE)
_FIX_NAMES = "write classes.txt: the name of class 0 on the first line, and so on"


def sniff(path: Path) -> bool:
    """A folder with a list of classes and label files; or data.yaml; or labels/*.txt beside images/."""
    root = _root(path)
    try:
        folders = [folder for _, folder in _folders(root)]
        if not (_class_file(root, folders[0]) or ((root / "labels").is_dir() and (root / "images").is_dir())):
            return False
        files = [file for folder in folders for file in _text_files(root, folder)[:20]]
        return any(_is_line(first_line(file).split()) for file in files)
    except OSError:
        return False


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The classes of each image of a split."""
    root = _root(existing_path(path, folder=path.is_dir()))
    folders = dict(_folders(root))
    split = path.name if policy.split is None and path.name in folders else policy.split
    folder = folders[choose_split(list(folders), split, root)]
    classes = _class_names(root, folder)
    yield from classes
    photos = _photo_folder(root, folder)
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in _text_files(root, folder)}
    images = {} if photos is None else _images(photos)
    for key in sorted(files.keys() | images.keys()):
        prefix = "" if photos is None or photos == root else f"{photos.relative_to(root).as_posix()}/"
        name = Node(prefix + images.get(key, key), files.get(key, folder))
        labels = list(_labels(files[key], classes)) if key in files else []
        yield ImageRecord(name, labels, key in files and not any(label.source for label in labels))


def _root(path: Path) -> Path:
    """The folder of the data set; `path` may also be its .yaml file, its folder labels or a split in there."""
    if path.parent.name == "labels" and path.is_dir():
        return path.parent.parent
    return path.parent if path.name == "labels" or path.suffix in _YAML else path


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Each split with the folder of its label files; the split is "" if there is only one."""
    labels = root / "labels"
    if labels.is_dir():
        splits = [entry for entry in sorted(labels.iterdir()) if entry.is_dir() and entry.name.lower() in SPLITS]
        yield from ((entry.name, entry) for entry in splits)
        if not splits:
            yield "", labels
    else:
        splits = [entry for entry in sorted(root.glob("*/labels")) if entry.is_dir()]
        splits += [entry for entry in sorted(root.glob("obj_*_data")) if entry.is_dir()]
        yield from ((entry.parent.name if entry.name == "labels" else entry.name, entry) for entry in splits)
        if not splits:
            yield "", root


def _text_files(root: Path, folder: Path) -> list[Path]:
    """The label files, without lists of classes or of images."""
    files = folder.glob("*.txt" if folder == root else "**/*.txt")
    return sorted(file for file in files if file.name not in _OTHERS and not file.name.startswith("README"))


def _photo_folder(root: Path, folder: Path) -> Path | None:
    """The folder of the images: that of the label files with `images` for `labels`; None if there is none."""
    parts = ["images" if part == "labels" else part for part in folder.relative_to(root).parts]
    return place if (place := root.joinpath(*parts)).is_dir() else None


def _images(folder: Path) -> dict[str, str]:
    """The image files below a folder, by their names without ending."""
    paths = (Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names)
    images = [path for path in paths if path.suffix.lower() in IMAGE_ENDINGS and is_utf8(str(path))]
    return {path.with_suffix("").as_posix(): path.as_posix() for path in images}


def _class_file(root: Path, folder: Path) -> Path | None:
    """The first list of classes, or .yaml file with `names`, in or above the folders."""
    above = [root.parent] if root.name.lower() in SPLITS else []
    files = [place / name for place in (root, folder, root / "labels", *above) for name in _LISTS]
    files += [file for place in (root, *above) for ending in _YAML for file in sorted(place.glob(f"*{ending}"))]
    return next((f for f in files if f.is_file() and (f.suffix not in _YAML or _NAMES.search(head_and_tail(f)))), None)


def _class_names(root: Path, folder: Path) -> list[str]:
    file = _class_file(root, folder)
    if file is None:
        raise LabelError("the classes have numbers, and no file names them", _FIX_NAMES, root)
    if file.suffix not in _YAML:
        names = dict(enumerate(line.strip() for line in read_lines(file) if line.strip()))
    else:
        stated = read_yaml(file, _FIX_NAMES).get("names")
        names = dict(enumerate(stated)) if isinstance(stated, list) else stated
    if (
        not isinstance(names, dict)
        or names.keys() != set(range(len(names)))
        or len({*map(str, names.values())}) < len(names)
    ):
        message = "the names of classes are no list, their numbers are not 0, 1, 2, …, or two are the same"
        raise LabelError(message, _FIX_NAMES, file)
    return [Node(names[k], file, key=f"names.{k}").name() for k in range(len(names))]


def _labels(file: Path, classes: list[str]) -> Iterator[Label]:
    """The class of each line; an empty file has none."""
    for line, fields in numbered_fields(file) if file.stat().st_size else ():
        if not _is_line(fields):
            fix = "write the line as: class x y width height"
            raise LabelError("this is not the number of a class and a box", fix, file, line=line)
        if int(fields[0]) >= len(classes):
            raise LabelError(f"class {fields[0]:.9}, but only {len(classes)} are named", _FIX_NAMES, file, line=line)
        name = classes[int(fields[0])]
        yield Label(name, "box", 1, "model", float(fields[5])) if len(fields) == 6 else Label(name)


def _is_line(fields: list[str]) -> bool:
    """Whether these are the number of a class and at least four coordinates."""
    return len(finite_numbers(fields)) > 4 and fields[0].isdecimal() and len(fields[0]) < 10


read = reader("yolo", entries)
