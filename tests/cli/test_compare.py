"""The command `halflabel compare`."""

from __future__ import annotations

import csv
import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from digit_scenes import write_folder
from typer.testing import CliRunner, Result

from halflabel.cli import app
from halflabel.comparison.bench import Bench
from halflabel.comparison.sources import ExperimentSources, OutOfTime

SETTINGS = ("size=32", "workers=0", "device=cpu", "fit=batches", "epochs=1")
TINY = ["--backbone", "tiny", "--no-references", "--search", "none", *(f"--set={each}" for each in SETTINGS)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_folder(folder, 40, size=32)
    write_folder(folder / "test", 16, split="test", size=32)
    return folder


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def ask(data: Path, out: Path, *words: str) -> Result:
    return run("compare", data / "train.csv", data / "images", "--out", out, "--seeds", "1", *TINY, *words)


def test_a_comparison_is_shown_and_taken_up_again(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = ask(data, out, "--methods", "bn-bce,em:alpha=0.05", "--shares", "0.5,1")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "4/4 em:alpha=0.05, labels all, seed 0" in text
    assert "best" in text
    assert "halflabel train" in text
    assert f"halflabel report {out}" in text
    with open(out / "comparison.csv", newline="") as file:
        assert {(row["labels"], row["method"]) for row in csv.DictReader(file)} == {
            (labels, method) for labels in ("50 %", "all") for method in ("bn-bce", "em:alpha=0.05")
        }
    again = ask(data, out, "--methods", "bn-bce,em:alpha=0.05", "--shares", "0.5,1")
    assert again.exit_code == 0
    assert "4/4" not in again.stdout
    refused = ask(data, out, "--methods", "bn-bce", "--set", "batch_size=8")
    assert refused.exit_code == 2
    assert "batch size was 32, is 8" in " ".join(refused.stderr.split())
    assert "fix:" in refused.stderr
    assert ask(data, out, "--methods", "bn-bce", "--set", "batch_size=8", "--force").exit_code == 0


def test_other_images_may_be_the_test(data: Path, tmp_path: Path) -> None:
    test = ["--test", str(data / "test" / "test.csv"), "--test-images", str(data / "test" / "images")]
    result = ask(data, tmp_path, "--methods", "em", "--protocol", "single-positive", *test)
    assert result.exit_code == 0, result.output
    assert "16 images, with separate labels" in result.stdout


def test_failures_and_what_was_left_out_are_shown(data: Path, tmp_path: Path) -> None:
    failed = ask(data, tmp_path / "a", "--methods", "bce,em", "--protocol", "single-positive")
    assert failed.exit_code == 0, failed.output
    assert "failed: bce (labels single-positive): the method 'bce' cannot learn" in " ".join(failed.stdout.split())
    none = ask(data, tmp_path / "b", "--methods", "bce", "--protocol", "single-positive")
    assert none.exit_code == 2
    assert "no run could be finished" in none.stderr
    short = ask(data, tmp_path / "c", "--methods", "bn-bce,em", "--budget", "0.001s")
    assert short.exit_code == 2
    assert "not run within the time limit: 2 runs" in " ".join(short.output.split())
    assert "To resume:  halflabel" in short.stdout
    assert "the time limit was reached before the first run was finished" in short.stderr


def test_the_time_limit_says_how_to_resume(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ExperimentSources._report_features

    def tell(self: ExperimentSources, done: int, total: int) -> None:
        report(self, done, total)
        raise OutOfTime

    monkeypatch.setattr(ExperimentSources, "_report_features", tell)
    monkeypatch.setattr("sys.argv", ["halflabel", "compare", "a file.csv", "--force", "--budget", "1s"])
    result = ask(data, tmp_path / "out", "--methods", "bn-bce", "--budget", "1h")
    assert result.exit_code == 2
    assert "To resume:  halflabel compare 'a file.csv' --budget 1s\n" in result.stdout
    assert "the time limit was reached before the first run was finished" in result.stderr


def test_next_trains_what_was_compared(data: Path, tmp_path: Path) -> None:
    """The line can be pasted: it reads the labels and trains as the comparison did."""
    labels = tmp_path / "my labels.csv"
    rows = [line.split(",") for line in (data / "train.csv").read_text().splitlines()]
    body = [[row[0], *("-1" if cell == "0" else cell for cell in row[1:])] for row in rows[1:]]
    labels.write_text("".join(",".join(row) + "\n" for row in [rows[0], *body]))
    given = ["--minus-one", "absent", "--value", "x=unknown", "--value", "y=absent"]
    given += ["--backbone", "tiny", *(f"--set={each}" for each in (*SETTINGS, "batch_size=8"))]
    result = run(
        "compare", labels, data / "images", "--out", tmp_path / "out", "--methods", "em:alpha=0.05", "--seeds", "1",
        "--search", "none", "--shares", "0.5,1", *given,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if line.startswith("Next:"))
    words = shlex.split(line)[1:]
    assert words[:4] == ["halflabel", "train", str(labels), str(data / "images")]
    pairs = set(pairwise(words))
    for flag, value in (
        ("--method", "em"), ("--set", "alpha=0.05"), ("--lr", "0.0003"), ("--backbone", "tiny"), ("--size", "32"),
        ("--epochs", "1"), ("--batch-size", "8"), ("--minus-one", "absent"), ("--value", "x=unknown"),
        ("--value", "y=absent"), ("--set", "device=cpu"),
    ):  # fmt: skip
        assert (flag, value) in pairs
    assert not {"--out", "--seeds", "--search", "--shares", "--methods"} & set(words)
    trained = run(*words[1:], "--out", tmp_path / "run")
    assert trained.exit_code == 0, trained.output


def test_without_options_of_batches_the_solver_is_used(data: Path, tmp_path: Path) -> None:
    linear = [word for word in TINY if word not in ("--set=epochs=1", "--set=fit=batches")]
    options = ["--methods", "bn-bce", "--seeds", "1", *linear]
    result = run("compare", data / "train.csv", data / "images", "--out", tmp_path, *options)
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert (row["fit"], row["lr"]) == ("linear", 0.0)
    assert "out-of-fold mAP" in result.stdout
    words = shlex.split(next(line for line in result.stdout.splitlines() if line.startswith("Next:")))
    assert "--lr" not in words
    assert words[words.index("--method") + 1] == "bn-bce"


def test_nothing_is_recommended_where_all_labels_were_hidden(data: Path, tmp_path: Path) -> None:
    result = ask(data, tmp_path, "--methods", "role", "--protocol", "single-positive")
    assert result.exit_code == 0, result.output
    assert "halflabel train" not in result.stdout
    assert "Next:  labels were hidden from all of these" in result.stdout


def test_gradients_can_be_clipped(data: Path, tmp_path: Path) -> None:
    """A run that diverges is told to add --clip 1."""
    assert ask(data, tmp_path / "out", "--methods", "bce", "--set", "clip=1").exit_code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["clip"] == 1.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "bcee"], "did you mean"),
        (["--methods", "BCE"], "did you mean bce"),
        (["--set", "lr=0"], "the learning rate 0 cannot be used"),
        (["--shares", "some"], "--shares 0.1,0.3,1"),
        (["--shares", "2"], "0.1,0.3,1"),
        (["--protocol", "nothing"], "single-positive"),
        (["--budget", "30"], "30m"),
    ],
)
def test_mistakes_get_one_message(data: Path, tmp_path: Path, words: list[str], says: str) -> None:
    result = ask(data, tmp_path / "out", *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_interrupted_comparison_prints_how_to_resume(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(self: Bench, *_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "train", train)
    result = ask(data, tmp_path / "out", "--methods", "em")
    assert result.exit_code == 130
    assert "the same command resumes" in result.stderr
