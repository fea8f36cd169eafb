"""The command `fill`, and its control questions where only positives are known."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.text import Text

from halflabel.cli import app
from halflabel.cli.options import (
    Engine,
    Force,
    ReadLabels,
    SharedOptions,
    check_free,
    check_image_folder,
    check_needs,
    options_of,
    takes_label_options,
)
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import (
    Options,
    after_next,
    after_report,
    after_review,
    join_command,
    option_words,
    remember_fill,
)
from halflabel.cli.terminal import (
    ABSENT,
    PRESENT,
    UNKNOWN,
    console,
    first_names,
    in_shell,
    plain_table,
    show_command,
    show_message,
    show_next,
    show_rest,
)
from halflabel.errors import UserError
from halflabel.filling import control, undo
from halflabel.filling import plan as fill_plan
from halflabel.filling import run as fill_run
from halflabel.filling.thresholds import FillDecision
from halflabel.images import stored_features
from halflabel.labels import labels as label_rows
from halflabel.questions.choose import FEWEST_ANSWERS, weigh_answers
from halflabel.runs import folder as run_folder
from halflabel.system import distributed
from halflabel.system.format import counted, group_digits, percent
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import Reporter


def find_answers_or_ask(
    asking: fill_run.ControlQuestions, given: label_rows.Labels | None, again: Options, reason: str, *, from_file: bool
) -> label_rows.Labels | None:
    """Return the answers to the control questions; if there are too few, write questions and print how to answer.

    All answers `from_file` count. `reason` says why known labels do not show the precision. `again` are options of the
    command that fills.
    """
    asked = asking.asked()
    answers = given if from_file or given is None else asking.answers_among(given)
    random = None if answers is None else answers.select(answers.weight != 0)
    if random is not None and not len(fill_run.unlearned_answers(random, asking.run.read_labels())):
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
                asking.ask(Reporter(bar, show_message))
        except control.NothingToFill as error:
            if answers is not None:  # nothing can be asked about the further photos
                return answers
            if not asked:
                _refuse(asking, error, again, given)
    _show_how_to_answer(asking, reason)
    return None


def _refuse(
    asking: fill_run.ControlQuestions,
    error: control.NothingToFill,
    again: Options,
    answers: label_rows.Labels | None,
) -> NoReturn:
    """Raise the error with what helps: to learn from answers, or a precision at which enough could be filled."""
    learn = join_command("review", asking.run.folder, asking.images)
    if answers is not None and len(fill_run.unlearned_answers(answers, asking.run.read_labels())):
        learn = after_review(asking.run.folder, asking.images)
    fix = f"let the model learn from answers first:  {learn}"
    if error.count >= FEWEST_ANSWERS:
        words = ("--precision", f"{error.precision:g}", *option_words(again))
        command = join_command("fill", asking.run.folder, asking.images, *words)
        fix += f"\n   or: {command}  ({error.count} labels are probable enough for that)"
    else:
        number = counted(error.count, "unknown label is", "unknown labels are")
        fix += f"  ({number} more likely present than absent)"
    raise UserError(error.message, fix) from None


def _show_how_to_answer(asking: fill_run.ControlQuestions, reason: str) -> None:
    number = len(asking.asked())
    enough = (
        f"{FEWEST_ANSWERS} are enough to begin, and with more, more can be filled"
        if number > FEWEST_ANSWERS
        else "all of them are needed"
    )
    console.print(
        f"Nothing is filled yet. {reason} Answers to the {counted(number, 'random question')} in "
        f"[bold]{escape(str(asking.run.control))}[/] will; {enough}."
    )
    if number < asking.count:
        console.print(
            f"There are {number} questions and not {asking.count}: only about {2 * number} unknown labels were "
            "probable enough to be filled, and half of them are left to fill."
        )
    if asking.further is None and (unlisted := len(fill_run.unlisted_photos(asking.run, asking.labels, asking.images))):
        console.print(
            f"The labels do not list {counted(unlisted, 'photo')} of the folder {escape(str(asking.images))}. Add "
            "--all-photos to ask about them and fill them too."
        )
    show_command(after_next(asking.run.folder, asking.images, asking.run.control))
    show_command(after_review(asking.run.folder, asking.images, is_control=True), "Then")  # `review` shows it too
    console.print("Or fill without answers, under an assumption: --assume-random")


Folds = Annotated[
    int | None,
    typer.Option(
        help="Fit the head again in this many folds, for unbiased scores (default: those that the run has, else 5)."
    ),
]
AssumeRandom = Annotated[
    bool,
    typer.Option(
        "--assume-random",
        help="Ask nothing, and assume that the known labels are a random sample: of the present ones where only "
        "positives are known, else of all of their class. The source of the rows says so.",
    ),
]

_CONFIDENCE = 0.9
_USEFUL = 20  # labels that make a lower precision worth while


@app.command(cls=SharedOptions)
@takes_label_options
def fill(
    read: ReadLabels,
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder of `train`.")] = None,
    images: Annotated[Path | None, typer.Argument(metavar="IMAGES", help="The folder with the image files.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write: .csv or .parquet (default: RUN/filled.csv).")
    ] = None,
    precision: Annotated[
        float, typer.Option(help="Share of fills that must be right, for present and absent each.", min=0.5, max=0.999)
    ] = 0.95,
    confidence: Annotated[
        float, typer.Option(help="Confidence that --precision is reached.", min=0.5, max=0.999)
    ] = _CONFIDENCE,
    labels: Annotated[
        Path | None, typer.Option(help="Fill these labels instead of those the run was trained on.")
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(help="Rules of the labels: CSV class,rule,class or an Open Images hierarchy (.json).")
    ] = None,
    folds: Folds = None,
    control: Annotated[
        int, typer.Option(help="Positives only: random questions whose answers show the precision.", min=30)
    ] = 100,
    answers: Annotated[
        Path | None, typer.Option(help="Positives only: a label file with the answers (default: those of `review`).")
    ] = None,
    assume_random: AssumeRandom = False,
    all_photos: Annotated[
        bool, typer.Option("--all-photos", help="Also fill the photos of IMAGES that have no row in the labels.")
    ] = False,
    complete: Annotated[
        bool,
        typer.Option("--complete/--only-filled", help="Write known and filled labels, or only the filled ones."),
    ] = True,
    undo: Annotated[Path | None, typer.Option(help="Remove the filled labels from this file.", metavar="FILE")] = None,
    source: Annotated[
        str | None, typer.Option(help="With --undo: the source of the rows, such as model:bn-bce:runs/first, or rule.")
    ] = None,
    retract: Annotated[
        bool, typer.Option("--retract", help="With --undo: add rows that retract labels instead of removing rows.")
    ] = False,
    top: Annotated[int, typer.Option(help="Number of classes to show.", min=1)] = 30,
    force: Force = False,
    engine: Engine = "local",
) -> None:
    """Fill in unknown labels where the model is confident enough; known labels are never changed.

    Thresholds are set per class so that, with the given confidence, the given share of all fills is right. This is
    estimated on known labels with models that were not trained on them. Uncertain labels stay unknown.

    If only positives are known, no known label shows how often a fill is wrong. `fill` then first writes random
    questions; once they are answered in `halflabel review`, the same command fills labels that are present.

    Filled rows have the source model:METHOD:RUN. Labels that follow from --rules have the source rule if they follow
    from a person's label, and the model's source if not: labels of a model are never used for evaluation.

    Example: halflabel fill runs/first photos/ --precision 0.95 --out filled.csv

    To undo: halflabel fill runs/first --undo labels.csv
    """
    if undo is not None:
        if distributed.is_main():
            _undo(undo, source, run, retract)
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
    flags = {"--all-photos": all_photos, "--assume-random": assume_random, "--only-filled": not complete}
    again = _repeated_options(read, labels, rules, confidence, flags)
    people = opened.read_answers()
    if answers is not None:
        people = weigh_answers(read(answers).rows, opened.asked, opened.control)
    named: Options = {} if out is None else {"--out": [out]}
    chosen = {"--precision": [f"{precision:g}"]} | named | again
    chosen.pop("--assume-random", None)  # a run that learns from answers needs no assumption
    remember_fill(opened, chosen)
    options: dict[str, Any] = {"labels": rows, "rules": rules, "folds": folds, "precision": precision}
    options |= {"assume_random": assume_random, "all_photos": all_photos, "confidence": confidence, "answers": people}
    with use_engine(engine):
        try:
            filling, tally = _fill(opened, images, path, complete, **options)
        except fill_run.NotShown as error:
            reason = f"{error.message[0].upper()}{error.message[1:]}."
            further = fill_run.unlisted_photos(opened, rows, images) if all_photos else None
            asking = fill_run.ControlQuestions(opened, images, rows, further, precision, control)
            of_control = find_answers_or_ask(asking, people, named | again, reason, from_file=answers is not None)
            if of_control is None:
                return
            options["control"] = of_control
            filling, tally = _fill(opened, images, path, complete, **options)
    _show(filling, tally, top)
    if (tally.present + tally.absent).any():
        _show_photos(filling, images, all_photos, people)
    if answers is not None:
        again |= {"--answers": [answers], **options_of(read)}
    _show_next_step(filling, tally, run, images, path, complete, again)


def _repeated_options(
    read: ReadLabels, labels: Path | None, rules: Path | None, confidence: float, flags: dict[str, bool]
) -> Options:
    """Return the options that a later `fill` of the same labels needs again."""
    options: Options = {} if labels is None else {"--labels": [labels], **options_of(read)}
    options |= {} if rules is None else {"--rules": [rules]}
    options |= {} if confidence == _CONFIDENCE else {"--confidence": [f"{confidence:g}"]}
    return options | {flag: [] for flag, is_set in flags.items() if is_set}


def _fill(
    run: run_folder.RunFolder, images: Path, path: Path, complete: bool, **options: Any
) -> tuple[fill_plan.FillPlan, fill_plan.FillCounts]:
    """Fill labels and write them to a file, after the known ones if `complete`; `options` are those of `fill`."""
    with Bar("features") as bar:
        plan = fill_run.fill(run, images, **options, reporter=Reporter(bar, show_message))
    known = run.read_rows() if options["labels"] is None else options["labels"]
    more = {"base": known if complete else None, "answers": options["answers"]}
    return plan, distributed.run_on_main(lambda: fill_run.write_filled(plan, path, **more))


def _show_photos(filling: fill_plan.FillPlan, images: Path, all_photos: bool, people: label_rows.Labels | None) -> None:
    """Print how many photos were filled, or how many the labels do not name, and the answers of people that stay."""
    if all_photos:
        console.print(f"{counted(len(filling.images_to_fill), 'photo')}, listed in the labels or not")
    elif missing := len(stored_features.unlisted_images(filling.table.images, images)):
        console.print(
            f"The labels do not list {counted(missing, 'photo')} of the folder {escape(str(images))}: nothing was "
            "filled there. Add --all-photos to fill them too."
        )
    if people is not None:
        console.print(f"{counted(len(people), 'answer')} of people kept: nothing was filled there")


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


def _show_next_step(
    filling: fill_plan.FillPlan,
    tally: fill_plan.FillCounts,
    run: Path,
    images: Path,
    path: Path,
    complete: bool,
    again: Options,
) -> None:
    """Print what was written, the next command, and how to undo; `again` are options to fill the same labels."""
    quoted_path, quoted_run = shlex.quote(str(path)), shlex.quote(str(run))
    ruled, by_model = int(tally.by_rule.sum()), int(tally.by_model.sum())
    fills = int((tally.present + tally.absent).sum()) - ruled - by_model
    content = "the known labels and the filled ones" if complete else "only the filled labels"
    if not fills + ruled + by_model:
        content = "the known labels alone" if complete else "no label"
    sources = " and ".join(name for name, count in ((filling.options.source, fills), ("rule", ruled)) if count)
    console.print(f"\nWrote [bold]{escape(quoted_path)}[/]: {content}{escape(sources and f', source {sources}')}")
    if not fills + ruled + by_model:
        _show_lower_precision(filling, run, images, {"--out": [path], "--force": []} | again)
        return
    _show_undo(quoted_run, quoted_path, fills, ruled)
    show_next("inspect", path)
    if filling.check or filling.assumption:  # such labels mostly come from a table of tags
        words = ("convert", path, path.with_name(f"{path.stem}-tags.csv"), "--into", "TAGS.csv", "--without-sources")
        show_command(shlex.join(["halflabel", *map(str, words)]), "As a copy of your table of tags")


def _show_lower_precision(filling: fill_plan.FillPlan, run: Path, images: Path, options: Options) -> None:
    """Print at which lower precision labels would be filled, and the commands that help, the more useful one first."""
    lower, useful = filling.lower_precisions(_USEFUL), False
    commands = {"learn": after_report(run, images)}
    if filling.check:  # there are answers that the run has not learned
        file = {flag: values for flag, values in options.items() if flag == "--answers"}
        commands["learn"] = join_command("train", "--continue", run, *option_words(file))
    if lower:
        first, *rest = (f"{100 * precision:g} %, {group_digits(count)}" for precision, count in lower)
        more = "".join(f"; at {each}" for each in rest)
        console.print(f"At a precision of {first} {'label' if lower[0][1] == 1 else 'labels'} would be filled{more}.")
        commands["fill"] = join_command("fill", run, images, "--precision", f"{lower[-1][0]:g}", *option_words(options))
        useful = lower[-1][1] >= _USEFUL
    else:
        console.print("No lower precision fills anything either: the model must learn more first.")
    order = ("fill", "learn") if useful else ("learn", "fill")
    for title, kind in zip(("Next", "Or"), (kind for kind in order if kind in commands), strict=False):
        show_command(commands[kind], title)


def _show_undo(run: str, file: str, fills: int, ruled: int) -> None:
    if fills:
        console.print(f"Undo:  halflabel fill {escape(run)} --undo {escape(file)}")
    if ruled:
        what = "Undo labels that follow from people's labels" if fills else "Undo"
        console.print(f"{what}:  halflabel fill --undo {escape(file)} --source rule")


def _undo(path: Path, source: str | None, run: Path | None, retract: bool) -> None:
    done = undo.undo(path, source=source, run=str(run) if source is None and run is not None else None, retract=retract)
    what = "retracted" if retract else "removed"
    console.print(
        f"{counted(done.rows, 'row')} {what} in [bold]{escape(str(path))}[/]: {escape(', '.join(done.sources))}"
    )
    if done.answered_since:
        console.print(
            f"{group_digits(done.answered_since)} of these entries were answered since then: the answers stay"
        )


def _show(filling: fill_plan.FillPlan, tally: fill_plan.FillCounts, top: int) -> None:
    import numpy as np

    sides = (filling.present, filling.absent)
    console.print(f"\n[bright_black]{escape(filling.scores.description)}[/]")
    filled = [int(part.sum()) for part in (tally.present, tally.absent)]
    shown_sides = [number for number in (0, 1) if filled[number]]
    numbers = [title for number in shown_sides for title in (("filled +", "filled −")[number], "precision")]
    rows = plain_table("class", numbers=[*numbers, "left unknown"])
    total = tally.present + tally.absent
    order = np.flatnonzero(total)[(-total[total > 0]).argsort(kind="stable")]
    for c in order[:top].tolist():
        cells: list[Text | str] = [Text(filling.table.classes[c])]
        for number in shown_sides:
            count = int((tally.present, tally.absent)[number][c])
            cells += [Text(group_digits(count), (PRESENT, ABSENT)[number]), _class_precision(filling, number, c)]
        rows.add_row(*cells, Text(group_digits(int(tally.unknown[c])), UNKNOWN))
    if len(order):
        console.print(rows)
    show_rest(len(order), top)
    if any((side.low >= filling.options.precision).any() for side in sides):
        console.print(
            "[bright_black]* estimated from the known labels of the class; otherwise from all classes together[/]"
        )
    if len(order) and (empty := [filling.table.classes[c] for c in np.flatnonzero(total == 0).tolist()]):
        console.print(f"nothing filled: {escape(first_names(empty))}")
    unknown = int(tally.unknown.sum())
    for word, side, count in zip(("present", "absent"), sides, filled, strict=True):
        if side is filling.absent and (filling.check or filling.assumption):
            continue  # only present labels are filled
        line = f"filled {word} [bold]{group_digits(count)}[/]"
        if count and (filling.assumption or side.filled.any()):
            line += f": {_describe_precision(filling, side, count)}"
        console.print(line)
    console.print(f"left unknown [bold]{group_digits(unknown)}[/] ({percent(unknown, unknown + sum(filled))})")
    if ruled := int(tally.by_rule.sum()):
        console.print(
            f"{group_digits(ruled)} of the filled labels follow by the rules from people's labels (source rule)"
        )
    if guessed := int(tally.by_model.sum()):
        console.print(
            f"{group_digits(guessed)} of the filled labels follow by the rules from labels of a model only: "
            "they have the source and score of that model"
        )
    if clashes := int(tally.clashes.sum()):
        console.print(
            f"{counted(clashes, 'likely label was', 'likely labels were')} not filled: the rules exclude them together"
        )
    if tally.contradictions:
        shown = "; ".join(tally.examples)
        console.print(
            f"[yellow]warning:[/] {counted(tally.contradictions, 'entry', 'entries')} where known labels contradict "
            f"the rules, such as {escape(shown)}. Known labels are unchanged, and nothing was filled there."
        )
    if filling.check:
        console.print(filling.check)
    if (filling.check or filling.assumption) and not filled[0]:
        console.print(
            "People have answered all labels that reach this precision: their answers are in the file, and nothing is "
            "left to fill."
            if filling.present.filled.any()
            else "[yellow]warning:[/] nothing reaches this precision"
        )
    for warning in filling.warnings:
        console.print(f"[yellow]warning:[/] {escape(in_shell(warning))}")


def _describe_precision(filling: fill_plan.FillPlan, side: FillDecision, count: int) -> str:
    """Say how many of the filled labels are right, by what evidence and under what condition."""
    text = ""
    if side is filling.present:
        text = f"about {group_digits(round(filling.missing))} present labels were missing; "
    if filling.assumption:
        return f"{text}{100 * side.precision:.1f} % of those found are right if {filling.assumption}"
    if filling.unlike:  # somebody assumes what the labels contradict
        return (
            f"{text}{100 * side.precision:.1f} % of known labels with such scores are right, but fewer of the "
            f"{group_digits(count)} found may be: {filling.unlike}"
        )
    confidence = f"with {100 * filling.options.confidence:g} % confidence"
    text += (
        f"of the {group_digits(count)} found, at least {group_digits(int(side.bound * count))} are right "
        f"({100 * side.bound:.1f} %) {confidence}, by {group_digits(side.known_labels)} "
    )
    if filling.check:
        return f"{text}control answers with such scores; {100 * side.precision:.1f} % are expected to be"
    return (
        f"{text}known labels with such scores, if these are a random sample; {100 * side.precision:.1f} % of them are"
    )


def _class_precision(filling: fill_plan.FillPlan, which: int, c: int) -> str:
    side = (filling.present, filling.absent)[which]
    if not side.filled[c]:
        return "—"
    mark = "*" if side.low[c] >= filling.options.precision else " "
    return f"{100 * side.estimate[c]:.1f} %{mark}"
