"""WebDataset tars with labels: KEY.json, KEY.cls or KEY.txt beside KEY.jpg.

KEY.json may hold the lists that `halflabel pack --labels` writes (`labels`, `absent`, and their scores and sources), a
list `labels`, `tags`, `classes` or `categories`, or a bare list. KEY.cls holds one class, as a number or a name.
KEY.txt holds one class per line, or several separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

from halflabel.errors import LabelError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._entries import Entries, require_unlisted
from halflabel.labels.formats.imagefolder import IMAGE_COLUMN
from halflabel.labels.formats.imagefolder_lists import add_record
from halflabel.labels.formats.tags import LIST_COLUMNS
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS
from halflabel.labels.policy import Policy
from halflabel.system.files import DuplicateKey, parse_json
from halflabel.system.webdataset import list_members, split_key, tar_files

USES = ("unlisted",)
CANNOT_WRITE = ("WebDataset tars hold images too", "write both: halflabel pack IMAGES OUT --labels LABELS")

_LABEL_FILES = ("json", "cls", "txt")  # in order of preference
_MAX_BYTES = 1 << 24  # of the labels of one image


def sniff(path: Path) -> bool:
    """A folder of tars, without images or folders beside them."""
    return bool(tar_files(path))


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the labels of every image; if nothing says absent, `unlisted` must be stated."""
    tars = tar_files(path)
    if not tars:
        raise LabelError("there are no tars", "name the folder with the .tar files", path)
    entries = Entries("webdataset", path)
    says_absent = False
    for image, place, data in _samples(tars):

        def fail(message: str, fix: str, column: str | None = None, place: str = place) -> LabelError:
            return LabelError(f"{place}: {message}", fix, path, column=column)

        record = _read_record(data, place.rpartition(".")[2].lower(), fail) if place else {}
        says_absent |= "absent" in record
        add_record(entries, record.get(IMAGE_COLUMN, image), record, fail)
    if not entries.classes:
        fix = "name the file with the labels, or write KEY.json with a list called labels"
        raise LabelError("no image has labels in .json, .cls or .txt", fix, path)
    if not says_absent:
        require_unlisted(policy, "the lists say present and nothing says absent", path)
    return entries.read(policy)


def _samples(tars: list[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Yield each image with the place and content of its label file; both are empty if it has none."""
    members = list_members(tars)
    names: list[str] = members.names.to_pylist()
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb")) for path in tars]
        for _, sample in groupby(range(len(names)), lambda number: split_key(names[number])[0]):
            parts = {split_key(names[number])[1]: number for number in sample}
            image = next((names[at] for ending, at in parts.items() if f".{ending}".endswith(IMAGE_ENDINGS)), None)
            if image is None:
                continue
            at = next((parts[kind] for kind in _LABEL_FILES if kind in parts), None)
            if at is None:
                yield image, "", b""
                continue
            file = files[members.tar[at]]
            file.seek(int(members.offset[at]))
            data = file.read(min(int(members.length[at]), _MAX_BYTES))
            yield image, f"{tars[members.tar[at]].name}: {names[at]}", data


def _read_record(data: bytes, kind: str, fail: Any) -> dict[str, Any]:
    """Return the content of a label file as a record with the list `labels`."""
    try:
        text = data.decode("utf-8").strip()
        if kind != "json":
            return {"labels": _classes(text) if kind == "txt" else [text] if text else []}
        content = parse_json(text)
        text.encode()
    except DuplicateKey as error:
        raise fail(f"the key {error.key!r} occurs twice", "write it once") from None
    except (ValueError, RecursionError):
        raise fail("this is not UTF-8 text" if kind != "json" else "this is not JSON", "write it again") from None
    if isinstance(content, dict):
        labels: Any = next((content[name] for name in LIST_COLUMNS if name in content), [])
        return {**content, "labels": _names(labels)}
    return {"labels": _names(content)}


def _names(labels: Any) -> Any:
    """Class names of a list of names or numbers, of one of them, or of a text with commas."""
    if isinstance(labels, str):
        return _classes(labels)
    items = labels if isinstance(labels, list) else [labels]
    return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in items]


def _classes(text: str) -> list[str]:
    return [name for part in re.split(r"[,\n]", text) if (name := part.strip())]
