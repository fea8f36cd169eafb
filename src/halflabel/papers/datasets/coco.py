"""MS COCO: annotations/instances_train2014.json and instances_val2014.json beside the folders train2014 and val2014."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np

from halflabel.labels.formats import coco as reader
from halflabel.labels.formats._json import load_json
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.papers.datasets.base import Dataset, Layout, Split
from halflabel.system.validate import one_of


def layout(year: int, labels: Literal["objects", "words"] = "objects") -> Layout:
    file = "captions" if labels == "words" else "instances"
    tree = tuple(f"annotations/{file}_{part}{year}.json" for part in ("train", "val"))
    tree += tuple(f"{part}{year}/<image>.jpg" for part in ("train", "val"))
    archives = f"train{year}.zip, val{year}.zip and annotations_trainval{year}.zip"
    return Layout(f"MS COCO {year}", tree, f"https://cocodataset.org/#download ({archives})")


WORDS = 1000  # classes of labels="words"


def read(
    folder: Path,
    *,
    year: int,
    unannotated: Literal["keep", "drop"] = "keep",
    labels: Literal["objects", "words"] = "objects",
) -> Dataset:
    """Open the training images as "train" and the validation images as "test"; a class without annotation is absent.

    unannotated: whether to keep images without any annotation, which show none of the 80 classes. Papers on partial
    labels keep them; the released code of the single-positive literature drops them. labels: objects = the 80 classes;
    words = the 1,000 words that the captions of most training images have (captions_train2014.json and
    captions_val2014.json in the folder annotations), absent where no caption of the image has the word.
    """
    one_of(("keep", "drop"), unannotated=unannotated)
    one_of(("objects", "words"), labels=labels)
    expected = layout(year, labels)
    if labels == "words":
        return _read_words(folder, year, expected)
    splits, notes = {}, []
    for role, part in (("train", f"train{year}"), ("test", f"val{year}")):
        file = expected.require(folder / "annotations" / f"instances_{part}.json")
        images = expected.require(folder / part, folder / "images" / part)
        split = Split(reader.read(file, Policy(unlisted="absent")).table(), images)
        used = split.with_positives() if unannotated == "drop" else split
        if dropped := len(split) - len(used):
            notes.append(f"{role}: {dropped} images without annotation are dropped")
        splits[role] = used
    return Dataset.build(f"coco{year}", splits, tuple(notes))


def _read_words(folder: Path, year: int, expected: Layout) -> Dataset:
    splits: dict[str, Split] = {}
    classes: list[str] = []
    for role, part in (("train", f"train{year}"), ("test", f"val{year}")):
        words = caption_words(expected.require(folder / "annotations" / f"captions_{part}.json"))
        if role == "train":
            count = Counter(word for of_image in words.values() for word in of_image)
            classes = sorted(count, key=lambda word: (-count[word], word))[:WORDS]
        column = {word: number for number, word in enumerate(classes)}
        dense = np.full((len(words), len(classes)), -1, np.int8)
        for image, of_image in enumerate(words.values()):
            dense[image, [column[word] for word in of_image if word in column]] = 1
        table = Table.from_dense(dense, images=list(words), classes=classes)
        splits[role] = Split(table, expected.require(folder / part, folder / "images" / part))
    return Dataset.build(f"coco{year}", splits, (f"labels: the {len(classes)} most frequent words of the captions",))


def caption_words(file: Path) -> dict[str, set[str]]:
    """Return the words in lower case, letters only, of all captions of each image of a COCO captions file."""
    document = load_json(file)
    names = {image["id"].id(): image["file_name"].name() for image in document["images"].list()}
    words: dict[str, set[str]] = {name: set() for name in names.values()}
    for annotation in document["annotations"].list():
        image = names[reader.find(annotation["image_id"], names, "images")]
        words[image].update(re.findall("[a-z]+", annotation["caption"].name().lower()))
    return words
