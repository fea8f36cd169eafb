"""Folders of images, one per class: `dog/0001.jpg` is an image with the class dog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, record_format
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS, SPLITS, folders_with_images
from halflabel.labels.policy import Policy


def _is_class_folders(path: Path) -> bool:
    """A folder of two or more folders with images, none of which has the name of a split."""
    folders = [name.lower() for name, _ in folders_with_images(path)] if path.is_dir() else []
    return len(folders) > 1 and SPLITS.isdisjoint(folders)


@record_format(("unlisted", "ignore"), _is_class_folders, complete="each image shows nothing else of these classes")
def class_folders(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The class of each image from its folder; images in deeper folders belong to the first folder's class."""
    names = _class_names(path, policy) if path.is_dir() else []
    count = 0
    for name in names:
        yield name
        for file in sorted(
            Path(folder, file).relative_to(path).as_posix()
            for folder, _, files in os.walk(path / name)
            for file in files
            if file.lower().endswith(IMAGE_ENDINGS) and not file.startswith(".")
        ):
            count += 1
            yield ImageRecord(Node(file, path), [Label(name, "folder")])
    if not count:
        raise LabelError("there is no folder with images", "name the folder that has one folder per class", path)


def _class_names(path: Path, policy: Policy) -> list[str]:
    """The folders that are not hidden; LabelError for splits, and for a link that leads back to the folder."""
    hidden = ("__MACOSX", *policy.ignore)
    with os.scandir(path) as entries:
        folders = [entry for entry in entries if entry.is_dir() and entry.name not in hidden]
    names = sorted(entry.name for entry in folders if not entry.name.startswith("."))
    if names and SPLITS.issuperset(name.lower() for name in names):
        fix = f"name the folder of one split, such as {path / names[0]}"
        raise LabelError(f"the folders are splits, not classes: {', '.join(names[:3])}", fix, path)
    for name in names:
        if path.resolve().is_relative_to((path / name).resolve()):
            fix = f"remove the link, or add ‹ignore={name}›"
            raise LabelError(f"the folder {name!r} is a link that leads back here", fix, path)
    return names
