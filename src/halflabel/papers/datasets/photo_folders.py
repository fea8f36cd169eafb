"""Data sets of photos with several classes each: Pascal VOC, MS COCO, NUS-WIDE, CUB, Open Images, Visual Genome."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.formats import coco, cub, nus_wide, open_images, single_positive
from halflabel.labels.formats._csv import existing_path, read_lines
from halflabel.labels.formats._json import load_json
from halflabel.labels.formats.voc import voc
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import LABEL_VALUES, Meaning, Policy
from halflabel.labels.table import Table
from halflabel.papers.datasets.base import Dataset, Layout, Reader, Split
from halflabel.system.validate import one_of

_VOC_SPLITS = {2007: ("trainval", "test"), 2012: ("train", "val")}  # the labels of the test set of 2012 are not public
_VOC_ARCHIVES = {
    2007: "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar, unpacked into the same folder",
    2012: "VOCtrainval_11-May-2012.tar",
}


def layout_voc(year: int) -> Layout:
    """Return the layout of the development kit: VOCdevkit/VOC2007 with ImageSets/Main and JPEGImages."""
    base = f"VOCdevkit/VOC{year}"
    tree = (f"{base}/ImageSets/Main/<class>_<split>.txt", f"{base}/JPEGImages/<image>.jpg")
    return Layout(f"Pascal VOC {year}", tree, f"http://host.robots.ox.ac.uk/pascal/VOC ({_VOC_ARCHIVES[year]})")


def read_voc(
    folder: Path, *, year: int, difficult: Meaning = "unknown", train: str | None = None, test: str | None = None
) -> Dataset:
    """Open VOC 2007 (trainval and test) or 2012 (train and val); `train` and `test` name other splits.

    difficult: the label of a class of which an image has only objects marked difficult. The challenge excludes such
    entries from the evaluation ("unknown"); the released code of the single-positive and partial-label literature
    counts them as "absent".
    """
    one_of(LABEL_VALUES, difficult=difficult)
    expected = layout_voc(year)
    kit = Path("VOCdevkit") / f"VOC{year}"
    main = Path("ImageSets") / "Main"
    main = expected.require(folder / kit / main, folder / kit.name / main, folder / main)
    base = main.parent.parent
    images = expected.require(base / "JPEGImages")
    splits, notes = {}, []
    for role, name in (("train", train or _VOC_SPLITS[year][0]), ("test", test or _VOC_SPLITS[year][1])):
        if not any(main.glob(f"?*_{name}.txt")):
            raise expected.missing(main / f"aeroplane_{name}.txt")
        splits[role] = Split(voc.read(base, Policy(split=name, difficult=difficult)).table(), images)
        notes.append(f"{role}: the split {name}, objects marked difficult are {difficult}")
    return Dataset.build(f"voc{year}", splits, tuple(notes))


def layout_coco(year: int, labels: Literal["objects", "words"] = "objects") -> Layout:
    file = "captions" if labels == "words" else "instances"
    tree = tuple(f"annotations/{file}_{part}{year}.json" for part in ("train", "val"))
    tree += tuple(f"{part}{year}/<image>.jpg" for part in ("train", "val"))
    archives = f"train{year}.zip, val{year}.zip and annotations_trainval{year}.zip"
    return Layout(f"MS COCO {year}", tree, f"https://cocodataset.org/#download ({archives})")


WORDS = 1000  # classes of labels="words"


def read_coco(
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
    expected = layout_coco(year, labels)
    if labels == "words":
        return _read_words(folder, year, expected)
    splits, notes = {}, []
    for role, part in (("train", f"train{year}"), ("test", f"val{year}")):
        file = expected.require(folder / "annotations" / f"instances_{part}.json")
        images = expected.require(folder / part, folder / "images" / part)
        split = Split(coco.read(file, Policy(unlisted="absent")).table(), images)
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
        image = names[coco.find(annotation["image_id"], names, "images")]
        words[image].update(re.findall("[a-z]+", annotation["caption"].name().lower()))
    return words


_NUS_FILES = [f"formatted_{part}_{what}.npy" for part in ("train", "val") for what in ("images", "labels")]
_NUS_FORMATTED = Layout(
    "the split of NUS-WIDE in .npy files",
    (*_NUS_FILES, "Flickr/<image>.jpg"),
    "the data page of github.com/elijahcole/single-positive-multi-label",
)


def layout_nus_wide() -> Layout:
    tree = (
        "Groundtruth/TrainTestLabels/Labels_<concept>_Train.txt",
        "ImageList/TrainImagelist.txt",
        "the same for Test",
        "Flickr/<folder>/<image>.jpg",
    )
    site = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
    return Layout("NUS-WIDE", tree, site)


def read_nus_wide(folder: Path, *, lists: Literal["official", "formatted"] = "official") -> Dataset:
    """Open the official split (161,789 training and 107,859 test images), or a split in .npy files.

    lists: "formatted" reads formatted_train_labels.npy and formatted_val_labels.npy, the split of the single-positive
    literature, which cannot be derived from the official files. Its classes have numbers unless a classes.txt names
    them. The labels include photos that Flickr has deleted: see `Split.on_disk`.
    """
    one_of(("official", "formatted"), lists=lists)
    expected = layout_nus_wide() if lists == "official" else _NUS_FORMATTED
    images = expected.require(folder / "Flickr", folder / "images")
    splits = {}
    for role, official, formatted in (("train", "Train", "train"), ("test", "Test", "val")):
        if lists == "official":
            expected.require(folder / "Groundtruth", folder / "GroundTruth", folder / "groundtruth")
            labels = nus_wide.read(folder, Policy(split=official)).table()
        else:
            file = expected.require(folder / f"formatted_{formatted}_labels.npy")
            labels = single_positive.read(file, Policy()).table()
        splits[role] = Split(labels, images)
    return Dataset.build("nus-wide", splits, (f"{lists} split",))


def layout_cub() -> Layout:
    files = ("images.txt", "train_test_split.txt", "attributes/image_attribute_labels.txt", "images/<species>/<image>")
    tree = ("attributes.txt", *(f"CUB_200_2011/{file}" for file in files))
    return Layout("CUB-200-2011", tree, "https://www.vision.caltech.edu/datasets/cub_200_2011 (CUB_200_2011.tgz)")


def read_cub(folder: Path, *, certainty: Literal["used", "ignored"] = "used") -> Dataset:
    """Open the official split: 5,994 training and 5,794 test images.

    certainty: with "used", attributes that the annotator marked as not visible are unknown. With "ignored", is_present
    counts for any certainty, as in the released code of the single-positive literature.
    """
    one_of(("used", "ignored"), certainty=certainty)
    expected = layout_cub()
    base = expected.require(folder / "CUB_200_2011" / "images.txt", folder / "images.txt").parent
    for name in ("train_test_split.txt", "attributes/image_attribute_labels.txt"):
        expected.require(base / name)
    expected.require(base / "attributes" / "attributes.txt", base / "attributes.txt", base.parent / "attributes.txt")
    images = expected.require(base / "images")
    tables = {role: cub.read(base, Policy(split=role)).table() for role in ("train", "test")}
    if certainty == "ignored":
        invisible = _not_visible(base)
        for role, table in tables.items():
            others = invisible.subset(invisible.images.index(table.images.array))
            tables[role] = Labels.of(others).append(Labels.of(table)).training
    splits = {role: Split(table, images) for role, table in tables.items()}
    return Dataset.build("cub", splits, (f"certainties are {certainty}",))


def _not_visible(base: Path) -> Table:
    """Read the labels of the lines marked as not visible; the reader has already checked the files."""
    archive = cub.load(base)
    image, column, present, _ = archive.lines[archive.lines[:, 3] == 1].T
    return Table.from_entries(
        Names(archive.images.values()), Names(archive.classes.values()), image, column, 2 * present - 1
    )


_SPLITS = ("train", "validation", "test")
_TRAINABLE = ("classes-trainable.txt", "oidv6-classes-trainable.txt")


def layout_open_images() -> Layout:
    tree = (
        "train/annotations-human.csv",
        "train/<image>.jpg",
        "the same for validation and test",
        "classes-trainable.txt",
        "class-descriptions.csv",
    )
    files = "images_2017_11.tar.gz, annotations_human_2017_11.tar.gz and classes_2017_11.tar.gz for V3"
    return Layout("Open Images", tree, f"https://storage.googleapis.com/openimages/web/download.html ({files})")


def read_open_images(folder: Path, *, classes: str | None = None) -> Dataset:
    """Open the splits train, validation and test with the labels verified by people; all others are unknown.

    classes: a file in the folder that lists the ids of the classes to keep, one per line or in the first column, in
    that order (default: classes-trainable.txt, the classes that S1 and S4 evaluate; without that file, all classes of
    the training labels).
    """
    expected = layout_open_images()
    tables, images = {}, {}
    for split in _SPLITS:
        later = f"{split}-annotations-human-imagelabels.csv"
        places = (folder / split / "annotations-human.csv", folder / later, folder / f"oidv6-{later}")
        tables[split] = open_images.read(expected.require(*places), Policy()).table()
        images[split] = expected.require(folder / "images" / split, folder / split)
    ids = _class_list(folder, classes, expected)
    notes = ["the images are those with an annotation, including those deleted from the web"]
    if ids is None:
        ids = list(tables["train"].classes)
        notes.append("no list of classes: all classes of the training labels")
    # Class names are in the descriptions beside the labels, or in the folder above.
    names = open_images.display_names(folder / "labels", pa.array(ids, pa.string()), Audit("open-images", []))
    splits = {name: Split(_select_classes(table, ids, names), images[name]) for name, table in tables.items()}
    return Dataset.build("open-images", splits, tuple(notes))


def _class_list(folder: Path, wanted: str | None, expected: Layout) -> list[str] | None:
    if wanted is not None:
        file = expected.require(folder / wanted)
    elif not (lists := [folder / name for name in _TRAINABLE if (folder / name).is_file()]):
        return None
    else:
        file = lists[0]
    ids = [line.split(",")[0].strip() for line in read_lines(existing_path(file))]
    ids = [name for name in ids if name and name != "LabelName"]
    if (duplicate := first_duplicate(ids)) is not None:
        raise LabelError(f"class {duplicate!r} is listed twice", "leave one line per class", file)
    return ids


def _select_classes(table: Table, ids: list[str], names: list[str]) -> Table:
    """Select the listed classes, found in the table by id or by name; a class that is missing there is unknown."""
    by_name, by_id = table.classes.index(names), table.classes.index(ids)
    old = np.where(by_name >= 0, by_name, by_id)
    new_column = np.full(len(table.classes), -1)
    new_column[old[old >= 0]] = np.flatnonzero(old >= 0)
    image, column, value = table.entries()
    listed = new_column[column] >= 0
    return Table.from_entries(table.images, Names(names), image[listed], new_column[column[listed]], value[listed])


_VG_CLASSES = 200
_VG_LABELS = f"vg_category_{_VG_CLASSES}_labels_index.json"


def layout_vg200() -> Layout:
    """Return the layout of the released code of SSGRL, SST and SARB (github.com/HCPLab-SYSU/HCP-MLR-PL).

    The lists have one image file per line, such as 2407890.jpg. The JSON file has the categories present, from 0 to
    199: {"2407890.jpg": [0, 17, 133], …}; a category that is not listed is absent. No file names the categories.
    """
    tree = ("train_list_500.txt", "test_list_500.txt", _VG_LABELS, "VG_100K/<image>.jpg", "VG_100K_2/<image>.jpg")
    source = (
        "https://github.com/HCPLab-SYSU/HCP-MLR-PL (lists) and https://homes.cs.washington.edu/~ranjay/visualgenome"
    )
    return Layout("VG-200", tree, f"{source} (photos)")


def read_vg200(folder: Path) -> Dataset:
    """Open the two lists; the photos are in VG_100K, or in VG_100K and VG_100K_2."""
    expected = layout_vg200()
    file = expected.require(folder / _VG_LABELS)
    expected.require(folder / "VG_100K")
    present = load_json(file).object()
    splits = {
        role: Split(_read_vg_list(expected.require(folder / f"{role}_list_500.txt"), present, file), folder)
        for role in ("train", "test")
    }
    return Dataset.build("vg200", splits, ("the categories are named by their numbers: the files do not name them",))


def _read_vg_list(listing: Path, present: dict[str, Any], file: Path) -> Table:
    names = [line.strip() for line in read_lines(existing_path(listing)) if line.strip()]
    labels = np.full((len(names), _VG_CLASSES), -1, np.int8)
    for number, name in enumerate(names):
        categories = present.get(name)
        if categories is None:
            raise LabelError(
                f"{listing.name} lists {name!r}, which has no entry", "use both files from the same release", file
            )
        valid = isinstance(categories, list) and all(type(k) is int and 0 <= k < _VG_CLASSES for k in categories)
        if not valid:
            message = f"the entry is not a list of numbers from 0 to {_VG_CLASSES - 1}"
            raise LabelError(message, "download the file again", file, column=name)
        labels[number, categories] = 1
    if (duplicate := first_duplicate(names)) is not None:
        raise LabelError(f"image {duplicate!r} is listed twice", "download the file again", listing)
    return Table.from_dense(labels, names, Names.numbered(_VG_CLASSES))


READERS: dict[str, Reader] = {
    "voc": (read_voc, layout_voc),
    "coco": (read_coco, layout_coco),
    "nus_wide": (read_nus_wide, layout_nus_wide),
    "cub": (read_cub, layout_cub),
    "open_images": (read_open_images, layout_open_images),
    "vg200": (read_vg200, layout_vg200),
}
