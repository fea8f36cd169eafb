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
from halflabel.errors import UserError
from halflabel.methods.base import recipes
from halflabel.system import distributed
from halflabel.training.config import Settings
from halflabel.training.engine import make_accelerator


def _load_job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("distributed_job", Path(__file__).with_name("job.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JOB = _load_job()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
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


def found(folder: Path, name: str, rank: int) -> dict[str, Tensor]:
    file = JOB.result(folder, name, rank)
    assert file.exists(), (folder / "torchrun.txt").read_text() + output_of(folder, rank, "stderr")
    return load_file(file)


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor], atol: float) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        exact = not value.is_floating_point()
        torch.testing.assert_close(
            two[name], value, rtol=0, atol=0 if exact else atol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", JOB.CASES)
def test_two_processes_train_as_one_does(done: Path, name: str) -> None:
    one, two = JOB.CASES[name](), found(done, name, 0)
    assert_same(two, found(done, name, 1))
    assert_close(one, two, 1e-9)


def test_the_label_state_is_exactly_the_same(done: Path) -> None:
    """The decisions of the methods must be equal, without tolerance."""
    for name in ("curriculum", "ss-rml"):
        one, two = JOB.CASES[name](), found(done, name, 0)
        decided = [key for key in one if key.startswith(("method.relabel.labels", "method.relabel.neighbour"))]
        assert decided
        for key in decided:
            assert torch.equal(one[key], two[key])
            assert len(one[key].unique()) > 2  # it is no table of nothing


@pytest.mark.filterwarnings("ignore:.* never starts in ")
def test_every_method_agrees_over_processes(done: Path) -> None:
    two = found(done, "every method", 0)
    assert_same(two, found(done, "every method", 1))
    one = JOB.every_method()
    assert {key.split(".")[0] for key in one} == set(recipes())
    for key, value in one.items():
        torch.testing.assert_close(
            two[key], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_every_method_is_the_same_with_weights_in_parts(done: Path) -> None:
    whole, parts = found(done, "every method", 0), found(done, "every method, sharded", 0)
    assert_same(parts, found(done, "every method, sharded", 1))
    unsupported = tuple(f"{name}." for name, how in recipes().items() if "shard" in how.cannot)
    whole = {key: value for key, value in whole.items() if not key.startswith(unsupported)}
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        torch.testing.assert_close(
            parts[key], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_a_method_that_needs_weights_whole_is_told_so(done: Path) -> None:
    message = bytes(found(done, "refused", 1)["message"].tolist()).decode()
    assert message.startswith("Charged computes with the weights of the model")
    assert "without shard" in message


def test_dropout_differs_between_slices_and_leaves_the_state_of_all_the_same(done: Path) -> None:
    two = found(done, "dropped", 0)
    assert_same(two, found(done, "dropped", 1))
    one = JOB.dropped()
    assert not torch.equal(one["model.backbone.second.0.weight"], two["model.backbone.second.0.weight"])


def test_processes_agree_with_the_first(done: Path) -> None:
    for rank in (0, 1):
        two = found(done, "agreed", rank)
        assert int(two["differed"]) == 2
        assert two["sum"].tolist() == [0, 1, 2, 3]
        assert two["order"].tolist() == [1, 2]
        assert bytes(two["message"].tolist()) == b"the first fails. Fix: so do all"


def test_two_processes_go_on_from_a_checkpoint_of_one(done: Path, tmp_path: Path) -> None:
    assert_close(JOB.resumed(tmp_path, 4, False), found(done, "resumed", 0), 1e-6)
    assert_close(JOB.resumed(tmp_path, 6, True), found(done, "resumed in parts", 0), 1e-6)


def test_commands_leave_the_same_files(done: Path, alone: tuple[Path, list[str]]) -> None:
    one, two = alone[0], done
    for name in ("run/metrics.json", "measured.json", "run/thresholds.json"):
        first, second = (json.loads((folder / name).read_text()) for folder in (one, two))
        assert _numbers(first) == pytest.approx(_numbers(second), abs=1e-4, nan_ok=True)
    names = {path.relative_to(one / "run") for path in (one / "run").rglob("*") if path.is_file()}
    assert names == {path.relative_to(two / "run") for path in (two / "run").rglob("*") if path.is_file()}
    (values,), (others,) = (list(folder.glob("cache/*/values.npy")) for folder in (one, two))
    np.testing.assert_array_equal(np.load(values), np.load(others))
    assert (one / "run/bad_images.csv").read_text().replace(str(one), "") == (
        two / "run/bad_images.csv"
    ).read_text().replace(str(two), "")
    logs = [(folder / "run/log.jsonl").read_text().splitlines() for folder in (one, two)]
    for first, second in zip(*logs, strict=True):
        assert json.loads(first)["loss"] == pytest.approx(json.loads(second)["loss"], abs=1e-5)
    assert_close(load_file(one / "run/best.safetensors"), load_file(two / "run/best.safetensors"), 1e-5)


def _numbers(content: Any) -> list[float]:
    if isinstance(content, dict):
        return [number for value in content.values() for number in _numbers(value)]
    if isinstance(content, list):
        return [number for value in content for number in _numbers(value)]
    return [float(content)] if isinstance(content, int | float) else []


def test_every_photo_is_predicted_once(done: Path, alone: tuple[Path, list[str]]) -> None:
    folder, printed = alone
    one = list(csv.reader(printed[2].replace(str(folder), "").splitlines()))
    lines = output_of(done, 0, "stdout").replace(str(done), "").splitlines()
    two = list(csv.reader(line for line in lines if line.startswith(("/photos", "image,"))))
    assert [row[:2] for row in one] == [row[:2] for row in two]
    assert [row[4] for row in one] == [row[4] for row in two]  # the one that cannot be read, and why
    chances = [[float(row[2]) for row in rows[1:] if row[2]] for rows in (one, two)]
    assert chances[0] == pytest.approx(chances[1], abs=1e-4)
    assert len(chances[0]) == 39 * 3


def test_fill_writes_the_same_rows(done: Path, alone: tuple[Path, list[str]]) -> None:
    texts = ((folder / "run/filled.csv").read_text() for folder in (alone[0], done))
    one, two = (list(csv.DictReader(text.splitlines())) for text in texts)
    assert len(one) > 5
    assert [(row["image"], row["class"], row["value"]) for row in one] == [
        (row["image"], row["class"], row["value"]) for row in two
    ]


def test_the_first_process_alone_speaks(done: Path) -> None:
    assert output_of(done, 1, "stdout") == ""
    assert output_of(done, 0, "stdout").count("5-fold cross-fitting") == 1


def test_a_killed_process_ends_the_job_with_one_line_and_one_process_goes_on(done: Path, tmp_path: Path) -> None:
    code, report = (done / "torchrun.txt").read_text().split("\n", 1)
    assert code != "0"
    assert "SIGKILL" in report
    message = output_of(done, 0, "stderr") + output_of(done, 1, "stderr")
    assert "Traceback" not in message
    assert message.count("resume with:  halflabel train --resume") == 1
    assert "another process of this job ended" in message or "Stopped" in message
    run = done / "broken"
    assert not (run / "best.safetensors").exists()
    assert 1 <= len((run / "log.jsonl").read_text().splitlines()) < 6
    resumed = CliRunner().invoke(app, ["train", "--resume", str(run)])
    assert resumed.exit_code == 0, resumed.output
    JOB.make_photos(tmp_path)
    unbroken = CliRunner().invoke(app, JOB.broken_off(tmp_path))
    assert unbroken.exit_code == 0, unbroken.output
    assert_close(load_file(tmp_path / "broken/best.safetensors"), load_file(run / "best.safetensors"), 1e-5)


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (distributed.world_size(), distributed.rank(), distributed.is_distributed(), distributed.is_main()) == (
        1,
        0,
        False,
        True,
    )
    monkeypatch.setenv("WORLD_SIZE", "4")  # some queues set it for jobs of one process
    assert not distributed.is_distributed()
    monkeypatch.setenv("RANK", "3")
    assert (distributed.world_size(), distributed.rank(), distributed.is_main()) == (4, 3, False)


def test_work_for_one_process_is_refused_to_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 2
    assert "methods runs in one process, not in 2" in result.stderr


def test_compiling_is_refused_to_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="compile inductor works in one process"):
        make_accelerator(Settings(compile="inductor"))


def test_what_a_lost_process_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("[pair.cc:545] Read error [127.0.0.1]:24297: Connection reset by peer. GLHF!")
    assert distributed.lost_connection(error) == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert distributed.lost_connection(error) == "connection reset by peer"
    assert distributed.lost_connection(RuntimeError("mat1 and mat2 must have the same dtype")) == ""
    assert cli._TOGETHER == ("train", "evaluate", "predict", "fill")
