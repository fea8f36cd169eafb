"""FiftyOne: present and absent labels in two files, golden folders, round trips, and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import fiftyone
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "fiftyone"
UNKNOWN, ABSENT = Policy(unlisted="unknown"), Policy(unlisted="absent")


def golden_rows() -> Labels:
    """As in tests/golden/fiftyone/own, after a contradiction and a retraction that leave no trace there."""
    image, column = np.array([0, 0, 1, 0, 2, 2]), np.array([0, 2, 1, 0, 0, 0])
    value, source = np.array([-1, 1, -1, 1, 1, 0]), np.array([2, 0, 1, 2, 1, 1])
    score = np.array([np.nan, np.nan, np.nan, 0.7, np.nan, np.nan])
    names = Names(["sub/a.v2.jpg", "b.png", "c.jpg"]), Names(["cat", "dog", "cow"])
    return Labels.build(*names, image, column, value, source, score, ["", "person", "model"])


def labels(folder: Path, **content: Any) -> Path:
    path = folder / "labels.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_golden_folder_is_written_and_read(tmp_path: Path) -> None:
    rows = golden_rows()
    formats.write(rows, tmp_path / "out", format="fiftyone")
    for name in ("labels.json", "negatives.json"):
        written, wanted = ((folder / name).read_text(encoding="utf-8") for folder in (tmp_path / "out", GOLDEN / "own"))
        assert written == wanted.rstrip("\n")
    result = formats.read(tmp_path / "out")
    assert result.audit.format == "fiftyone"
    assert result.table() == rows.training
    messages = {
        (int(i), int(c)): (result.rows.sources[s], None if np.isnan(x) else round(float(x), 4))
        for i, c, s, x in zip(result.rows.image, result.rows.column, result.rows.source, result.rows.score, strict=True)
    }
    assert messages == {(0, 0): ("model", 0.7), (0, 2): ("", None), (1, 1): ("person", None)}
    assert [tuple(line) for line in result.audit.value_counts] == [
        ("target", "present", 2),
        ("target in negatives.json", "absent", 1),
        ("not listed", "unknown", 6),
    ]


def test_golden_targets_of_every_kind() -> None:
    path = GOLDEN / "foreign"
    assert formats.detect_format(path) == formats.detect_format(path / "labels.json") == "fiftyone"
    assert "‹unlisted" in label_error(fiftyone.read, path).fix
    unknown = fiftyone.read(path, UNKNOWN)
    assert list(unknown.rows.images) == ["u1", "u2", "u3", "u4", "u5"]
    assert unknown.table().dense().tolist() == [[0, 1], [1, 1], [0, 0], [1, 0], [0, 0]]
    assert unknown.rows.score[~np.isnan(unknown.rows.score)].tolist() == [0.5]
    # null is an image that nobody has labelled, an empty list one where nothing was found.
    absent = fiftyone.read(path, ABSENT)
    assert absent.table().dense().tolist() == [[-1, 1], [1, 1], [0, 0], [1, -1], [-1, -1]]
    assert any(note.startswith("1 images were labelled by nobody") for note in absent.audit.notes)


def test_names_without_a_list_of_classes(tmp_path: Path) -> None:
    path = labels(tmp_path, classes=None, labels={"x": "dog", "y": ["cat", "dog"]})
    assert fiftyone.read(path, ABSENT).table().dense().tolist() == [[1, -1], [1, 1]]


def test_present_wins_over_the_negatives(tmp_path: Path) -> None:
    labels(tmp_path, classes=["cat"], labels={"x": [0]})
    (tmp_path / "negatives.json").write_text('{"classes": ["cat"], "labels": {"x": [0]}}')
    result = fiftyone.read(tmp_path, Policy())
    assert result.table().dense().tolist() == [[1]]
    assert any("both present and absent" in note for note in result.audit.notes)


def test_faults(tmp_path: Path) -> None:
    for content, message, place in (
        ({"labels": {}}, "no labels", "labels"),
        ({"labels": [1]}, "not an object", "labels"),
        ({"classes": "cat", "labels": {"a": 0}}, "not a list", "classes"),
        ({"classes": [""], "labels": {"a": 0}}, "name is empty", "classes[0]"),
        ({"classes": ["cat"], "labels": {"a": [1]}}, "class number 1", "labels['a'][0]"),
        ({"classes": ["cat"], "labels": {"a": [True]}}, "true or false", "labels['a'][0]"),
        ({"classes": ["cat"], "labels": {"a": [{}]}}, "null or missing", "labels['a'][0].label"),
        ({"labels": {"a": [0.5]}}, "number 0.5", "labels['a'][0]"),
    ):
        error = label_error(fiftyone.read, labels(tmp_path, **content), UNKNOWN)
        assert message in error.message
        assert error.column == place


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    table = Table.from_dense([[1], [1]], ["a.jpg", "a.png"], ["x"])
    with pytest.raises(UserError, match=r"'a\.jpg' and 'a\.png'"):
        formats.write(table, tmp_path / "out", format="fiftyone")
    with pytest.raises(UserError, match="name a folder"):
        formats.write(table, tmp_path / "out.json", format="fiftyone")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        {"classes": ["dog", "cat", "dog"], "labels": {"a": [2]}},
        {"classes": ["dog"], "labels": {"a": [0], "b": []}, "file_names": {"a": "x.jpg", "b": "x.jpg"}},
    ],
)
def test_what_is_listed_twice_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(LabelError, match="twice"):
        formats.read(labels(tmp_path, **content), Policy(unlisted="unknown"))
