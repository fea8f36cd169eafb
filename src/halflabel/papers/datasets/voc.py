"""Pascal VOC in the layout of its development kit: VOCdevkit/VOC2007 with ImageSets/Main and JPEGImages."""

from __future__ import annotations

from pathlib import Path

from halflabel.labels.formats import voc as reader
from halflabel.labels.policy import LABEL_VALUES, Meaning, Policy
from halflabel.papers.datasets.base import Dataset, Layout, Split
from halflabel.system.validate import one_of

_SPLITS = {2007: ("trainval", "test"), 2012: ("train", "val")}  # the labels of the test set of 2012 are not public
_ARCHIVES = {
    2007: "VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar, unpacked into the same folder",
    2012: "VOCtrainval_11-May-2012.tar",
}


def layout(year: int) -> Layout:
    base = f"VOCdevkit/VOC{year}"
    tree = (f"{base}/ImageSets/Main/<class>_<split>.txt", f"{base}/JPEGImages/<image>.jpg")
    return Layout(f"Pascal VOC {year}", tree, f"http://host.robots.ox.ac.uk/pascal/VOC ({_ARCHIVES[year]})")


def read(
    folder: Path, *, year: int, difficult: Meaning = "unknown", train: str | None = None, test: str | None = None
) -> Dataset:
    """Open VOC 2007 (trainval and test) or 2012 (train and val); `train` and `test` name other splits.

    difficult: the label of a class of which an image has only objects marked difficult. The challenge excludes such
    entries from the evaluation ("unknown"); the released code of the single-positive and partial-label literature
    counts them as "absent".
    """
    one_of(LABEL_VALUES, difficult=difficult)
    expected = layout(year)
    kit = Path("VOCdevkit") / f"VOC{year}"
    main = Path("ImageSets") / "Main"
    main = expected.require(folder / kit / main, folder / kit.name / main, folder / main)
    base = main.parent.parent
    images = expected.require(base / "JPEGImages")
    splits, notes = {}, []
    for role, name in zip(("train", "test"), (train or _SPLITS[year][0], test or _SPLITS[year][1]), strict=True):
        if not any(main.glob(f"?*_{name}.txt")):
            raise expected.missing(main / f"aeroplane_{name}.txt")
        splits[role] = Split(reader.read(base, Policy(split=name, difficult=difficult)).table(), images)
        notes.append(f"{role}: the split {name}, objects marked difficult are {difficult}")
    return Dataset.build(f"voc{year}", splits, tuple(notes))
