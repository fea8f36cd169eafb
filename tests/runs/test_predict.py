"""Predictions as a stream, and in Parquet files that an interrupted command continues."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from halflabel.errors import UserError
from halflabel.runs import predict
from halflabel.runs.predict import FileList, list_files, predict_files, predict_to_parquet, stream_predictions
from halflabel.runs.predictor import Predictor, open_model
from halflabel.system.reporter import Reporter


@pytest.fixture
def predictor(first_run: Path) -> Predictor:
    return open_model(first_run)


@pytest.fixture
def files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileList:
    """90 images, the 41st of which cannot be read, in parts of one batch."""
    monkeypatch.setattr(predict, "PART", 32)
    paths = (list_files([folder]).paths * 4)[:89]
    (tmp_path / "bad.png").write_bytes(b"not an image")
    return FileList([*paths[:40], tmp_path / "bad.png", *paths[40:]], {"elsewhere.png": "not packed"})


def test_predictions_come_while_images_are_read(predictor: Predictor, files: FileList) -> None:
    read: list[int] = []
    stream = stream_predictions(predictor, files, reporter=Reporter(lambda done, total: read.append(done)))
    first = list(islice(stream, 32))
    assert max(read) == 32
    rest = list(stream)
    assert [item.image for item in [*first, *rest]] == [*map(str, files.paths), "elsewhere.png"]
    assert [number for number, item in enumerate([*first, *rest]) if item.error] == [40, 90]


def test_an_interrupted_command_is_continued(predictor: Predictor, files: FileList, tmp_path: Path) -> None:
    uninterrupted, continued = tmp_path / "uninterrupted", tmp_path / "continued"
    assert predict_to_parquet(predictor, files, uninterrupted, all_scores=True) == (91, 2)
    progress: list[int] = []

    def stop(done: int, total: int) -> None:
        progress.append(done)
        if len(progress) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_parquet(predictor, files, continued, all_scores=True, reporter=Reporter(stop))
    assert [path.name for path in sorted(continued.glob("part-*"))] == ["part-00000.parquet", "part-00001.parquet"]
    (continued / "part-00001.parquet").write_bytes(b"damaged")
    assert predict_to_parquet(predictor, files, continued, all_scores=True, reporter=Reporter(stop)) == (91, 2)
    assert progress[3:] == [32, 58]  # of the images after the first part
    for path in uninterrupted.iterdir():
        assert (continued / path.name).read_bytes() == path.read_bytes()
    table = pq.read_table(uninterrupted).to_pylist()
    flat = [
        (item.image, label["class"], pytest.approx(label["probability"]), label["present"])
        for item in [*predict_files(predictor, files.paths, all_scores=True)]
        for label in item.labels
    ]
    assert [tuple(row.values())[:4] for row in table if not row["error"]] == flat


def test_other_files_are_never_replaced(predictor: Predictor, files: FileList, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    predict_to_parquet(predictor, files, folder)
    with pytest.raises(UserError, match="of another model or"):
        predict_to_parquet(predictor.deciding(threshold=0.9), files, folder)
    assert predict_to_parquet(predictor.deciding(threshold=0.9), files, folder, force=True) == (91, 2)
    with pytest.raises(UserError, match="holds other files"):
        predict_to_parquet(predictor, files, tmp_path, force=True)
