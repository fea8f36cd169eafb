"""Label file formats: `read` and `write` for all of them, and detection of the format of a file.

A format is a `RecordFormat`, or a module with `sniff(path)`, `read(path, policy)` and `USES`, the Policy options of its
reader. If it is written too, it has `write(rows, path)`, else perhaps CANNOT_WRITE, a message and a fix. It may have
`keeps_provenance(rows)`, the rows whose source and score it keeps, HOLDS_UNCERTAIN and HOLDS_WEIGHTS.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._csv import check_exists
from halflabel.labels.formats._json import head_and_tail
from halflabel.labels.formats._layout import TABLES, choose_reading, table_form
from halflabel.labels.formats._sheets import parquet_files
from halflabel.labels.formats._unpack import Unpacked, unpack, unpack_records
from halflabel.labels.formats._write import check_provenance, drop_uncertain
from halflabel.labels.formats.unsupported import (
    describe_beginning,
    places_inside,
    refuse_other_content,
    unsupported_format_error,
)
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy, combine_stated, forget_stated
from halflabel.labels.table import Table
from halflabel.system.remote import local_path

# Name -> description for users. Formats are detected in this order: specific ones before general ones.
FORMATS = {
    "binary": "halflabel's binary form (.labels): memory-mapped, for millions of images",
    "label-studio": "Label Studio JSON: tasks to annotate, and the annotations",
    "labelme": "LabelMe JSON, one file per image: shapes are present, flags present or absent",
    "via": "VGG Image Annotator JSON, project or annotations",
    "megadetector": "MegaDetector JSON: scores of a model",
    "datumaro": "Datumaro JSON: items with annotations",
    "cvat": "CVAT for images, XML: boxes, shapes and tags",
    "labelbox": "Labelbox NDJSON: objects and classifications",
    "sagemaker": "SageMaker Ground Truth manifest: a line of JSON per image",
    "coco-results": "COCO results: a list of detections with scores of a model",
    "fiftyone": "FiftyOne folder: labels.json, and negatives.json for absent classes",
    "lvis": "LVIS JSON: boxes are present, neg_category_ids absent, the rest unknown",
    "coco": "COCO JSON: images, annotations, categories",
    "open-images": "Open Images CSV: ImageID,Source,LabelName,Confidence",
    "chexpert": "CheXpert CSV: X-ray findings 1, 0, -1 (uncertain) and blank, beside columns about the patient",
    "nih-chestxray": "NIH ChestX-ray14 CSV: Image Index,Finding Labels",
    "camtrap-dp": "Camtrap DP folder of camera traps: media.csv and observations.csv",
    "bigearthnet": "BigEarthNet metadata.parquet, or a folder of its patches",
    "voc": "Pascal VOC folder: ImageSets/Main/<class>_<split>.txt",
    "voc-xml": "Pascal VOC boxes: one XML file per image",
    "kitti": "KITTI folder: label_2/*.txt",
    "cub": "CUB-200 attributes folder: attributes/image_attribute_labels.txt",
    "nus-wide": "NUS-WIDE folder: Labels_<class>.txt beside an image list",
    "yolo": "YOLO folder: images, labels/*.txt and data.yaml or classes.txt",
    "webdataset": "WebDataset tars: KEY.json, KEY.cls or KEY.txt beside KEY.jpg; also a pack with labels",
    "tags": "one line per image with a list of tags in one column: a.jpg,dog;cat (CSV)",
    "imagefolder": "Hugging Face ImageFolder: metadata.csv, .jsonl or .parquet with file_name",
    "single-positive": "folder of formatted_<split>_images.npy, _labels.npy and _labels_obs.npy",
    "long": "one row per label: image,class,value,source,score (CSV, Parquet file or folder); halflabel's own form",
    "wide": "one line per image, one column per class (CSV)",
    "class-folders": "folders of images, one per class: dog/0001.jpg",
}


_MODULES = {  # of formats that have none of their own
    **dict.fromkeys(("labelme", "via", "megadetector", "datumaro", "cvat"), "annotation_tools"),
    **dict.fromkeys(("labelbox", "sagemaker", "coco_results", "voc_xml", "kitti"), "annotation_tools"),
    **dict.fromkeys(("chexpert", "nih_chestxray"), "chest_xrays"),
}
_COCO = re.compile('"(categories|category_id|caption)"')
_PLUGIN_FORMATS: dict[str, tuple[str, ModuleType]] = {}  # of plugins: name -> description, module


def add_format(name: str, description: str, module: ModuleType) -> None:
    """Register a format of your own: a module with `USES`, `sniff`, `read` and `write`, as those of this package.

    In a file that HALFLABEL_PLUGINS lists: `add_format("mine", "one line for users", sys.modules[__name__])`.
    """
    if name in FORMATS or (name in _PLUGIN_FORMATS and _PLUGIN_FORMATS[name][1].__name__ != module.__name__):
        raise ValueError(f"two label formats are called {name!r}")
    if missing := [part for part in ("USES", "sniff", "read", "write") if not hasattr(module, part)]:
        raise ValueError(f"the label format {name!r} has no {missing[0]}")
    _PLUGIN_FORMATS[name] = description, module


def known_formats() -> dict[str, str]:
    """Return the description of each format in the order of detection: those of plugins first."""
    from halflabel.system import plugins

    plugins.load()
    return {**{name: description for name, (description, _) in _PLUGIN_FORMATS.items()}, **FORMATS}


def format_of(name: str) -> Any:
    """The module of a format, or its `RecordFormat`."""
    formats = known_formats()
    if name not in formats:
        raise UserError(f"no label format is called {name!r}", f"use one of: {', '.join(formats)}")
    if name in _PLUGIN_FORMATS:
        return _PLUGIN_FORMATS[name][1]
    name = name.replace("-", "_")
    module = import_module(f"halflabel.labels.formats.{_MODULES.get(name, name)}")
    return getattr(module, name, module)


def _call(name: str, part: str, *values: Any, **options: Any) -> Any:
    """Call `sniff`, `read` or `write` of a format; an error in a plugin becomes a UserError that names its file."""
    module = format_of(name)
    try:
        result = getattr(module, part)(*values, **options)
        if name in _PLUGIN_FORMATS and part == "read" and not isinstance(result, LabelImport):
            raise TypeError(f"returns a {type(result).__name__}, not a LabelImport")
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if name not in _PLUGIN_FORMATS:
            raise
        from halflabel.system.plugins import failure

        file = module.__file__ or module.__name__
        raise failure(error, file, f"{part}() of the label format {name!r}: ", f"correct {part}()") from error
    return result


def detect_format(path: Path) -> str:
    """The name of the format of a file or folder; LabelError if no format fits."""
    path = local_path(path)
    check_exists(path)
    name, plain = _recognize(unpack(path))
    form = table_form(plain.path) if name in TABLES and parquet_files(plain.path) == [] else name
    return form if "wide" in (form, name) else name


def _recognize(plain: Unpacked) -> tuple[str, Unpacked]:
    """The name of the format, and the file to read: that of records as a table if nothing else fits."""
    path = plain.path
    if path.is_file() and path.stat().st_size == 0:
        raise LabelError("the file is empty", "export the labels again", path)
    known_formats()  # loads the plugins
    plugin_format = next((name for name in _PLUGIN_FORMATS if _call(name, "sniff", path)), None)
    if plugin_format is not None:
        return plugin_format, plain
    refuse_other_content(path)
    name = next((name for name in FORMATS if _call(name, "sniff", path)), None)
    if name is not None and (name != "coco" or _COCO.search(head_and_tail(path))):  # any JSON file may be COCO
        return name, plain
    if (records := unpack_records(path)).path != path:
        return "wide", records
    inside: list[Path] = []
    for place in places_inside(path):
        is_outside = {*place.parents}.isdisjoint(inside)
        if is_outside and any(_call(each, "sniff", place) for each in FORMATS if each != "tags"):
            inside.append(place)
    if inside:
        fix = f"name {' or '.join(map(str, inside[:3]))}{', …' if len(inside) > 3 else ''}"
        raise LabelError("this folder is not in a known format, but what is in it may be", fix, path)
    if (unsupported := unsupported_format_error(path)) is not None:
        raise unsupported
    if name is not None:
        return name, plain
    message = f"the label format is not recognized{describe_beginning(path)}"
    fix = f"state it with ‹format›: {', '.join(known_formats())}"
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        fix = "a table begins with a line such as image,tags, and has an image and its labels on each line below"
    raise LabelError(message, fix, path)


def read(path: str | Path, policy: Policy | None = None, *, format: str = "auto", **stated: Any) -> LabelImport:
    """Read a label file or folder of any format; `stated` are fields of the policy, such as unlisted="unknown"."""
    if isinstance(stated.get("ignore"), str):
        stated["ignore"] = (stated["ignore"],)
    if policy is None:
        stated = combine_stated(Path(path), stated if format == "auto" else {**stated, "format": format})
        format = stated.pop("format", "auto")
    path, policy = local_path(path), replace(policy or Policy(), **stated)
    check_exists(path)
    plain = unpack(path, policy.split, policy.encoding)
    try:
        used_split = plain.used_split
        name = format
        if format == "auto":
            name, plain = _recognize(plain)
        elif format in ("tags", "wide"):
            plain = unpack_records(plain.path) if plain.path == path else plain
        result = _read(plain.path, replace(policy, split=None) if used_split else policy, name, format != "auto")
    except UserError as error:
        error.message = _in_file(error.message, plain, path)
        raise
    result.audit.files[:] = [_in_file(file, plain, path) for file in result.audit.files]
    return result


def _in_file(text: str, plain: Unpacked, path: Path) -> str:
    """A message about a file as one about the file that it was unpacked from."""
    if plain.path == path:
        return text
    text = text.replace(str(plain.path), str(path))
    return re.sub(r"(?<=, line )\d+", lambda line: str(int(line[0]) - plain.lines_added), text, count=1)


def _read(path: Path, policy: Policy, name: str, is_stated: bool) -> LabelImport:
    if name in TABLES and path.is_file() and path.suffix != ".parquet":
        reading = choose_reading(path, policy, name, is_stated, lambda form, *values: _call(form, "read", *values))
        name, policy = reading.format, reading.policy
    if name in FORMATS:
        refuse_other_content(path)
    policy.check(format_of(name).USES, name)
    result: LabelImport = _call(name, "read", path, policy)
    for names, several in ((result.rows.images, "images"), (result.rows.classes, "classes")):
        if pc.any(pc.match_substring(names.array, "\0")).as_py():
            raise LabelError(f"the names of {several} contain the character NUL", "export the labels again", path)
        if (example := names.look_alikes(ignore_case=several == "classes")) is not None:
            first, second = map(ascii, example)
            can_merge = several == "classes" and "merge_names" in format_of(name).USES
            fix = "add ‹merge_names› to read them as one" if can_merge else "write one name"
            result.audit.note(f"some {several} are nearly the same, such as {first} and {second}: {fix}")
    return result


def can_ignore_columns(path: Path, format: str = "auto") -> bool:
    return "ignore" in format_of(detect_format(path) if format == "auto" else format).USES


def written_formats() -> list[str]:
    return [name for name in known_formats() if hasattr(format_of(name), "write")]


def default_format(path: str | Path) -> str:
    """The format for writing if none is named: binary for a name ending in .labels, else long."""
    return "binary" if Path(path).suffix == ".labels" else "long"


def write(
    labels: Labels | Table,
    path: str | Path,
    *,
    format: str = "auto",
    without_sources: bool = False,
    without_uncertain: bool = False,
    **options: Any,
) -> None:
    """Write labels in any format; a format that would lose some raises UserError and names another one.

    `without_sources` accepts that sources and scores are lost, `without_uncertain` that uncertain labels are unknown.
    `options` are those of the format, such as `image_url` of label-studio; options of other formats are refused.
    """
    format = default_format(path) if format == "auto" else format
    module = format_of(format)
    if not hasattr(module, "write"):
        only_read = f"the format {format!r} is only read", f"write one of: {', '.join(written_formats())}"
        raise UserError(*getattr(module, "CANNOT_WRITE", only_read))
    if format != "binary" and default_format(path) == "binary":
        reason = "a name ending in .labels is the binary format"
        raise UserError(f"{path} cannot be written as {format}: {reason}", "choose another ending, or ‹to=binary›")
    for name in options:
        if name not in getattr(module, "OPTIONS", ()):
            raise UserError(f"‹{name}› means nothing for the format {format!r}", f"leave ‹{name}› out")
    rows = Labels.of(labels)
    if without_uncertain or not getattr(module, "HOLDS_UNCERTAIN", False):
        rows = drop_uncertain(rows, format, accepted=without_uncertain)
    if not without_sources:
        is_kept = _call(format, "keeps_provenance", rows) if hasattr(module, "keeps_provenance") else True
        check_provenance(rows, is_kept & (getattr(module, "HOLDS_WEIGHTS", False) | ~rows.is_answer()), format)
    _call(format, "write", rows, Path(path), **options)
    forget_stated(Path(path))  # which was about an earlier content
