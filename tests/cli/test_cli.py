"""The command line: each command on small data, every fault in one message, and training that survives being killed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from halflabel.cli import app, main
from halflabel.data.datasets.digits import CLASSES, write_folder
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this process is about power cuts; waiting for the disk is most of the time otherwise."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


TINY = ["--backbone", "tiny", "--size", "32", "--workers", "0", "--device", "cpu"]
MAIN = [sys.executable, "-c", "from halflabel.cli import main; main()"]


def run(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def flat(text: str) -> str:
    """Without line breaks, which depend on the width of the screen."""
    return " ".join(text.split())


def done(*words: str | Path, stdin: str | None = None) -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str | Path, stdin: str | None = None) -> str:
    """Run what must fail: exit code 2, one message with a fix on the error stream, no traceback."""
    result = run(*words, stdin=stdin)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.output
    return flat(result.stderr)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_folder(folder, 48)
    write_folder(folder / "test", 12, split="test")
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    done("train", data / "train.csv", data / "images", "--out", out, "--epochs", "2", *TINY)
    return out


def test_commands_start_without_torch() -> None:
    check = (
        "import sys, io, contextlib, halflabel.cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    halflabel.cli.app(['--help'])\n"
        "heavy = {'torch', 'timm', 'sklearn', 'matplotlib', 'pyarrow', 'accelerate', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_ctrl_c_within_an_import_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python wraps what is raised while a class is made."""

    def stopped() -> None:
        raise KeyboardInterrupt

    def wrapped() -> None:
        try:
            stopped()
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr("halflabel.cli.app", wrapped)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "Stopped\n"

    monkeypatch.setattr("halflabel.methods.base.recipes", stopped)
    plain = run("methods")
    assert (plain.exit_code, plain.stderr) == (130, "Stopped\n")

    def broken() -> None:
        raise RuntimeError("something else") from ValueError("else")

    monkeypatch.setattr("halflabel.cli.app", broken)
    with pytest.raises(RuntimeError, match="something else"):
        main()


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["train", "nowhere.csv", "FOLDER"],
        ["train", "nowhere.csv", "nowhere"],
        ["train", "--resume", "FOLDER", "--lr", "1"],
        ["train", "--continue", "FOLDER", "--answers", "nowhere.csv"],
        ["import", "LABELS", "new.csv", "--images", "FOLDER"],
        ["fill", "--undo", "LABELS"],
    ],
    ids=" ".join,
)
def test_faults_are_said_before_torch_is_loaded(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value,source,score\na,cat,1,me,\n")
    (tmp_path / "run").mkdir()
    places = {"FOLDER": str(tmp_path / "run"), "LABELS": str(tmp_path / "labels.csv")}
    check = (
        "import sys, halflabel.cli\n"
        "try:\n"
        f"    halflabel.cli.app({[places.get(word, word) for word in words]!r})\n"
        "except SystemExit as end:\n"
        "    assert end.code == 2, end.code\n"
        "    assert 'torch' not in sys.modules, 'torch takes seconds'\n"
        "    print('refused')\n"
    )
    said = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "refused", said.stderr
    assert "fix:" in said.stderr


QUICK = [  # the words, and what is said
    (["review", "RUN", "FOLDER", "--questions", "nowhere.csv"], "nowhere.csv is no file"),
    (["review", "RUN", "nowhere"], "nowhere is not a folder"),
    (["export", "onnx", "FOLDER"], "is not a run"),
    (["export", "onnx", "RUN", "--out", "LABELS"], "is there already"),
    (["export", "onnx", "RUN", "--out", "model.txt"], "does not end in .onnx"),
    (["export", "hub", "RUN", "--out", "LABELS"], "is a file"),
    (["serve", "FOLDER"], "is not a run"),
    (["serve", "RUN", "--port", "TAKEN"], "cannot listen"),
    (["report", "FOLDER"], "is not a run"),
    (["report", "RUN", "--images", "nowhere"], "nowhere is not a folder"),
    (["report", "RUN", "--out", "page.txt"], "is no name for a page"),
    (["predict", "FOLDER", "photo.jpg"], "is not a run"),
    (["predict", "LABELS", "photo.jpg"], "is not a model"),
    (["evaluate", "FOLDER", "LABELS", "FOLDER"], "is not a run"),
    (["methods", "--regime", "nope"], "positives-only"),
    (["study", "LABELS", "nowhere"], "nowhere is not a folder"),
    (["reproduce", "nope"], "S5-table"),
    (["reproduce", "nope", "FOLDER"], "S5-table"),
]


def test_commands_on_runs_refuse_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value,source,score\na,cat,1,me,\n")
    (tmp_path / "empty").mkdir()
    made = RunFolder.create(tmp_path / "run")
    made.start(LabelTable.from_dense(np.array([[1, -1]], np.int8), ["a"], ["cat", "dog"]), {"method": "bce"})
    made.weights.touch()
    taken = socket.create_server(("127.0.0.1", 0))
    places = {
        name: str(tmp_path / file) for name, file in (("FOLDER", "empty"), ("RUN", "run"), ("LABELS", "labels.csv"))
    }
    places["TAKEN"] = str(taken.getsockname()[1])
    check = (
        "import sys, halflabel.cli\n"
        f"for words, code in {[([places.get(w, w) for w in words], 2) for words, _ in QUICK]!r}:\n"
        "    try:\n"
        "        halflabel.cli.app(words)\n"
        "    except SystemExit as end:\n"
        "        assert (end.code or 0) == code, (words, end.code)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    with taken:
        said = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    errors = said.stderr.split("error: ")[1:]
    assert len(errors) == len(QUICK)
    for (words, expected), error in zip(QUICK, errors, strict=True):
        assert expected in error, (words, error)


def test_methods_are_listed_and_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value,source,score\na,cat,1,me,\n")
    assert "Binary cross-entropy on the known entries" in " ".join(done("methods").split())
    assert "did you mean bce" in refused("methods", "bcee")
    words = ["compare", tmp_path / "labels.csv", tmp_path, "--methods", "an,nope"]
    assert "no method is called 'nope'" in refused(*words)


def test_a_bare_call_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "halflabel demo" in done()
    (tmp_path / "tags.csv").write_text("image,cat\na,1\n")
    assert "halflabel inspect tags.csv" in done()


@pytest.mark.parametrize(
    "command", ["inspect", "import", "convert", "drop", "train", "evaluate", "predict", "methods", "demo"]
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    text = done(command, "--help")
    assert "--" in text
    assert command in done("--help")
    if command not in ("methods", "demo"):
        assert f"Example: halflabel {command}" in text


def test_version() -> None:
    from halflabel import __version__

    assert done("--version").strip() == f"halflabel {__version__}"


def test_inspect_says_what_is_known_and_what_fits(data: Path, tmp_path: Path) -> None:
    text = done("inspect", data / "train.csv", "--plot", tmp_path / "labels.html")
    assert "48 images, 10 classes" in flat(text)
    assert "bce" in text
    assert "<svg" in (tmp_path / "labels.html").read_text(encoding="utf-8")
    found = json.loads(done("inspect", data / "train.csv", "--json"))
    assert found["regime"] == "full"
    assert found["images"] == 48
    assert found["per_class"].keys() == set(CLASSES)
    assert sum(sum(counts.values()) for counts in found["per_class"].values()) == 480


def test_import_convert_and_back_keep_every_label(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    before = formats.read(data / "train.csv").table()
    done("import", data / "train.csv", tmp_path / "long.csv", "--images", data / "images")
    done("convert", tmp_path / "long.csv", tmp_path / "wide.csv", "--to", "wide")
    done("convert", tmp_path / "wide.csv", tmp_path / "long.parquet")
    for name in ("long.csv", "wide.csv", "long.parquet"):
        assert formats.read(tmp_path / name).table() == before


def test_drop_hides_labels_by_the_seed(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        done("drop", data / "train.csv", tmp_path / f"{name}.csv", "--keep", "0.3", "--seed", str(seed))
    a, b, c = (formats.read(tmp_path / f"{name}.csv").table() for name in "abc")
    assert a == b
    assert a != c
    assert 0.15 < a.known / 480 < 0.45
    done("drop", data / "train.csv", tmp_path / "single.csv", "--protocol", "single-positive")
    assert formats.read(tmp_path / "single.csv").table().stats().regime == "single-positive"


BROKEN: dict[str, tuple[bytes, list[str], str]] = {
    "missing column": (b"image,value\na,1\n", ["--format", "long"], "column"),
    "another image column": (b"image,cat\na,1\n", ["--image-column", "photo"], "photo"),
    "unknown value": (b"image,cat\na,maybe\n", [], "line 2, column 'cat': value 'maybe' is not a label"),
    "duplicate id": (b"image,cat\na,1\na,0\n", [], "line 3, column 'image': image 'a' is already on line 2"),
    "duplicate column": (b"image,cat,cat\na,1,1\n", [], "column 'cat' occurs twice"),
    "latin-1": ("image,café\na,1\n".encode("latin-1"), [], "byte 0xe9 is not UTF-8"),
    "utf-16": ("image,cat\na,1\n".encode("utf-16"), [], "UTF-16"),
    "bytes": (b"image,cat\na,1\x00\n", [], "byte 0x00"),
    "empty": (b"", [], "the file is empty"),
    "header only": (b"image,cat\n", [], "a header but no rows"),
    "ragged, short": (b"image,cat,dog\na,1\n", [], "line 2: 2 fields where the first line has 3"),
    "ragged, long": (b"image,cat\na,1\nb,1,0\n", [], "line 3: 3 fields where the first line has 2"),
    "minus one": (b"image,cat\na,-1\n", [], "--minus-one absent or --minus-one unknown"),
    "no name": (b"image,\na,1\n", [], "column 2 has no name"),
    "no format": (b"\n\n", [], "label format is not recognized"),
    "wrong format": (b"image,cat\na,1\n", ["--format", "excel"], "no label format is called 'excel'"),
    "idle option": (b"image,cat\na,1\n", ["--difficult", "absent"], "--difficult means nothing"),
    "odd pair": (b"image,cat\na,1\n", ["--value", "maybe"], "--value 'maybe' cannot be read"),
}


@pytest.mark.parametrize(("content", "options", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_label_file_is_named_and_nothing_is_written(
    tmp_path: Path, data: Path, content: bytes, options: list[str], says: str
) -> None:
    source = tmp_path / "in" / "labels.csv"
    source.parent.mkdir()
    source.write_bytes(content)
    out = tmp_path / "out"
    out.mkdir()
    assert says in refused("inspect", source, *options)
    assert says in refused("import", source, out / "new.csv", *options)
    assert says in refused("convert", source, out / "new.csv", "--to", "wide", *options)
    assert says in refused("drop", source, out / "new.csv", "--keep", "0.5", *options)
    assert says in refused("train", source, data / "images", "--out", out / "run", *TINY, *options)
    assert list(out.iterdir()) == []
    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nowhere.csv", None, "no such file"),
        ("folder", None, "label format is not recognized"),
        ("half.json", b'{"images": [', "line 1: this is not JSON"),
        ("list.json", b"[1, 2]", "holds a list"),
        ("noise.parquet", b"PAR1 noise", "label format is not recognized"),
    ],
)
def test_what_is_no_label_file_at_all(tmp_path: Path, data: Path, name: str, content: bytes | None, says: str) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    assert says in refused("inspect", tmp_path / name)
    assert says in refused("train", tmp_path / name, data / "images", "--out", tmp_path / "run", *TINY)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["drop", "L", "OUT", "--protocol", "half"], "no protocol is called 'half'"),
        (["drop", "L", "OUT", "--spoil", "0.1"], "--spoil means nothing for partial"),
        (["drop", "L", "OUT", "--keep", "2"], "2"),
        (["drop", "L", "OUT"], "partial needs --keep"),
        (["drop", "L", "OUT", "--protocol", "single-positive", "--spoil", "0.1"], "leave --spoil out"),
        (["drop", "L", "OUT", "--protocol", "per-class", "--positives", "3"], "per-class needs --negatives"),
        (["drop", "L", "OUT", "--protocol", "positives"], "needs either --keep or --number"),
        (["drop", "L", "OUT", "--keep", "0.5", "--negatives", "3"], "it takes --keep, --exact"),
        (["inspect", "L", "--where", "source=a", "--where", "source=b"], "--where says 'a' and 'b' of 'source'"),
        (["train", "--resume", "OUT", "--continue", "OUT"], "--continue means nothing with --resume"),
        (["train", "--resume", "OUT", "L", "I"], "LABELS mean nothing with --resume"),
        (["train", "--continue", "OUT", "L"], "is not a folder"),
        (["train", "--continue", "OUT", "--minus-one", "absent"], "--minus-one means nothing with --continue"),
        (["demo", "--out", "L"], "is a file"),
        (["convert", "L", "OUT", "--to", "excel"], "no label format is called 'excel'"),
        (["import", "L", "OUT", "--images", "nowhere"], "nowhere"),
        (["train", "L"], "LABELS and IMAGES are missing"),
        (["train", "L", "I", "more", "--out", "OUT"], "one argument too many"),
        (["train", "L", "I", "--out", "OUT", "--method", "bec"], "did you mean"),
        (["train", "L", "I", "--out", "OUT", "--epoch", "3"], "did you mean --epochs?"),
        (["train", "L", "I", "--out", "OUT", "--beta", "3"], "bce has no options of its own"),
        (["train", "--method", "em", "--beta", "3", "L", "I"], "the options of em: --alpha"),
        (["train", "L", "I", "--out", "OUT", "--method", "em", "--alpha", "much"], "takes a float"),
        (["train", "L", "I", "--out", "OUT", "--method", "em", "--alpha"], "--alpha has no value"),
        (["train", "L", "I", "--out", "OUT", "--backbone", "resnet5000"], "no backbone called"),
        (["train", "L", "I", "--out", "OUT", "--weights", "no.pth"], "no weights file"),
        (["train", "L", "nowhere", "--out", "OUT"], "is not a folder"),
        (["train", "L", "EMPTY", "--out", "OUT"], "none of the 48 images"),
        (["train", "--resume", "OUT"], "is not a run"),
        (["evaluate", "OUT", "L", "I"], "is not a run"),
        (["predict", "OUT", "x.png"], "is not a run"),
        (["methods", "bec"], "did you mean"),
        (["methods", "--regime", "half"], "no label regime is called 'half'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_faults_are_said_in_one_message_and_nothing_is_written(
    tmp_path: Path, data: Path, words: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"L": data / "train.csv", "I": data / "images", "OUT": tmp_path / "out", "EMPTY": tmp_path / "empty"}
    assert says in refused(*(places.get(word, word) for word in words))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_an_option_of_ones_own_method_that_train_would_take_for_its_own_is_refused(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halflabel.methods import base as registry
    from halflabel.methods.parts.losses import BCE

    def own(size: int = 3) -> registry.Method:
        return registry.Method(BCE())

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry.recipes()))
    registry.method(serves=["full", "partial"], paper="none")(own)
    words = ["train", data / "train.csv", data / "images", "--method", "own", "--out", tmp_path / "out"]
    assert "the method own would never be given its own" in refused(*words)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    for command in ("import", "convert", "drop"):
        more = ["--keep", "0.5"] if command == "drop" else []
        assert "--force" in refused(command, data / "train.csv", out, *more)
        assert out.read_text() == "precious"
    done("import", data / "train.csv", out, "--force")
    assert out.read_text() != "precious"


def test_nor_is_what_holds_no_questions_or_rules(tmp_path: Path, data: Path, trained: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    assert "holds no questions" in refused("next", trained, data / "images", "--out", out)
    assert "--force" in refused("rules", "suggest", data / "train.csv", "--out", out)
    assert out.read_text() == "precious"
    done("next", trained, data / "images", "--out", tmp_path / "questions.csv")
    done("next", trained, data / "images", "--out", tmp_path / "questions.csv")


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--batch-size", "0"), ("--epochs", "0"), ("--lr", "-1"), ("--accumulate", "0"), ("--workers", "-1")],
)
def test_numbers_that_cannot_be_are_refused(data: Path, flag: str, value: str) -> None:
    result = run("train", data / "train.csv", data / "images", flag, value)
    assert result.exit_code == 2
    assert flag in result.stderr


def test_names_with_brackets_and_blanks_are_shown_to_be_copied(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "a [red] name that is long enough for the line to be broken in a terminal of 80.csv"
    said = done("drop", data / "train.csv", out, "--keep", "0.5")
    assert f"Wrote {out}. Next:  halflabel inspect {shlex.quote(str(out))}\n" in said
    assert f"Next:  halflabel inspect {shlex.quote(str(out))}\n" in done("import", data / "train.csv", out, "--force")


def test_the_page_of_a_method_is_set_to_the_width_of_the_screen() -> None:
    said = done("methods", "bn-bce")
    assert "With all\nlabels known" not in said
    assert "    L = Σ_known BCE / number of known entries in the batch\n" in said
    assert '--relabel-at ""' in done("methods", "curriculum")


def test_a_format_that_would_lose_labels_is_refused(tmp_path: Path, data: Path) -> None:
    done("drop", data / "train.csv", tmp_path / "half.csv", "--keep", "0.5")
    assert "coco" in refused("convert", tmp_path / "half.csv", tmp_path / "out.json", "--to", "coco").lower()
    assert not (tmp_path / "out.json").exists()


def test_a_missing_image_is_found_at_import(tmp_path: Path, data: Path) -> None:
    (tmp_path / "images").mkdir()
    assert "48 of 48 images have no file" in refused(
        "import", data / "train.csv", tmp_path / "out.csv", "--images", tmp_path / "images"
    )
    assert not (tmp_path / "out.csv").exists()


def test_labels_a_method_cannot_learn_from_are_refused_before_a_run_is_made(tmp_path: Path, data: Path) -> None:
    done("drop", data / "train.csv", tmp_path / "single.csv", "--protocol", "single-positive")
    said = refused(
        "train", tmp_path / "single.csv", data / "images", "--method", "bce", "--out", tmp_path / "run", *TINY
    )
    assert "cannot learn from single-positive labels" in said
    assert "use one of: an" in said
    assert not (tmp_path / "run").exists()


def test_train_shows_epochs_and_writes_a_run(data: Path, tmp_path: Path) -> None:
    text = done(
        "train", "--alpha=0.1", "--method", "em", data / "train.csv", data / "images", "--out", tmp_path / "run",
        "--epochs", "2", *TINY,
    )  # fmt: skip
    assert "epoch   1/2" in text
    assert "epoch   2/2" in text
    assert "images/s" in text
    assert "halflabel predict" in text
    written = RunFolder.open(tmp_path / "run")
    for line in written.read_log():  # 0 … 1 in files, points of 100 on the screen
        assert f"epoch {line['epoch']:>3}/2  loss {line['loss']:.4f}  mAP {100 * line['mAP']:.1f}  " in text
    overall = written.read_json("metrics.json")
    assert f"mAP {100 * overall['mAP']:.1f} ({100 * overall['mAP_low']:.1f} – {100 * overall['mAP_high']:.1f})" in text
    assert f"| mAP (95 % interval) | {100 * overall['mAP']:.1f} (" in (written / "model_card.md").read_text()
    config = written.read_config()
    assert config["options"] == {"alpha": 0.1}
    assert config["method"] == "em"
    assert (tmp_path / "run" / "best.safetensors").exists()


@pytest.mark.parametrize("tune", ["head", "all"])
def test_train_with_nothing_held_out(data: Path, tmp_path: Path, tune: str) -> None:
    text = done(
        "train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", "--held-out", "0",
        "--tune", tune, *TINY,
    )  # fmt: skip
    assert "mAP" not in text
    assert "probability" in done("predict", tmp_path / "run", data / "images", "--format", "json")


def test_a_second_run_in_the_same_folder_needs_force(data: Path, tmp_path: Path) -> None:
    words = ["train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", *TINY]
    done(*words)
    before = (tmp_path / "run" / "best.safetensors").read_bytes()
    assert "already holds a run" in refused(*words)
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == before
    done(*words, "--force", "--seed", "1")
    assert (tmp_path / "run" / "best.safetensors").read_bytes() != before
    # A fault found before training starts leaves the old run as it is.
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    refused(*words, "--force", "--weights", "nowhere.pth")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == after


def test_a_resumed_run_keeps_its_settings(trained: Path, data: Path) -> None:
    before = (trained / "best.safetensors").read_bytes()
    done("train", "--resume", trained)
    assert (trained / "best.safetensors").read_bytes() == before
    assert "--epochs means nothing with --resume" in refused("train", "--resume", trained, "--epochs", "5")
    assert "--alpha means nothing with --resume" in refused("train", "--resume", trained, "--alpha", "5")


def test_resuming_with_changed_labels_is_refused(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    done("train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", *TINY)
    other = formats.read(data / "train.csv").table().subset(range(40))
    formats.write(other, tmp_path / "run" / "labels.parquet")
    assert "differs from the labels" in refused("train", "--resume", tmp_path / "run")


def test_the_script_in_a_run_makes_the_same_run_again(data: Path, tmp_path: Path) -> None:
    done(
        "train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", "--held-out", "0",
        "--tune", "all", "--method", "em", "--alpha", "0.05", "--no-channels-last", "--seed", "0", *TINY,
    )  # fmt: skip
    # From anywhere, also when the run has moved; whatever the words in the environment of whoever calls it.
    moved = (tmp_path / "run").rename(tmp_path / "a run")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "halflabel"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m halflabel "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "CDPATH": str(tmp_path)}
    ended = subprocess.run(["sh", moved / "repro.sh"], cwd="/", env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    again = tmp_path / "a run-again"
    assert (again / "best.safetensors").read_bytes() == (moved / "best.safetensors").read_bytes()
    first, second = RunFolder(moved).read_config(), RunFolder(again).read_config()
    assert first == second


def test_evaluate_measures_on_other_labels(trained: Path, data: Path, tmp_path: Path) -> None:
    text = done("evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out", tmp_path / "m.json")
    assert "known entries only" in text
    found = json.loads((tmp_path / "m.json").read_text())
    assert f"mAP {100 * found['mAP']:.1f} (" in text
    assert f"micro F1 {100 * found['micro_f1']:.1f} " in text
    weakest = min((row for row in found["per_class"] if row["AP"] is not None), key=lambda row: row["AP"])
    assert re.search(rf"^{weakest['class']} +{100 * weakest['AP']:.1f} ", text, re.MULTILINE)
    assert found["images"] == 12
    assert [row["class"] for row in found["per_class"]] == CLASSES


def test_evaluate_decides_by_one_threshold_where_asked(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ["evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out"]
    found = {}
    for cut in ("", "0.0", "0.75"):
        text = flat(done(*words, tmp_path / f"m{cut}.json", *(["--threshold", cut] if cut else [])))
        found[cut] = json.loads((tmp_path / f"m{cut}.json").read_text())
        assert found[cut]["protocol"] in text
    assert "present or absent by the threshold of each class" in found[""]["protocol"]
    assert "threshold" not in found[""]
    own = RunFolder(trained).read_thresholds()
    assert {row["class"]: row["threshold"] for row in found[""]["per_class"]} == pytest.approx(own)
    assert "present or absent by one threshold of 0.75" in found["0.75"]["protocol"]
    assert found["0.75"]["threshold"] == 0.75
    assert {row["threshold"] for row in found["0.75"]["per_class"]} == {0.75}
    # All is called present from 0 on: nothing is missed, and as much is right as there is.
    known = [(row["present"], row["absent"]) for row in found["0.0"]["per_class"]]
    assert found["0.0"]["OR"] == 1
    assert found["0.0"]["OP"] == pytest.approx(sum(p for p, _ in known) / sum(p + a for p, a in known))
    assert found["0.0"]["mAP"] == found[""]["mAP"]
    assert run(*words[:-1], "--threshold", "1.5").exit_code == 2
    assert "--threshold" in flat(done("evaluate", "--help"))


def test_evaluate_shows_a_dash_for_classes_that_the_labels_do_not_name(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    from halflabel.labels import formats

    pictures = data / "test" / "images"
    table = formats.read(data / "test" / "test.csv").table()
    formats.write(table.subset(classes=[8, 3, 5]), tmp_path / "few.csv")
    text = flat(done("evaluate", trained, tmp_path / "few.csv", pictures, "--out", tmp_path / "few.json"))
    assert "few.csv has no row on 7 of the run's 10 classes: 0, 1, 2, 4, 6, 7, 9" in text
    done("evaluate", trained, data / "test" / "test.csv", pictures, "--out", tmp_path / "whole.json")
    few, whole = (json.loads((tmp_path / f"{name}.json").read_text())["per_class"] for name in ("few", "whole"))
    assert [row["class"] for row in few] == CLASSES
    for c, (mine, theirs) in enumerate(zip(few, whole, strict=True)):
        if c in (3, 5, 8):
            assert [mine[key] for key in ("present", "absent", "AP")] == [
                theirs[key] for key in ("present", "absent", "AP")
            ]
        else:
            assert [mine[key] for key in ("present", "absent", "AP", "precision")] == [0, 0, None, None]
    (tmp_path / "other.csv").write_text("image,cat,dog\ntest-000000.png,1,0\n")
    said = refused("evaluate", trained, tmp_path / "other.csv", pictures)
    assert "other.csv names none of the run's 10 classes: it has 'cat', 'dog' …, the run '0', '1', '2' …" in said


def test_evaluate_overwrites_an_earlier_evaluation_and_nothing_else(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ["evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out"]
    done(*words, tmp_path / "m.json")
    done(*words, tmp_path / "m.json")
    for precious in ("image,cat\na,1\n", '{"images": []}', "[1]"):
        (tmp_path / "precious").write_text(precious)
        assert "holds no evaluation" in refused(*words, tmp_path / "precious")
        assert (tmp_path / "precious").read_text() == precious
    done(*words, tmp_path / "precious", "--force")
    assert "per_class" in json.loads((tmp_path / "precious").read_text())


def test_images_without_a_file_are_counted_before_a_run_begins(data: Path, tmp_path: Path) -> None:
    words = ["train", tmp_path / "labels.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", *TINY]
    words += ["--method", "bn-bce"]
    more = "".join(f"gone-{number},{'01'[number % 2]},1,,\n" for number in range(20))
    done("import", data / "train.csv", tmp_path / "labels.csv")
    with open(tmp_path / "labels.csv", "a") as file:
        file.write(more)
    said = refused(*words)
    assert "20 of 68 images (29.4 %) have no file in" in said
    assert "'gone-0', 'gone-1', 'gone-2' …" in said
    assert f"see {tmp_path / 'run' / 'bad_images.csv'}; " in said
    listed = (tmp_path / "run" / "bad_images.csv").read_text()
    assert listed.count("no such file") == 20
    assert "20 of 68 images could not be read: see" in flat(done(*words, "--max-bad", "0.5"))
    weights = (tmp_path / "run" / "best.safetensors").read_bytes()
    (tmp_path / "run" / "bad_images.csv").write_text("of the run that is there\n")
    assert "20 of 68 images" in refused(*words, "--force", "--seed", "1")  # and that run stays as it is
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == weights
    assert (tmp_path / "run" / "bad_images.csv").read_text() == "of the run that is there\n"


@pytest.mark.parametrize("tune", ["head", "all"])
def test_too_many_broken_images_leave_a_folder_that_can_be_started_again(data: Path, tmp_path: Path, tune: str) -> None:
    write_folder(tmp_path, 48)
    for number in range(10):
        (tmp_path / "images" / f"train-{number:06}.png").write_bytes(b"no picture")
    words = ["train", tmp_path / "train.csv", tmp_path / "images", "--out", tmp_path / "run", "--epochs", "1"]
    words += ["--tune", tune, "--linear-init", "0", *TINY]
    said = refused(*words)
    assert f"see {tmp_path / 'run' / 'bad_images.csv'}, or raise --max-bad" in said
    assert "is not a run" in refused("train", "--resume", tmp_path / "run")
    assert "10 of 48 images could not be read" in flat(done(*words, "--max-bad", "0.5"))


def test_nothing_can_be_held_out_of_one_image_and_that_is_said(data: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("image,a,b\ntrain-000000.png,1,0\n")
    words = [tmp_path / "one.csv", data / "images", "--epochs", "1", *TINY]
    said = "too few images to hold any out: nothing is measured"
    assert said in done("train", *words, "--out", tmp_path / "run")
    assert said not in done("train", *words, "--out", tmp_path / "asked", "--held-out", "0")


def test_epochs_of_the_linear_init_are_counted_apart(data: Path, tmp_path: Path) -> None:
    text = done(
        "train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--epochs", "1", "--tune", "all",
        "--linear-init", "3", *TINY,
    )  # fmt: skip
    assert "linear init: 3 epochs" in text
    assert re.findall(r"^(?:head|epoch) +\d+/\d+", text, re.MULTILINE) == [
        "head   1/3", "head   2/3", "head   3/3", "epoch   1/1",
    ]  # fmt: skip


def test_predict_marks_what_is_over_its_threshold_in_plain_text_too(
    trained: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "images")
    photo = Path("train-000003.png")
    (found,) = json.loads(done("predict", trained, photo, "--format", "json", "--all"))
    text = done("predict", trained, photo, "--all")
    assert "*: over the threshold" in text
    wanted = {label["class"]: label["present"] for label in found["labels"]}
    assert True in wanted.values()
    marks = {name: bool(mark) for name, mark in re.findall(r"\b(\d) [01]\.\d\d(\*?)", flat(text))}
    assert marks == wanted


def test_an_option_that_is_far_from_any_other_is_no_slip_of_the_pen(data: Path, tmp_path: Path) -> None:
    words = ["train", data / "train.csv", data / "images", "--out", tmp_path / "run", "--method", "bce"]
    assert "did you mean" not in refused(*words, "--alpha", "3")
    assert "did you mean --epochs?" in refused(*words, "--epoch", "3")


def test_a_full_device_under_the_output_is_an_error_with_a_fix(tmp_path: Path, data: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    for words in (["--help"], ["inspect", str(data / "train.csv")]):
        with open("/dev/full", "w") as full:
            said = subprocess.run([*MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert said.returncode == 2, said.stderr
        assert flat(said.stderr) == (
            "error: the output cannot be written: No space left on device fix: make room, or write to another place"
        )


def test_a_place_that_cannot_be_written_is_an_error_with_a_fix(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "fix:" in refused("pack", data / "images", tmp_path / "file" / "pack")


def test_predict_as_table_json_and_csv_from_files_folders_and_stdin(trained: Path, data: Path) -> None:
    photo = data / "images" / "train-000003.png"
    assert "train-000003.png" in done("predict", trained, photo).replace("\n", "")
    found = json.loads(done("predict", trained, photo, "--format", "json", "--all"))
    assert len(found) == 1
    assert found[0]["image"] == str(photo)
    assert sorted(label["class"] for label in found[0]["labels"]) == CLASSES
    rows = list(csv.DictReader(io.StringIO(done("predict", trained, data / "images", "--format", "csv", "--top", "2"))))
    assert len({row["image"] for row in rows}) == 48
    assert all(0 <= float(row["probability"]) <= 1 and row["present"] in "01" for row in rows)
    names = f"{photo}\n\n{data / 'images' / 'train-000001.png'}\n"
    piped = json.loads(done("predict", trained, "-", "--format", "json", stdin=names))
    assert [Path(item["image"]).name for item in piped] == ["train-000003.png", "train-000001.png"]
    alone = json.loads(done("predict", trained, photo, "--format", "json"))
    chances = [[label["probability"] for label in item["labels"]] for item in (piped[0], alone[0])]
    assert chances[0] == pytest.approx(chances[1], abs=1e-5)


def test_predict_names_the_images_it_cannot_read(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = data / "images" / "train-000003.png", Path("[bold]x.png")
    bad.write_bytes(b"no picture")
    for shape in ("json", "csv", "table"):
        assert "[bold]x.png" in done("predict", trained, good, bad, "--format", shape)
    result = run("predict", trained, bad, "--format", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["error"]
    assert "not one image could be read" in result.stderr
    (tmp_path / "none").mkdir()
    assert "there are no images" in refused("predict", trained, tmp_path / "none")
    assert "there are no images" in refused("predict", trained, "-", stdin="\n")


def test_methods_lists_all_and_shows_one() -> None:
    from halflabel.methods.base import recipe, recipes

    text = done("methods")
    assert all(name in text for name in recipes())
    few = done("methods", "--regime", "single-positive")
    assert "an" in few
    assert "logistic" not in few
    page = done("methods", "em")
    assert " ".join(recipe("em").page.split()) in " ".join(page.split())
    assert "--alpha 0.2" in page


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_stopped_training_says_how_to_go_on(
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: signal.Signals,
    code: int,
) -> None:
    from halflabel.cli.progress import TrainingBar

    out = tmp_path / "the run"
    words = ["train", data / "train.csv", data / "images", "--epochs", "2", *TINY]  # as those of `trained`
    before = signal.getsignal(signal.SIGTERM)
    ends = TrainingBar.on_epoch_end

    def stop(self: TrainingBar, line: Any) -> None:
        ends(self, line)
        os.kill(os.getpid(), kind)
        time.sleep(5)  # the signal comes at once

    # A shell that runs the tests in the background has them ignore Ctrl-C.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingBar, "on_epoch_end", stop)
        result = run(*words, "--out", out)
    signal.signal(signal.SIGINT, interrupt)
    assert result.exit_code == code
    assert result.stderr.strip() == f"Stopped; go on with:  halflabel train --resume '{out}'"
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (out / "best.safetensors").exists()
    assert not list(tmp_path.rglob("*.tmp"))
    done("train", "--resume", out)
    assert (out / "best.safetensors").read_bytes() == (trained / "best.safetensors").read_bytes()


def test_a_training_stopped_before_it_began_wrote_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halflabel.runs.train.build", stop)
    result = run("train", data / "train.csv", data / "images", "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 130
    assert result.stderr.strip() == "Stopped; nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_in_the_middle_of_an_epoch_ends_with_the_same_weights(data: Path, tmp_path: Path) -> None:
    words = [
        "train", str(data / "train.csv"), str(data / "images"), "--tune", "all", "--epochs", "2", "--batch-size", "2",
        "--save-every", "1", "--ema", "0.9", *TINY,
    ]  # fmt: skip
    done(*words, "--out", tmp_path / "unbroken")
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [*MAIN, *words, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )  # fmt: skip
    # Of 38 training images: 19 steps per epoch, so 20 places; early in the second epoch is far from any end.
    wanted = set(range(20 + 3, 20 + 12))
    limit = time.monotonic() + 90
    while not wanted & {int(path.stem) for path in (out / "last" / "all").glob("*.json")}:
        assert process.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    newest = max((out / "last" / "all").glob("*.json"))
    assert json.loads(newest.read_text())["done"] > 0
    assert not (out / "best.safetensors").exists()
    done("train", "--resume", out)
    assert (out / "best.safetensors").read_bytes() == (tmp_path / "unbroken" / "best.safetensors").read_bytes()


def test_a_full_disk_is_said_in_the_systems_words(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "x"))

    monkeypatch.setattr("halflabel.labels.formats.write", fail)
    assert "No space left on device" in refused("import", data / "train.csv", tmp_path / "x")


def test_a_reader_that_has_seen_enough_is_no_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("halflabel.cli.labels.show_audit", fail)
    result = run("inspect", data / "train.csv")
    assert result.exit_code == 1
    assert result.stderr == ""


def test_errors_carry_markup_as_it_is(tmp_path: Path) -> None:
    assert "[red]x.csv" in refused("inspect", tmp_path / "[red]x.csv")
    assert str(UserError("a", "b")) == "a. Fix: b"


def test_auto_says_what_it_picks_and_why_and_the_run_records_it(tmp_path: Path, data: Path) -> None:
    said = run("train", data / "train.csv", data / "images", "--out", tmp_path / "run", *TINY).stdout
    assert "Method: bce (" in said
    config = RunFolder.open(tmp_path / "run").read_config()
    assert config["method"] == "bce"
    asked = ["--tune", "all", "--epochs", "2"]
    run("train", data / "train.csv", data / "images", "--out", tmp_path / "all", *asked, *TINY)
    whole = RunFolder.open(tmp_path / "all").read_config()
    assert whole["settings"]["ema"] == 0.998
    assert whole["linear_init"] == 80
    assert config["settings"]["epochs"] == 80
    assert whole["settings"]["epochs"] == 2  # what is asked for goes before the rule


def test_answers_go_into_the_labels_and_training_goes_on_from_the_run(tmp_path: Path, data: Path) -> None:
    first = tmp_path / "first"
    begun = ["--method", "bn-bce", "--epochs", "2", "--out", first, *TINY]
    assert run("train", data / "train.csv", data / "images", *begun).exit_code == 0
    labels = RunFolder.open(first).read_labels()
    image, name = labels.images[0], labels.classes[1]
    new = -int(labels.rows(np.array([0]))[0, 1]) or 1
    (tmp_path / "answers.csv").write_text(f"image,class,value,source,score\n{image},{name},{new},person,\n")
    result = run("train", "--continue", first, "--answers", tmp_path / "answers.csv")
    assert result.exit_code == 0, result.output
    counts = f"{int(new > 0)} present, {int(new < 0)} absent"
    assert f"Took 1 answer from {tmp_path / 'answers.csv'}: {counts}" in result.output.replace("\n", "")
    after = RunFolder.open(tmp_path / "first-next")
    assert after.read_labels().rows(np.array([0]))[0, 1] == new
    assert after.read_config()["begin_from"] == str(first)
    assert after.read_split() == RunFolder.open(first).read_split()
    # The first epoch starts where the first run ended, so its loss is below that run's first.
    assert after.read_log()[0]["loss"] < RunFolder.open(first).read_log()[0]["loss"]
    assert "means nothing with --continue" in refused("train", "--continue", first, "--lr", "0.1")
    assert "means nothing without --continue" in refused("train", "--answers", tmp_path / "answers.csv")
    # Answers of another make, and photos that have moved.
    (tmp_path / "moved").symlink_to(data / "images")
    (tmp_path / "theirs.csv").write_text(f"id,tag,value\n{image},{name},-1\n")
    more = ["--answers", tmp_path / "theirs.csv", "--out", tmp_path / "third"]
    assert "add --minus-one absent" in refused("train", "--continue", first, *more)
    done("train", "--continue", first, tmp_path / "moved", *more, "--minus-one", "absent")
    third = RunFolder.open(tmp_path / "third")
    assert third.read_labels().rows(np.array([0]))[0, 1] == -1
    assert third.read_config()["images"] == str(tmp_path / "moved")
