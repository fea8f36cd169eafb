"""Two processes give the same weights, method state and files as one."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from halflabel import cli
from halflabel.cli import app
from halflabel.methods.base import recipes
from halflabel.system import distributed


def _load_job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("distributed_job", Path(__file__).with_name("job.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JOB = _load_job()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two processes, which run once for all tests, as they start slowly."""
    folder = tmp_path_factory.mktemp("two")
    JOB.make_photos(folder)
    JOB.resumed(folder, 2, False)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["--redirects", "3", "--log-dir", str(folder / "logs"), str(Path(__file__).with_name("job.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    job = subprocess.run([*words, str(folder)], env=environment, capture_output=True, text=True, timeout=300)
    (folder / "torchrun.txt").write_text(f"{job.returncode}\n{job.stderr}")
    return folder


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The same commands in one process: the folder, and the output of each command."""
    folder = tmp_path_factory.mktemp("one")
    JOB.make_photos(folder)
    printed = []
    for words in JOB.commands(folder):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        printed.append(result.stdout)
    return folder, printed


def output_of(folder: Path, rank: int, stream: str) -> str:
    (file,) = folder.glob(f"logs/*/attempt_0/{rank}/{stream}.log")
    return file.read_text()


def load_result(folder: Path, name: str, rank: int) -> dict[str, Tensor]:
    file = JOB.result(folder, name, rank)
    assert file.exists(), (folder / "torchrun.txt").read_text() + output_of(folder, rank, "stderr")
    return load_file(file)


def assert_same(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def assert_close(expected: dict[str, Tensor], actual: dict[str, Tensor], atol: float) -> None:
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        exact = not value.is_floating_point()
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=0 if exact else atol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", JOB.CASES)
def test_two_processes_train_as_one_does(two_processes: Path, name: str) -> None:
    expected, actual = JOB.CASES[name](), load_result(two_processes, name, 0)
    assert_same(actual, load_result(two_processes, name, 1))
    assert_close(expected, actual, 1e-9)


def test_the_label_state_is_exactly_the_same(two_processes: Path) -> None:
    """The decisions of the methods must be equal, without tolerance."""
    for name in ("curriculum", "ss-rml"):
        expected, actual = JOB.CASES[name](), load_result(two_processes, name, 0)
        decided = [key for key in expected if key.startswith(("method.relabel.labels", "method.relabel.neighbour"))]
        assert decided
        for key in decided:
            assert torch.equal(expected[key], actual[key])
            assert len(expected[key].unique()) > 1  # not all values are equal


@pytest.mark.filterwarnings("ignore:.* never starts in ")
def test_every_method_agrees_over_processes(two_processes: Path) -> None:
    actual = load_result(two_processes, "every method", 0)
    assert_same(actual, load_result(two_processes, "every method", 1))
    expected = JOB.every_method()
    assert {key.split(".")[0] for key in expected} == set(recipes())
    for key, value in expected.items():
        torch.testing.assert_close(
            actual[key], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_dropout_differs_between_slices_but_the_state_does_not(two_processes: Path) -> None:
    actual = load_result(two_processes, "dropped", 0)
    assert_same(actual, load_result(two_processes, "dropped", 1))
    single = JOB.dropped()
    assert not torch.equal(single["model.backbone.second.0.weight"], actual["model.backbone.second.0.weight"])


def test_processes_agree_with_the_first(two_processes: Path) -> None:
    for rank in (0, 1):
        result = load_result(two_processes, "agreed", rank)
        assert int(result["differed"]) == 2
        assert result["sum"].tolist() == [0, 1, 2, 3]
        assert result["order"].tolist() == [1, 2]
        assert bytes(result["message"].tolist()) == b"the first fails. Fix: so do all"


def test_two_processes_resume_a_checkpoint_of_one(two_processes: Path, tmp_path: Path) -> None:
    assert_close(JOB.resumed(tmp_path, 4, False), load_result(two_processes, "resumed", 0), 1e-6)


def test_commands_leave_the_same_files(two_processes: Path, one_process: tuple[Path, list[str]]) -> None:
    expected, actual = one_process[0], two_processes
    for name in ("run/metrics.json", "measured.json", "run/thresholds.json"):
        first, second = (json.loads((folder / name).read_text()) for folder in (expected, actual))
        assert _numbers(first) == pytest.approx(_numbers(second), abs=1e-4, nan_ok=True)
    names = {path.relative_to(expected / "run") for path in (expected / "run").rglob("*") if path.is_file()}
    assert names == {path.relative_to(actual / "run") for path in (actual / "run").rglob("*") if path.is_file()}
    (expected_values,), (values,) = (list(folder.glob("cache/*/values.npy")) for folder in (expected, actual))
    np.testing.assert_array_equal(np.load(expected_values), np.load(values))
    assert (expected / "run/bad_images.csv").read_text().replace(str(expected), "") == (
        actual / "run/bad_images.csv"
    ).read_text().replace(str(actual), "")
    logs = [(folder / "run/log.jsonl").read_text().splitlines() for folder in (expected, actual)]
    for first, second in zip(*logs, strict=True):
        assert json.loads(first)["loss"] == pytest.approx(json.loads(second)["loss"], abs=1e-5)
    assert_close(load_file(expected / "run/best.safetensors"), load_file(actual / "run/best.safetensors"), 1e-5)


def _numbers(content: Any) -> list[float]:
    if isinstance(content, dict):
        return [number for value in content.values() for number in _numbers(value)]
    if isinstance(content, list):
        return [number for value in content for number in _numbers(value)]
    return [float(content)] if isinstance(content, int | float) else []


def test_every_photo_is_predicted_once(two_processes: Path, one_process: tuple[Path, list[str]]) -> None:
    folder, printed = one_process
    expected = list(csv.reader(printed[2].replace(str(folder), "").splitlines()))
    lines = output_of(two_processes, 0, "stdout").replace(str(two_processes), "").splitlines()
    actual = list(csv.reader(line for line in lines if line.startswith(("/photos", "image,"))))
    assert [row[:2] for row in expected] == [row[:2] for row in actual]
    assert [row[4] for row in expected] == [row[4] for row in actual]  # the unreadable photo and the reason
    chances = [[float(row[2]) for row in rows[1:] if row[2]] for rows in (expected, actual)]
    assert chances[0] == pytest.approx(chances[1], abs=1e-4)
    assert len(chances[0]) == 39 * 3


def test_fill_writes_the_same_rows(two_processes: Path, one_process: tuple[Path, list[str]]) -> None:
    texts = ((folder / "run/filled.csv").read_text() for folder in (one_process[0], two_processes))
    expected, actual = (list(csv.DictReader(text.splitlines())) for text in texts)
    assert len(expected) > 5
    assert [(row["image"], row["class"], row["value"]) for row in expected] == [
        (row["image"], row["class"], row["value"]) for row in actual
    ]


def test_only_the_first_process_prints(two_processes: Path) -> None:
    assert output_of(two_processes, 1, "stdout") == ""
    assert output_of(two_processes, 0, "stdout").count("5 folds") == 1


def test_a_killed_process_ends_the_job_and_one_process_resumes_it(two_processes: Path, tmp_path: Path) -> None:
    code, report = (two_processes / "torchrun.txt").read_text().split("\n", 1)
    assert code != "0"
    assert "SIGKILL" in report
    message = output_of(two_processes, 0, "stderr") + output_of(two_processes, 1, "stderr")
    assert "Traceback" not in message
    assert message.count("resume with:  halflabel train --resume") == 1
    assert "another process of this job ended" in message or "Stopped" in message
    run = two_processes / "broken"
    assert not (run / "best.safetensors").exists()
    assert 1 <= len((run / "log.jsonl").read_text().splitlines()) < 6
    resumed = CliRunner().invoke(app, ["train", "--resume", str(run)])
    assert resumed.exit_code == 0, resumed.output
    JOB.make_photos(tmp_path)
    uninterrupted = CliRunner().invoke(app, JOB.broken_off(tmp_path))
    assert uninterrupted.exit_code == 0, uninterrupted.output
    assert_close(load_file(tmp_path / "broken/best.safetensors"), load_file(run / "best.safetensors"), 1e-5)


def test_commands_for_one_process_are_refused_to_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 2
    assert "methods runs in one process, not in 2" in result.stderr


def test_errors_of_a_lost_process_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("[pair.cc:545] Read error [127.0.0.1]:24297: Connection reset by peer. GLHF!")
    assert distributed.lost_connection(error) == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert distributed.lost_connection(error) == "connection reset by peer"
    assert distributed.lost_connection(RuntimeError("mat1 and mat2 must have the same dtype")) == ""
    assert cli._TOGETHER == ("train", "evaluate", "predict", "fill")
