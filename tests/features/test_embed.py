"""Features in Parquet files: those of `embed` give the run that the images give; those of others train a head."""

from __future__ import annotations

import filecmp
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import done, refused
from run_examples import TABLE, N, write_folder

from halflabel.errors import UserError
from halflabel.features import embed
from halflabel.features.backbones import build_backbone
from halflabel.fitting.config import Config
from halflabel.images.sources import Images
from halflabel.images.stored_features import StoredFeatures, holds_features, stored_names, unlisted_images
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.runs.folder import RunFolder
from halflabel.system.reporter import Reporter

TINY = ["--backbone", "tiny", "--size", "32", "--workers", "0", "--set", "device=cpu"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_folder(tmp_path / "photos", bad=(5,))
    formats.write(TABLE, tmp_path / "labels.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_features_take_the_place_of_images(place: Path) -> None:
    assert f"{N} images, 1 of them unreadable" in done("embed", "photos", "features", *TINY)
    train = ["--method", "bce", "--max-bad", "0.1", "--set", "device=cpu"]
    done("train", "labels.csv", "photos", "--out", "by/photos", *train, *TINY)
    done("train", "labels.csv", "features", "--out", "by/stored", *train)  # which know backbone and size
    by_photos, by_features = (RunFolder.open(f"by/{name}") for name in ("photos", "stored"))
    assert by_features.weights.read_bytes() == by_photos.weights.read_bytes()
    assert "05.png" in by_features.bad_images.read_text()
    evaluation = [done("evaluate", "by/stored", "labels.csv", images) for images in ("photos", "features")]
    assert evaluation[0] == evaluation[1].replace("features", "photos")
    by_file = [done("predict", "by/stored", images, "--format", "csv", "--all") for images in ("photos", "features")]
    assert by_file[0].replace("photos/", "").split("05.png")[0] == by_file[1].split("05.png")[0]
    done("fill", "by/stored", "features", "--precision", "0.6", "--out", "filled.csv")
    done("predict", "by/stored", "features", "--all", "--out", "scores")
    assert pq.read_table("scores").num_rows == N
    assert "needs images" in refused("train", "labels.csv", "features", "--tune", "all", "--out", "all", *train)
    done("train", "labels.csv", "photos", "--out", "by/others", *train, *TINY[:2], "--size", "48")
    assert "size 32" in refused("evaluate", "by/others", "labels.csv", "features")


def test_features_of_another_program_train_a_head(place: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(N, 7))
    vectors[:, :3] += 3 * TABLE.dense()
    names = [f"{number:02d}.jpg" for number in reversed(range(N))]  # the ending and the order may differ
    table = replace(TABLE, images=Names(f"{number:02d}" for number in range(N)))
    formats.write(table, place / "labels.csv")
    halves = np.array_split(np.arange(N), 2)
    for number, rows in enumerate(halves):
        (place / "theirs" / f"day={number}").mkdir(parents=True)
        lists = pa.array([vectors[N - 1 - row].tolist() for row in rows], pa.list_(pa.float64()))
        columns = {"number": pa.array(rows), "path": [names[row] for row in rows], "embedding": lists}
        pq.write_table(pa.table(columns), place / "theirs" / f"day={number}" / "0.parquet")
    done("train", "labels.csv", "theirs", "--method", "bce", "--out", "run", "--set", "device=cpu")
    assert Config.from_dict(RunFolder.open("run").read_config()).backbone == "features-7"
    assert float(done("evaluate", "run", "labels.csv", "theirs").partition("mAP")[2].split()[0]) > 90
    assert "red" in done("predict", "run", "theirs")
    assert "takes features" in refused("predict", "run", "photos/00.png")
    done("train", "labels.csv", "photos", "--out", "by/photos", "--method", "bce", "--max-bad", "0.1", *TINY)
    assert "add --backbone features-7" in refused("evaluate", "by/photos", "labels.csv", "theirs")
    pq.write_table(pa.table({"path": ["x"], "embedding": [[1.0, 2.0]]}), place / "theirs" / "day=0" / "1.parquet")
    done("evaluate", "run", "labels.csv", "theirs")  # of an image that nobody asked for
    pq.write_table(pa.table({"path": ["03"], "embedding": [[1.0, 2.0]]}), place / "theirs" / "day=0" / "1.parquet")
    assert "different lengths" in refused("evaluate", "run", "labels.csv", "theirs")


def test_interrupted_embedding_is_continued(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "PART", 16)
    backbone = build_backbone("tiny", size=32)
    photos = sorted((place / "photos").iterdir())

    def write(folder: str, progress: object = None) -> tuple[int, int]:
        views = Config(size=32).views(backbone)
        source = Images(photos, Names(path.name for path in photos), views, max_bad=1.0)
        reporter = Reporter() if progress is None else Reporter(progress)  # type: ignore[arg-type]
        return embed.write_features(backbone, source, Path(folder), {"size": 32}, reporter=reporter)

    assert write("whole") == (N, 1)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("stopped", stop)
    assert write("stopped", stop) == (N, 1)
    assert seen == [16, N]
    (Path("stopped") / "part-00001.parquet").unlink()
    assert write("stopped") == (N, 1)
    files = sorted(os.listdir("whole"))
    assert sorted(os.listdir("stopped")) == files
    assert filecmp.cmpfiles("whole", "stopped", files, shallow=False)[0] == files
    photos[0].write_bytes(photos[1].read_bytes())  # another photo of the same name
    with pytest.raises(UserError, match="other images"):
        write("whole")
    table = pq.read_table("whole").to_pydict()
    assert table["image"] == [path.name for path in photos]
    assert table["features"][5] is None
    assert table["error"][5]
    assert len(table["features"][4]) == backbone.channels


def test_copies_and_missing_images(place: Path) -> None:
    folder = place / "features"
    folder.mkdir()
    assert not holds_features(folder)
    vectors = torch.rand(5, 3)
    vectors[3] = vectors[1]
    lists = [*vectors.tolist(), None, [np.nan, 0, 0]]
    pq.write_table(pa.table({"image": list("abcdefg"), "features": lists}), folder / "0.parquet")
    assert holds_features(folder)
    source = StoredFeatures(Names("gfedcbah"), folder, {}, max_bad=1.0)
    assert source.features.bad.tolist() == [0, 1, 7]
    assert source.group_copies().tolist() == [0, 1, 2, 3, 4, 3, 6, 7]
    torch.testing.assert_close(source.features.values[2:7], vectors.flip(0))
    with pytest.raises(UserError, match="none of the 2 images"):
        StoredFeatures(Names("xy"), folder, {})


def test_vectors_that_are_not_finite_are_called_so(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0], [float("nan"), 0.0]]
    pq.write_table(pa.table({"image": ["a", "b"], "features": vectors}), tmp_path / "part-0.parquet")
    with pytest.raises(UserError, match=r"1 of 2 images .* have no finite features"):
        StoredFeatures(Names(["a", "b"]), tmp_path, {})


def test_images_that_no_label_names_are_found_among_features(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0]] * 3
    pq.write_table(pa.table({"image": ["a.jpg", "b.jpg", "c.jpg"], "features": vectors}), tmp_path / "part-0.parquet")
    assert unlisted_images(Names(["b", "x.jpg", "c.jpg"]), tmp_path) == ["a.jpg"]


def test_images_whose_names_are_not_utf8_are_named_and_left_out(place: Path) -> None:
    os.rename("photos/03.png", b"photos/caf\xe9.png")
    assert "1 images left out" in done("embed", "photos", "features", *TINY)
    assert len(stored_names(Path("features"))) == N - 1
