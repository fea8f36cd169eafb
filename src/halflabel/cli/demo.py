"""The command `demo`: the whole job on real photos, with the command for every step."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console, plain_table, show_paragraph
from halflabel.errors import UserError
from halflabel.system.files import cache_folder
from halflabel.system.format import counted, group_digits, percent, points
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halflabel.cli.demo_data import DemoData
    from halflabel.cli.demo_grid import DecidedPhoto
    from halflabel.cli.demo_table import Result, TestBench
    from halflabel.runs.new_run import TrainedRun

PRECISION = 0.9  # of filled labels
QUESTIONS = 20
PHOTOS = 4  # in the picture
_WIDTH = 75  # columns of a command


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for photos, labels and runs.")] = Path("demo"),
    images: Annotated[int | None, typer.Option(help="Use only this many photos (default: all).", min=100)] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions for the table at the end.", min=1, max=10)] = 3,
) -> None:
    """Show the whole job on real photos: train on few labels, decide, fill, ask, report. Takes about two minutes.

    Every step prints the command that does it. The commands work on the folder afterwards; add --force to repeat one
    that writes a run or a file.

    Example: halflabel demo --out demo
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    from halflabel.cli.demo_data import write_data

    show_paragraph("Every step is followed by its command. To repeat a step by hand, add --force where it writes.")
    data = write_data(out, most=images)
    _show_labels(data)
    first, bench = _train(data)
    before = bench.evaluate_run(first.model)
    _show_test(data, first, before)
    _decide(data, bench, first)
    _fill(data, first)
    _ask(data, bench, first, before)
    _report(data, first)
    _compare(data, bench, seeds, before)
    show_paragraph("\nNow with your own labels:")
    _command("inspect", "LABELS.csv")


def _step(number: int, title: str) -> None:
    show_paragraph(f"\n[bold]{number}. {title}[/]")


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
    from halflabel.cli.demo_data import ANSWERS

    _step(1, f"{len(data.known)} photos of birds, with a few labels each")
    classes = data.known.classes
    known, present = data.known.known, int((data.known.value > 0).sum())
    unknown = data.known.shape[0] * len(classes) - known
    show_paragraph(
        f"For each photo, somebody answered {ANSWERS} of {len(classes)} questions such as "
        f'"{classes[0]}?": {group_digits(present)} times yes, '
        f"{group_digits(known - present)} times no. The other {group_digits(unknown)} labels are [bold]unknown[/], "
        "which is not the same as absent."
    )
    _command("inspect", data.labels)


def _train(data: DemoData) -> tuple[TrainedRun, TestBench]:
    from halflabel.cli.demo_table import TestBench
    from halflabel.cli.progress import Bar
    from halflabel.runs.new_run import train_run

    _step(2, "Train")
    show_paragraph(
        "A pretrained network describes every photo once, then a linear classifier is fitted to the known labels. "
        "There is nothing to set."
    )
    runs = data.folder / "runs"
    _command("train", data.labels, data.photos, "--out", runs / "first")
    with Bar("photos") as bar, Bar("fits", "fits") as fits:
        run = train_run(data.labels, data.photos, runs / "first", force=True, reporter=Reporter(bar, fits=fits))
        return run, TestBench.open(data, run.model.config, cache_folder(runs), Reporter(bar))


def _show_test(data: DemoData, run: TrainedRun, result: Result) -> None:
    show_paragraph(
        f"On {len(data.test)} photos that were set aside: [bold]mAP {points(result.mAP)}[/] (are photos that show a "
        f"class ranked first?) and [bold]F1 {points(result.f1)}[/] (are the decisions right?). 100 is perfect."
    )
    _command("evaluate", run.folder, data.test_labels, data.photos)


def _decide(data: DemoData, bench: TestBench, run: TrainedRun) -> None:
    from halflabel.cli.demo_grid import write_grid
    from halflabel.papers.datasets.birds import CREDIT

    photos = _decided_photos(data, bench, run)
    _step(3, "Decide what new photos show")
    show_paragraph(
        f"{len(photos)} of the photos that were set aside, one from each quarter: from the fewest mistakes to the "
        "most. A class is called present if its probability reaches the threshold of the class."
    )
    _command("predict", run.folder, *(photo.path for photo in photos))
    picture = data.folder / "decisions.jpg"
    write_grid(photos, picture, CREDIT)
    for photo in photos:
        shown = (each.text if each.is_right else f"[red]{each.text}[/]" for each in photo.decisions)
        show_paragraph(f"{photo.path.name}  {', '.join(shown)}")
    show_paragraph(f"As a picture, with mistakes in red: [bold]{escape(str(picture))}[/]")


def _decided_photos(data: DemoData, bench: TestBench, run: TrainedRun) -> list[DecidedPhoto]:
    """Return test photos that show two classes or more: one from each quarter of them, ordered by mistakes.

    The decisions of a photo are the classes that are called present or that were missed, most probable first.
    """
    from halflabel.cli.demo_grid import DecidedPhoto, Decision

    scores, is_present = bench.test_scores(run.model), data.test.dense() > 0
    mistakes = ((scores >= run.model.thresholds).numpy() != is_present).sum(1)
    order = sorted((number for number, row in enumerate(is_present) if row.sum() >= 2), key=mistakes.__getitem__)
    photos = []
    for number in dict.fromkeys(order[(2 * part + 1) * len(order) // (2 * PHOTOS)] for part in range(PHOTOS)):
        shows = dict(zip(data.test.classes, is_present[number].tolist(), strict=True))
        decisions = [
            Decision(each["class"], each["probability"], each["present"], shows[each["class"]])
            for each in run.model.labels(scores[number], every=True)
        ]
        shown = [each for each in decisions if each.is_called or each.is_present]
        photos.append(DecidedPhoto(data.photos / data.test.images[number], shown))
    return photos


def _fill(data: DemoData, run: TrainedRun) -> None:
    from halflabel.filling import fill, write_filled
    from halflabel.runs.folder import RunFolder

    _step(4, f"Fill in unknown labels, so that {100 * PRECISION:g} % of them are right")
    path = data.folder / "filled.csv"
    _command("fill", run.folder, data.photos, "--precision", f"{PRECISION:g}", "--out", path)
    plan = fill(run.folder, data.photos, precision=PRECISION)
    unknown = int(write_filled(plan, path, base=RunFolder.open(run.folder).read_rows()).unknown.sum())
    rows = plan.rows()
    right = data.truth.dense()[rows.image, rows.column] == rows.value
    show_paragraph(
        f"{group_digits(len(rows))} of {group_digits(len(rows) + unknown)} are filled; where it is not sure enough, "
        "the label stays unknown. The hidden true labels say:"
    )
    for word, value in (("present", 1), ("absent", -1)):
        hits, count = int(right[rows.value == value].sum()), int((rows.value == value).sum())
        if not count:
            show_paragraph(f"  filled {word}: none, because too few labels are known to promise this precision")
            continue
        line = f"  filled {word}: {group_digits(hits)} of {group_digits(count)} right ({percent(hits, count)})"
        if hits < PRECISION * count:
            kept = f"{100 * plan.options.confidence:g} % of all cases"
            line += f"; the promise is kept in {kept}, and this is one of the others"
        show_paragraph(line)


def _ask(data: DemoData, bench: TestBench, run: TrainedRun, before: Result) -> None:
    import numpy as np

    from halflabel.cli.demo_data import write_labels
    from halflabel.labels.table import Table
    from halflabel.questions.choose import write_questions
    from halflabel.questions.next import next_questions
    from halflabel.runs.new_run import continue_run

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
    table = Table.from_entries(data.truth.images, data.truth.classes, image, column, value)
    write_labels(table, answers)
    after = bench.evaluate_run(continue_run(run.folder, second, answers=answers, force=True).model)
    by_chance = QUESTIONS * float((truth[data.known.dense() == 0] > 0).mean())
    yes = int((value > 0).sum())
    gains = after.mAP - before.mAP >= 0.0005
    show_paragraph(
        f"Answered by the true labels, {yes} of {len(value)} are yes; of random questions it would be "
        f"{by_chance:.0f}. Trained with these answers, mAP "
        + (f"rises from {points(before.mAP)} to {points(after.mAP)}." if gains else _no_gain(before, after, data))
    )


def _no_gain(before: Result, after: Result, data: DemoData) -> str:
    share = percent(QUESTIONS, data.known.known)
    return (
        f"is {points(after.mAP)} after {points(before.mAP)}: these are only {share} more labels, and the number varies "
        "by a point or two. In practice ask some hundred."
    )


def _report(data: DemoData, run: TrainedRun) -> None:
    from halflabel.report.run_page import write_report
    from halflabel.runs.folder import RunFolder

    _step(6, "Look at it, and answer the questions yourself")
    _command("report", run.folder, "--images", data.photos)
    page = write_report(RunFolder.open(run.folder), images=data.photos)
    show_paragraph(f"Open [bold]{escape(str(page.path))}[/]: classes, likely mistakes, likely missing labels.")
    _command("review", run.folder, data.photos, "--questions", data.folder / "questions.csv")
    show_paragraph("This command opens a page that asks the questions; the keys y and n answer.")


def _compare(data: DemoData, bench: TestBench, seeds: int, first: Result) -> None:
    from halflabel.cli.demo_table import AUTO, COMPLETE, NAIVE
    from halflabel.cli.progress import Bar

    show_paragraph("\n[bold]Why not simply read “not labelled” as “absent”?[/]")
    rows = plain_table("training labels", numbers=("mAP on test photos", "F1 on test photos"))
    with Bar("fits", "fits") as bar:
        bar(0, 3 * seeds)
        for number, reading in enumerate((NAIVE, AUTO, COMPLETE)):
            results = []
            for seed in range(seeds):
                results.append(first if (reading, seed) == (AUTO, 0) else bench.measure(reading, seed))
                bar(number * seeds + seed + 1, 3 * seeds)
            rows.add_row(reading, *(_mean_and_spread(values) for values in zip(*results, strict=True)))
    missed = int((data.truth.value > 0).sum() - (data.known.value > 0).sum())
    show_paragraph(
        f"Because it would teach the model {group_digits(missed)} wrong labels: the present ones that nobody was asked "
        f"about. Mean {'± standard deviation ' if seeds > 1 else ''}over {counted(seeds, 'random choice')} of the "
        "known labels:"
    )
    console.print(rows)


def _mean_and_spread(values: Sequence[float]) -> str:
    from statistics import mean, stdev

    return points(mean(values)) + (f" ± {points(stdev(values))}" if len(values) > 1 else "")
