"""COCO JSON: the golden file, round trips, and every fault with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import coco
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "coco" / "instances.json"
IMAGES = ["000000397133.jpg", "000000037777.jpg", "252219", "été/0008.jpg"]
CLASSES = ["cat", "NA", "person"]
UNKNOWN, ABSENT = Policy(unlisted="unknown"), Policy(unlisted="absent")


def golden() -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def save(content: Any, folder: Path) -> Path:
    path = folder / "labels.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def refusal(content: Any, folder: Path, policy: Policy = UNKNOWN) -> LabelError:
    return label_error(coco.read, save(content, folder), policy)


def test_golden_unlisted_unknown() -> None:
    table = coco.read(GOLDEN, UNKNOWN).table()
    assert list(table.images) == IMAGES
    assert list(table.classes) == CLASSES
    assert table.dense().tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_audit_says_what_became_what() -> None:
    audit = coco.read(GOLDEN, UNKNOWN).audit
    assert [tuple(line) for line in audit.value_counts] == [("annotation", "present", 4), ("not listed", "unknown", 8)]
    assert "1 images have no annotation: nothing in them, or not finished?" in audit.notes
    assert any(note.startswith("1 further labels") for note in audit.notes)
    assert any(note.startswith("1 annotations are crowds") for note in audit.notes)
    audit = coco.read(GOLDEN, ABSENT).audit
    assert ("not listed", "absent", 8) in [tuple(line) for line in audit.value_counts]


def test_segments_of_panoptic_annotations_are_present() -> None:
    table = coco.read(GOLDEN.with_name("panoptic.json"), ABSENT)
    assert table.table().dense().tolist() == [[1, 1], [-1, -1]]
    assert [note for note in table.audit.notes if note.startswith("1 annotations are crowds")]


def test_unlisted_must_be_stated() -> None:
    with pytest.raises(LabelError, match="may be absent or unknown") as caught:
        coco.read(GOLDEN, Policy())
    assert "‹unlisted=unknown›" in caught.value.fix
    assert "‹unlisted=absent›" in caught.value.fix


def test_byte_order_mark_and_utf_16_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for encoding in ("utf-8-sig", "utf-16"):
        path.write_text(GOLDEN.read_text(encoding="utf-8"), encoding=encoding)
        assert list(coco.read(path, UNKNOWN).rows.images) == IMAGES


def test_absent_beside_unknown_is_refused(tmp_path: Path) -> None:
    table = Table.from_dense([[1, -1], [0, 1]])
    with pytest.raises(UserError, match="1 entries are absent and 1 unknown") as caught:
        coco.write(Labels.from_table(table), tmp_path / "out.json")
    assert "‹to=lvis›" in caught.value.fix
    assert "halflabel fill" in caught.value.fix
    assert not list(tmp_path.iterdir())


FAULTS = {
    "images[1].id": lambda c: c["images"][1].update(id=397133),
    "images[1].file_name": lambda c: c["images"][1].update(file_name="000000397133.jpg"),
    "images[0].file_name": lambda c: c["images"][0].update(file_name="\ud800.jpg"),
    "images[2].id": lambda c: c["images"][2].pop("id"),
    "images[2]": lambda c: c["images"].__setitem__(2, "a.jpg"),
    "categories[0].name": lambda c: c["categories"][0].pop("name"),
    "categories[1].name": lambda c: c["categories"][1].update(name="cat"),
    "categories[2].id": lambda c: c["categories"][2].update(id=True),
    "annotations[3].category_id": lambda c: c["annotations"][3].update(category_id=2),
    "annotations[4].category_id": lambda c: c["annotations"][4].pop("category_id"),
    "annotations[2].image_id": lambda c: c["annotations"][2].update(image_id="397133"),
    "annotations[1].image_id": lambda c: c["annotations"][1].update(image_id=[397133]),
    "annotations[0]": lambda c: c["annotations"].__setitem__(0, None),
    "annotations": lambda c: c.pop("annotations"),
    "categories": lambda c: c.update(categories={}),
    "images": lambda c: c.update(images=[]),
}


@pytest.mark.parametrize("place", FAULTS)
def test_fault_has_its_place(place: str, tmp_path: Path) -> None:
    content = golden()
    FAULTS[place](content)
    assert refusal(content, tmp_path).column == place


def test_broken_json_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"images": [\n1,\n,]}')
    with pytest.raises(LabelError, match="not JSON") as caught:
        coco.read(path, UNKNOWN)
    assert caught.value.line == 3
    path.write_bytes(b'{"images":\n"caf\xe9"}')
    with pytest.raises(LabelError, match="not UTF-8") as caught:
        coco.read(path, UNKNOWN)
    assert caught.value.line == 2


@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100_000, '{"images": ' + "9" * 5000 + "}", "\x00", "null"])
def test_a_file_that_is_not_a_document_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(LabelError):
        coco.read(path, UNKNOWN)


def test_lvis_is_not_read_as_coco(tmp_path: Path) -> None:
    content = golden()
    content["images"][0]["neg_category_ids"] = [90]
    assert "‹format=lvis›" in refusal(content, tmp_path).fix


@pytest.mark.parametrize("category_id", [True, 1.0])
def test_true_is_not_the_category_1(tmp_path: Path, category_id: object) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": category_id}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(LabelError, match=r"annotations\[0\]\.category_id"):
        formats.read(tmp_path / "a.json", Policy(unlisted="unknown"))
    content["images"] = [{"id": 1, "file_name": "a.jpg", "neg_category_ids": [category_id]}]
    content["annotations"] = []
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(LabelError, match=r"neg_category_ids\[0\]"):
        formats.read(tmp_path / "a.json")


def test_a_score_without_a_source_is_a_models(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "score": 0.03}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert formats.read(tmp_path / "a.json", Policy(unlisted="unknown")).rows.is_model_made().all()
