"""Runs in an object store: interrupted by the server, resumed on another machine, read by other commands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import done, refused
from run_examples import TABLE, write_folder

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.runs.folder import RunFolder
from halflabel.runs.store import RunStore
from halflabel.system import remote

pytest.importorskip("moto")
boto3 = pytest.importorskip("boto3")
s3_server = pytest.importorskip("s3_server")

RUN = "s3://bucket/runs/first"
OTHER = "s3://bucket/runs/other"
SHARED = "s3://bucket/runs/shared"
HOW = ["--backbone", "tiny", "--size", "32", "--workers", "0", "--set", "device=cpu", "--method", "bce"]
EPOCHS = ["--tune", "all", "--epochs", "3", "--batch-size", "8"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos and labels, and no waiting for a store."""
    write_folder(tmp_path / "photos")
    formats.write(TABLE, tmp_path / "labels.csv")
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("HALFLABEL_TIMEOUT", "0.2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def server(place: Path) -> Iterator[s3_server.S3Server]:
    with s3_server.serve_s3(place / "machine") as server:
        (place / "empty").mkdir()
        server.put(place / "empty", "bucket")
        yield server


def forget(place: Path) -> None:
    """Go on as another machine would: without the working folder."""
    shutil.rmtree(place / "machine")


def test_a_run_resumes_after_the_server_is_restarted(server: s3_server.S3Server, place: Path) -> None:
    done("train", "labels.csv", "photos", "--out", "here", *HOW, *EPOCHS)
    manifests = []

    def stop(method: str, path: str) -> str | None:
        manifests.extend([path] if method == "PUT" and path.endswith("run.json") else [])
        return "500" if len(manifests) > 2 else None  # after the start and one epoch

    server.fault = stop
    error = refused("train", "labels.csv", "photos", "--out", RUN, *HOW, *EPOCHS)
    assert f"halflabel train --resume {RUN}" in error
    server.stop()
    forget(place)
    again = s3_server.S3Server(server.port)  # moto keeps the objects
    try:
        done("train", "--resume", RUN)
        seen = [path for method, path in again.requests if method == "GET" and path.endswith(".pt")]
        assert seen  # a checkpoint was downloaded
        forget(place)
        opened = RunFolder.open(RUN)
        assert opened.weights.read_bytes() == (place / "here" / "best.safetensors").read_bytes()
        assert {path.name for path in opened.folder.iterdir()} == {path.name for path in (place / "here").iterdir()}
        done("predict", RUN, "photos/00.png")
        done("evaluate", RUN, "labels.csv", "photos")
        assert "not a local folder" in refused("review", RUN, "photos")  # answers would stay on this machine
        assert "--out" in refused("fill", RUN, "photos")
    finally:
        again.stop()


def test_what_is_in_the_store_is_checked(server: s3_server.S3Server, place: Path) -> None:
    done("train", "labels.csv", "photos", "--out", OTHER, *HOW)
    assert "already holds a run" in refused("train", "labels.csv", "photos", "--out", OTHER, *HOW)
    done("train", "labels.csv", "photos", "--out", OTHER, "--force", "--dry-run", *HOW)
    assert not Path("s3:").exists()
    forget(place)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1")

    def content(name: str) -> bytes:
        return bytes(client.get_object(Bucket="bucket", Key=f"runs/other/{name}")["Body"].read())

    weights = content("best.safetensors")
    client.put_object(Bucket="bucket", Key="runs/other/log.jsonl", Body=b"newer than the manifest")
    client.put_object(Bucket="bucket", Key="runs/other/best.safetensors", Body=weights[:-10])
    assert "best.safetensors is missing or damaged" in refused("predict", OTHER, "photos/00.png")
    client.put_object(Bucket="bucket", Key="runs/other/best.safetensors", Body=weights)
    done("predict", OTHER, "photos/00.png")
    done("train", "labels.csv", "photos", "--out", OTHER, "--force", *HOW)
    assert content("log.jsonl") != b"newer than the manifest"
    client.put_object(Bucket="bucket", Key="runs/other/run.json", Body=b'{"files": {"../x": [1, 2]}}')
    assert "outside of the run" in refused("predict", OTHER, "photos/00.png")
    client.close()


def test_a_training_that_lost_its_address_stops_at_its_next_upload(server: s3_server.S3Server, place: Path) -> None:
    first, second = RunStore(SHARED), RunStore(SHARED)
    first.folder.mkdir(parents=True)

    def is_marked() -> bool:
        return first._files.exists(f"{first._root}/training.json")

    with first.lock():
        first.upload()
        with second.lock():
            with pytest.raises(UserError, match=r"now trained by process \d+ on "):
                first.upload()
            second.upload()
        first._files.invalidate_cache()
        assert not is_marked()
    with first.lock():
        first._files.invalidate_cache()
        assert is_marked()
