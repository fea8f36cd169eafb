"""The commands: a list of questions, and answers that become labels to train on."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.labels import formats
from halflabel.review.store import Answer, Answers


def call(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_next_writes_questions_and_leaves_out_what_was_answered(project, tmp_path) -> None:
    out = tmp_path / "q.csv"
    found = call("next", project.run.folder, project.images, "--count", 30, "--out", out)
    assert found.exit_code == 0, found.output
    assert "30 questions" in found.output
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "class", "probability", "why"]
    assert sum(row["why"].startswith("control") for row in rows) == 3
    store = Answers(project.run / "answers.sqlite")
    store.say([Answer(f"key-{k}", row["image"], row["class"], 0) for k, row in enumerate(rows)], "me")
    store.close()
    assert call("next", project.run.folder, project.images, "--count", 30, "--out", out).exit_code == 0
    with open(out, newline="") as file:
        later = list(csv.DictReader(file))
    assert not {(row["image"], row["class"]) for row in rows} & {(row["image"], row["class"]) for row in later}


def test_export_gives_rows_that_train_can_take(project, tmp_path) -> None:
    table = project.run.read_labels()
    known = table.rows([0])[0].argmax()
    store = Answers(project.run / "answers.sqlite")
    store.say(
        [
            Answer("key-1", table.images[0], table.classes[int(known)], -1),  # a label that was wrong
            Answer("key-2", table.images[1], table.classes[0], -1),
            Answer("key-3", table.images[2], table.classes[0], 0),
        ],
        "me",
    )
    store.close()
    found = call("review", project.run.folder, "--export", tmp_path / "answers.csv")
    assert found.exit_code == 0, found.output
    assert "2 answers, 0 present and 2 absent; 1 unsure left out" in found.output.replace("\n", " ")
    rows = formats.read(tmp_path / "answers.csv").rows
    assert len(rows) == 2
    assert {rows.sources[number] for number in rows.source} == {"person"}
    assert list(rows.images) == [table.images[0], table.images[1]]  # nothing is said of the others
    assert call("review", project.run.folder, "--export", tmp_path / "all.csv", "--with-labels").exit_code == 0
    both = formats.read(tmp_path / "all.csv").table()
    expected = table.dense()
    expected[0, known] = -1
    expected[1, 0] = -1
    assert (both.dense() == expected).all()
    assert both.classes == table.classes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--export", "x.csv"], "no answers yet"),
        (["--with-labels"], "without --export"),
        ([], "IMAGES is missing"),
    ],
)
def test_what_cannot_be_is_said(project, words, says) -> None:
    found = call("review", project.run.folder, *words)
    assert found.exit_code == 2
    assert says in found.output


def test_an_open_address_is_warned_of(project, monkeypatch) -> None:
    pytest.importorskip("fastapi")
    from halflabel.review import server

    monkeypatch.setattr(server, "serve", lambda app, listening: listening.close())
    inside = call("review", project.run.folder, project.images, "--port", 0)
    assert inside.exit_code == 0, inside.output
    assert "http://127.0.0.1:" in inside.output
    assert "warning" not in inside.output
    outside = call("review", project.run.folder, project.images, "--port", 0, "--host", "0.0.0.0")
    assert "can be reached from other machines" in outside.output.replace("\n", " ")
