"""The control questions of `fill`: ask them, and print how to answer them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.markup import escape

from halflabel.cli.progress import Bar
from halflabel.cli.sequence import after_next, after_review, join_command
from halflabel.cli.terminal import console, show_command, show_message
from halflabel.errors import UserError
from halflabel.filling import control
from halflabel.filling import run as fill_run
from halflabel.labels import labels as label_rows
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter


def find_answers_or_ask(
    asking: fill_run.ControlQuestions, given: label_rows.Labels | None, again: Sequence[str | Path], *, from_file: bool
) -> label_rows.Labels | None:
    """Return the answers to the control questions; if there are too few, write questions and print how to answer.

    All answers `from_file` count. `again` are options of the command that fills.
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
    _show_how_to_answer(asking)
    return None


def _refuse(
    asking: fill_run.ControlQuestions,
    error: control.NothingToFill,
    again: Sequence[str | Path],
    answers: label_rows.Labels | None,
) -> NoReturn:
    """Raise the error with what helps: to learn from answers, or a precision at which enough could be filled."""
    learn = join_command("review", asking.run.folder, asking.images)
    if answers is not None and len(fill_run.unlearned_answers(answers, asking.run.read_labels())):
        learn = after_review(asking.run.folder, asking.images)
    fix = f"let the model learn from answers first:  {learn}"
    if error.count >= control.FEWEST_ANSWERS:
        words = ("--precision", f"{error.precision:g}", *again)
        command = join_command("fill", asking.run.folder, asking.images, *words)
        fix += f"\n   or: {command}  ({error.count} labels are probable enough for that)"
    else:
        number = counted(error.count, "unknown label is", "unknown labels are")
        fix += f"  ({number} more likely present than absent)"
    raise UserError(error.message, fix) from None


def _show_how_to_answer(asking: fill_run.ControlQuestions) -> None:

    number = len(asking.asked())
    enough = (
        f"{control.FEWEST_ANSWERS} are enough to begin, and with more, more can be filled"
        if number > control.FEWEST_ANSWERS
        else "all of them are needed"
    )
    console.print(
        "Nothing is filled yet. Hardly any label is known to be absent, so no known label shows how often a filled "
        f"one would be wrong. Answers to the {counted(number, 'random question')} in "
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
