"""The policy `unlisted`: against a slow loop, and the size limit of every format that uses it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.audit import Audit, ValueCount
from halflabel.labels.formats import _entries as unlisted
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy


@pytest.mark.parametrize("seed", range(8))
def test_absent_is_what_no_row_speaks_of(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images, classes = Names.numbered(6), Names.numbered(4)
    image, column, value = rng.integers(6, size=9), rng.integers(4, size=9), rng.integers(-1, 2, 9)
    rows = Labels.build(images, classes, image, column, value, "person")
    masks = rng.random(6) < 0.7, rng.random(4) < 0.7
    of_images, of_classes = masks[0] if seed % 2 else None, masks[1] if seed % 4 > 1 else None
    audit = Audit("x", [])
    result = unlisted.mark_unlisted_absent(rows, audit, images=of_images, classes=of_classes, raw="left")

    expected = []
    for i in range(6):
        for c in range(4):
            asked = (of_images is None or of_images[i]) and (of_classes is None or of_classes[c])
            if asked and (i, c) not in set(zip(image.tolist(), column.tolist(), strict=True)):
                expected.append((i, c, -1, "unlisted"))
    messages = zip(
        result.image.tolist(), result.column.tolist(), result.value.tolist(), result.source.tolist(), strict=True
    )
    added = [(i, c, v, result.sources[s]) for i, c, v, s in messages][len(rows) :]
    assert added == expected
    assert audit.value_counts == ([ValueCount("left", "absent", len(expected))] if expected else [])


CHOICES = {"from_name": "pick", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
FILES = {
    "long": ("x.csv", "image,class\na,cat\nb,dog\n"),
    "coco": (
        "x.json",
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "b"}],
                "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
                "annotations": [{"image_id": 1, "category_id": 1}],
            }
        ),
    ),
    "fiftyone": ("labels.json", json.dumps({"classes": ["cat", "dog"], "labels": {"a": [0], "b": None}})),
    "imagefolder": (
        "metadata.jsonl",
        '{"file_name": "a", "labels": ["cat"]}\n{"file_name": "b", "labels": null}\n'
        '{"file_name": "c", "labels": ["dog"]}\n',
    ),
    "label-studio": (
        "x.json",
        json.dumps([{"data": {"image": f"/{name}"}, "annotations": [{"result": [CHOICES]}]} for name in "ab"]),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_too_many_entries_are_refused_by_every_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = FILES[name]
    (tmp_path / file).write_text(content)
    result = formats.read(tmp_path / file, Policy(unlisted="absent"))
    assert result.audit.format == name
    assert result.table().known >= 2
    monkeypatch.setattr(unlisted, "physical_memory", lambda: 100)
    with pytest.raises(UserError, match="too many to mark each unlisted pair absent"):
        formats.read(tmp_path / file, Policy(unlisted="absent"))


@pytest.mark.parametrize("name", ["fiftyone", "imagefolder"])
def test_images_that_say_nothing_stay_unknown(name: str, tmp_path: Path) -> None:
    file, content = FILES[name]
    (tmp_path / file).write_text(content)
    table = formats.read(tmp_path / file, Policy(unlisted="absent")).table()
    assert table.rows(table.images.index(["a", "b"])).tolist() == [[1, -1], [0, 0]]
