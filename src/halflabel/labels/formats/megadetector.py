"""MegaDetector JSON: detections of a model with scores, and classifications of what was detected.

Every label is a model's. The score of a classification is multiplied by that of its detection.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_document, model_score, reader, sniffer
from halflabel.labels.labels import model_source
from halflabel.labels.policy import Policy

USES = ("machine",)

sniff = sniffer("[.]json", "{", '"detection_categories"', '"images"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The best detection of each class; an image with a failure has no detections."""
    document = load_document(path)
    source = model_source(str(document["info"]["detector"].value or "megadetector"))
    animals, species = document["detection_categories"], document["classification_categories"]
    yield from (_class(animals, Node(key, path, animals)) for key in animals.object())
    for image in document["images"].list():
        labels = []
        for detection in image["detections"].list(optional=True):
            score = model_score(detection["conf"])
            labels.append(Label(_class(animals, detection["category"]), "detection", 1, source, score))
            for pair in detection["classifications"].list(optional=True):
                number, share = (*pair.list(), pair, pair)[:2]
                label = _class(species, number)
                labels.append(Label(label, "classification", 1, source, score * model_score(share)))
        yield ImageRecord(image["file"], labels, is_labelled=False)


def _class(names: Node, number: Node) -> str:
    if not isinstance(number.value, str) or number.value not in names.object():
        raise number.error(f"{number.value!r:.40} is not in {names.key}", f"add its name to {names.key}")
    return names[number.value].name()


read = reader("megadetector", entries)
