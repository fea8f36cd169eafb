"""Every reader with damaged files: it reads them or refuses them with a message."""

from __future__ import annotations

import mmap
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fuzz_cases
import pytest
from fuzz_cases import play, prepare
from fuzz_kit import Reader, gather, refusals
from fuzz_readers import all_readers

from halflabel.errors import UserError

CASES = 7  # per reader; benchmarks/fuzz.py plays thousands

# A form that cannot be read leaves its files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def readers() -> list[Reader]:
    return all_readers()


def test_there_is_a_reader_for_every_format_and_data_set(readers: list[Reader]) -> None:
    from halflabel.labels.formats import FORMATS

    names = {" ".join(reader.name.split()[:2]) for reader in readers}
    assert {f"labels {name}" for name in FORMATS} <= names
    assert {"run", "hub", "checkpoint", "weights", "answers", "questions", "rules", "label graph"} <= names
    assert {"serve body", "serve form", "review questions", "review answers", "dataset cifar10"} <= names


def test_good_files_are_read(readers: list[Reader], tmp_path: Path) -> None:
    """Else damage would be refused for another reason than the damage."""
    for reader in readers:
        ends = Counter()
        for name, data in reader.files.items():
            path = tmp_path / reader.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for number in range(8):
            try:
                reader.read(tmp_path / reader.name, random.Random(number))
                ends["read"] += 1
            except refusals():
                ends["refused"] += 1
        assert ends["read"] >= 2, reader.name


def test_damaged_files_are_read_or_refused(readers: list[Reader], tmp_path: Path) -> None:
    wrong, ends = [], Counter()
    for reader in readers:
        for number in range(CASES):
            end = play(reader, tmp_path / "case", 11, number, refusals())
            ends[end.kind] += 1
            if not end.is_right:
                wrong.append(f"{reader.name} {number}: {end}")
    assert not wrong, "\n".join(wrong)
    assert min(ends["read"], ends["refused"]) > 50


def test_a_case_can_be_made_again(readers: list[Reader], tmp_path: Path) -> None:
    for reader in readers[::9]:
        for number in range(3):
            folders = [tmp_path / f"{reader.name} {number} {copy}" for copy in range(2)]
            for folder in folders:
                folder.mkdir()
            messages = [prepare(reader, folder, 5, number)[0] for folder in folders]
            assert messages[0] == messages[1]
            assert messages[0]
            assert gather(folders[0]) == gather(folders[1])


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.yaml", "a.parquet", "a.safetensors", "a.bin"])
def test_every_file_ends_up_damaged_in_many_ways(name: str) -> None:
    from fuzz_mutate import damage

    good = b'{"a": [1, 2, {"b": "c"}],\n "d": 1.5}\n'
    actual = {damage(good, random.Random(number), name)[1] for number in range(60)}
    assert len(actual) > 35


def take(what: Any) -> Reader:
    return Reader("x", {"x.txt": b"1"}, what)


def test_other_outcomes_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, rng: Any) -> None:
        raise KeyError("x")

    def refuse(folder: Path, rng: Any) -> None:
        raise UserError("no", "yes")

    def wait(folder: Path, rng: Any) -> None:
        try:
            time.sleep(5)
        except Exception:
            return

    def fill(folder: Path, rng: Any) -> None:
        pages = mmap.mmap(-1, 80 << 20)  # not from the heap, which may hold as much that was freed before
        pages[::4096] = b"x" * len(pages[::4096])

    monkeypatch.setattr(fuzz_cases, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz_cases, "BYTES", 20 << 20)
    ends = [play(take(what), tmp_path / "case", 0, 0, refusals()).kind for what in (fail, refuse, wait, print)]
    assert ends == ["fault", "refused", "hang", "read"]
    monkeypatch.setattr(fuzz_cases, "SECONDS", 20.0)
    if Path("/proc/self/clear_refs").exists():
        assert play(take(fill), tmp_path / "case", 0, 0, refusals()).kind == "memory"
    assert not (tmp_path / "case").exists()
