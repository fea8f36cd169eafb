"""Files with one record per image: what all formats that are declared by their records share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from halflabel.errors import LabelError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._csv import existing_path, numbered_fields, parse_float
from halflabel.labels.formats._entries import Entries, require_unlisted
from halflabel.labels.formats._json import MAX_SCORE, Node, head_and_tail, load_json, load_lines, starts_with
from halflabel.labels.labels import is_model_source
from halflabel.labels.policy import Policy

_GEOMETRY = ("imageData", "points", "rle", "mask", "bbox", "segmentation", "coordinates")  # large, and never needed
IN_BOTH = "entries are both present and absent: present wins, both rows are kept"
_UPLOADED = re.compile("^/?data/upload/([0-9]+/)?[0-9a-f]{8}-")  # Label Studio puts this before the name of a file
_BELOW = "score below the threshold"

Key = tuple[str, str, int | None, str]


class Label(NamedTuple):
    """A class of an image; `raw` is the audit's word for it, the value None means unknown."""

    name: str
    raw: str = "box"
    value: int | None = 1
    source: str = ""
    score: float = math.nan


class ImageRecord(NamedTuple):
    """All labels of an image, whose name is a path or a URL; where `is_labelled` is False, nobody looked for others."""

    image: Node
    labels: list[Label]
    is_labelled: bool = True
    has_absent: bool = False  # the file lists absent classes too, perhaps none


class Note(NamedTuple):
    """A note for the audit that begins with a number; none for 0."""

    number: int
    text: str


@dataclass(frozen=True)
class RecordFormat:
    """A format that is declared by its `entries`; it has what the module of a format has.

    Where nothing says absent, `unlisted` must be stated, unless `default` holds; `complete` says what "absent" means.
    """

    name: str
    entries: Callable[[Path, Policy], Iterator[ImageRecord | Note | str]]
    USES: tuple[str, ...]
    sniff: Callable[[Path], bool]
    default: str = ""
    complete: str = "every class was looked for"
    has_paths: bool = True  # names of images are paths of other machines, or URLs

    def read(self, path: Path, policy: Policy) -> LabelImport:
        parts = list(self.entries(path, policy))
        records = [part for part in parts if isinstance(part, ImageRecord)]
        images = _distinct(records, self.has_paths)
        labels = {name: _distinct_labels(record.labels) for name, record in images.items()}
        threshold = _machine_threshold(labels, policy, path) if "machine" in self.USES else -math.inf
        result = Entries(self.name, path, images=images, classes=[part for part in parts if isinstance(part, str)])
        below = 0
        for name, record in images.items():
            for label in record.labels:
                result.classes.setdefault(label.name, len(result.classes))  # in the order of the file
            for (label_name, raw, value, source), score in labels[name].items():
                is_below = score < threshold
                below += is_below
                result.add(name, label_name, None if is_below else value, _BELOW if is_below else raw, source, score)
        if not result.classes:
            raise LabelError("no image has a label", "check that the labels were exported", path)
        labelled = {name for name, record in images.items() if record.is_labelled}
        open_names = (name for name in labelled if result.classes.keys() - {key[0] for key in labels[name]})
        says_absent = any(record.has_absent or any(each.value == -1 for each in record.labels) for record in records)
        if not says_absent and not self.default and next(open_names, None) is not None:
            require_unlisted(policy, "the file lists what is present and nothing says absent", path, self.complete)
        repeats = sum(len(record.labels) for record in images.values()) - sum(map(len, labels.values()))
        left_out = below * math.isinf(threshold)
        for note in (
            *(part for part in parts if isinstance(part, Note)),
            Note(len(records) - len(images), "images are listed twice, with the same labels: read once"),
            Note(repeats, "further labels of a class in the same image: counted once"),
            Note(left_out, "labels are scores of a model: left out; ‹machine=0.5› reads those from 0.5"),
            Note(
                (len(images) - len(labelled)) * bool(labelled),
                "images were labelled by nobody, or by a model: what is not listed is unknown",
            ),
        ):
            result.audit.note_count(*note)
        return result.read(policy, default=self.default or "unknown", complete=labelled, conflicts=IN_BOTH)


def record_format(
    uses: tuple[str, ...], sniff: Callable[[Path], bool], **options: Any
) -> Callable[[Callable[[Path, Policy], Iterator[ImageRecord | Note | str]]], RecordFormat]:
    """Declare a format by the function that yields its records, whose name is that of the format."""
    return lambda entries: RecordFormat(entries.__name__.replace("_", "-"), entries, uses, sniff, **options)


def sniffer(endings: str, start: str, *marks: str) -> Callable[[Path], bool]:
    """The `sniff` for a file, or the first one of a folder: its ending, its beginning, and patterns in its text."""

    def sniff(path: Path) -> bool:
        try:
            file = min(files_of(path, endings), default=path) if path.is_dir() else path
        except OSError:
            return False
        if not re.fullmatch(endings, file.suffix, re.IGNORECASE):
            return False
        text = head_and_tail(file)
        is_start = re.match(rf"[\ufeff\s]*{start}", text) is not None
        return is_start and all(re.search(mark, text) is not None for mark in marks)

    return sniff


def files_of(path: Path, endings: str) -> list[Path]:
    """The file itself, or those of a folder with one of the endings, such as `[.]json`."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if re.fullmatch(endings, file.suffix, re.IGNORECASE))


def single_file(path: Path, endings: str) -> Path:
    """The file itself, or the only one of a folder with one of the endings."""
    files = files_of(path, endings)
    if len(files) != 1:
        names = f": {', '.join(file.name for file in files[:4])}" if files else ""
        raise LabelError(f"there are {len(files)} label files in this folder", f"name one file{names}", path)
    return files[0]


def load_document(path: Path) -> Node:
    return load_json(single_file(path, "[.]json"), without=_GEOMETRY)


def load_items(path: Path, endings: str) -> Iterator[Node]:
    """The items of a JSON list, or the objects on the lines of a file."""
    file = single_file(path, endings)
    return iter(load_document(file).list()) if starts_with(head_and_tail(file), "[") else load_lines(file)


def names_of_files(files: list[Path], nodes: list[Node]) -> list[Node]:
    """The image that each file names, else that of its own name; where two name the same, all have their own."""
    own = [Node(file.stem, file) for file in files]
    nodes = [node if node.value else of_file for node, of_file in zip(nodes, own, strict=True)]
    return nodes if len({str(node.value) for node in nodes}) == len(files) else own


def model_score(node: Node) -> float:
    """The score of a label that only a model makes; LabelError if there is none."""
    if math.isnan(score := node.score()):
        raise node.refuse("a score", "give it a number from 0 to 1")
    return score


def box_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of each line of a file of boxes, which may be empty."""
    return iter(()) if file.is_file() and not file.stat().st_size else numbered_fields(file)


def finite_numbers(fields: list[str]) -> list[float]:
    """The fields of a line as numbers; none if one is not a number, or too large for a score."""
    try:
        numbers = [parse_float(text) for text in fields]
    except ValueError:
        return []
    return numbers if all(abs(number) <= MAX_SCORE for number in numbers) else []


def load_xml(path: Path) -> ElementTree.Element:
    """The content of an XML file; a document type is refused, because it may define texts that repeat each other."""
    path = existing_path(path)

    class Builder(ElementTree.TreeBuilder):
        def doctype(self, *_: Any) -> None:
            raise LabelError("the file has a <!DOCTYPE>", "remove this line", path)

    try:
        return ElementTree.parse(path, ElementTree.XMLParser(target=Builder())).getroot()
    except ElementTree.ParseError as error:
        fix = "export the file again, or repair it here"
        raise LabelError(f"this is not XML ({error.msg})", fix, path, line=error.position[0]) from None
    except (OSError, ValueError, LookupError) as error:
        raise LabelError(f"cannot be read as XML ({error})", "export the file again", path) from None


def _distinct(records: list[ImageRecord], has_paths: bool) -> dict[str, ImageRecord]:
    """The record of each image by its name; LabelError for two records that differ."""
    images: dict[str, ImageRecord] = {}
    nodes = [record.image for record in records]
    names = image_names(nodes) if has_paths else [node.name() for node in nodes]
    for name, record in zip(names, records, strict=True):
        before = images.setdefault(name, record)
        is_same = before.image.value == record.image.value and set(before.labels) == set(record.labels)
        if before is not record and not is_same:
            raise record.image.error(f"the image {name!r} is listed twice, with different labels", "leave one of them")
    return images


def image_names(nodes: list[Node]) -> list[str]:
    """The last part of URLs and of absolute paths; where two images have the same one, the whole path.

    >>> image_names([Node(name, Path()) for name in ("s3://b/x/a.jpg", "https://h/c%20d.jpg?v=1", "x/b.jpg")])
    ['a.jpg', 'c d.jpg', 'x/b.jpg']
    >>> image_names([Node(name, Path()) for name in ("s3://b/x/1.jpg", "s3://b/y/1.jpg", "..\\\\1.jpg")])
    ['x/1.jpg', 'y/1.jpg', '1.jpg']
    """
    paths, is_whole = [], []
    for node in nodes:
        scheme, mark, rest = node.name().partition("://")
        path = rest.partition("/")[2] if mark else scheme
        if scheme in ("http", "https") and mark:
            path = unquote(re.split("[?#]", path)[0])
        path = _UPLOADED.sub("/", path)
        parts = path.replace("\\", "/").split("/")
        is_whole.append(not mark and parts[0] not in ("", "..") and not re.fullmatch("[A-Za-z]:", parts[0]))
        paths.append("/".join(parts if is_whole[-1] else [part for part in parts if part not in ("", "..")]))
        if not paths[-1]:
            raise node.error(f"{node.value!r} has no image name", "give it the path of the image")
    short = [path if whole else path.rpartition("/")[2] for path, whole in zip(paths, is_whole, strict=True)]
    return short if len(set(short)) >= len(set(paths)) else paths


def _distinct_labels(labels: list[Label]) -> dict[Key, float]:
    """The largest score of each (class, word, value, source); those that hold over others come last."""
    scores: dict[Key, float] = {}
    order = sorted(labels, key=lambda label: (not is_model_source(label.source), label.value or 0))
    for name, raw, value, source, score in order:
        key = name, raw, value, source
        scores[key] = max(score, scores.get(key, -math.inf))
    return scores


def _machine_threshold(labels: dict[str, dict[Key, float]], policy: Policy, path: Path) -> float:
    """The score from which a label of a model is present; LabelError if there are only such labels and it is open."""
    if policy.machine is not None:
        return policy.machine
    scores = list(chain.from_iterable(of_image.values() for of_image in labels.values()))
    if scores and not any(map(math.isnan, scores)):
        message = "all labels are scores of a model, and the file does not state from which score a class is present"
        raise LabelError(message, "add ‹machine=0.5› (or another score from which a class is present)", path)
    return math.inf
