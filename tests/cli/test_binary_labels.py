"""The binary format, chosen by the ending of the name, in the commands that read or write labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import BATCHES, flat
from command_line import done as shown
from digit_scenes import write_folder

from halflabel.labels import formats


def done(*words: str | Path) -> str:
    return flat(shown(*words))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_folder(folder, 24)
    return folder


def test_commands_take_it_by_its_ending(data: Path, tmp_path: Path) -> None:
    before = formats.read(data / "train.csv").table()
    first, second, third = (tmp_path / f"{name}.labels" for name in "abc")
    assert "as binary" in done("convert", data / "train.csv", first)
    done("import", first, second)
    done("drop", second, third, "partial:share=0.5")
    done("convert", third, tmp_path / "c.csv")
    assert formats.read(first).table() == formats.read(second).table() == before
    assert formats.read(third).table() == formats.read(tmp_path / "c.csv").table() != before
    assert "as binary" in done("inspect", third)
    assert "as binary" not in done("inspect", tmp_path / "c.csv")


@pytest.mark.parametrize("method", ["curriculum", "em-apl"])
def test_training_from_it_is_training_from_the_rows(data: Path, tmp_path: Path, method: str) -> None:
    """Pages of a file cannot be written to, and nothing tries to."""
    binary = tmp_path / "train.labels"
    done("convert", data / "train.csv", binary)
    early = ["--set", "apl_from=1"] if method == "em-apl" else []
    options = ["--method", method, *early, *BATCHES, "3", "--backbone", "tiny", "--size", "32", "--workers", "0"]
    for labels, out in ((data / "train.csv", "a"), (binary, "b")):
        done("train", labels, data / "images", "--out", tmp_path / out, "--set", "device=cpu", *options)
    lines = [(tmp_path / out / "log.jsonl").read_text().splitlines() for out in "ab"]
    losses = [[json.loads(line)["loss"] for line in log] for log in lines]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
