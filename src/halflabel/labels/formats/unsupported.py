"""What other tools write and no reader here takes: recognised, so that the user learns in one line what to do."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._json import head_and_tail

__all__ = ["unsupported_format_error"]

_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_LOOKED_AT = 200  # entries of a folder: enough to see what it holds

_RESULTS = ('"image_id"', '"category_id"', '"data"')  # COCO results and Label Studio's whole tasks have these
_MINIMAL = ('"choices"', '"annotation_id"', '"annotator"', '"lead_time"', '"image"', '"img"')

_WRITE = "write a CSV file with the header image,tags and one line per image, such as"


def unsupported_format_error(path: Path) -> LabelError | None:
    """The error that says what a file or folder is and what to do with it; None where it is not known."""
    found = _folder(path) if path.is_dir() else _file(path)
    return found and LabelError(*found, path)


def _file(path: Path) -> tuple[str, str] | None:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".xml"):
        return None
    text = head_and_tail(path)
    if suffix == ".json":
        minimal = text.lstrip("\ufeff \t\r\n").startswith("[") and any(mark in text for mark in _MINIMAL)
        if minimal and not any(mark in text for mark in _RESULTS):
            message = "a list of images like Label Studio's JSON-MIN, which does not tell skipped tasks from answers"
            return message, "export the project again as JSON, which is another choice in the same list"
    elif "<annotations" in text and "<image " in text:
        example = "a.jpg,dog;cat from the <tag label=…> of its <image name=…>"
        return "this is CVAT's XML (CVAT for images), which is not read", f"{_WRITE} {example}"
    elif "<annotation" in text and "<filename>" in text:
        return _pascal(path.parent)
    return None


def _folder(path: Path) -> tuple[str, str] | None:
    for folder in (path, path / "Annotations"):
        if any(name.lower().endswith(".xml") for name in _names(folder)):
            return _pascal(folder)
    if any(name.lower().endswith(_PICTURES) for name in _names(path)):
        return "there are images in this folder, but no labels that we know", "name the file with the labels"
    filled = []
    for name in sorted(_names(path)):
        if inside := [file for file in _names(path / name) if file.lower().endswith(_PICTURES)]:
            filled.append((name, min(inside)))
    if not filled:
        return None
    named = ", ".join(name for name, _ in filled[:3]) + (", …" if len(filled) > 3 else "")
    name, image = filled[0]
    fix = f"{_WRITE} {name}/{image},{name}; if the folders are splits or parts, name the file with the labels"
    return f"folders of images, perhaps one per class ({named}), which are not read", fix


def _pascal(folder: Path) -> tuple[str, str]:
    message = "these are Pascal VOC's boxes, one XML file per image, which are not read"
    above = folder.parent
    if any((above / "ImageSets" / "Main").glob("?*_?*.txt")):
        return message, f"name the folder above, {above}: its ImageSets/Main says which classes each image has"
    return message, f"{_WRITE} a.jpg,dog;cat from the <name> of each <object>, or download ImageSets/Main too"


def _names(folder: Path) -> list[str]:
    """What is in a folder, as far as it is looked at; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
