"""Predictions as a stream, and in Parquet files that an interrupted command continues."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from run_examples import go

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.images import stored_features
from halflabel.images.sources import open_images
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs import predict
from halflabel.runs.model import Model
from halflabel.runs.predict import FileList, list_files, predict_to_parquet, stream_predictions
from halflabel.system.reporter import Reporter


@pytest.fixture
def predictor(first_run: Path) -> Model:
    return Model.open(first_run)


@pytest.fixture
def files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileList:
    """90 images, the 41st of which cannot be read, in parts of one batch."""
    monkeypatch.setattr(predict, "PART", 32)
    paths = (list_files([folder]).paths * 4)[:89]
    (tmp_path / "bad.png").write_bytes(b"not an image")
    return FileList([*paths[:40], tmp_path / "bad.png", *paths[40:]])


def test_predictions_come_while_images_are_read(predictor: Model, files: FileList) -> None:
    read: list[int] = []
    stream = stream_predictions(predictor, files, reporter=Reporter(lambda done, total: read.append(done)))
    first = list(islice(stream, 32))
    assert max(read) == 32
    rest = list(stream)
    assert [item.image for item in [*first, *rest]] == [*map(str, files.paths)]
    assert [number for number, item in enumerate([*first, *rest]) if item.error] == [40]


@pytest.mark.parametrize("all_scores", [False, True])
def test_an_interrupted_command_is_continued(
    predictor: Model, files: FileList, tmp_path: Path, all_scores: bool
) -> None:
    uninterrupted, continued = tmp_path / "uninterrupted", tmp_path / "continued"
    assert predict_to_parquet(predictor, files, uninterrupted, all_scores=all_scores) == (90, 1)
    progress: list[int] = []

    def stop(done: int, total: int) -> None:
        progress.append(done)
        if len(progress) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_parquet(predictor, files, continued, all_scores=all_scores, reporter=Reporter(stop))
    assert [path.name for path in sorted(continued.glob("part-*"))] == ["part-00000.parquet", "part-00001.parquet"]
    (continued / "part-00001.parquet").write_bytes(b"damaged")
    assert predict_to_parquet(predictor, files, continued, all_scores=all_scores, reporter=Reporter(stop)) == (90, 1)
    assert progress[3:] == [32, 58]  # of the images after the first part
    for path in uninterrupted.iterdir():
        assert (continued / path.name).read_bytes() == path.read_bytes()
    rows = pq.read_table(uninterrupted).to_pylist()
    expected = predictor.predict(files.paths, all_scores=all_scores)
    if all_scores:
        classes = json.loads(pq.read_schema(uninterrupted / "part-00000.parquet").metadata[b"classes"])
        assert [row["image"] for row in rows] == [item.image for item in expected]
        for row, item in zip(rows, expected, strict=False):
            probabilities = {label["class"]: pytest.approx(label["probability"]) for label in item.labels}
            assert dict(zip(classes, row["probabilities"] or [], strict=False)) == probabilities
            assert row["error"] == item.error
        return
    flat = [
        (item.image, label["class"], pytest.approx(label["probability"]), label["present"], "")
        for item in expected
        for label in item.labels
    ]
    bad = [(files.paths[40], None, None, None, expected[40].error)]
    assert [tuple(row.values()) for row in rows if not row["error"]] == flat
    assert [tuple(row.values()) for row in rows if row["error"]] == [(str(name), *rest) for name, *rest in bad]


def test_stored_features_are_scored_in_blocks_the_last_row_of_an_image_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6)).astype(np.float32)
    names = [f"{number:02}" for number in range(40)]
    (tmp_path / "features").mkdir()
    files = {"0": [*range(25), 3], "1": [*range(25, 40), 7, 30]}
    for file, rows in files.items():
        values = [None if row == 12 else (vectors[row] + (place > row)).tolist() for place, row in enumerate(rows)]
        table = pa.table({"image": [names[row] for row in rows], "features": pa.array(values, pa.list_(pa.float32()))})
        pq.write_table(table, tmp_path / "features" / f"{file}.parquet", row_group_size=7)
    table = Table.from_dense(np.where(vectors[:, :3] > 0, 1, -1), names)
    config = Config(backbone="features-6", fit="linear", max_bad=0.1)
    go(tmp_path / "run", tmp_path / "features", config, table)
    predictor, files = Model.open(tmp_path / "run"), list_files([tmp_path / "features"])
    source = open_images(Names(names), tmp_path / "features", predictor.views, max_bad=1.0)
    expected = dict(zip(names, predictor.scores(source), strict=True))
    monkeypatch.setattr(stored_features, "_ROWS", 5)
    for part in (1000, 11):
        monkeypatch.setattr(predict, "PART", part)
        assert predict_to_parquet(predictor, files, tmp_path / str(part), all_scores=True) == (40, 1)
        rows = pq.read_table(tmp_path / str(part)).to_pylist()
        assert sorted(row["image"] for row in rows) == names
        for row in rows:
            if row["image"] == "12":
                assert row["probabilities"] is None
                assert row["error"]
            else:
                torch.testing.assert_close(torch.tensor(row["probabilities"]), expected[row["image"]])
    (tmp_path / "11" / "part-00002.parquet").unlink()
    assert predict_to_parquet(predictor, files, tmp_path / "11", all_scores=True) == (40, 1)
    assert pq.read_table(tmp_path / "11").to_pylist() == rows


def test_other_files_are_never_replaced(predictor: Model, files: FileList, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    predict_to_parquet(predictor, files, folder)
    with pytest.raises(UserError, match="of another model or"):
        predict_to_parquet(predictor.deciding(threshold=0.9), files, folder)
    assert predict_to_parquet(predictor.deciding(threshold=0.9), files, folder, force=True) == (90, 1)
    with pytest.raises(UserError, match="holds other files"):
        predict_to_parquet(predictor, files, tmp_path, force=True)


def test_predictions_of_photos_that_changed_are_not_continued(
    predictor: Model, files: FileList, tmp_path: Path
) -> None:
    photos = [tmp_path / f"{number}.png" for number in range(2)]
    for photo, path in zip(photos, files.paths, strict=False):
        photo.write_bytes(Path(path).read_bytes())
    predict_to_parquet(predictor, list_files(photos), tmp_path / "out")
    predict_to_parquet(predictor, list_files(photos), tmp_path / "out")
    photos[0].write_bytes(Path(files.paths[2]).read_bytes())
    with pytest.raises(UserError, match="other images"):
        predict_to_parquet(predictor, list_files(photos), tmp_path / "out")
