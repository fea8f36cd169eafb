"""Object stores: copies, blocks of packs, and stores that are slow, fail, cut off or change what they hold."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pack_examples import VIEWS, N, image_of, pixels, pixels_of, write_photos
from typer.testing import CliRunner

pytest.importorskip("s3fs", reason="s3fs, of the extra cloud, is not installed")
pytest.importorskip("moto.server", reason="moto, with flask and flask-cors, is not installed")
from s3_server import S3Server, serve_s3

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.images.decode import find_images, locate_images, read_image
from halflabel.images.pack.read import PackSettings, open_pack
from halflabel.images.pack.source import open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.images.sources import open_images
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.system import remote
from halflabel.system.files import atomic_write, remote_url
from halflabel.system.remote import local_folder, local_path

NAMES = Names(f"{number:02d}" for number in range(N))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    from s3fs import S3FileSystem

    write_photos(tmp_path / "src" / "photos")
    (tmp_path / "src" / "labels.csv").write_text(
        "image,dog,cat\n" + "".join(f"{number:02d},{number % 2},{number % 3 // 2}\n" for number in range(N))
    )
    stored = PackSettings(size=32)
    pack_images(tmp_path / "src" / "photos", tmp_path / "src" / "pack", stored, shard_bytes=6000)
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.01)
    with serve_s3(tmp_path / "cache") as running:
        running.put(tmp_path / "src", "bucket")
        yield running


def forget_copies() -> None:
    """Forget what this process has copied, as a new command would."""
    remote._copy.cache_clear()


def read_pack(url: str = "s3://bucket/pack") -> None:
    pack = open_pack(local_folder(url))
    for number in range(N):
        assert np.array_equal(image_of(pack, number).permute(1, 2, 0).numpy(), pixels_of(pack, number))


def test_addresses_in_a_path_are_recognised() -> None:
    assert remote_url(Path("s3://bucket/a/b.csv")) == remote_url("s3://bucket/a/b.csv") == "s3://bucket/a/b.csv"
    assert remote_url(Path("https://host/x?a=1")) == "https://host/x?a=1"
    assert [remote_url(path) for path in ("a/b", "/s3:/x", "C:/x", "s3", "a:/b")] == [None] * 5


def test_labels_photos_and_packs_are_read_and_copied_once(server: S3Server, tmp_path: Path) -> None:
    assert len(formats.read("s3://bucket/labels.csv").rows.images) == N
    paths = find_images(Path("s3://bucket/photos"))
    assert all(np.array_equal(read_image(path).permute(1, 2, 0).numpy(), pixels(n)) for n, path in enumerate(paths))
    assert locate_images(["photos/03.jpg", "bucket/photos/04"], "s3://bucket/photos") == [paths[3], paths[4]]
    read_pack()
    read_pack(f"http://127.0.0.1:{server.port}/bucket/pack")
    for source in (open_images(NAMES, Path(f"s3://bucket/{kind}"), VIEWS) for kind in ("photos", "pack")):
        ((numbers, _),) = source.fetch([np.arange(N)], ("plain",))
        assert numbers.tolist() == list(range(N))
    forget_copies()
    server.requests.clear()
    formats.read("s3://bucket/labels.csv")
    assert find_images("s3://bucket/photos") == paths
    read_pack()
    fetched = [path for method, path in server.requests if method == "GET" and path.endswith((".csv", ".jpg", ".tar"))]
    assert fetched == []


def test_a_pack_is_read_in_blocks_by_any_number_of_processes(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote, "_BLOCK", 1000)
    folder = local_folder("s3://bucket/pack")
    assert not list(folder.glob("*.tar"))
    source = open_packed_images(NAMES, folder, VIEWS, workers=2)
    batches = list(source.fetch([np.arange(first, first + 3) for first in range(0, N, 3)], ("plain",)))
    assert [batch.images.tolist() for batch in batches] == [[n, n + 1, n + 2] for n in range(0, N, 3)]
    fetched = [path for method, path in server.requests if method == "GET" and path.endswith(".tar")]
    blocks = [path for path in (folder / ".blocks").rglob("*") if path.is_file() and path.suffix == ""]
    assert len(fetched) == len(blocks) > 8
    # A damaged copy is fetched again.
    for path in blocks:
        path.write_bytes(bytes(path.stat().st_size))
    read_pack()


@pytest.mark.parametrize("kind", ["500", "slow", "truncated", "short"])
def test_temporary_faults_are_retried(server: S3Server, kind: str) -> None:
    failed: set[tuple[str, str]] = set()

    def once(method: str, path: str) -> str | None:
        if (method, path) in failed or (kind in ("truncated", "short") and method != "GET"):
            return None
        failed.add((method, path))
        return kind if kind != "slow" or path.endswith(("labels.csv", "00000.tar")) else None

    server.fault = once
    assert len(formats.read("s3://bucket/labels.csv").rows.images) == N
    assert len(find_images("s3://bucket/photos")) == N
    read_pack()
    assert failed


@pytest.mark.parametrize(("kind", "words"), [("500", "attempts"), ("short", "attempts"), ("denied", "may not be read")])
def test_lasting_faults_are_reported_with_a_fix(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    monkeypatch.setenv("HALFLABEL_TIMEOUT", "0.2")
    folder = local_folder("s3://bucket/pack")
    server.fault = lambda method, path: kind if method == "GET" or kind == "denied" else None
    with pytest.raises(UserError, match=rf"s3://bucket/labels.csv .*{words}"):
        formats.read("s3://bucket/labels.csv")
    # An image whose store fails is not a bad image: training stops instead of leaving it out.
    source = open_packed_images(NAMES, folder, VIEWS, max_bad=1.0)
    with pytest.raises(UserError, match=rf"could not be read from its store.*s3://bucket/pack/0000.*{words}"):
        list(source.fetch([np.arange(N)], ("plain",)))
    server.fault = lambda method, path: None
    assert len(next(source.fetch([np.arange(N)], ("plain",))).images) == N


@pytest.mark.parametrize("kind", ["gone", "silent"])
def test_a_store_that_is_gone_ends_the_command_in_time_and_says_so(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(remote, "_message", lines.append)
    monkeypatch.setattr(remote, "_NOTE_EVERY", 0.0)
    monkeypatch.setenv("HALFLABEL_TIMEOUT", "1.5")
    pack = open_pack(local_folder("s3://bucket/pack"))
    waiting = threading.Event()
    if kind == "gone":
        server.stop()
    else:
        server.fault = lambda method, path: str(waiting.wait(30))
    started = time.monotonic()
    with pytest.raises(Exception, match=r"s3://bucket/pack/00000.tar could not be read in \d+ s and \d+ attempts"):
        pack.read(0)
    assert time.monotonic() - started < 10
    waiting.set()
    assert lines
    assert all(line.startswith("s3://bucket/pack/00000.tar: ") and "trying again in " in line for line in lines)


def cached_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_cache_stays_below_its_limit(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_BLOCK", 1000)
    monkeypatch.setattr(remote, "_in_use", {})
    monkeypatch.setenv("HALFLABEL_CACHE_GB", "0.00002")  # 20,000 bytes
    limit = 20_000
    photos, labels = local_folder("s3://bucket/photos"), local_path("s3://bucket/labels.csv")
    read_pack()
    read_pack()
    folder = local_folder("s3://bucket/pack")
    assert cached_bytes(photos) + cached_bytes(tmp_path / "src" / "pack") > limit
    kept = [path for path in (folder / ".blocks").rglob("0*") if path.is_file() and path.suffix == ""]
    assert kept
    assert sum(path.stat().st_size for path in kept) <= limit
    assert len(find_images(photos)) == N, "this process may still read them"
    assert labels.exists()
    for file in remote._in_use.values():  # as if this process had ended
        os.close(file)
    remote._in_use.clear()
    monkeypatch.setenv("HALFLABEL_CACHE_GB", "0.000005")
    forget_copies()
    local_folder("s3://bucket/pack")
    assert not list(photos.glob("*.jpg"))
    assert not labels.exists()
    assert cached_bytes(folder / ".blocks") < 5_000
    forget_copies()
    assert len(find_images(local_folder("s3://bucket/photos"))) == N


def test_a_limit_that_is_no_number_is_refused(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFLABEL_CACHE_GB", "much")
    with pytest.raises(UserError, match="HALFLABEL_CACHE_GB=much is not a number"):
        local_path("s3://bucket/labels.csv")


def test_changes_in_the_store_are_detected(server: S3Server, tmp_path: Path) -> None:
    folder, labels = local_folder("s3://bucket/photos"), local_path("s3://bucket/labels.csv")
    pack = open_pack(local_folder("s3://bucket/pack"))
    pack.read(0)
    source = tmp_path / "src"
    shutil.copy(source / "photos" / "01.jpg", source / "photos" / "00.jpg")
    (source / "labels.csv").write_text("image,dog\n00,1\n")
    for tar in (source / "pack").glob("*.tar"):
        tar.write_bytes(bytes(tar.stat().st_size))  # of the same size
    server.put(source, "bucket")
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1")
    client.delete_object(Bucket="bucket", Key="photos/02.jpg")
    client.close()
    with pytest.raises(Exception, match="has changed since it was opened"):
        pack.read(N - 1)
    forget_copies()
    assert local_folder("s3://bucket/photos") == folder
    assert (folder / "00.jpg").read_bytes() == (folder / "01.jpg").read_bytes()
    assert not (folder / "02.jpg").exists()
    assert local_path("s3://bucket/labels.csv").read_text() == labels.read_text() == "image,dog\n00,1\n"
    with pytest.raises(Exception, match="do not match their checksum"):
        open_pack(local_folder("s3://bucket/pack")).read(N - 1)


def test_bad_addresses_are_refused(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"s3://bucket/none does not exist.*check the address"):
        local_folder("s3://bucket/none")
    with pytest.raises(UserError, match="does not exist"):
        local_path("s3://other/labels.csv")
    with pytest.raises(UserError, match=r"s3://bucket/labels.csv is not a folder"):
        local_folder("s3://bucket/labels.csv")
    with pytest.raises(UserError, match="not an address"):
        local_path("s3://bucket/../x")
    with pytest.raises(UserError, match=r"s3://bucket/x is not a local folder.*copy it"), atomic_write("s3://bucket/x"):
        pass
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(UserError, match="pip install 'gcsfs'"):
        local_path("gs://bucket/labels.csv")


def _train(*words: str) -> int:
    return CliRunner().invoke(app, ["train", *words]).exit_code


def test_a_training_continues_when_the_store_is_back(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFLABEL_TIMEOUT", "0.2")
    monkeypatch.setattr(remote, "_BLOCK", 2000)
    options = ["--backbone", "tiny", "--size", "32", "--workers", "0", "--set", "device=cpu"]
    options += ["--tune", "all", "--epochs", "2", "--method", "bce", "--batch-size", "4"]
    files = tmp_path / "src"
    assert _train(f"{files / 'labels.csv'}", f"{files / 'pack'}", "--out", f"{tmp_path / 'here'}", *options) == 0
    paths: list[str] = []

    def stop(method: str, path: str) -> str | None:
        paths.append(path)
        return "500" if sum(path.endswith(".tar") and "pack" in path for path in paths) > 14 else None

    server.fault = stop
    out = f"{tmp_path / 'there'}"
    assert _train("s3://bucket/labels.csv", "s3://bucket/pack", "--out", out, *options) == 2
    forget_copies()
    server.fault = lambda method, path: None
    assert _train("--resume", out) == 0
    weights = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]


def test_a_pack_in_a_store_is_opened_by_its_address_on_another_machine(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_packed_images(NAMES, Path("s3://bucket/pack"), VIEWS)
    sent = pickle.dumps(source.part(np.arange(2, 5)))
    shutil.rmtree(tmp_path / "cache")
    forget_copies()
    monkeypatch.setenv("HALFLABEL_CACHE", str(tmp_path / "another machine"))
    part = pickle.loads(sent)
    assert part.pack.folder.is_relative_to(tmp_path / "another machine")
    assert [batch.images.tolist() for batch in part.fetch([np.arange(3)], ("plain",))] == [[0, 1, 2]]


def test_processes_share_the_copies(server: S3Server) -> None:
    """Workers forked after the store was used must not wait for a lock or connection of this process."""
    local_folder("s3://bucket/pack")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_read_one, range(N))


def _read_one(number: int) -> None:
    open_pack(local_folder("s3://bucket/pack")).read(number)


def test_a_password_is_in_no_name_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFLABEL_CACHE", str(tmp_path))
    monkeypatch.setenv("HALFLABEL_TIMEOUT", "0")
    with pytest.raises(UserError) as refusal:
        remote.local_path("http://ann:s3cret@127.0.0.1:1/photos/a.jpg")
    assert "s3cret" not in str(refusal.value)
    assert not [path for path in tmp_path.rglob("*") if "s3cret" in str(path)]
