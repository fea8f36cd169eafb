"""The commands: a list of questions, and answers that become labels to train on."""

from __future__ import annotations

import csv
import dataclasses
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.cli.fill import remember_fill, remembered_fill
from halflabel.labels import formats
from halflabel.labels.answers import Answer, AnswerStore
from halflabel.review.live_questions import EntryAnswer
from halflabel.review.live_run import open_live_review, start_without_labels
from halflabel.runs.folder import RunFolder


def call(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_next_writes_questions_and_leaves_out_what_was_answered(project, tmp_path) -> None:
    out = tmp_path / "q.csv"
    output = call("next", project.run.folder, project.images, "--count", 30, "--out", out)
    assert output.exit_code == 0, output.output
    assert "30 questions" in output.output
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "class", "probability", "why", "inclusion_weight"]
    assert sum(row["why"].startswith("control") for row in rows) == 3
    store = AnswerStore(project.run / "answers.sqlite")
    store.add([Answer(f"key-{k}", row["image"], row["class"], 0) for k, row in enumerate(rows)], "me")
    store.close()
    assert call("next", project.run.folder, project.images, "--count", 30, "--out", out).exit_code == 0
    with open(out, newline="") as file:
        later = list(csv.DictReader(file))
    assert not {(row["image"], row["class"]) for row in rows} & {(row["image"], row["class"]) for row in later}


def test_next_refuses_damaged_scores(project, tmp_path) -> None:
    project.run.stored_scores.write_text("garbage\n")
    output = call("next", project.run.folder, project.images, "--out", tmp_path / "q.csv")
    assert output.exit_code == 2
    assert "scores.parquet cannot be read" in " ".join(output.output.split())


def test_export_gives_rows_that_train_can_take(project, tmp_path) -> None:
    table = project.run.read_labels()
    known = table.rows([0])[0].argmax()
    store = AnswerStore(project.run / "answers.sqlite")
    store.add(
        [
            Answer("key-2", table.images[1], table.classes[0], -1),
            Answer("key-1", table.images[0], table.classes[int(known)], -1),  # a label that was wrong
            Answer("key-3", table.images[2], table.classes[0], 0),
        ],
        "me",
    )
    store.close()
    output = call("review", project.run.folder, "--export", tmp_path / "answers.csv")
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 3  # a header and two answers
    assert output.exit_code == 0, output.output
    assert "2 answers, 0 present and 2 absent; 1 unsure left out" in output.output.replace("\n", " ")
    rows = formats.read(tmp_path / "answers.csv").rows
    assert len(rows) == 2
    assert {rows.sources[number] for number in rows.source} == {"person:me"}
    assert rows.weight.tolist() == [0, 0]
    assert list(rows.images) == [table.images[1], table.images[0]]  # nothing is said of the others
    assert call("review", project.run.folder, "--export", tmp_path / "all.csv", "--with-labels").exit_code == 0
    both = formats.read(tmp_path / "all.csv").table()
    expected = table.dense()
    expected[0, known] = -1
    expected[1, 0] = -1
    assert (both.dense() == expected).all()
    assert both.classes == table.classes


def test_export_overwrites_only_with_force(project, tmp_path) -> None:
    table = project.run.read_labels()
    store = AnswerStore(project.run / "answers.sqlite")
    store.add([Answer("key-1", table.images[3], table.classes[1], -1)], "me")
    store.close()
    out = tmp_path / "out.csv"
    formats.write(table, out)
    before = out.read_bytes()
    output = call("review", project.run.folder, "--export", out)
    assert output.exit_code == 2
    assert "--force" in output.output
    assert out.read_bytes() == before
    assert call("review", project.run.folder, "--export", out, "--force").exit_code == 0
    assert formats.read(out).rows.value.tolist() == [-1]


def test_export_with_labels_keeps_who_made_them(project, tmp_path) -> None:
    rows = project.run.read_rows()
    project.run.write_labels(dataclasses.replace(rows, sources=("model:bce:runs/0",)))
    store = AnswerStore(project.run / "answers.sqlite")
    store.add([Answer("key-1", rows.images[3], rows.classes[1], 1)], "me")
    store.close()
    assert call("review", project.run.folder, "--export", tmp_path / "all.csv", "--with-labels").exit_code == 0
    actual = formats.read(tmp_path / "all.csv").rows
    assert [actual.sources[number] for number in actual.source] == ["model:bce:runs/0"] * len(rows) + ["person:me"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--export", "x.csv"], "no answers yet"),
        (["--force"], "--force needs --export"),
        (["--with-labels"], "needs --export"),
        ([], "IMAGES is missing"),
    ],
)
def test_impossible_options_are_refused(project, words, says) -> None:
    output = call("review", project.run.folder, *words)
    assert output.exit_code == 2
    assert says in output.output


def test_an_open_address_is_warned_of(project, monkeypatch) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.setattr("halflabel.serve.guard.run_server", lambda app, listening, **_: listening.close())
    inside = call("review", project.run.folder, project.images, "--port", 0)
    assert inside.exit_code == 0, inside.output
    assert "http://127.0.0.1:" in inside.output
    assert "warning" not in inside.output
    outside = call("review", project.run.folder, project.images, "--port", 0, "--host", "0.0.0.0")
    assert "can be reached from other machines" in outside.output.replace("\n", " ")


def test_an_unknown_class_is_refused_before_the_server_starts(project) -> None:
    output = call("review", project.run.folder, project.images, "--class", "unicorn")
    assert output.exit_code == 2
    assert "no class 'unicorn'" in " ".join(output.output.split())


def test_review_ends_with_the_commands_that_use_the_answers(project, monkeypatch) -> None:
    monkeypatch.setattr("halflabel.serve.guard.run_server", lambda *_, **__: None)
    monkeypatch.setattr("halflabel.review.live_process.live_hindrance", lambda _: None)
    monkeypatch.setattr("halflabel.review.live_process.LiveLoop.__init__", lambda *_: None)
    monkeypatch.setattr("halflabel.review.live_process.LiveLoop.close", lambda _: None)
    monkeypatch.setattr("halflabel.review.live_process.LiveLoop.finish", None, raising=False)
    table = project.run.read_labels()
    store = AnswerStore(project.run / "answers.sqlite")
    store.add([Answer("key-1", table.images[1], table.classes[0], -1)], "me")
    store.close()
    run = project.run.folder
    words = ("review", run, project.images, "--port", 0)
    remember_fill(project.run, {"out": "mine.csv", "precision": 0.8})
    assert f"Next:  halflabel train --continue {run}\n" in call(*words, "--precision", 0.9).output
    assert remembered_fill(project.run) == {"out": "mine.csv", "precision": 0.9}
    for number, then in ((1, f"fill {run}-2 {project.images} --out filled.csv"), (7, f"train --continue {run}")):
        finish = {"step": "", "result": {"answers": number, "filled": "", "run": f"{run}-2"}}  # Finish on the page
        monkeypatch.setattr("halflabel.review.live_process.LiveLoop.finish", finish)
        assert f"Next:  halflabel {then}\n" in call(*words).output


def test_an_answered_run_opens_again(project, monkeypatch) -> None:
    monkeypatch.setattr("halflabel.review.live_process.live_hindrance", lambda _: "not here")
    served: list[object] = []
    monkeypatch.setattr("halflabel.serve.guard.run_server", lambda *_, **__: served.append(1))
    table = project.run.read_labels()
    words = ("review", project.run.folder, project.images, "--port", 0)
    with closing(AnswerStore(project.run.answers)) as store:
        unknown = np.argwhere(table.dense() == 0).tolist()
        store.add([Answer(f"{i}-{c}", table.images[i], table.classes[c], 1) for i, c in unknown], "me")
    output = call(*words)
    assert output.exit_code == 0, output.output
    assert served


def test_a_review_without_labels_is_continued_by_its_answers(project, tmp_path) -> None:
    classes = ("red", "green", "blue")
    run = start_without_labels(tmp_path / "run", project.images, classes, "tiny")
    output = call("next", run.folder, project.images, "--out", tmp_path / "q.csv")
    assert output.exit_code == 2
    assert "no model yet" in " ".join(output.output.split())
    rng = np.random.default_rng(0)
    with closing(AnswerStore(run.answers)) as store:
        images = run.read_labels().images
        values = rng.choice([-1, 1], size=(30, 3))
        store.add(
            [
                Answer(f"{i}-{c}", images[i], name, int(values[i, c]))
                for i in range(30)
                for c, name in enumerate(classes)
            ],
            "me",
        )
    answers = [EntryAnswer(i, c, int(values[i, c]), 0.0) for i in range(30) for c in range(3)]
    update = open_live_review(run, project.images, 0.9).update(answers)
    assert update.queue
    output = call("train", "--continue", run.folder, "--out", tmp_path / "next")
    assert output.exit_code == 0, output.output
    continued = RunFolder.open(tmp_path / "next")
    assert continued.read_labels().known == 90
    assert continued.score_kind == "out-of-fold"
    output = call("next", continued.folder, project.images, "--out", tmp_path / "q.csv")
    assert output.exit_code == 0, output.output
