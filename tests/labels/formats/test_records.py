"""Formats of annotation tools, with one record per image: what their golden files hold, and what all of them share."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from label_files import GOLDEN_FILES, follow, label_error, source_of

from halflabel.labels import formats
from halflabel.labels.policy import Policy

UNKNOWN: dict[str, Any] = {"unlisted": "unknown"}
ABSENT: dict[str, Any] = {"unlisted": "absent"}

# Golden file -> what has to be stated, images, classes and labels (N, C).
CASES: dict[str, tuple[dict[str, Any], str, str, list[list[int]]]] = {
    "labelme/own": ({}, "a.jpg b.jpg", "cat dog night rain", [[1, 1, 1, -1], [0, 0, -1, 1]]),
    "via/project.json": (ABSENT, "a.jpg b.jpg", "gull tern", [[1, 1], [-1, -1]]),
    "via/version_1.json": ({}, "c.jpg", "gull ringed tern", [[1, 1, 1]]),
    "datumaro/default.json": (ABSENT, "a.jpg b", "cat dog cow", [[1, 1, -1], [-1, -1, -1]]),
    "cvat": (UNKNOWN, "farm/a.jpg farm/b.jpg farm/c.jpg", "cat dog_&_pup cow", [[1, 1, 0], [0, 1, 0], [0, 0, 0]]),
    "voc_xml/farm": (ABSENT, "a.jpg b c.jpg", "cat dog", [[1, 0], [-1, 1], [-1, -1]]),
    "labelbox/older.json": ({}, "a.jpg b.jpg", "cat snow dog fox", [[1, 1, 1, 1], [0, 0, 0, 0]]),
    "labelbox/export.ndjson": (
        {},
        "a.jpg b.jpg c.jpg",
        "cat snow night dog",
        [[1, 1, -1, 0], [1, 0, 0, 1], [0, 0, 0, 0]],
    ),
    "sagemaker/output.manifest": (ABSENT, "a.jpg b.jpg c.jpg", "cat dog", [[1, -1], [-1, -1], [0, 0]]),
    "sagemaker/multilabel.manifest": (UNKNOWN, "a.jpg b.jpg", "night snow", [[1, 1], [1, 0]]),
    "sagemaker/single.manifest": (ABSENT, "a.jpg b.jpg", "cat dog", [[1, -1], [-1, 1]]),
    "megadetector": (
        {"machine": 0.5},
        "site_1/a.jpg site_1/b.jpg site_1/c.jpg site_2/a.jpg",
        "animal person fox elk",
        [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]],
    ),
    "coco_results": ({"machine": 0.5}, "42 73", "18 1", [[1, 0], [0, 1]]),
    "yolo/farm": (
        {**ABSENT, "split": "train"},
        "images/train/a.jpg images/train/b.JPG images/train/c.png",
        "cat dog cow",
        [[1, 1, -1], [-1, -1, -1], [0, 0, 0]],
    ),
    "yolo/farm/data.yaml": ({**UNKNOWN, "split": "val"}, "images/val/d.jpg", "cat dog cow", [[0, 1, 0]]),
    "yolo/beside": (ABSENT, "a.jpg b.jpg", "cat dog", [[0, 0], [-1, 1]]),
    "kitti/road": (ABSENT, "000000 000001", "Car Pedestrian Cyclist", [[1, 1, -1], [-1, -1, 1]]),
}
SCORED = {"sagemaker/output.manifest": [[1, -1], [-1, -1], [0, 1]], "yolo/beside": [[0, 1], [-1, 1]]}


@pytest.mark.parametrize("name", CASES)
def test_golden_files(name: str, tmp_path: Path) -> None:
    stated, images, classes, labels = CASES[name]
    for machine, expected in ((None, labels), (0.75, SCORED.get(name))):
        if expected is not None:
            result = formats.read(GOLDEN_FILES / name, **stated, **({} if machine is None else {"machine": machine}))
            table = result.table()
            assert result.audit.format == name.partition("/")[0].replace("_", "-")
            assert " ".join(each.replace(" ", "_") for each in table.images) == images
            assert " ".join(each.replace(" ", "_") for each in table.classes) == classes
            assert table.dense().tolist() == expected
            meanings = {"present": 1, "absent": -1}
            counts = dict.fromkeys(meanings.values(), 0)
            for entry in result.audit.value_counts:
                if entry.meaning in meanings:
                    counts[meanings[entry.meaning]] += entry.entries
            assert [int((table.dense() == sign).sum()) for sign in counts] == list(counts.values())


def test_what_a_model_made_stays_a_models() -> None:
    rows = formats.read(GOLDEN_FILES / "megadetector", machine=0.5).rows
    assert set(source_of(rows)) == {"model:md_v5a.0.0.pt"}
    assert rows.score.tolist() == pytest.approx([0.9, 0.9 * 0.75, 0.5])
    rows = formats.read(GOLDEN_FILES / "sagemaker" / "output.manifest", machine=0.5, **UNKNOWN).rows
    assert source_of(rows) == ["", "model:sagemaker"]
    assert set(source_of(formats.read(GOLDEN_FILES / "cvat", **UNKNOWN).rows)) == {"", "model"}
    assert set(source_of(formats.read(GOLDEN_FILES / "coco_results", machine=0).rows)) == {"model"}


@pytest.mark.parametrize("name", CASES)
def test_the_first_proposed_command_leads_on(name: str, tmp_path: Path) -> None:
    """Each refusal proposes a command that reads the file, or asks the next question."""
    source = GOLDEN_FILES / name.partition("/")[0]
    copy = shutil.copytree(source, tmp_path / source.name).parent / name
    assert follow(["inspect", str(copy)]) == len(CASES[name][0])


LABELME = {"flags": {}, "shapes": [{"label": "cat"}], "imagePath": "a.jpg"}
VIA = {"a": {"filename": "a.jpg", "regions": [{"region_attributes": {"kind": "cat"}}], "file_attributes": {}}}
MANIFEST = json.loads((GOLDEN_FILES / "sagemaker" / "output.manifest").read_text().splitlines()[0])
RESULT = {"image_id": 1, "category_id": 2, "score": 0.5}
ITEM = {"id": "a.jpg", "annotations": [{"label_id": 0}]}
DATUMARO = {"categories": {"label": {"labels": [{"name": "cat"}]}}, "items": [ITEM, {**ITEM, "annotations": []}]}
XML = "<annotation><filename>a.jpg</filename><object><name>cat</name></object></annotation>"
FAULTS: dict[str, tuple[str, Any, str]] = {
    "flag as text": ("x.json", {**LABELME, "flags": {"cat": "yes"}}, "flags.cat.*not true or false"),
    "shape without label": ("x.json", {**LABELME, "shapes": [{}]}, r"shapes\[0\].label.*null or missing"),
    "no labels at all": ("x.json", {**LABELME, "shapes": []}, "no image has a label"),
    "image without name": ("x.json", {**LABELME, "imagePath": "s3://bucket/"}, "no image name"),
    "image listed twice": ("x.json", DATUMARO, "'a.jpg' is listed twice"),
    "score as text": ("x.json", [{**RESULT, "score": "0.5"}], "not a score"),
    "no score": ("x.json", [RESULT, {**RESULT, "score": None}], r"\[1\].score.*not a score"),
    "document type": ("x.xml", f"<!DOCTYPE x [<!ENTITY a 'b'>]>{XML}", "<!DOCTYPE>"),
    "not XML": ("x.xml", XML[:-3], "line 1: this is not XML"),
    "object without name": ("x.xml", XML.replace("<name>cat</name>", ""), r"object\[0\].name"),
    "video": ("x.xml", "<annotations><meta/><track label='cat'/></annotations>", "tracks of a video"),
    "class without name": ("x.manifest", {**MANIFEST, "animals": {"annotations": [{"class_id": 7}]}}, "as many"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_name_their_place(case: str, tmp_path: Path) -> None:
    name, content, message = FAULTS[case]
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    policy = Policy() if "score" in case else Policy(unlisted="unknown")
    assert re.search(message, str(label_error(formats.read, tmp_path / name, policy)))


def test_several_jobs_and_attributes_are_asked_for(tmp_path: Path) -> None:
    other = {"kind": 0, "kind-metadata": {"class-name": "dog", "type": "groundtruth/image-classification"}}
    (tmp_path / "x.manifest").write_text(json.dumps({**MANIFEST, **other, "size": 1, "size-metadata": {"type": "x"}}))
    region = {"region_attributes": {"kind": "cat", "colour": "black"}}
    (tmp_path / "x.json").write_text(json.dumps({"a": {**VIA["a"], "regions": [region, *VIA["a"]["regions"]]}}))
    for file, options, name in (("x.manifest", {"animals", "kind"}, "animals"), ("x.json", {"colour", "kind"}, "kind")):
        error = label_error(formats.read, tmp_path / file)
        assert set(re.findall("‹tag_column=([^›]*)›", error.fix)) == options
        result = formats.read(tmp_path / file, tag_column=name, **UNKNOWN)
        assert list(result.rows.classes) == ["cat"]


def test_images_are_named_by_the_end_of_their_url(tmp_path: Path) -> None:
    def names(*urls: str) -> list[str]:
        lines = ({"imageGcsUri": url, "classificationAnnotation": {"displayName": "cat"}} for url in urls)
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return list(formats.read(tmp_path / "x.jsonl", **UNKNOWN).rows.images)

    assert names("gs://farm/in/a.jpg", "https://farm/b%20c.jpg?x=1", "in/a%20d.jpg") == [
        "a.jpg",
        "b c.jpg",
        "in/a%20d.jpg",
    ]
    assert names("gs://farm/in/a.jpg", "gs://farm/out/a.jpg") == ["in/a.jpg", "out/a.jpg"]
    assert names("gs://farm/in/a.jpg", "gs://farm/in/a.jpg") == ["a.jpg"]


def test_difficult_objects(tmp_path: Path) -> None:
    for difficult, value in (("present", 1), ("absent", -1), ("unknown", 0)):
        table = formats.read(GOLDEN_FILES / "voc_xml" / "farm", difficult=difficult, **UNKNOWN).table()
        assert table.dense()[0].tolist() == [1, value]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("labels/train/a.txt", "3 0.5 0.5 0.1 0.1\n", "class 3, but only 3 are named"),
        ("labels/train/a.txt", "0 0.5 0.5\n", "line 1: this is not the number of a class and a box"),
        ("labels/train/a.txt", "0 0.5 0.5 nan 0.1\n", "this is not the number of a class"),
        ("labels/train/a.txt", "0 0.5 0.5 1_0 0.1\n", "this is not the number of a class"),
        ("data.yaml", "names: {1: cat, 2: dog}\n", "numbers are not 0, 1, 2"),
        ("data.yaml", "names: [cat, cat, dog]\n", "two are the same"),
        ("data.yaml", "names: [yes, cat]\n", "names.0"),
        ("data.yaml", None, "no file names them"),
    ],
)
def test_faults_of_yolo(file: str, content: str | None, message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(GOLDEN_FILES / "yolo" / "farm", tmp_path / "farm")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    assert formats.detect_format(folder) == "yolo"
    assert message in str(label_error(formats.read, folder, Policy(split="train", unlisted="unknown")))


def test_yolo_folders_of_other_tools(tmp_path: Path) -> None:
    for root in ("train", "valid"):  # Roboflow
        (tmp_path / "a" / root / "labels").mkdir(parents=True)
        (tmp_path / "a" / root / "images").mkdir()
        (tmp_path / "a" / root / "labels" / "x.v1.txt").write_text("1 0.5 0.5 0.1 0.1\n")
        (tmp_path / "a" / root / "images" / "x.v1.jpg").touch()
    (tmp_path / "a" / "data.yaml").write_text("names: [cat, dog]\n")
    table = formats.read(tmp_path / "a", split="valid", **UNKNOWN).table()
    assert (list(table.images), table.dense().tolist()) == (["valid/images/x.v1.jpg"], [[0, 1]])
    (tmp_path / "b" / "obj_train_data" / "sub").mkdir(parents=True)  # Darknet
    (tmp_path / "b" / "obj_train_data" / "sub" / "y.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    (tmp_path / "b" / "obj.names").write_text("cat\n")
    (tmp_path / "b" / "train.txt").write_text("data/obj_train_data/sub/y.jpg\n")
    assert list(formats.read(tmp_path / "b").rows.images) == ["sub/y"]
    farm = shutil.copytree(GOLDEN_FILES / "yolo" / "farm", tmp_path / "c" / "train")
    (farm / "data.yaml").unlink()
    (farm / "labels" / "classes.txt").write_text("cat\ndog\ncow\n")  # labelImg
    assert list(formats.read(farm / "labels" / "val", **UNKNOWN).rows.images) == ["images/val/d.jpg"]
    (farm / "labels" / "classes.txt").rename(farm.parent / "classes.txt")
    assert formats.read(farm, split="val", **UNKNOWN).table().known == 1


def test_images_are_named_like_their_files_where_the_names_inside_are_no_use(tmp_path: Path) -> None:
    (tmp_path / "annotations" / "xmls").mkdir(parents=True)
    for name in ("x", "y"):
        (tmp_path / "annotations" / "xmls" / f"{name}.xml").write_text(XML)
        (tmp_path / f"{name}.json").write_text(json.dumps(LABELME))
    for form in ("voc-xml", "labelme"):
        assert list(formats.read(tmp_path, format=form).rows.images) == ["x", "y"]


def test_shapes_with_a_score_are_a_models(tmp_path: Path) -> None:
    shapes = [{"label": "cat", "score": 0.9}, {"label": "dog", "score": None}]
    (tmp_path / "x.json").write_text(json.dumps({**LABELME, "shapes": shapes}))
    rows = formats.read(tmp_path / "x.json", machine=0.5).rows
    assert source_of(rows) == ["model", ""]
    assert formats.read(tmp_path / "x.json").table().dense().tolist() == [[0, 1]]


def test_a_folder_of_several_exports_is_not_merged(tmp_path: Path) -> None:
    for name in ("train.json", "val.json"):
        shutil.copy(GOLDEN_FILES / "datumaro" / "default.json", tmp_path / name)
    assert "train.json, val.json" in label_error(formats.read, tmp_path).fix
