"""A pack in the place of a folder: every command takes it, and what nothing was lost of gives the same numbers."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import BATCHES, TINY, flat, refused, run
from command_line import done as shown
from digit_scenes import write_folder
from PIL import Image

from halflabel.images.pack.read import PackSettings, open_pack
from halflabel.images.pack.write import pack_images
from halflabel.runs.folder import RunFolder
from halflabel.system.reporter import Reporter


def done(*words: str | Path) -> str:
    return flat(shown(*words))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as a folder of JPEGs, and as a pack that has lost nothing."""
    folder = tmp_path_factory.mktemp("digits")
    table = write_folder(folder, 48, size=60)  # too small to be decoded at half its size
    for path in (folder / "images").iterdir():
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    table.write_text(table.read_text().replace(".png,", ".jpg,"))
    done("pack", folder / "images", folder / "pack", "--size", "64", "--workers", "0")
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run on the folder, one on the pack, all else the same."""
    out = tmp_path_factory.mktemp("runs")
    done("drop", data / "train.csv", data / "some.csv", "partial:share=0.6")
    for images in ("images", "pack"):
        done("train", data / "some.csv", data / images, "--out", out / images / "run", *BATCHES, "3", *TINY)
    return out


def weights(folder: Path) -> bytes:
    return RunFolder.open(folder).weights.read_bytes()


def test_pack_prints_what_it_wrote_and_the_next_command(data: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(
        "image,cat\n" + "".join(f"{p.stem},1\n" for p in sorted((data / "images").iterdir())[:5]) + "gone,1\n"
    )
    words = ("pack", data / "images", tmp_path / "p", "--labels", tmp_path / "labels.csv", "--workers", "0")
    text = done(*words)
    assert "5 images in" in text
    assert "kB per image" in text
    assert "1 labelled image has no file" in text
    assert f"halflabel train {tmp_path / 'labels.csv'} {tmp_path / 'p'}" in text
    assert len(open_pack(tmp_path / "p")) == 5


def test_faults_of_packing(data: Path, tmp_path: Path) -> None:
    assert "is not a folder" in refused("pack", tmp_path / "none", tmp_path / "p")
    assert "add --force" in refused("pack", data / "images", data / "pack")
    assert "is a pack already" in refused("pack", data / "pack", tmp_path / "p")
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(b"no photo")
    assert "raise --max-bad" in refused("pack", folder, tmp_path / "p", "--workers", "0")
    assert "none of the images" in refused("pack", folder, tmp_path / "p", "--workers", "0", "--max-bad", "1")
    assert "not finished" in refused("train", data / "train.csv", tmp_path / "p", "--out", tmp_path / "run", *TINY)


def test_training_on_a_lossless_pack_is_training_on_the_folder(runs: Path) -> None:
    actual = [json.loads((runs / images / "run" / "metrics.json").read_text()) for images in ("images", "pack")]
    assert actual[0] == actual[1]
    assert weights(runs / "images" / "run") == weights(runs / "pack" / "run")


def test_a_whole_network_is_tuned_on_a_pack(data: Path, tmp_path: Path) -> None:
    how = ["--tune", "all", "--epochs", "1", "--method", "bce", *TINY]
    text = done("train", data / "train.csv", data / "pack", *how, "--out", tmp_path / "a")
    assert "a prediction takes" in text
    assert "use --size 64" in refused(
        "train", data / "train.csv", data / "pack", "--out", tmp_path / "d", *TINY[:2], "--size", "96", *TINY[4:]
    )


def scores_of(text: str) -> dict[tuple[str, str], str]:
    return {(Path(row["image"]).name, row["class"]): row["probability"] for row in csv.DictReader(io.StringIO(text))}


def test_evaluate_and_predict_take_a_pack(data: Path, runs: Path, tmp_path: Path) -> None:
    for images in ("images", "pack"):
        done(
            "evaluate", runs / "images" / "run", data / "train.csv", data / images, "--out", tmp_path / f"{images}.json"
        )
    assert (tmp_path / "images.json").read_text() == (tmp_path / "pack.json").read_text()
    messages = [
        scores_of(run("predict", runs / "pack" / "run", data / images, "--format", "csv", "--all").stdout)
        for images in ("images", "pack")
    ]
    assert messages[0] == messages[1]
    assert len(messages[0]) == 48 * 10
    one = run("predict", runs / "pack" / "run", next(iter(data.glob("pack"))) / "nothing.png", "--format", "csv")
    assert one.exit_code == 1
    assert "no such file" in one.stdout


def test_fill_next_report_and_compare_take_a_pack(data: Path, runs: Path, tmp_path: Path) -> None:
    for images in ("images", "pack"):
        done("fill", runs / images / "run", data / images, "--out", tmp_path / f"{images}.csv")
        done("next", runs / images / "run", data / images, "--count", "9", "--out", tmp_path / f"{images}-next.csv")
        done("report", runs / images / "run", "--images", data / images, "--out", tmp_path / f"{images}.html")
    for end in (".csv", "-next.csv"):
        assert (tmp_path / f"images{end}").read_bytes() == (tmp_path / f"pack{end}").read_bytes()
    assert (tmp_path / "pack.html").read_text().count("data:image/jpeg") > 3
    # The run was trained on the folder: its images are now read from the pack.
    done("fill", runs / "images" / "run", data / "pack", "--out", tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "pack.csv").read_bytes()
    done("import", data / "train.csv", tmp_path / "long.csv", "--images", data / "pack")
    words = ["compare", data / "train.csv", data / "pack", "--methods", "bce", "--seeds", "1", "--set", "fit=batches"]
    assert "bce" in done(*words, "--set", "epochs=1", "--out", tmp_path / "compared", *TINY)


def test_scores_are_cached_until_the_pack_changes(data: Path, runs: Path, tmp_path: Path) -> None:
    from halflabel.runs.scores import scored_images

    out = tmp_path / "p"
    done("pack", data / "images", out, "--size", "48", "--workers", "0")
    worked: list[bool] = []

    def score() -> None:
        worked.append(False)

        def bar(done: int, total: int) -> None:
            worked[-1] = True

        scored = scored_images(RunFolder.open(runs / "images" / "run"), out, Reporter(bar))
        assert scored.paths[0] is not None

    score()
    score()
    photo = next(iter(sorted((data / "images").iterdir())))
    other = tmp_path / "images"
    other.mkdir()
    for path in (data / "images").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    Image.new("RGB", (64, 64), "red").save(other / photo.name)
    done("pack", other, out, "--size", "48", "--workers", "0", "--force")
    score()
    assert worked == [True, False, True]


def test_killed_packing_is_resumed(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    photo = np.random.default_rng(0).integers(0, 256, (200, 250, 3), dtype=np.uint8)
    for number in range(60):
        Image.fromarray(np.roll(photo, number, 0)).save(folder / f"{number:02d}.jpg")
    settings = PackSettings(size=150)

    def pack(out: Path) -> None:
        pack_images(folder, out, settings, shard_bytes=30_000, workers=0)

    # A process of its own, to be killed; forked, for the libraries take seconds to load.
    process = multiprocessing.get_context("fork").Process(target=pack, args=(tmp_path / "p",))
    process.start()
    until = time.monotonic() + 60
    while len(list((tmp_path / "p").glob("*.tar"))) < 3 and time.monotonic() < until and process.is_alive():
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not json.loads((tmp_path / "p" / "pack.json").read_text())["complete"]
    left = len(list((tmp_path / "p").glob("*.tar")))
    assert left >= 3
    for name in "pq":
        pack(tmp_path / name)
    for path in (tmp_path / "q").iterdir():
        assert path.read_bytes() == (tmp_path / "p" / path.name).read_bytes()
    assert len(open_pack(tmp_path / "p")) == 60
