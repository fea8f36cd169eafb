"""Files of annotation tools and detectors, each with one record per image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._json import Node, load_lines
from halflabel.labels.formats._records import (
    ImageRecord,
    Label,
    box_lines,
    files_of,
    finite_numbers,
    load_document,
    load_items,
    load_xml,
    model_score,
    names_of_files,
    record_format,
    single_file,
    sniffer,
)
from halflabel.labels.labels import model_source
from halflabel.labels.policy import LABEL_VALUES, VALUE_WORDS, Policy

Records = Iterator[ImageRecord | str]


@record_format(("unlisted", "machine"), sniffer("[.]json", "{", '"shapes"', '"imagePath"'))
def labelme(path: Path, policy: Policy) -> Records:
    """One file per image: a shape is present, a flag present where true and absent where false; __ignore__ is none."""
    files = files_of(path, "[.]json")
    documents = [load_document(file) for file in files]
    images = names_of_files(files, [document["imagePath"] for document in documents])
    for image, document in zip(images, documents, strict=True):
        labels = []
        for shape in document["shapes"].list():
            score = shape["score"].score()
            labels.append(Label(shape["label"].name(), "shape", 1, "" if math.isnan(score) else "model", score))
        flags = {name: value for name, value in document["flags"].object().items() if not name.startswith("__")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise document["flags"][name].refuse("true or false", "check the flag in LabelMe")
            labels.append(Label(name, f"flag {value}".lower(), 1 if value else -1))
        yield ImageRecord(image, labels, not any(label.source for label in labels))


@record_format(
    ("unlisted", "tag_column"),
    sniffer("[.]json", "{", '"regions"', '"filename"', '"file_attributes"|"shape_attributes"'),
)
def via(path: Path, policy: Policy) -> Records:
    """VGG Image Annotator: the class is an attribute of regions or of the file, chosen by `tag_column`."""
    document = load_document(path)
    images = document["_via_img_metadata"] if "_via_img_metadata" in document.object() else document
    regions = [[region["region_attributes"] for region in image["regions"].each()] for image in images.each()]
    column = policy.tag_column
    if column is None:
        with_values = {node.key for each in regions for region in each for node in region.each() if _via_classes(node)}
        if len(with_values) != 1:
            of_files = (node.key for image in images.each() for node in image["file_attributes"].each())
            choice = sorted(map(str, with_values or set(of_files)))
            fix = "add " + " or ".join(f"‹tag_column={name}›" for name in choice[:4])
            found = ", ".join(map(repr, choice)) or "none"
            message = f"which attribute is the class? Of regions: {found}"
            raise images.error(message, fix if choice else "annotate in VIA with an attribute")
        column = str(with_values.pop())
    for image, of_regions in zip(images.each(), regions, strict=True):
        labels = [Label(name, "region") for region in of_regions for name in _via_classes(region[column])]
        of_file = _via_classes(image["file_attributes"][column])
        labels += [Label(name, "attribute of the file") for name in of_file]
        yield ImageRecord(image["filename"], labels)


def _via_classes(node: Node) -> list[str]:
    """The classes in a value: a text, or an object whose keys are those of ticked boxes."""
    if isinstance(node.value, dict):
        return [name for name, is_ticked in node.value.items() if is_ticked is True]
    return [] if node.value in (None, "", "undefined") else [node.name().strip()]


@record_format(("machine",), sniffer("[.]json", "{", '"detection_categories"', '"images"'))
def megadetector(path: Path, policy: Policy) -> Records:
    """Detections of a model; the score of a classification is multiplied by that of its detection."""
    document = load_document(path)
    source = model_source(str(document["info"]["detector"].value or "megadetector"))
    animals, species = document["detection_categories"], document["classification_categories"]

    def class_of(names: Node, number: Node) -> str:
        if not isinstance(number.value, str) or number.value not in names.object():
            raise number.error(f"{number.value!r:.40} is not in {names.key}", f"add its name to {names.key}")
        return names[number.value].name()

    yield from (class_of(animals, Node(key, path, animals)) for key in animals.object())
    for image in document["images"].list():
        labels = []
        for detection in image["detections"].list(optional=True):
            score = model_score(detection["conf"])
            labels.append(Label(class_of(animals, detection["category"]), "detection", 1, source, score))
            for pair in detection["classifications"].list(optional=True):
                number, share = (*pair.list(), pair, pair)[:2]
                name = class_of(species, number)
                labels.append(Label(name, "classification", 1, source, score * model_score(share)))
        yield ImageRecord(image["file"], labels, is_labelled=False)


@record_format(("machine",), sniffer("[.]json", r"\[", '"image_id"', '"category_id"', '"score"'))
def coco_results(path: Path, policy: Policy) -> Records:
    """A list of detections of a model; images and classes are called by their ids."""
    labels: dict[str, list[Label]] = {}
    for item in load_document(path).list():
        label = Label(str(item["category_id"].id()), "detection", 1, "model", model_score(item["score"]))
        labels.setdefault(str(item["image_id"].id()), []).append(label)
    yield from (ImageRecord(Node(image, path), each, is_labelled=False) for image, each in labels.items())


@record_format(("unlisted",), sniffer("[.]json", "{", '"items"', '"categories"', '"label_id"'))
def datumaro(path: Path, policy: Policy) -> Records:
    """Items with annotations, whose label_id is a number in the list of labels."""
    document = load_document(path)
    classes = [label["name"].name() for label in document["categories"]["label"]["labels"].list()]
    yield from classes
    for item in document["items"].list():
        labels = []
        for number in (each["label_id"] for each in item["annotations"].list()):
            if number.value is not None and (type(number.value) is not int or not 0 <= number.value < len(classes)):
                raise number.error(f"{number.value!r:.40} is not one of {len(classes)} labels", "add it to the labels")
            labels += [] if number.value is None else [Label(classes[number.value], "annotation")]
        yield ImageRecord(item["image"]["path"] if item["image"]["path"].value else item["id"], labels)


_LABELBOX = "[.](nd)?jsonl?"


@record_format(("unlisted",), sniffer(_LABELBOX, r"[\[{]", '"data_row"|"Labeled Data"', '"projects"|"Label"'))
def labelbox(path: Path, policy: Policy) -> Records:
    """NDJSON, or the older JSON list; an answer of yes, no or unknown is about the class that its question names."""

    def first(node: Node, *keys: str) -> Node:
        return node[next((key for key in keys if node[key].value), keys[0])]

    for item in load_items(path, _LABELBOX):
        row = item["data_row"] if "data_row" in item.object() else item
        projects = (label for each in item["projects"].each() for label in each["labels"].list(optional=True))
        given = [*(label["annotations"] for label in projects), *[item["Label"]] * bool(item["Label"].value)]
        labels = []
        for each in given:
            objects = each["objects"].list(optional=True)
            labels += [Label(first(node, "name", "title").name(), "object") for node in objects]
            for question in each["classifications"].list(optional=True):
                answers = first(question, "radio_answer", "answer", "checklist_answers", "answers")
                for answer in answers.list() if isinstance(answers.value, list) else [answers]:
                    if isinstance(answer.value, dict):
                        name = first(answer, "name", "title").name()
                        meaning = VALUE_WORDS.get(name.lower())
                        about = first(question, "name", "title").name() if meaning else name
                        value = LABEL_VALUES[meaning] or None if meaning else 1
                        labels.append(Label(about, f"answer {name}" if meaning else "answer", value))
        name_keys = ("external_id", "External ID", "global_key", "row_data", "Labeled Data", "id")
        yield ImageRecord(first(row, *name_keys), labels, bool(given))


_META = "-metadata"
_SINGLE = "groundtruth/image-classification"
_JOBS = ("groundtruth/object-detection", f"{_SINGLE}-multilabel", _SINGLE)
_MANIFEST = "[.](manifest|jsonl?|ndjson)"


@record_format(("unlisted", "machine", "tag_column"), sniffer(_MANIFEST, "{", '"source-ref"', f'{_META}"'))
def sagemaker(path: Path, policy: Policy) -> Records:
    """SageMaker Ground Truth: the labels of a job are under its name, what they are under `NAME-metadata`."""
    lines = list(load_lines(single_file(path, _MANIFEST)))
    metadata = ((key, line[key]["type"].value) for line in lines for key in line.value if key.endswith(_META))
    jobs = {key[: -len(_META)] for key, kind in metadata if kind in _JOBS}
    if policy.tag_column is None and len(jobs) > 1:
        fix = " or ".join(f"‹tag_column={name}›" for name in sorted(jobs)[:4])
        raise lines[0].error(f"there are labels of several jobs: {', '.join(sorted(jobs))}", f"add {fix}")
    job = policy.tag_column or next(iter(jobs), "")
    for line in lines:
        meta = line[job + _META]
        is_given, is_human = line[job].value is not None, meta["human-annotated"].value != "no"
        labels = list(_sagemaker_labels(line[job], meta, "" if is_human else "model:sagemaker")) if is_given else []
        yield ImageRecord(line["source-ref"], labels, is_given and is_human)


def _sagemaker_labels(value: Node, meta: Node, source: str) -> Iterator[Label]:
    kind = meta["type"].value
    if kind not in _JOBS:
        raise meta["type"].refuse("a type of job that labels classes", f"use one of: {', '.join(_JOBS)}")
    if kind == _SINGLE:
        numbers, scores = [meta["class-name"]], [meta["confidence"]]
    elif kind == f"{_SINGLE}-multilabel":
        numbers = value.list()
        scores = [meta["confidence-map"][str(each.value)] for each in numbers]
    else:
        numbers = [box["class_id"] for box in value["annotations"].list()]
        scores = [each["confidence"] for each in meta["objects"].list(optional=True)] or [meta["no"]] * len(numbers)
    if len(numbers) != len(scores):
        raise meta["objects"].error("there are not as many objects as boxes", "export the manifest again")
    for number, score in zip(numbers, scores, strict=True):
        name = number.name() if kind == _SINGLE else meta["class-map"][str(number.value)].name()
        yield Label(name, str(kind).partition("/")[2], 1, source, score.score() if source else math.nan)


def _cvat_file(path: Path) -> Path:
    return path / "annotations.xml" if path.is_dir() else path


_is_cvat = sniffer("[.]xml", "<", "<annotations[ >]", "<(image|track|meta)[ >]")


@record_format(("unlisted",), lambda path: _is_cvat(_cvat_file(path)))
def cvat(path: Path, policy: Policy) -> Records:
    """CVAT for images, XML, or its folder: shapes and tags are present; those with source="auto" are a model's."""
    file = _cvat_file(path)
    root = load_xml(file)
    if root.find("track") is not None:
        raise LabelError("these are tracks of a video", "export the task as `CVAT for images`", file)
    for number, label in enumerate(root.iterfind(".//labels/label/name")):
        yield Node(label.text, file, key=f"labels[{number}].name").name()
    for number, image in enumerate(root.iter("image")):
        place, labels = f"image[{number}]", []
        for shape in image:
            name = Node(shape.get("label"), file, key=f"{place}.{shape.tag}.label").name()
            source = "model" if shape.get("source") == "auto" else ""
            labels.append(Label(name, "tag" if shape.tag == "tag" else "shape", source=source))
        yield ImageRecord(Node(image.get("name"), file, key=f"{place}.name"), labels)


def _xml_folder(path: Path) -> Path:
    folders = (path / name for name in ("Annotations", "annotations/xmls", "annotations", "xmls", "labels"))
    return next((folder for folder in folders if folder.is_dir() and next(folder.glob("*.xml"), None)), path)


_is_voc_xml = sniffer("[.]xml", "<", "<annotation[ >]", "<(filename|object|folder)[ />]")


@record_format(("unlisted", "difficult"), lambda path: _is_voc_xml(_xml_folder(path)))
def voc_xml(path: Path, policy: Policy) -> Records:
    """Pascal VOC boxes, one XML file per image; a class of which all objects are difficult is unknown."""
    difficult = LABEL_VALUES[policy.difficult or "unknown"] or None
    files = files_of(_xml_folder(path), "[.]xml")
    roots = [load_xml(file) for file in files]
    names = [Node(root.findtext("filename"), file, key="filename") for file, root in zip(files, roots, strict=True)]
    for file, root, image in zip(files, roots, names_of_files(files, names), strict=True):
        objects = [
            (Node(each.findtext("name"), file, key=f"object[{k}].name").name(), each.findtext("difficult"))
            for k, each in enumerate(root.iter("object"))
        ]
        plain = {name for name, mark in objects if mark != "1"}
        labels = [Label(name) for name, _ in objects if name in plain]
        labels += [Label(name, "difficult", difficult, "difficult") for name, _ in objects if name not in plain]
        yield ImageRecord(image, labels)


_KITTI_NUMBERS = (14, 15)  # on a line, after the class; the last of 15 is the score of a model


def _kitti_folder(path: Path) -> Path:
    return next((folder for folder in (path / "label_2", path / "training" / "label_2") if folder.is_dir()), path)


def _is_kitti(path: Path) -> bool:
    try:
        lines = (first_line(file).split()[1:] for file in files_of(_kitti_folder(path), "[.]txt")[:20])
        return any(len(finite_numbers(fields)) in _KITTI_NUMBERS for fields in lines)
    except OSError:
        return False


@record_format(("unlisted", "machine"), _is_kitti)
def kitti(path: Path, policy: Policy) -> Records:
    """A folder label_2 with a .txt file per image; DontCare marks a region that nobody labelled."""
    folder = _kitti_folder(path)
    files = files_of(folder, "[.]txt") if folder.is_dir() else []
    if not files:
        raise LabelError("there are no .txt files in a folder label_2", "name the folder with the labels", path)
    for file in files:
        labels = []
        for line, fields in box_lines(file):
            numbers = finite_numbers(fields[1:])
            if len(numbers) not in _KITTI_NUMBERS:
                raise LabelError("this is not a line of KITTI", "write a class, then 14 numbers", file, line=line)
            label = Label(Node(fields[0], file, key=f"line {line}").name())
            if len(numbers) == _KITTI_NUMBERS[1]:
                label = label._replace(source="model", score=numbers[-1])
            labels += [label] * (label.name != "DontCare")
        yield ImageRecord(Node(file.stem, file), labels, not any(label.source for label in labels))
