"""The command `fill`, and its control questions where known labels do not show how often a fill is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from rich.markup import escape
from rich.text import Text

from halflabel.cli import show
from halflabel.cli.options import (
    Engine,
    Force,
    LabelReader,
    argument,
    check_free,
    check_image_folder,
    check_needs,
    command,
    free_name,
    option,
    option_words,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import ABSENT, PRESENT, UNKNOWN, console, first_names, in_shell, join_command, plain_table
from halflabel.errors import UserError
from halflabel.filling import control as control_questions
from halflabel.filling import plan as fill_plan
from halflabel.filling import run as fill_run
from halflabel.filling import thresholds as fill_thresholds
from halflabel.filling import undo as undo_fill
from halflabel.images import stored_features
from halflabel.labels import labels as label_rows
from halflabel.questions import choose
from halflabel.runs import folder as run_folder
from halflabel.system import distributed
from halflabel.system.files import read_json
from halflabel.system.format import counted, group_digits, percent
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import Reporter

_CONFIDENCE = 0.9
_MOST = 30  # classes in the table
_USEFUL = 20  # labels that make a lower precision worth while


@command()
def fill(
    read: LabelReader,
    run: Annotated[Path | None, argument("RUN", "A run folder of `train`.")] = None,
    images: Annotated[Path | None, argument("IMAGES", "The folder with the image files.")] = None,
    out: Path | None = option(None, "The file to write: .csv or .parquet (default: RUN/filled.csv)."),
    precision: float = option(0.95, "Share of fills that must be right, present and absent each.", min=0.5, max=0.999),
    confidence: float = option(_CONFIDENCE, "Confidence that --precision is reached.", min=0.5, max=0.999),
    labels: Path | None = option(None, "Fill these labels instead of those the run was trained on."),
    rules: Path | None = option(None, "Rules of the labels: CSV class,rule,class or an Open Images hierarchy (.json)."),
    folds: int | None = option(None, "Fit the head again in so many folds (default: those that the run has, else 5)."),
    control: int = option(100, "Positives only: random questions whose answers show the precision.", min=30),
    answers: Path | None = option(None, "Positives only: a label file with the answers (default: those of `review`)."),
    assume_random: bool = option(
        False,
        "Ask nothing, and assume that the known labels are a random sample: of the present ones where only "
        "positives are known, else of all of their class. The source of the rows says so.",
        "--assume-random",
    ),
    all_photos: bool = option(False, "Also fill photos that have no row in the labels.", "--all-photos"),
    complete: bool = option(True, "Write known and filled labels, or only filled ones.", "--complete/--only-filled"),
    undo: Path | None = option(None, "Remove the filled labels from this file.", metavar="FILE"),
    source: str | None = option(None, "With --undo: the source of the rows, such as model:bn-bce:runs/first, or rule."),
    retract: bool = option(False, "With --undo: add rows that retract labels instead of removing rows.", "--retract"),
    force: Force = False,
    engine: Engine = "local",
) -> None:
    """Fill in unknown labels where the model is confident enough; known labels are never changed.

    Thresholds are set per class so that, with the given confidence, the given share of all fills is right, by known
    labels that the model was not trained on. If these cannot show it, `fill` first writes random questions; once they
    are answered in `halflabel review`, the same command fills. Filled rows have the source model:METHOD:RUN, those that
    follow by --rules from a person's label the source rule.

    Example: halflabel fill runs/first photos/ --precision 0.95 --out filled.csv

    Example: halflabel fill runs/first --undo labels.csv
    """
    if undo is not None:
        place = str(run) if source is None and run is not None else None
        if distributed.is_main():
            done = undo_fill.undo(undo, source=source, run=place, retract=retract)
            what = f"{counted(done.rows, 'row')} {'retracted' if retract else 'removed'}"
            kept = f"; {group_digits(done.answered_since)} later answers stay" if done.answered_since else ""
            console.print(f"{what} in [bold]{escape(str(undo))}[/]: {escape(', '.join(done.sources))}{kept}")
        return
    check_needs("--undo FILE", {"--source": source is not None, "--retract": retract})
    if run is None or images is None:
        raise UserError("RUN and IMAGES are missing", "halflabel fill runs/first photos/")
    opened = run_folder.RunFolder.open(run)
    path = _output_file(opened, out, labels, force)
    check_image_folder(images)
    if rules is not None and not rules.is_file():
        raise UserError(f"{rules} does not exist", "check the path")
    rows = read(labels).rows if labels is not None else None
    people = opened.read_answers()
    if answers is not None:
        people = choose.weigh_answers(read(answers).rows, opened.asked, opened.control)
    given: dict[str, Any] = {"out": out, "labels": labels, "rules": rules, "all_photos": all_photos}
    given |= {"only_filled": not complete, "confidence": None if confidence == _CONFIDENCE else confidence}
    given |= {} if labels is None else read.given
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    remember_fill(opened, {"precision": precision, **given})
    given |= {"assume_random": assume_random}  # which a run that learns from answers does not need
    options: dict[str, Any] = {"labels": rows, "rules": rules, "folds": folds, "precision": precision}
    options |= {"assume_random": assume_random, "all_photos": all_photos, "confidence": confidence, "answers": people}
    with use_engine(engine):
        try:
            plan, counts = _fill(opened, images, path, complete, **options)
        except fill_run.NotShown as error:
            further = fill_run.unlisted_photos(opened, rows, images) if all_photos else None
            asking = fill_run.ControlQuestions(opened, images, rows, further, precision, control)
            options["control"] = _find_answers(asking, people, given, from_file=answers is not None)
            if options["control"] is None:
                _show_how_to_answer(asking, f"{error.message[0].upper()}{error.message[1:]}.")
                return
            plan, counts = _fill(opened, images, path, complete, **options)
    _show(plan, counts)
    filled, by_rule = int((counts.present + counts.absent).sum()), int(counts.by_rule.sum())
    if filled and not all_photos:
        _show_unlisted(len(stored_features.unlisted_images(plan.table.images, images)), images)
    by_model = filled - by_rule - int(counts.by_model.sum())
    sources = " and ".join(name for name, count in ((plan.options.source, by_model), ("rule", by_rule)) if count)
    console.print()
    show.written(path, f": {group_digits(filled)} filled labels{sources and f', source {sources}'}")
    if not filled:
        given |= {"out": path, "force": True}
        given |= {} if answers is None else {"answers": answers, **read.given}
        _show_lower_precision(plan, run, images, given)
        return
    if by_model:
        show.next_command("fill", run, "--undo", path, title="Undo")
    if by_rule:
        what = "Undo labels that follow from people's labels" if by_model else "Undo"
        show.next_command("fill", "--undo", path, "--source", "rule", title=what)
    show.next_command("inspect", path)
    if plan.check or plan.assumption:  # such labels mostly come from a table of tags
        words = ("convert", path, path.with_name(f"{path.stem}-tags.csv"), "--into", "TAGS.csv", "--without-sources")
        show.next_command(*words, title="As a copy of your table of tags")


def _output_file(run: run_folder.RunFolder, out: Path | None, labels: Path | None, force: bool) -> Path:
    """Return the file for the filled labels, by default in the run, if they can be written there."""
    if run.store is not None and out is None:
        raise UserError(f"{run.address} is not a local folder", "name the file to write with --out")
    path = out or run.filled
    fill_run.check_output_name(path)
    check_free(path, force)
    if labels is not None and path.resolve() == labels.resolve():
        raise UserError("--out is the label file itself", "write another file, then append it or use it instead")
    return path


def _fill(
    run: run_folder.RunFolder, images: Path, path: Path, complete: bool, **options: Any
) -> tuple[fill_plan.FillPlan, fill_plan.FillCounts]:
    """Fill labels and write them to a file, after the known ones if `complete`; `options` are those of `fill`."""
    with Bar("features") as bar:
        plan = fill_run.fill(run, images, **options, reporter=Reporter(bar, show.message))
    known = run.read_rows() if options["labels"] is None else options["labels"]
    more = {"base": known if complete else None, "answers": options["answers"]}
    return plan, distributed.run_on_main(lambda: fill_run.write_filled(plan, path, **more))


def _find_answers(
    asking: fill_run.ControlQuestions, given: label_rows.Labels | None, again: dict[str, Any], *, from_file: bool
) -> label_rows.Labels | None:
    """Return the answers to the control questions; if there are too few, write questions and return None.

    All answers `from_file` count. `again` are options of the command that fills.
    """
    asked = asking.asked()
    answers = given if from_file or given is None else asking.answers_among(given)
    if answers is not None:
        random = answers.select(answers.weight != 0)
        if not len(fill_run.unlearned_answers(random, asking.run.read_labels())):
            console.print(
                "The run has learned from these answers, or their questions were chosen: they cannot show how often "
                "its fills are wrong."
            )
            answers = None
    if answers is not None and (from_file or asking.covers(answers.drop_unused_names().images)):
        return answers
    if not asked or not asking.covers(image for image, _ in asked):
        try:
            with Bar("scores") as bar:
                asking.ask(Reporter(bar, show.message))
        except control_questions.NothingToFill as error:
            if answers is None and not asked:
                _refuse(asking, error, again, given is not None)
            return answers  # nothing can be asked about the further photos
    return None


def _refuse(
    asking: fill_run.ControlQuestions, error: control_questions.NothingToFill, given: dict[str, Any], has_answers: bool
) -> NoReturn:
    """Raise the error with what helps: to learn from answers, or a precision at which enough could be filled."""
    run, images = asking.run.folder, asking.images
    learn = words_after_review(run, images) if has_answers else ["review", run, images]
    fix = f"let the model learn from answers first:  {join_command(*learn)}"
    if error.count >= choose.FEWEST_ANSWERS:
        command = join_command("fill", run, images, *option_words({"precision": error.precision, **given}))
        fix += f"\n   or: {command}  ({error.count} labels are probable enough for that)"
    raise UserError(error.message, fix) from None


def _show_how_to_answer(asking: fill_run.ControlQuestions, reason: str) -> None:
    number = len(asking.asked())
    enough = (
        f"{choose.FEWEST_ANSWERS} are enough to begin, and with more, more can be filled"
        if number > choose.FEWEST_ANSWERS
        else "all of them are needed"
    )
    console.print(
        f"Nothing is filled yet. {reason} Answers to the {counted(number, 'random question')} in "
        f"[bold]{escape(str(asking.run.control))}[/] will; {enough}."
    )
    if asking.further is None:
        _show_unlisted(len(fill_run.unlisted_photos(asking.run, asking.labels, asking.images)), asking.images)
    show.next_command("review", asking.run.folder, asking.images, "--questions", asking.run.control)
    show.next_command(*fill_words(asking.run.folder, asking.images), title="Then")  # `review` shows it too
    console.print("Or fill without answers, under an assumption: --assume-random")


def _show_unlisted(count: int, images: Path) -> None:
    if count:
        console.print(
            f"The labels do not list {counted(count, 'photo')} of the folder {escape(str(images))}. Add --all-photos "
            "to fill them too."
        )


def _show_lower_precision(plan: fill_plan.FillPlan, run: Path, images: Path, options: dict[str, Any]) -> None:
    """Print at which lower precision labels would be filled, and the commands that help, the more useful one first."""
    lower = plan.lower_precision(_USEFUL)
    learn = ["next", run, images]
    if plan.check:  # there are answers that the run has not learned
        learn = ["train", "--continue", run, *option_words({"answers": options.get("answers")})]
    if lower is None:
        console.print("No lower precision fills anything either: the model must learn more first.")
        show.next_command(*learn)
        return
    precision, count = lower
    console.print(f"At a precision of {100 * precision:g} %, {counted(count, 'label')} would be filled.")
    commands = [["fill", run, images, *option_words({"precision": precision, **options})], learn]
    for title, words in zip(("Next", "Or"), commands if count >= _USEFUL else commands[::-1], strict=True):
        show.next_command(*words, title=title)


def _show(plan: fill_plan.FillPlan, counts: fill_plan.FillCounts) -> None:
    """Print a table per class, how many labels were filled, and how sure they are."""
    console.print(f"\n[bright_black]{escape(plan.scores.description)}[/]")
    sides = [
        side
        for side in (
            ("present", "filled +", PRESENT, counts.present, plan.present),
            ("absent", "filled −", ABSENT, counts.absent, plan.absent),
        )
        if side[4] is plan.present or not (plan.check or plan.assumption)  # else only present labels are filled
    ]
    shown = [side for side in sides if side[3].any()]
    titles = [title for side in shown for title in (side[1], "precision")]
    rows = plain_table("class", numbers=[*titles, "left unknown"])
    classes, total = plan.table.classes, counts.present + counts.absent
    order = np.argsort(-total, kind="stable")[: np.count_nonzero(total)].tolist()
    for c in order[:_MOST]:
        cells: list[Text | str] = [Text(classes[c])]
        for _, _, shade, filled, decision in shown:
            precision = f"{100 * decision.estimate[c]:.1f} %" if decision.filled[c] else "—"
            cells += [Text(group_digits(filled[c]), shade), precision]
        rows.add_row(*cells, Text(group_digits(counts.unknown[c]), UNKNOWN))
    if order:
        console.print(rows)
        show.rest(len(order), _MOST)
        if empty := [classes[c] for c in np.flatnonzero(total == 0).tolist()]:
            console.print(f"nothing filled: {escape(first_names(empty))}")
    for word, _, _, filled, decision in sides:
        line = f"filled {word} [bold]{group_digits(count := int(filled.sum()))}[/]"
        if count and (plan.assumption or decision.filled.any()):
            line += f": {_describe_precision(plan, decision, count)}"
        console.print(line)
    unknown, ruled, guessed, clashes = (
        int(each.sum()) for each in (counts.unknown, counts.by_rule, counts.by_model, counts.clashes)
    )
    console.print(f"left unknown [bold]{group_digits(unknown)}[/] ({percent(unknown, unknown + int(total.sum()))})")
    follow = "of the filled labels follow by the rules from"
    if ruled:
        console.print(f"{group_digits(ruled)} {follow} people's labels (source rule)")
    if guessed:
        console.print(f"{group_digits(guessed)} {follow} labels of a model only: they have its source and score")
    if clashes:
        likely = counted(clashes, "likely label was", "likely labels were")
        console.print(f"{likely} not filled: the rules exclude them together")
    warnings = [*plan.warnings]
    if counts.contradictions:
        warnings.append(
            f"{counted(counts.contradictions, 'entry', 'entries')} where known labels contradict the rules, "
            f"such as {'; '.join(counts.examples)}. Known labels are unchanged, and nothing was filled there."
        )
    if plan.check:
        console.print(plan.check)
    if (plan.check or plan.assumption) and not counts.present.any():
        if plan.present.filled.any():
            console.print("People have answered all labels that reach this precision: nothing is left to fill.")
        else:
            warnings.append("nothing reaches this precision")
    for warning in warnings:
        console.print(f"[yellow]warning:[/] {escape(in_shell(warning))}")


def _describe_precision(plan: fill_plan.FillPlan, decision: fill_thresholds.FillDecision, count: int) -> str:
    """Say how many of the filled labels are right, by what evidence and under what condition."""
    right = f"{100 * decision.precision:.1f} %"
    text = ""
    if decision is plan.present:
        text = f"about {group_digits(round(plan.missing))} present labels were missing; "
    if plan.assumption:
        return f"{text}{right} of those found are right if {plan.assumption}"
    if plan.unlike:  # somebody assumes what the labels contradict
        return (
            f"{text}{right} of known labels with such scores are right, but fewer of the {group_digits(count)} found "
            f"may be: {plan.unlike}"
        )
    text += (
        f"of the {group_digits(count)} found, at least {group_digits(int(decision.bound * count))} are right "
        f"({100 * decision.bound:.1f} %) with {100 * plan.options.confidence:g} % confidence, by "
        f"{group_digits(decision.known_labels)} "
    )
    if plan.check:
        return f"{text}control answers with such scores; {right} are expected to be"
    return f"{text}known labels with such scores, if these are a random sample; {right} of them are"


def words_after_review(
    run: Path, images: Path, *, is_control: bool = False, place: str | Path | None = None, all_photos: bool = False
) -> list[Any]:
    """Return the command that uses the answers; those to control questions show the precision of a fill.

    Answers in a `place` of their own, a file or the URL of a database, are exported first. `all_photos`: the questions
    are also about photos that the labels do not list.
    """
    if place is not None:
        where = ("--answers", place) if isinstance(place, Path) else ("--store", "URL")  # which may hold a password
        return ["review", run, *where, "--export", "answers.csv"]
    return fill_words(run, images, all_photos) if is_control else ["train", "--continue", run]


def fill_words(run: Path, images: Path, all_photos: bool = False) -> list[Any]:
    """Return the command that fills as the last time, and overwrites nothing."""
    options = remembered_fill(run_folder.RunFolder(run))
    options["out"] = free_name(Path(options.get("out", "filled.csv")))
    return ["fill", run, images, *option_words(options | ({"all_photos": True} if all_photos else {}))]


def remember_fill(run: run_folder.RunFolder, options: dict[str, Any]) -> None:
    """Store the options of a `fill` for the next one, also of a run that continues this one; if it can be written."""
    with suppress(OSError, UserError):
        run.write_text(run.fill_options.name, json.dumps(options, default=str, indent=1) + "\n")


def remembered_fill(run: run_folder.RunFolder) -> dict[str, Any]:
    """Return the options of the last `fill`; empty if there was none, or if they cannot be read."""
    with suppress(UserError, TypeError, ValueError):
        options = dict(read_json(run.fill_options, "remove it"))
        if isinstance(options.get("precision", 0.95), float) and isinstance(options.get("out", ""), str):
            return options
    return {}
