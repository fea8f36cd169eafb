"""The whole command line: `--help`, `--version`, how errors are shown, and what is refused before torch is imported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import MAIN, done, flat, refused, run

from halflabel.cli import Commands, import_commands, main
from halflabel.errors import UserError
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder


def test_commands_start_without_torch() -> None:
    check = (
        "import sys, io, contextlib, halflabel.cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    halflabel.cli.app(['--help'])\n"
        "heavy = {'torch', 'timm', 'sklearn', 'matplotlib', 'pyarrow', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_helps_of_the_table_are_those_of_the_commands() -> None:
    stubs = typer.main.get_group(typer.Typer(cls=Commands, callback=main)).commands
    commands = import_commands()
    assert list(commands) == list(stubs)
    for name, command in commands.items():
        assert getattr(command, "commands", None) or command.callback, name
        assert " ".join(command.help.split("\n\n")[0].split()) == stubs[name].help
        assert getattr(command, "commands", None) or f"Example: halflabel {name}" in command.help


def test_ctrl_c_during_an_import_prints_one_line(
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

    with monkeypatch.context() as patch:
        patch.setattr("halflabel.cli.app", wrapped)
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


WITHOUT_TORCH = [  # the command, and words of its error
    (["train"], "LABELS and IMAGES are missing"),
    (["train", "nowhere.csv", "FOLDER"], "nowhere.csv"),
    (["train", "nowhere.csv", "nowhere"], "nowhere"),
    (["train", "--resume", "FOLDER", "--lr", "1"], "--lr"),
    (["train", "--continue", "FOLDER", "--answers", "nowhere.csv"], "is not a run"),
    (["import", "LABELS", "new.csv", "--images", "FOLDER"], "images"),
    (["fill", "--undo", "LABELS"], "RUN"),
    (["review", "RUN", "FOLDER", "--questions", "nowhere.csv"], "nowhere.csv"),
    (["review", "RUN", "nowhere"], "nowhere is not a folder"),
    (["export", "onnx", "FOLDER"], "is not a run"),
    (["export", "onnx", "RUN", "--out", "LABELS"], "already exists"),
    (["export", "onnx", "RUN", "--out", "model.txt"], "does not end in .onnx"),
    (["export", "hub", "RUN", "--out", "LABELS"], "is a file"),
    (["serve", "FOLDER"], "is not a run"),
    (["serve", "RUN", "--port", "TAKEN"], "cannot listen"),
    (["report", "FOLDER"], "is not a run"),
    (["report", "RUN", "--images", "nowhere"], "nowhere is not a folder"),
    (["report", "RUN", "--out", "page.txt"], "page.txt"),
    (["predict", "FOLDER", "photo.jpg"], "is not a run"),
    (["predict", "LABELS", "photo.jpg"], "is not a model"),
    (["evaluate", "FOLDER", "LABELS", "FOLDER"], "is not a run"),
    (["study", "LABELS", "nowhere"], "nowhere is not a folder"),
    (["reproduce", "nope"], "S5-table"),
    (["reproduce", "nope", "FOLDER"], "S5-table"),
]


def test_errors_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,class,value,source,score\na,cat,1,me,\n")
    (tmp_path / "empty").mkdir()
    trained = RunFolder.create(tmp_path / "run")
    trained.start(Labels.of(Table.from_dense([[1, -1]], ["a"], ["cat", "dog"])), {"method": "bce"})
    trained.weights.touch()
    taken = socket.create_server(("127.0.0.1", 0))
    places = {
        name: str(tmp_path / file) for name, file in (("FOLDER", "empty"), ("RUN", "run"), ("LABELS", "labels.csv"))
    }
    places["TAKEN"] = str(taken.getsockname()[1])
    check = (
        "import sys, halflabel.cli\n"
        f"for words in {[[places.get(word, word) for word in words] for words, _ in WITHOUT_TORCH]!r}:\n"
        "    try:\n"
        "        halflabel.cli.app(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 2, (words, end.code)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    with taken:
        result = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    errors = result.stderr.split("error: ")[1:]
    assert len(errors) == len(WITHOUT_TORCH)
    for (words, expected), error in zip(WITHOUT_TORCH, errors, strict=True):
        assert expected in error, (words, error)
        assert "fix:" in error


def test_halflabel_without_arguments_shows_the_first_steps() -> None:
    assert all(f"halflabel {name}" in done() for name in ("demo", "inspect", "train", "review"))


def test_version() -> None:
    from halflabel import __version__

    assert done("--version").strip() == f"halflabel {__version__}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drop", "L", "OUT", "half"], "no protocol is called 'half'"),
        (["drop", "L", "OUT", "partial:spoil=0.1"], "partial takes no spoil"),
        (["drop", "L", "OUT", "partial:share=2"], "2"),
        (["drop", "L", "OUT", "partial"], "partial needs share"),
        (["drop", "L", "OUT", "single-positive:share=0.1"], "takes only a seed"),
        (["drop", "L", "OUT", "per-class:positives=3"], "per-class needs negatives"),
        (["drop", "L", "OUT", "positives"], "needs either share or number"),
        (["drop", "L", "OUT", "partial:share=0.5:negatives=3"], "takes share, exact"),
        (["inspect", "L", "--where", "source=a", "--where", "source=b"], "--where gives 'source' two values"),
        (["train", "--resume", "OUT", "--continue", "OUT"], "--continue cannot be used with --resume"),
        (["train", "--resume", "OUT", "L", "I"], "--resume takes no LABELS"),
        (["train", "--continue", "OUT", "L"], "is not a folder"),
        (["train", "--continue", "OUT", "--minus-one", "absent"], "--minus-one cannot be used with --continue"),
        (["demo", "--out", "L"], "is a file"),
        (["convert", "L", "OUT", "--to", "excel"], "no label format is called 'excel'"),
        (["import", "L", "OUT", "--images", "nowhere"], "nowhere"),
        (["train", "L"], "LABELS and IMAGES are missing"),
        (["train", "--dry-rn", "L", "I"], "no option --dry-rn"),
        (["train", "L", "I", "--out", "OUT", "--method", "bec"], "did you mean"),
        (["train", "L", "I", "--out", "OUT", "--epoch", "3"], "did you mean --epochs?"),
        (["train", "L", "I", "--out", "OUT", "--method", "bn-bce", "--set", "beta=3"], "has no options"),
        (["train", "--method", "em", "--beta", "3", "L", "I"], "--set beta=VALUE"),
        (["train", "L", "I", "--out", "OUT", "--method", "em", "--set", "alpha=much"], "takes a float"),
        (["train", "L", "I", "--out", "OUT", "--method", "em", "--set", "alpha"], "NAME=VALUE"),
        (["train", "L", "I", "--out", "OUT", "--backbone", "resnet5000"], "no backbone called"),
        (["train", "L", "I", "--out", "OUT", "--weights", "no.pth"], "no weights file"),
        (["train", "L", "nowhere", "--out", "OUT"], "is not a folder"),
        (["train", "L", "EMPTY", "--out", "OUT"], "none of the 48 images"),
        (["train", "--resume", "OUT"], "is not a run"),
        (["evaluate", "OUT", "L", "I"], "is not a run"),
        (["predict", "OUT", "x.png"], "is not a run"),
        (["methods", "bec"], "did you mean"),
        (["pack", "I", "FILE/pack"], "FILE"),
        (["import", "L", "OUT", "--images", "EMPTY"], "48 of 48 images have no file"),
        (["train", "L", "I", "--config", "FILE"], "does not hold settings"),
        (["predict", "OUT", "I", "--format", "parquet"], "--out"),
        (["predict", "OUT", "I", "--out", "x.txt"], "--format csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_is_one_error_and_writes_nothing(
    tmp_path: Path, data: Path, words: list[str], message: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FILE").write_text("- 1")
    places = {"L": data / "train.csv", "I": data / "images", "OUT": tmp_path / "out"}
    places |= {name: tmp_path / name for name in ("EMPTY", "FILE", "FILE/pack")}
    assert message in refused(*(places.get(word, word) for word in words))
    assert {path.name for path in tmp_path.iterdir()} == {"EMPTY", "FILE"}


def test_existing_files_are_not_overwritten(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    for command in ("import", "convert", "drop"):
        more = ["partial:share=0.5"] if command == "drop" else []
        assert "--force" in refused(command, data / "train.csv", out, *more)
        assert out.read_text() == "precious"
    done("import", data / "train.csv", out, "--force")
    assert out.read_text() != "precious"


def test_files_without_questions_or_rules_are_not_overwritten(tmp_path: Path, data: Path, trained: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    assert "is not a list of questions" in refused("next", trained, data / "images", "--out", out)
    assert "--force" in refused("rules", "suggest", data / "train.csv", "--out", out)
    assert out.read_text() == "precious"
    done("next", trained, data / "images", "--out", tmp_path / "questions.csv")
    done("next", trained, data / "images", "--out", tmp_path / "questions.csv")


def test_output_to_a_full_device_is_an_error_with_a_fix(tmp_path: Path, data: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    for words in (["--help"], ["inspect", str(data / "train.csv")]):
        with open("/dev/full", "w") as full:
            result = subprocess.run([*MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert result.returncode == 2, result.stderr
        assert flat(result.stderr) == (
            "error: the output cannot be written: No space left on device "
            "fix: free disk space, or write to another folder"
        )


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_closed_streams_and_little_memory_end_in_one_message(data: Path) -> None:
    def end_of(words: str) -> tuple[int, str]:
        command = ["sh", "-c", f'{words} "$@"', "sh", *MAIN, "inspect", str(data / "train.csv")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        return result.returncode, flat(result.stderr)

    assert end_of("exec >&-;") == (2, "error: the standard output is closed fix: write it to a file, or to /dev/null")
    assert end_of("exec <&- 2>&-;") == (0, "")
    for kilobytes in (300_000, 800_000):
        code, message = end_of(f"ulimit -v {kilobytes};")
        assert (code, "") == (0, message) or (code == 2 and message.startswith("error: not enough memory"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_said(data: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("halflabel.labels.formats.read", fail)
    assert refused("inspect", data / "train.csv").startswith("error: not enough memory")


def test_a_full_disk_is_reported_as_such(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "x"))

    monkeypatch.setattr("halflabel.labels.formats.write", fail)
    assert "No space left on device" in refused("import", data / "train.csv", tmp_path / "x")


def test_a_closed_pipe_is_not_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("halflabel.cli.show.audit", fail)
    result = run("inspect", data / "train.csv")
    assert result.exit_code == 1
    assert result.stderr == ""


def test_errors_print_markup_literally(tmp_path: Path) -> None:
    assert "[red]x.csv" in refused("inspect", tmp_path / "[red]x.csv")
    assert str(UserError("a", "b")) == "a. Fix: b"
