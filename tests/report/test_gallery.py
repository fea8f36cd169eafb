"""The galleries of a run's page: which entries are chosen, and what a tile shows."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import torch
from digit_scenes import CLASSES, scenes, write_folder
from page_checks import check

from halflabel.features.class_maps import heat_png
from halflabel.fitting.config import Config
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.report import gallery
from halflabel.report.run_facts import read_run_facts
from halflabel.report.run_page import build_page
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter
from halflabel.system.rng import uniform


def entries(rank: np.ndarray, most: int = gallery.TILES) -> list[tuple[int, int]]:
    return [(entry.row, entry.column) for entry in gallery.choose_entries(rank, most)]


def test_missing_are_high_scores_of_unknown_entries() -> None:
    scores = np.array([[0.9, 0.8], [0.95, 0.99], [0.2, 0.7], [np.nan, np.nan], [0.6, 0.1]], np.float32)
    labels = np.array([[1, 0], [-1, 1], [0, -1], [0, 0], [0, 0]], np.int8)
    assert entries(gallery.rank_missing(scores, labels, np.array([0.5, 0.75]))) == [(0, 1), (4, 0)]
    assert entries(gallery.rank_missing(scores, np.ones_like(labels), np.zeros(2))) == []


def test_contradicted_are_known_entries_on_the_wrong_side() -> None:
    scores = np.array([[0.9, 0.02], [0.3, 0.6], [0.99, 0.01], [np.nan, np.nan]], np.float32)
    labels = np.array([[-1, 1], [1, 0], [1, -1], [1, 1]], np.int8)
    assert entries(gallery.rank_contradicted(scores, labels, np.array([0.5, 0.5]))) == [(0, 1), (0, 0), (1, 0)]


def test_a_given_tag_that_the_model_misses_is_not_contradicted() -> None:
    scores = np.array([[0.4], [0.3], [0.2], [0.01]], np.float32)
    assert entries(gallery.rank_contradicted(scores, np.ones((4, 1), np.int8), np.array([0.5]))) == [(3, 0)]


def test_no_class_fills_a_gallery_while_others_wait() -> None:
    rank = np.full((30, 3), -np.inf)
    rank[:, 0] = 0.9
    rank[:3, 1] = 0.6
    columns = [column for _, column in entries(rank, 8)]
    assert columns == [0] * 5 + [1] * 3  # a share of 4 for each; the place that is left goes to the best
    rank[:, 1] = -np.inf
    assert len(entries(rank, 8)) == 8  # alone, a class may fill it


def test_photos_are_small_and_tell_nothing_of_the_file() -> None:
    from PIL import Image

    noise = (uniform(0, np.arange(3 * 900 * 700)).reshape(3, 900, 700) * 256).astype(np.uint8)
    address = gallery._jpeg(torch.from_numpy(noise), 156, 200)
    content = base64.b64decode(address.removeprefix("data:image/jpeg;base64,"))
    assert len(content) <= gallery.PHOTO_BYTES
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (156, 200)
        assert not image.getexif()


def test_heat_is_opaque_where_it_is_hot() -> None:
    from PIL import Image

    hot = np.zeros((28, 28))
    hot[3, 4] = 1.0
    with Image.open(io.BytesIO(heat_png(hot))) as image:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert np.argwhere(alpha > 0).tolist() == [[3, 4]]
    assert alpha[3, 4] == 180


def test_galleries_hold_photos_with_maps(trained: tuple[Path, Path]) -> None:
    folder, photos = trained
    done: list[tuple[int, int]] = []
    run = RunFolder.open(folder)
    text = build_page(run, images=photos, maps=True, reporter=Reporter(lambda *how: done.append(how)))
    page = check(text)
    assert check(build_page(run, images=photos)).count("image", "map") == 0
    training = len(read_run_facts(RunFolder.open(folder)).training)
    assert (training, training) in done
    assert done[-1] == (page.count("image") - page.count("image", "map"),) * 2  # each photo is read once
    reported = (
        f"{60 - training} held-out images, with the scores of the run, and {training} of {training} training images"
    )
    assert reported in page.text
    assert page.count("svg", "photo") > 24
    assert page.count("image", "map") == page.count("svg", "photo")
    assert page.count("input", "switch") == 2
    assert str(photos) not in text
    parts = set(re.findall(r'<span class="tag part">(\S+)</span>', text))
    assert parts == {"held\u2011out", "training"}


def test_scan_limits_what_is_scored(trained: tuple[Path, Path]) -> None:
    folder, photos = trained
    done: list[tuple[int, int]] = []
    page = check(
        build_page(RunFolder.open(folder), images=photos, scan=5, reporter=Reporter(lambda *how: done.append(how)))
    )
    assert (5, 5) in done
    assert re.search(r"and 5 of 4\d training images", page.text)
    done.clear()
    page = check(
        build_page(RunFolder.open(folder), images=photos, scan=0, reporter=Reporter(lambda *how: done.append(how)))
    )
    assert len(done) == page.count("image") - page.count("image", "map")  # photos, no scores
    assert re.search(r"and 0 of 4\d training images", page.text)


def test_a_run_of_positives_shows_the_photos_of_its_questions(tmp_path: Path) -> None:
    write_folder(tmp_path, 40, size=32)
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    table = drop.single_positive(Table.from_dense(scenes(40, size=32).labels, names, CLASSES))
    (tmp_path / "images" / names[3]).unlink()  # a photo without a file has no score, and no other trouble
    run = RunFolder(tmp_path / "run")
    shape = {"backbone": "tiny", "size": 32, "fit": "linear", "l2_strength": 1e-3, "max_bad": 0.1}
    train(table, tmp_path / "images", Config(method="wan", device="cpu", **shape), run)
    text = build_page(run, images=tmp_path / "images")
    asked = text.partition('<div id="questions"')[2].partition("<div id=")[0]
    assert asked.count("<figure") == 10
    assert "held-out" not in check(text).text.partition("Words on this page")[0]
