"""Paths that are not files: on the command line each gives one message and exit code 2, at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import CommandProcess
from fuzz_cases import limit
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import LabelError, UserError
from halflabel.images.decode import BadImage, find_images, locate_images, read_image
from halflabel.labels import formats
from halflabel.system.files import read_json, read_text

KINDS = ("missing", "folder", "pipe", "device", "null", "self", "dangling", "empty", "blank", "zeros", "long", "nul")


def make(kind: str, folder: Path, name: str = "labels.csv") -> Path:
    path = folder / name
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "null", "self", "dangling"):
        path.symlink_to({"device": "/dev/zero", "null": "/dev/null", "self": name, "dangling": "nowhere"}[kind])
    elif kind in ("empty", "blank", "zeros"):
        path.write_bytes({"empty": b"", "blank": b"\n\n \n", "zeros": bytes(3000)}[kind])
    elif kind == "long":
        path = folder / ("x" * 5000 + ".csv")
    elif kind == "nul":
        path = folder / "a\0b.csv"
    return path


def invoke(*words: str) -> str:
    """What a command says that must be refused."""
    with limit(20):
        result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, SystemExit), (words, repr(result.exception))
    assert result.exit_code == 2, (words, result.output)
    assert "Traceback" not in result.output
    assert "error" in result.output.lower()
    return result.output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet", "labels.json", "metadata.jsonl", "labels"])
def test_inspect_of_something_that_is_not_a_file(tmp_path: Path, kind: str, name: str) -> None:
    invoke("inspect", str(make(kind, tmp_path, name)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_refuses_something_that_is_not_a_file(tmp_path: Path, kind: str) -> None:
    for name in formats.FORMATS:
        folder = tmp_path / name
        folder.mkdir()
        ending = {"binary": ".labels", "coco": ".json", "lvis": ".json", "label-studio": ".json"}.get(name, ".csv")
        with limit(20), pytest.raises(UserError):
            formats.read(make(kind, folder, "labels" + ending), format=name)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "self", "empty", "blank", "zeros"])
@pytest.mark.parametrize("command", ["evaluate", "predict", "next", "review", "report", "fill", "serve", "export"])
def test_runs_whose_settings_are_no_file(tmp_path: Path, kind: str, command: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make(kind, run, "config.yaml")
    (tmp_path / "x.jpg").write_bytes(b"x")
    words = {
        "evaluate": [str(run), str(tmp_path / "labels.csv"), "--images", str(tmp_path)],
        "predict": [str(run), str(tmp_path / "x.jpg")],
        "next": [str(run), "--images", str(tmp_path)],
        "review": [str(run), "--images", str(tmp_path), "--no-browser"],
        "fill": [str(run), "--images", str(tmp_path), "--out", str(tmp_path / "o.csv")],
        "export": ["hub", str(run), "--out", str(tmp_path / "hub")],
    }.get(command, [str(run)])
    with limit(20):
        result = CliRunner().invoke(app, [command, *words])
    assert result.exit_code == 2, (result.output, repr(result.exception))
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "kind", ["missing", "folder", "pipe", "device", "null", "self", "empty", "zeros", "long", "nul"]
)
def test_images_that_are_no_file(tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path, "photo.jpg")
    with limit(10), pytest.raises(BadImage):
        read_image(path)


def test_links_that_lead_in_circles_are_walked_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"x")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to("a")
    (tmp_path / "self").symlink_to("self")
    with limit(10):
        assert [path.name for path in find_images(tmp_path)] == ["x.jpg"]
        assert locate_images(["a/x.jpg", "../a/x.jpg"], tmp_path) == [tmp_path / "a" / "x.jpg", None]


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "null", "self", "empty", "zeros"])
def test_small_files_of_our_own(tmp_path: Path, kind: str) -> None:
    path = make(kind, tmp_path, "x.json")
    with limit(10), pytest.raises(UserError, match="Fix: again"):
        read_json(path, "again")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(UserError, match="UTF-8"):
        read_text(tmp_path / "latin", "again")
    with pytest.raises(UserError, match="over the limit of 1"):
        read_text(__file__, "again", max_bytes=1)


def test_an_error_stays_short_whatever_it_quotes() -> None:
    error = LabelError("a" * 10**6, "b" * 10**6, "x" * 10**6)
    assert len(str(error)) < 5000
    assert UserError("short", "as it is").message == "short"


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """Images there are trained on, with one that cannot be read."""
    from digit_scenes import write_folder

    from halflabel.report.run_facts import read_run_facts
    from halflabel.runs.folder import RunFolder

    write_folder(tmp_path, 24)
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ph\xff"))
    try:
        (tmp_path / "images").rename(odd)
    except OSError:
        pytest.skip("this file system has no such names")
    min(odd.iterdir()).write_bytes(b"no image")
    words = [
        "train",
        f"{tmp_path}/train.csv",
        str(odd),
        "--method",
        "bn-bce",
        "--backbone",
        "tiny",
        "--size",
        "32",
        "--fit",
        "batches",
        "--epochs",
        "1",
    ]
    words += ["--workers", "0", "--set", "device=cpu", "--max-bad", "0.5", "--out", f"{tmp_path}/run"]
    shown = tmp_path / "shown.txt"
    process = CommandProcess(*words, output=shown)  # `main` lets the streams write such names
    process.process.join(120)
    assert process.stop() == 0, shown.read_bytes()
    assert b"images could not be read" in shown.read_bytes()
    assert os.fsencode(odd) in shown.read_bytes()
    run = RunFolder.open(tmp_path / "run")
    assert run.read_config()["images"] == str(odd)
    assert os.fsencode(odd) in run.bad_images.read_bytes()
    assert read_run_facts(run).unreadable == 1
    # Arrow opens no files below such a folder: a run is not begun there.
    with pytest.raises(UserError, match="not UTF-8"):
        RunFolder.create(odd / "run")
