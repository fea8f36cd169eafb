"""Formats of other tools: recognized, with one suggestion what to do, and never confused with ours."""

from __future__ import annotations

import json
from pathlib import Path

from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError
from halflabel.labels import formats
from halflabel.labels.formats import unsupported as foreign
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES
BOXES = "<annotation><filename>a.jpg</filename><object><name>dog</name></object></annotation>"


def refusal(path: Path) -> LabelError:
    error = label_error(formats.read, path, Policy(unlisted="unknown"))
    assert "\n" not in str(error)
    return error


def test_results_of_a_detector_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([{"image_id": 1, "category_id": 2}]))
    assert "a file of results" in refusal(tmp_path / "x.json").fix


def test_a_voc_folder_with_lists_of_classes_is_read_by_them(tmp_path: Path) -> None:
    boxes = tmp_path / "VOC2007" / "Annotations"
    boxes.mkdir(parents=True)
    (boxes / "a.xml").write_text(BOXES)
    (tmp_path / "VOC2007" / "JPEGImages").mkdir()
    (tmp_path / "VOC2007" / "SegmentationClass").mkdir()
    for name in ("JPEGImages/a.jpg", "SegmentationClass/a.png"):
        (tmp_path / "VOC2007" / name).touch()
    for path in (tmp_path / "VOC2007", boxes, boxes / "a.xml"):
        assert formats.detect_format(path) == "voc-xml"
    main = tmp_path / "VOC2007" / "ImageSets" / "Main"
    main.mkdir(parents=True)
    (main / "dog_train.txt").write_text("a 1\n")
    assert formats.detect_format(tmp_path / "VOC2007") == "voc"


def test_folders_that_may_be_splits(tmp_path: Path) -> None:
    for name in ("train", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}1.JPG").touch()
    error = refusal(tmp_path)
    assert "folders of images (dog, train), which may be classes, splits or parts" in error.message
    assert error.fix.startswith("if they are classes, add ‹format=class-folders›")
    assert "dog/dog1.JPG,dog;cat" in error.fix
    (tmp_path / "train" / "a.xml").write_text(BOXES)
    assert refusal(tmp_path).fix == f"name {tmp_path / 'train'}"
    assert formats.detect_format(tmp_path / "train") == "voc-xml"


def test_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "data" / "annotations").mkdir(parents=True)
    (tmp_path / "data" / "a.jpg").touch()
    assert refusal(tmp_path / "data").fix == "name the file with the labels"
    (tmp_path / "data" / "annotations" / "x.xml").write_text("<other/>")
    for name in ("train", "val"):
        (tmp_path / "data" / "annotations" / f"{name}.json").write_text(
            (GOLDEN / "coco" / "instances.json").read_text()
        )
    places = [str(tmp_path / "data" / "annotations" / name) for name in ("train.json", "val.json")]
    assert refusal(tmp_path / "data").fix == f"name {' or '.join(places)}"
    (tmp_path / "x.json").write_text('{"photo": {"file": "a.jpg", "seen": ["dog"]}}')
    assert "its keys are photo, file, seen" in refusal(tmp_path / "x.json").message
    (tmp_path / "x.xml").write_text("<other/>")
    assert "not recognized" in refusal(tmp_path / "x.xml").message
    (tmp_path / "empty").mkdir()
    assert foreign.unsupported_format_error(tmp_path / "empty") is None
    assert foreign.unsupported_format_error(tmp_path / "nowhere.json") is None


def test_no_golden_file_is_taken_for_foreign() -> None:
    """Before COCO, which any JSON may be, is tried."""
    for path in (*(GOLDEN / "coco").iterdir(), *(GOLDEN / "lvis").iterdir(), *GOLDEN.rglob("*.csv")):
        assert foreign.unsupported_format_error(path) is None, path
