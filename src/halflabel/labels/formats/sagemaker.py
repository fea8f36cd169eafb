"""SageMaker Ground Truth output manifests, also of Rekognition: a line of JSON per image, with `source-ref`.

A label `NAME` comes with `NAME-metadata`, whose type is object-detection, image-classification or its multi-label form.
What has `human-annotated: no` is a model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node, load_lines
from halflabel.labels.formats._records import ImageRecord, Label, reader, single_file, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted", "machine", "tag_column")

_META = "-metadata"
_IMAGE_TYPE = "groundtruth/image-classification"
_TYPES = ("groundtruth/object-detection", f"{_IMAGE_TYPE}-multilabel", _IMAGE_TYPE)

_ENDINGS = "[.](manifest|jsonl?|ndjson)"
sniff = sniffer(_ENDINGS, "{", '"source-ref"', f'{_META}"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The classes of each image; of several jobs `tag_column` states which one is read."""
    lines = list(load_lines(single_file(path, _ENDINGS)))
    jobs = {key[: -len(_META)] for line in lines for key in line.value if key.endswith(_META) and _kind(line[key])}
    if policy.tag_column is None and len(jobs) > 1:
        fix = " or ".join(f"‹tag_column={name}›" for name in sorted(jobs)[:4])
        raise lines[0].error(f"there are labels of several jobs: {', '.join(sorted(jobs))}", f"add {fix}")
    job = policy.tag_column or next(iter(jobs), "")
    for line in lines:
        meta = line[job + _META]
        labels = list(_labels(line[job], meta)) if line[job].value is not None else []
        is_human = meta["human-annotated"].value != "no"
        yield ImageRecord(line["source-ref"], labels, line[job].value is not None and is_human)


def _kind(meta: Node) -> str:
    """The type of a job whose labels are classes; "" for others, such as verifications."""
    return str(meta["type"].value) if meta["type"].value in _TYPES else ""


def _labels(value: Node, meta: Node) -> Iterator[Label]:
    kind, source = _kind(meta), "model:sagemaker" if meta["human-annotated"].value == "no" else ""
    if kind == _IMAGE_TYPE:
        numbers, scores = [meta["class-name"]], [meta["confidence"]]
    elif kind.endswith("multilabel"):
        numbers = value.list()
        scores = [meta["confidence-map"][str(each.value)] for each in numbers]
    elif kind:
        numbers = [box["class_id"] for box in value["annotations"].list()]
        scores = [each["confidence"] for each in meta["objects"].list(optional=True)] or [meta["no"]] * len(numbers)
    else:
        raise meta["type"].refuse("a type of job that labels classes", f"use one of: {', '.join(_TYPES)}")
    if len(numbers) != len(scores):
        raise meta["objects"].error("there are not as many objects as boxes", "export the manifest again")
    for number, score in zip(numbers, scores, strict=True):
        name = number.name() if kind == _IMAGE_TYPE else meta["class-map"][str(number.value)].name()
        yield Label(name, kind.partition("/")[2], 1, source, score.score() if source else float("nan"))


read = reader("sagemaker", entries)
