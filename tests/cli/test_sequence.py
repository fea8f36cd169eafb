"""Each command ends with the next one: following these lines leads from labels to filled labels."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from command_line import TINY, done

from halflabel.cli.fill import fill_words, words_after_review
from halflabel.cli.show import join_command
from halflabel.labels import formats
from halflabel.labels.answers import Answer, AnswerStore
from halflabel.questions.choose import read_questions
from halflabel.runs.folder import RunFolder, next_run_folder


def next_words(output: str) -> list[str]:
    """Return the words of the last line "Next: halflabel …", without the program and the reason after them."""
    command = re.findall(r"Next: {2}halflabel (.*?)(?: {3}.*)?$", output, re.MULTILINE)[-1]
    return shlex.split(command)


def test_the_printed_commands_lead_from_labels_to_filled_labels(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = done("drop", data / "train.csv", "some.csv", "partial:share=0.5")
    words = next_words(output)
    assert words[0] == "inspect"
    assert next_words(done(*words))[:2] == ["train", "some.csv"]
    output = done(
        "train", "some.csv", data / "images", "--out", "runs/first", "--method", "csl", "--set=l2_strength=0.001", *TINY
    )
    commands = []
    while (words := next_words(output))[0] != "review":
        commands.append(words[0])
        output = done(*words)
    assert commands == ["report", "next"]

    first = RunFolder.open("runs/first")
    table, asked = first.read_labels(), read_questions(Path(words[-1]), first.read_labels())
    with closing(AnswerStore(first.answers)) as store:
        answers = [
            Answer(f"{k}", table.images[q.image], table.classes[q.column], 1, None, q.why, q.weight)
            for k, q in enumerate(asked)
        ]
        store.add(answers, "somebody")
    after = ["train", "--continue", first.folder]
    assert words_after_review(first.folder, data / "images") == after
    done("fill", "runs/first", data / "images", "--precision", "0.6", "--confidence", "0.6", "--out", "filled.csv")
    output = done(*after)
    assert sum(question.is_control for question in asked) > 0
    assert "Not comparable with the figures of first" in output  # random answers now count
    second = RunFolder.open("runs/first-2")
    assert second.read_labels().known == table.known + len(asked)

    words = next_words(output)
    assert words[:3] == ["fill", "runs/first-2", str(data / "images")]
    assert words[3:] == ["--precision", "0.6", "--out", "filled-2.csv", "--confidence", "0.6"]
    words = next_words(done(*words))
    assert words[0] == "inspect"
    assert formats.read(Path(words[1])).table().known >= second.read_labels().known


def test_answers_elsewhere_are_exported_and_no_password_is_shown() -> None:
    def after(place: str | Path) -> str:
        return join_command(*words_after_review(Path("runs/a b"), Path("photos"), place=place))

    expected = "halflabel review 'runs/a b' --store URL --export answers.csv"
    assert after("postgresql://me:secret@host/answers") == expected
    assert "--answers team.sqlite --export" in after(Path("team.sqlite"))


def test_runs_that_continue_one_another_are_numbered(tmp_path: Path) -> None:
    for name in ("first", "first-2", "voc-2012"):
        (tmp_path / name).mkdir()
    folders = {name: next_run_folder(tmp_path / name).name for name in ("first", "first-2", "voc-2012")}
    assert folders == {"first": "first-3", "first-2": "first-3", "voc-2012": "voc-2012-2"}


def test_paths_are_short_and_files_that_exist_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, photos = Path("runs/second"), tmp_path / "photos"
    assert join_command(*fill_words(run, photos)) == "halflabel fill runs/second photos --out filled.csv"
    for taken in ("filled.csv", "filled-2.csv"):
        (tmp_path / taken).touch()
    words = words_after_review(run, photos, is_control=True, all_photos=True)
    assert join_command(*words).endswith("--out filled-3.csv --all-photos")


def test_tables_fit_a_terminal_of_80_columns(data: Path, trained: Path, tmp_path: Path) -> None:
    long_name = "a class with a name that is far too long for any column of a table"
    labels = tmp_path / "labels.csv"
    rows = [f"{n}.jpg,{name},{1 if n % 3 else -1}" for n in range(40) for name in (long_name, "short", long_name[::-1])]
    labels.write_text("\n".join(["image,class,value", *rows]) + "\n")
    test = data / "test"
    for words in (
        ("inspect", labels),
        ("methods",),
        ("evaluate", trained, test / "test.csv", test / "images"),
        ("predict", trained, test / "images", "--all"),
        ("cache", trained.parent),
    ):
        # Commands to copy are on one line each.
        lines = [line for line in done(*words).splitlines() if not line.startswith(("Next:", "Then:", "Undo:"))]
        assert max(map(len, lines)) <= 80, words


def test_commands_name_addresses_as_they_are() -> None:
    command = join_command("train", "labels.csv", Path("s3://bucket/photos"))
    assert command == "halflabel train labels.csv s3://bucket/photos"
