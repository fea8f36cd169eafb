"""Two processes at random moments into one run, one pack or one feature cache: one writes, and the result is whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from command_line import TINY, CommandProcess
from digit_scenes import write_folder

from halflabel.images.pack.read import open_pack
from halflabel.labels import formats
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model

pytest.importorskip("fcntl")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, and two label files of the same images."""
    folder = tmp_path_factory.mktemp("data")
    write_folder(folder, 24)
    lines = (folder / "train.csv").read_text().splitlines()
    (folder / "fewer.csv").write_text("\n".join(lines[:-2]) + "\n")
    return folder


def race(place: Path, commands: list[list[str | Path]], rng: random.Random) -> list[tuple[int | None, str]]:
    """Start the commands, the second one after a random time; their exit codes and outputs."""
    outputs = [place / f"output {number}.txt" for number in range(len(commands))]
    processes = []
    for command, output in zip(commands, outputs, strict=True):
        processes.append(CommandProcess(*command, output=output))
        time.sleep(rng.choice((0.0, 0.05, 0.3, 1.0, 2.5)) * rng.random())
    for process in processes:
        process.process.join(120)
    return [(process.stop(), output.read_text()) for process, output in zip(processes, outputs, strict=True)]


def the_winner(ends: list[tuple[int | None, str]]) -> int:
    """The one that ended well; the other was refused in a line."""
    assert sorted(code or 0 for code, _ in ends) == [0, 2], ends
    number = next(number for number, (code, _) in enumerate(ends) if code == 0)
    refusal = ends[1 - number][1]
    assert refusal.count("error:") == 1
    assert "another" in refusal or "already" in refusal, refusal
    assert "Traceback" not in refusal
    return number


def train_into_one_folder(data: Path, place: Path, rng: random.Random) -> None:
    files, out = [data / "train.csv", data / "fewer.csv"], place / "run"
    commands = [["train", file, data / "images", *TINY, "--method", "bce", "--out", out] for file in files]
    winner = the_winner(race(place, commands, rng))
    run = RunFolder.open(out)
    assert run.read_labels() == formats.read(files[winner]).table()
    assert run.read_scores() is not None
    assert list(Model.open(run).classes) == list(run.read_labels().classes)
    assert not list(place.glob(".run.lock"))


def pack_into_one_folder(data: Path, place: Path, rng: random.Random) -> None:
    sizes, out = ("16", rng.choice(("16", "16", "24"))), place / "pack"
    commands = [["pack", data / "images", out, "--size", size, "--workers", "0"] for size in sizes]
    outcomes = race(place, commands, rng)
    # A command that comes after the end of the same pack finds it finished.
    is_late = sizes[0] == sizes[1] and [code for code, _ in outcomes] == [0, 0]
    winner = 0 if is_late else the_winner(outcomes)
    pack = open_pack(out)
    assert (pack.settings.size, len(pack.names)) == (int(sizes[winner]), 24)


def train_with_one_cache(data: Path, place: Path, rng: random.Random) -> None:
    outs = [place / "a", place / "b"]
    commands = [["train", data / "train.csv", data / "images", *TINY, "--method", "bce", "--out", out] for out in outs]
    assert [code for code, _ in race(place, commands, rng)] == [0, 0]
    weights = [RunFolder.open(out).weights.read_bytes() for out in outs]
    assert weights[0] == weights[1]


SCENARIOS = (train_into_one_folder, pack_into_one_folder, train_with_one_cache)


@pytest.mark.parametrize("scenario", SCENARIOS[:2])
def test_two_processes(data: Path, tmp_path: Path, scenario) -> None:
    scenario(data, tmp_path, random.Random(1))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_at_many_moments(data: Path, tmp_path: Path, scenario) -> None:
    for number in range(2, 10):
        (tmp_path / str(number)).mkdir()
        scenario(data, tmp_path / str(number), random.Random(number))
