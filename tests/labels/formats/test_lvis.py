"""LVIS JSON: the golden file, round trips, and every fault with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from label_files import GOLDEN_FILES

from halflabel.errors import LabelError
from halflabel.labels import formats
from halflabel.labels.formats import lvis
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "lvis" / "v1.json"


def golden() -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def save(content: Any, folder: Path) -> Path:
    path = folder / "labels.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_golden() -> None:
    result = lvis.read(GOLDEN, Policy())
    table = result.table()
    assert list(table.images) == ["000000522418.jpg", "000000391895.jpg", "000000184613.jpg"]
    assert list(table.classes) == ["zebra", "zucchini", "(none)", "aerosol_can"]
    assert table.dense().tolist() == [[-1, 0, 1, 1], [1, 0, 0, -1], [0, 0, 0, 0]]


def test_contradiction_keeps_both_rows_and_present_wins() -> None:
    result = lvis.read(GOLDEN, Policy())
    rows = result.rows
    both = (rows.image == 0) & (rows.column == 2)
    assert rows.value[both].tolist() == [-1, 1]
    assert rows.count_conflicts() == 1
    assert any("1 entries are both present and absent" in note for note in result.audit.notes)


def test_audit_says_what_became_what() -> None:
    audit = lvis.read(GOLDEN, Policy()).audit
    assert [tuple(line) for line in audit.value_counts] == [
        ("annotation", "present", 3),
        ("neg_category_ids", "absent", 3),
        ("not listed", "unknown", 7),
    ]
    assert any(note.startswith("1 further labels") for note in audit.notes)


def test_file_name_comes_before_coco_url_and_id(tmp_path: Path) -> None:
    content = golden()
    content["images"][0]["file_name"] = "train/00001.jpg"
    del content["images"][1]["coco_url"]
    result = lvis.read(save(content, tmp_path), Policy())
    assert list(result.rows.images) == ["train/00001.jpg", "391895", "000000184613.jpg"]


def test_recognised_before_coco_even_when_the_key_comes_late(tmp_path: Path) -> None:
    assert formats.detect_format(GOLDEN) == "lvis"
    content = golden()
    content["annotations"][0]["segmentation"] = [[1.5] * 400_000]
    path = save(content, tmp_path)
    assert path.stat().st_size > 1 << 20
    assert formats.detect_format(path) == "lvis"
    assert not lvis.sniff(tmp_path)
    assert not lvis.sniff(tmp_path / "not there.json")


def test_round_trip_of_golden(tmp_path: Path) -> None:
    result = lvis.read(GOLDEN, Policy())
    lvis.write(result.rows, tmp_path / "out.json")
    assert lvis.read(tmp_path / "out.json", Policy()).table() == result.table()
    assert formats.detect_format(tmp_path / "out.json") == "lvis"


FAULTS = {
    "images[0].neg_category_ids[1]": lambda c: c["images"][0].update(neg_category_ids=[7, 3]),
    "images[1].neg_category_ids[0]": lambda c: c["images"][1].update(neg_category_ids=[[2]]),
    "images[2].neg_category_ids": lambda c: c["images"][2].update(neg_category_ids=7),
    "images[1].coco_url": lambda c: c["images"][1].update(coco_url="http://images.cocodataset.org/train2017/"),
    "images[2].file_name": lambda c: c["images"][2].update(coco_url="x/000000522418.jpg"),
    "annotations[2].category_id": lambda c: c["annotations"][2].update(category_id=1204),
}


@pytest.mark.parametrize("place", FAULTS)
def test_fault_has_its_place(place: str, tmp_path: Path) -> None:
    content = golden()
    FAULTS[place](content)
    with pytest.raises(LabelError) as caught:
        lvis.read(save(content, tmp_path), Policy())
    assert caught.value.column == place
    assert caught.value.fix
