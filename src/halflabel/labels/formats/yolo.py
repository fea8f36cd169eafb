"""YOLO: folders `images` and `labels`, or both side by side; a sixth number on a line is a model's confidence."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import choose_split, existing_path, first_line, read_lines
from halflabel.labels.formats._json import Node, head_and_tail
from halflabel.labels.formats._records import ImageRecord, Label, box_lines, finite_numbers, record_format
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS, SPLITS
from halflabel.labels.policy import Policy
from halflabel.system.files import is_utf8, read_yaml

_YAML = (".yaml", ".yml")
_LISTS = ("classes.txt", "predefined_classes.txt", "obj.names", "classes.names", "_darknet.labels")
_OTHERS = {*_LISTS, "train.txt", "val.txt", "valid.txt", "test.txt"}
_NAMES = re.compile("^names *:", re.MULTILINE)
_FIX_NAMES = "write classes.txt: the name of class 0 on the first line, and so on"


def _is_yolo(path: Path) -> bool:
    """A folder with a list of classes and label files; or data.yaml; or labels/*.txt beside images/."""
    root = _root(path)
    try:
        folders = list(_folders(root).values())
        if not (_class_file(root, folders[0]) or ((root / "labels").is_dir() and (root / "images").is_dir())):
            return False
        files = [file for folder in folders for file in _text_files(root, folder)[:20]]
        return any(_is_line(first_line(file).split()) for file in files)
    except OSError:
        return False


@record_format(("unlisted", "machine", "split"), _is_yolo)
def yolo(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    root = _root(existing_path(path, folder=path.is_dir()))
    folders = _folders(root)
    split = path.name if policy.split is None and path.name in folders else policy.split
    folder = folders[choose_split(list(folders), split, root)]
    classes = _class_names(root, folder)
    yield from classes
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in _text_files(root, folder)}
    images = _images(root, folder)
    for key in sorted(files.keys() | images.keys()):
        labels = list(_labels(files[key], classes)) if key in files else []
        is_labelled = key in files and not any(label.source for label in labels)
        yield ImageRecord(Node(images.get(key, key), files.get(key, folder)), labels, is_labelled)


def _root(path: Path) -> Path:
    """The folder of the data set; `path` may also be its .yaml file, its folder labels or a split in there."""
    if path.parent.name == "labels" and path.is_dir():
        return path.parent.parent
    return path.parent if path.name == "labels" or path.suffix in _YAML else path


def _folders(root: Path) -> dict[str, Path]:
    """Each split with the folder of its label files; the split is "" if there is only one."""
    labels = root / "labels"
    if labels.is_dir():
        return {place.name: place for place in sorted(labels.glob("*/")) if place.name.lower() in SPLITS} or {
            "": labels
        }
    splits = {place.parent.name: place for place in sorted(root.glob("*/labels/"))}
    return splits or {place.name: place for place in sorted(root.glob("obj_*_data/"))} or {"": root}


def _text_files(root: Path, folder: Path) -> list[Path]:
    """The label files, without lists of classes or of images."""
    files = folder.glob("*.txt" if folder == root else "**/*.txt")
    return sorted(file for file in files if file.name not in _OTHERS and not file.name.startswith("README"))


def _images(root: Path, folder: Path) -> dict[str, str]:
    """The images of a folder of labels, which are in the folder called images instead: key -> name."""
    photos = root.joinpath(*("images" if part == "labels" else part for part in folder.relative_to(root).parts))
    paths = [Path(place, name) for place, _, names in os.walk(photos) for name in names if is_utf8(place + name)]
    images = [path for path in paths if path.suffix.lower() in IMAGE_ENDINGS]
    return {p.relative_to(photos).with_suffix("").as_posix(): p.relative_to(root).as_posix() for p in images}


def _class_file(root: Path, folder: Path) -> Path | None:
    """The first list of classes, or .yaml file with `names`; that of a split may be in the folder above."""
    above = [root.parent] if root.name.lower() in SPLITS else []
    files = [place / name for place in (root, folder, root / "labels", *above) for name in _LISTS]
    files += [file for place in (root, *above) for ending in _YAML for file in sorted(place.glob(f"*{ending}"))]
    return next((f for f in files if f.is_file() and (f.suffix not in _YAML or _NAMES.search(head_and_tail(f)))), None)


def _class_names(root: Path, folder: Path) -> list[str]:
    file = _class_file(root, folder)
    if file is None:
        raise LabelError("the classes have numbers, and no file names them", _FIX_NAMES, root)
    is_yaml = file.suffix in _YAML
    lines = () if is_yaml else (line.strip() for line in read_lines(file))
    stated: Any = read_yaml(file, _FIX_NAMES).get("names") if is_yaml else list(filter(None, lines))
    names = dict(enumerate(stated)) if isinstance(stated, list) else stated
    is_numbered = isinstance(names, dict) and names.keys() == set(range(len(names)))
    if not is_numbered or len({str(name) for name in names.values()}) < len(names):
        message = "the names of classes are no list, their numbers are not 0, 1, 2, …, or two are the same"
        raise LabelError(message, _FIX_NAMES, file)
    return [Node(names[k], file, key=f"names.{k}").name() for k in range(len(names))]


def _labels(file: Path, classes: list[str]) -> Iterator[Label]:
    for line, fields in box_lines(file):
        if not _is_line(fields):
            fix = "write the line as: class x y width height"
            raise LabelError("this is not the number of a class and a box", fix, file, line=line)
        if int(fields[0]) >= len(classes):
            raise LabelError(f"class {fields[0]:.9}, but only {len(classes)} are named", _FIX_NAMES, file, line=line)
        name = classes[int(fields[0])]
        yield Label(name, "box", 1, "model", float(fields[5])) if len(fields) == 6 else Label(name)


def _is_line(fields: list[str]) -> bool:
    return len(finite_numbers(fields)) > 4 and fields[0].isdecimal() and len(fields[0]) < 10
