"""Fills where only positives are known: control questions, answers, the assumption, and the command."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import fill_worlds as worlds
import numpy as np
import pytest
from digit_scenes import CLASSES, scenes, write_folder
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.positives_only import log_odds_of_unknown
from halflabel.evaluation.scores import Scores
from halflabel.filling.control import draw_control, plan_present, unknown_curve
from halflabel.filling.plan import FillOptions
from halflabel.filling.run import ControlQuestions, NotShown, fill, unlearned_answers
from halflabel.fitting.config import Config
from halflabel.labels import drop, formats
from halflabel.labels.answers import Answer, AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.choose import asked_entries, read_questions
from halflabel.runs.folder import RunFolder
from halflabel.runs.new_run import continue_training
from halflabel.runs.scores import scored_images
from halflabel.runs.train import train

PLATT = Calibration(1.0, 0.0, 100, "labels were given at random")


def simulate(images: int = 2000, wrong: float = 0.0) -> tuple[Scores, Table, np.ndarray]:
    """Return logits with p = σ(x − wrong), labels of which 40 % of the positives are given, and the truth."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-6, 7, size=(images, 6)).astype(np.float32)
    truth = generator.random(logits.shape) < 1 / (1 + np.exp(-(logits - wrong)))
    known = np.where(truth & (generator.random(truth.shape) < 0.4), 1, 0)
    return worlds.made_up(logits, np.arange(images) % 5), Table.from_dense(known), truth


def plan(scores: Scores, table: Table, answers: Labels | None, precision: float = 0.95) -> Labels:
    return plan_present(scores, Labels.from_table(table), PLATT, answers, FillOptions(precision=precision)).rows()


def answered(scores: Scores, table: Table, truth: np.ndarray, seed: int, count: int = 100) -> Labels:
    drawn = draw_control(scores, table, PLATT, precision=0.95, count=count, seed=seed)
    image, column, weight = (np.array([item[part] for item in drawn]) for part in (0, 1, 4))
    value = np.where(truth[image, column], 1, -1)
    return Labels.build(table.images, table.classes, image, column, value, weight=weight)


@pytest.mark.parametrize("wrong", [0.0, 2.0])
def test_the_precision_holds_even_where_the_probabilities_are_wrong(wrong: float) -> None:
    scores, table, truth = simulate(wrong=wrong)
    known = table.dense()
    reached, filled = [], []
    for seed in range(10):
        rows = plan(scores, table, answered(scores, table, truth, seed))
        right = truth[rows.image, rows.column]
        assert (known[rows.image, rows.column] == 0).all()
        assert (rows.value > 0).all()
        reached.append(not len(right) or right.mean() >= 0.95)
        filled.append(right.sum() / (truth & (known == 0)).sum())
    assert sum(reached) >= 9
    assert np.mean(filled) > 0.3


def test_without_answers_the_assumption_decides() -> None:
    scores, table, truth = simulate()
    rows = plan(scores, table, None)
    right = truth[rows.image, rows.column]
    assert right.mean() > 0.94
    assert right.sum() > 0.3 * (truth & (table.dense() == 0)).sum()


def test_questions_are_a_random_sample_of_what_may_be_filled() -> None:
    scores, table, _ = simulate()
    first, again, other = (
        draw_control(scores, table, PLATT, precision=0.95, count=60, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len({item[:2] for item in first}) == 60
    assert all(table.dense()[q.image, q.column] == 0 and q.probability >= 0.5 for q in first)
    image, column = np.array([item[:2] for item in first]).T
    assert sum(q.weight for q in first) == pytest.approx(60 * first[0].weight, abs=60)  # groups of equal size
    p = unknown_curve(PLATT, scores, table).scores(scores.logits[image, column], column)
    assert p.mean() == pytest.approx(0.9, abs=0.03)  # twice the allowed error
    assert abs(np.corrcoef(np.arange(60), [q.probability for q in first])[0, 1]) < 0.4  # answering may stop anywhere
    with pytest.raises(UserError, match="probable enough"):
        draw_control(replace(scores, logits=scores.logits - 30), table, PLATT, precision=0.95, count=60)


def test_questions_leave_labels_to_fill() -> None:
    scores, table, truth = simulate(40)
    answers = answered(scores, table, truth | True, seed=0)
    filled = plan(scores, table, answers)
    asked = set(zip(answers.image.tolist(), answers.column.tolist(), strict=True))
    left = set(zip(filled.image.tolist(), filled.column.tolist(), strict=True)) - asked
    assert len(left) >= 5


def test_answered_entries_are_not_asked_again() -> None:
    scores, table, truth = simulate()
    first = answered(scores, table, truth, 0)
    known = table.dense()
    known[first.image, first.column] = 1
    again = draw_control(scores, table, PLATT, precision=0.95, count=100, known=Table.from_dense(known))
    assert not set(zip(first.image, first.column, strict=True)) & {entry[:2] for entry in again}


def test_learned_and_unsure_answers_are_not_control_answers() -> None:
    table = Table.from_dense([[1, 0, 0], [0, -1, 0]], images=["a", "b"], classes=["x", "y", "z"])
    places = np.array([0, 0, 0, 1]), np.array([0, 1, 2, 1])
    rest = unlearned_answers(Labels.build(table.images, table.classes, *places, np.array([1, 2, -1, -1])), table)
    assert (rest.image.tolist(), rest.column.tolist(), rest.value.tolist()) == ([0], [2], [-1])


def test_a_label_that_was_not_given_is_less_likely() -> None:
    assert log_odds_of_unknown(np.ones(10), 0, 4, 15.0) == pytest.approx(np.log(0.5))
    assert log_odds_of_unknown(np.array([2, 0, 1, 3]), 0, 4, 12.0) == pytest.approx(np.log(0.5))
    assert log_odds_of_unknown(np.array([3, 0, 0, 3]), 0, 4, 30.0) == pytest.approx(np.log(0.8))


def test_with_negatives_an_unknown_label_is_more_and_more_like_a_known_one() -> None:
    positives = np.array([3, 0, 0, 3] * 10)
    shifts = [log_odds_of_unknown(positives, negatives, 4, 80.0) for negatives in range(131)]
    assert shifts[0] == pytest.approx(np.log(0.25))
    assert shifts[-1] == 0
    assert float(np.abs(np.diff(shifts)).max()) < 0.04


class Project(NamedTuple):
    """A run on 80 scenes with one positive each, its images and the truth."""

    run: RunFolder
    images: Path
    truth: np.ndarray

    def copy(self, folder: Path) -> Project:
        """Return the project with a run of its own."""
        shutil.copytree(self.run.folder, folder / "run")
        return self._replace(run=RunFolder(folder / "run"))

    def fill(self, *options: object) -> str:
        return call("fill", self.run.folder, self.images, "--precision", 0.6, *options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project that tests copy; none changes it."""
    folder = tmp_path_factory.mktemp("control")
    write_folder(folder, 80, size=32)
    truth = scenes(80, size=32).labels
    names = sorted(path.name for path in (folder / "images").iterdir())
    table = drop.single_positive(Table.from_dense(truth, names, CLASSES))
    config = Config(method="wan", backbone="tiny", size=32, fit="linear", l2_strength=1e-3, device="cpu")
    run = RunFolder(folder / "runs" / "first")
    train(table, folder / "images", config, run)
    run.write_calibration(Calibration(6.0, 9.0, 80, "labels were given at random"), dict.fromkeys(CLASSES, 0.5))
    return Project(run, folder / "images", truth)


@pytest.fixture
def project(trained: Project, tmp_path: Path) -> Project:
    return trained.copy(tmp_path)


@pytest.fixture(scope="module")
def asked(trained: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with control questions that nobody has answered; no test changes it."""
    project = trained.copy(tmp_path_factory.mktemp("asked"))
    project.fill("--control", 40)
    return project


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_asks_first_and_fills_then(project: Project) -> None:
    run, images, _ = project
    output = project.fill("--only-filled", "--control", 40)
    assert "--questions" in output
    assert f"Then:  halflabel fill {run.folder} {images} --precision 0.6 --only-filled --out filled.csv\n" in output
    assert not run.filled.exists()
    table = run.read_labels()
    asked = read_questions(run.control, table)
    assert all(question.is_control for question in asked)
    scores = scored_images(run, images).scores  # what `next`, `review` and the report show
    assert all(q.probability == pytest.approx(scores[q.image, q.column], abs=1e-3) for q in asked)
    store = AnswerStore(run.answers)
    store.add(
        [Answer(str(k), table.images[q.image], table.classes[q.column], 1 if k else -1) for k, q in enumerate(asked)],
        "somebody",
    )
    store.close()
    assert "control answers" in project.fill("--only-filled", "--control", 40)
    rows = formats.read(run.filled, format="long").rows
    # Answers are written as people's labels, and nothing is filled over them.
    assert {name for name in rows.sources if not name.startswith("person")} <= {f"model:wan:{run.folder.as_posix()}"}
    entries = [
        (rows.images[int(i)], rows.classes[int(c)])
        for i, c in zip(rows.image.tolist(), rows.column.tolist(), strict=True)
    ]
    assert len(set(entries)) == len(entries)
    refused = (table.images[asked[0].image], table.classes[asked[0].column])
    assert rows.value[entries.index(refused)] == -1


def test_photos_without_a_row_are_asked_about_and_written(asked: Project, tmp_path: Path) -> None:
    project = asked.copy(tmp_path)._replace(images=tmp_path / "images")
    run = project.run
    shutil.copytree(asked.images, project.images)
    further = [f"new-{number}.png" for number in range(6)]
    for name, photo in zip(further, sorted(asked.images.glob("*.png")), strict=False):
        shutil.copy(photo, project.images / name)
    run.control.write_text("\n".join(run.control.read_text().splitlines()[:21]) + "\n")  # all 20 are needed
    earlier = list(asked_entries(run.control))

    def answer(entries: list[tuple[str, str]]) -> None:
        with closing(AnswerStore(run.answers)) as store:
            store.add([Answer("-".join(entry), *entry, 1) for entry in entries], "somebody")

    answer(earlier)
    project.fill("--control", 40, "--all-photos")
    entries = list(asked_entries(run.control))
    assert entries[: len(earlier)] == earlier
    assert set() < {image for image, _ in entries[len(earlier) :]} <= set(further)
    assert "control answers" in project.fill("--control", 40, "--out", tmp_path / "listed.csv")  # these are answered
    answer(entries)
    project.fill("--control", 40, "--all-photos")
    assert set(formats.read(run.filled, format="long").rows.images) == {*run.read_labels().images, *further}


def test_continued_training_takes_answered_control_questions_as_random(asked: Project, tmp_path: Path) -> None:
    run, images, _ = asked
    header, *lines = run.control.read_text().splitlines()
    answered = [f"{line},{value}" for line, value in zip(lines, ["1", "-1", "1", ""] * len(lines), strict=False)]
    (tmp_path / "answers.csv").write_text("\n".join([f"{header},value", *answered]) + "\n")
    rows = formats.read(tmp_path / "answers.csv").rows
    job = continue_training(run, RunFolder(tmp_path / "next"), answers=rows, images=images)
    weights = dict(asked_entries(run.control))
    new = job.labels.select(job.labels.is_answer() & (job.labels.value != 0))
    for image, column, weight in zip(new.image.tolist(), new.column.tolist(), new.weight.tolist(), strict=True):
        assert weight > 0
        assert weight == pytest.approx(weights[new.images[image], new.classes[column]])
    assert len(new) == sum(not line.endswith(",") for line in answered)


def test_answers_that_a_run_has_learned_count_where_they_were_asked(asked: Project, tmp_path: Path) -> None:
    run, images, _ = asked.copy(tmp_path)
    table = run.read_labels()
    questions = read_questions(run.control, table)
    with closing(AnswerStore(run.answers)) as store:
        places = [(table.images[q.image], table.classes[q.column], q.weight) for q in questions]
        store.add([Answer(image + name, image, name, 1, weight=weight) for image, name, weight in places], "somebody")
    continue_training(run, RunFolder(tmp_path / "next"), images=images).start()
    new = RunFolder.open(tmp_path / "next")
    plan = fill(new, images, precision=0.6)
    assert "control answers" in plan.check
    rows, before = plan.rows(), run.scores(table.images, images).logits
    assert len(rows)
    assert before[rows.image, rows.column].min() >= min(before[q.image, q.column] for q in questions)
    assert plan.missing > plan.bin_counts.summed.sum()
    new.control.write_text(run.control.read_text().partition("\n")[0] + "\n")  # new questions take their place
    with pytest.raises(NotShown):
        fill(new, images, precision=0.6)


def test_answers_to_chosen_questions_are_no_evidence(asked: Project) -> None:
    run, images, _ = asked
    table = run.read_labels()
    questions = read_questions(run.control, table)
    image, column, weight = (np.array([question[part] for question in questions]) for part in (0, 1, 4))
    value = np.where(np.arange(len(image)) > 0, 1, -1)
    random = Labels.build(table.images, table.classes, image, column, value, weight=weight)
    is_free = table.dense() == 0
    is_free[image, column] = False
    others = np.nonzero(is_free)
    chosen = Labels.build(table.images, table.classes, *others, np.full(len(others[0]), -1), weight=0 * others[0])
    expected = fill(run, images, control=random, precision=0.6)
    actual = fill(run, images, control=random.append(chosen), precision=0.6)
    assert expected.present.filled.sum() > 0
    assert (actual.present.cut == expected.present.cut).all()
    assert (actual.check, actual.present.known_labels) == (expected.check, expected.present.known_labels)
    with pytest.raises(UserError, match="chosen"):
        fill(run, images, control=chosen, precision=0.6)


def test_a_precision_that_no_label_reaches_names_one_that_works(project: Project) -> None:
    run = project.run
    run.write_calibration(Calibration(0.3, 1.5, 80, "labels were given at random"), dict.fromkeys(CLASSES, 0.5))
    result = CliRunner().invoke(app, ["fill", str(run.folder), str(project.images), "--precision", "0.999"])
    assert result.exit_code == 2
    assert f"halflabel review {run.folder} {project[1]}\n" in result.stderr
    match = re.search(r"or: halflabel (fill .*?) +\((\d+) label", result.stderr)
    assert match is not None, result.stderr
    call(*shlex.split(match[1]))
    asked = read_questions(run.control, run.read_labels())
    assert len(asked) == (int(match[2]) + 1) // 2 >= 30


def test_assumed_labels_say_so_and_can_be_undone(project: Project, tmp_path: Path) -> None:
    run, out = project.run, tmp_path / "filled.csv"
    assert "given at random" in project.fill("--assume-random", "--out", out)
    rows = formats.read(out, format="long").rows
    assumed = f"model:wan+assumed:{run.folder.as_posix()}"
    assert {name for name in rows.sources if name.startswith("model")} == {assumed}
    call("fill", run.folder, "--undo", out)
    assert assumed not in formats.read(out, format="long").rows.sources


def test_what_cannot_work_is_refused_before_anything_is_scored(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, images, _ = project
    monkeypatch.setattr("halflabel.filling.run._score", None)
    with pytest.raises(UserError, match="absent"):
        fill(run, images)
    with pytest.raises(UserError, match="folds"):
        fill(run, images, assume_random=True, folds=3)
    run.stored_scores.unlink()
    with pytest.raises(UserError, match="linear"):
        ControlQuestions(run, images).ask()
