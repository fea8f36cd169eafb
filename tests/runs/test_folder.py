"""The run folder: creating, overwriting, reading and writing its files."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder

TABLE = Table.from_dense(
    [[1, 0, -1], [0, 0, 0], [-1, 1, 0]], images=["b/1.jpg", "unlabelled", "ä"], classes=["z", "never used", "a,b"]
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_creating_writes_nothing_until_the_start(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()
    run.start(Labels.of(TABLE), {"method": "an", "options": {}})
    assert names(run.folder) == {"config.yaml", "labels.parquet", "data.hash", "checksums.json"}
    assert RunFolder.open(run.folder).read_config() == {"method": "an", "options": {}}


def test_a_folder_that_holds_a_run_is_refused_unless_forced(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    run.start(Labels.of(TABLE), {})
    with pytest.raises(UserError, match=r"already holds a run.*resume.*force"):
        RunFolder.create(tmp_path)
    assert RunFolder.create(tmp_path, force=True).folder == tmp_path


def test_a_new_start_leaves_nothing_of_the_old_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.start(Labels.of(TABLE), {"old": 1})
    run.write_log([{"epoch": 1}])
    run.write_json("calibration.json", {"slope": 3})
    run.write_json("thresholds.json", {})
    run.write_json("metrics.json", {})
    run.write_text("model_card.md", "old")
    run.write_csv("per_label.csv", ["a"], [[1]])
    run.write_predictions(["x"], ["c"], np.zeros((1, 1), np.float32))
    (run.checkpoints / "head").mkdir(parents=True)
    (run.checkpoints / "head" / "old").write_text("old")
    run.weights.write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("the user's own")
    run.start(Labels.of(TABLE), {"new": 1})
    assert names(tmp_path) == {"config.yaml", "labels.parquet", "data.hash", "checksums.json", "notes.txt"}
    assert run.read_config() == {"new": 1}


def test_a_file_is_refused_as_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "file")


def test_opening_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"- 1", b""], ids=["broken", "no text", "list", "empty"])
def test_a_damaged_config_is_a_user_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.yaml"):
        RunFolder.open(tmp_path).read_config()


def test_labels_keep_unlabelled_images_and_unused_classes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_labels(Labels.of(TABLE))
    assert run.read_labels() == TABLE


def test_labels_keep_their_source_and_score(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    at = np.array([[2, 0], [0, 2], [0, 0], [0, 2], [0, 0]])
    value, source = np.array([1, 1, -1, -1, 1]), np.array([1, 1, 0, 1, 0])
    score = np.array([0.75, np.nan, np.nan, 0.5, np.nan])
    names = ("person", "model:bce:runs/1")
    rows = Labels.build(TABLE.images, TABLE.classes, at[:, 0], at[:, 1], value, source, score, names)
    run.write_labels(rows)
    stored = run.read_rows()
    entries = [
        (stored.images[i], stored.classes[c], int(v), stored.sources[s], None if math.isnan(p) else float(p))
        for i, c, v, s, p in zip(stored.image, stored.column, stored.value, stored.source, stored.score, strict=True)
    ]
    assert entries == [
        ("b/1.jpg", "z", 1, "person", None),
        ("b/1.jpg", "a,b", -1, "model:bce:runs/1", 0.5),
        ("ä", "z", 1, "model:bce:runs/1", 0.75),
    ]
    assert run.read_labels() == rows.training
    assert (tmp_path / "data.hash").read_text() == rows.training.digest() + "\n"


def test_labels_without_sources_are_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_labels(Labels.of(TABLE))
    pq.write_table(pq.read_table(run.labels).select(["image", "class", "value"]), run.labels)
    with pytest.raises(UserError, match=r"checksum differs.*remove its line from checksums\.json"):
        run.read_labels()
    (tmp_path / "checksums.json").unlink()
    assert run.read_labels() == TABLE
    assert run.read_rows().sources == ("",)


def test_changed_labels_are_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_labels(Labels.of(TABLE))
    digest = (tmp_path / "data.hash").read_text()
    changed = Table.from_dense([[1, 1, -1], [0, 0, 0], [-1, 1, 0]], images=TABLE.images, classes=TABLE.classes)
    run.write_labels(Labels.of(changed))
    run.write_text("data.hash", digest)
    for read in (run.read_labels, run.read_rows):
        with pytest.raises(UserError, match="differs from the labels"):
            read()


def test_the_log_reads_back_and_its_csv_has_every_column(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.read_log() == []
    lines = [{"epoch": 1, "loss": 0.5, "mAP": math.nan}, {"epoch": 2, "loss": np.float32(0.25), "pseudo": 3.0}]
    run.write_log(lines)
    assert run.read_log() == [{"epoch": 1, "loss": 0.5, "mAP": None}, {"epoch": 2, "loss": 0.25, "pseudo": 3.0}]
    with open(tmp_path / "log.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"epoch": "1", "loss": "0.5", "mAP": "", "pseudo": ""},
            {"epoch": "2", "loss": "0.25", "mAP": "", "pseudo": "3.0"},
        ]


def test_nan_is_null_in_json(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_json("metrics.json", {"mAP": math.nan, "n": np.int64(3), "list": np.array([1.0, math.inf])})
    text = (tmp_path / "metrics.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"mAP": None, "n": 3, "list": [1.0, None]}
    assert run.read_json("metrics.json")["n"] == 3
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(UserError, match="missing or damaged"):
        run.read_json("metrics.json")
    with pytest.raises(UserError, match="missing or damaged"):
        run.read_json("none.json")


def test_predictions_and_split_are_tables_with_names(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    scores = np.array([[0.1, 0.9], [math.nan, math.nan]], np.float32)
    run.write_predictions(["x", "y"], ["cat", "dög"], scores)
    table = pq.read_table(tmp_path / "predictions.parquet")
    assert table.column("image").to_pylist() == ["x", "y"]
    np.testing.assert_array_equal(np.array(table.column("scores").to_pylist(), np.float32), scores)
    assert json.loads(table.schema.metadata[b"classes"]) == ["cat", "dög"]
    run.write_split(["x", "y", "z"], np.array([0, 1, 0]))
    split = pq.read_table(tmp_path / "split.parquet").to_pydict()
    assert split == {"image": ["x", "y", "z"], "part": ["train", "validation", "train"]}
    assert run.split_of(Names(["x", "y", "z"])).tolist() == [0, 1, 0]
    assert run.split_of(Names(["z", "new", "y"])).tolist() == [0, -1, 1]
    images, classes, table = run.read_predictions()
    assert (list(images), classes) == (["x", "y"], ["cat", "dög"])
    np.testing.assert_array_equal(table, scores)


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        {"image": ["x"]},
        {"image": ["x", "x"], "part": ["train", "train"]},
        {"image": ["x"], "part": ["neither"]},
        {"image": [None], "part": ["train"]},
        {"image": [["x"]], "part": [{"a": 1}]},
    ],
    ids=["no table", "no part", "twice", "neither", "no name", "other types"],
)
def test_a_damaged_split_is_a_user_error(tmp_path: Path, content: Any) -> None:
    run = RunFolder(tmp_path)
    if isinstance(content, bytes):
        run.split.write_bytes(content)
    else:
        pq.write_table(pa.table(content), run.split)
    with pytest.raises(UserError, match=r"split\.parquet cannot be read"):
        run.split_of(Names(["x"]))


def test_an_empty_split_has_no_images(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_split(pa.array([], pa.string()), np.zeros(0, np.int8))
    assert run.split_of(Names([])).tolist() == []
    assert run.split_of(Names(["x"])).tolist() == [-1]


@pytest.mark.parametrize(
    ("file", "method"), [("metrics", "read_metrics"), ("env", "read_env"), ("made", "read_completion")]
)
def test_json_files_must_hold_objects(tmp_path: Path, file: str, method: str) -> None:
    run = RunFolder(tmp_path)
    assert getattr(run, method)() == {}
    run.write_json(f"{file}.json", [1])
    with pytest.raises(UserError, match="is damaged"):
        getattr(run, method)()


def test_paths_that_are_not_utf8_are_written_unchanged(tmp_path: Path) -> None:
    run, odd = RunFolder(tmp_path), b"ph\xff".decode(errors="surrogateescape")
    run.write_text("repro.sh", f"echo {odd}\n")
    assert (tmp_path / "repro.sh").read_bytes() == b"echo ph\xff\n"
    run.write_config({"images": odd})
    assert run.read_config() == {"images": odd}


def test_the_completion_time_is_written_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    before = datetime.now(UTC).replace(microsecond=0)
    run.write_completion()
    content = run.read_json("made.json")
    assert content["halflabel"] == __version__
    assert content["time"].endswith("Z")
    assert before <= datetime.fromisoformat(content["time"]) <= datetime.now(UTC)
    run.write_json("made.json", {"time": "2031-02-03T04:05:06Z"})
    run.write_completion()  # a finished run that is resumed
    assert run.read_json("made.json") == {"time": "2031-02-03T04:05:06Z"}


def test_the_environment_names_versions(tmp_path: Path) -> None:
    import torch

    run = RunFolder(tmp_path)
    run.write_env("cpu")
    content = run.read_json("env.json")
    assert content["halflabel"] == __version__
    assert content["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert content["device"] == "cpu"
