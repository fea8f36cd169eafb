"""The run folder: creating, overwriting, reading and writing its files."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.system.files import write_csv, write_json

TABLE = Table.from_dense(
    [[1, 0, -1], [0, 0, 0], [-1, 1, 0]], images=["b/1.jpg", "unlabelled", "ä"], classes=["z", "never used", "a,b"]
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_creating_writes_nothing_until_the_start(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()
    run.start(Labels.of(TABLE), {"method": "an", "options": {}})
    assert names(run.folder) == {"config.yaml", "labels.parquet", "checksums.json"}
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
    write_json(run / "calibration.json", {"slope": 3})
    write_json(run / "thresholds.json", {})
    write_json(run / "metrics.json", {})
    run.write_text("model_card.md", "old")
    write_csv(run / "per_label.csv", ["a"], [[1]])
    run.write_scores(held_out_scores())
    (run.checkpoints / "head").mkdir(parents=True)
    (run.checkpoints / "head" / "old").write_text("old")
    run.weights.write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("the user's own")
    run.start(Labels.of(TABLE), {"new": 1})
    assert names(tmp_path) == {"config.yaml", "labels.parquet", "checksums.json", "notes.txt"}
    assert run.read_config() == {"new": 1}


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\x00", b"- 1", b""], ids=["broken", "no text", "list", "empty"])
def test_a_damaged_config_is_a_user_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.yaml"):
        RunFolder.open(tmp_path).read_config()


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


def test_labels_without_sources_are_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_labels(Labels.of(TABLE))
    pq.write_table(pq.read_table(run.labels).select(["image", "class", "value"]), run.labels)
    with pytest.raises(UserError, match=r"checksum differs.*remove its line from checksums\.json"):
        run.read_labels()
    (tmp_path / "checksums.json").unlink()
    assert run.read_labels() == TABLE
    assert run.read_rows().sources == ("",)


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


def held_out_scores() -> Scores:
    logits = np.array([[-1.0, 2.0], [math.nan, math.nan]], np.float32)
    return Scores(Names(["y", "z"]), Names(["cat", "dög"]), logits, np.array([0, 1], np.int8), "held-out")


def test_scores_are_a_table_with_names(tmp_path: Path) -> None:
    run, scores = RunFolder(tmp_path), held_out_scores()
    assert run.read_scores() is None
    assert run.score_kind is None
    run.write_scores(scores)
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table.column("image").to_pylist() == ["y", "z"]
    np.testing.assert_array_equal(np.array(table.column("logits").to_pylist(), np.float32), scores.logits)
    assert json.loads(table.schema.metadata[b"classes"]) == ["cat", "dög"]
    again = run.read_scores()
    assert again is not None
    assert (again.images, again.classes, again.kind) == (scores.images, scores.classes, "held-out")
    assert run.score_kind == "held-out"
    np.testing.assert_array_equal(again.logits, scores.logits)
    assert again.fold.tolist() == [0, 1]


def test_scores_of_held_out_images_say_which_images_were_trained_on(tmp_path: Path) -> None:
    run, scores = RunFolder(tmp_path), held_out_scores()
    run.write_labels(Labels.of(Table.from_dense([[1, -1]] * 3, ["x", "y", "z"], ["cat", "dög"])))
    assert run.split_of(Names(["x", "y", "z"])).tolist() == [0, 0, 0]
    run.write_scores(scores)
    assert run.split_of(Names(["z", "new", "x", "y"])).tolist() == [1, -1, 0, 1]
    run.write_scores(dataclasses.replace(scores, kind="out-of-fold"))
    assert run.split_of(Names(["x", "y", "z"])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "neither"},
        {"classes": '["cat", "dog", "cow"]'},
        {"classes": "cat"},
        {"image": ["x", "x"]},
        {"fold": ["a", "b"]},
        {"logits": [[0.0, 1.0], None]},
    ],
    ids=str,
)
def test_damaged_scores_are_a_user_error(tmp_path: Path, change: dict[str, Any]) -> None:
    run = RunFolder(tmp_path)
    content = {"image": ["x", "y"], "logits": [[0.0, 1.0]] * 2, "fold": [0, 1]}
    content |= {"kind": "held-out", "classes": '["cat", "dog"]', **change}
    metadata = {name: content.pop(name) for name in ("kind", "classes")}
    pq.write_table(pa.table(content).replace_schema_metadata(metadata), run.stored_scores)
    with pytest.raises(UserError, match=r"scores\.parquet cannot be read"):
        run.read_scores()
    run.stored_scores.write_bytes(b"garbage")
    for read in (run.read_scores, lambda: run.score_kind):
        with pytest.raises(UserError, match=r"scores\.parquet cannot be read"):
            read()


def test_json_files_must_hold_objects(tmp_path: Path) -> None:
    write_json(tmp_path / "env.json", [1])
    with pytest.raises(UserError, match="is damaged"):
        RunFolder(tmp_path).read_object("env.json")


def test_paths_that_are_not_utf8_are_written_unchanged(tmp_path: Path) -> None:
    run, odd = RunFolder(tmp_path), b"ph\xff".decode(errors="surrogateescape")
    run.write_text("note.txt", f"echo {odd}\n")
    assert (tmp_path / "note.txt").read_bytes() == b"echo ph\xff\n"
    run.write_config({"images": odd})
    assert run.read_config() == {"images": odd}
