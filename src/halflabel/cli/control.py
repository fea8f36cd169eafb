"""The control questions of `fill`: ask them, and print how to answer them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.markup import escape

from halflabel.cli.sequence import after_next, after_review, join_command
from halflabel.cli.terminal import console, show_command, show_message
from halflabel.errors import UserError
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.filling.control import NothingToFill
    from halflabel.filling.run import ControlQuestions
    from halflabel.labels.labels import Labels


def find_answers_or_ask(
    asking: ControlQuestions, given: Labels | None, again: Sequence[str | Path], *, from_file: bool
) -> Labels | None:
    """Return the answers to the control questions; if there are too few, write questions and print how to answer.

    All answers `from_file` count. `again` are options of the command that fills.
    """
    from halflabel.cli.progress import Bar
    from halflabel.filling.control import NothingToFill
    from halflabel.filling.run import unlearned_answers

    asked = asking.asked()
    answers = given if from_file or given is None else asking.answers_among(given)
    random = None if answers is None else answers.select(answers.weight != 0)
    if random is not None and not len(unlearned_answers(random, asking.run.read_labels())):
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
        except NothingToFill as error:
            if answers is not None:  # nothing can be asked about the further photos
                return answers
            if not asked:
                _refuse(asking, error, again, given)
    _show_how_to_answer(asking)
    return None


def _refuse(
    asking: ControlQuestions, error: NothingToFill, again: Sequence[str | Path], answers: Labels | None
) -> NoReturn:
    """Raise the error with what helps: to learn from answers, or a precision at which enough could be filled."""
    from halflabel.filling.control import FEWEST_ANSWERS
    from halflabel.filling.run import unlearned_answers

    learn = join_command("review", asking.run.folder, asking.images)
    if answers is not None and len(unlearned_answers(answers, asking.run.read_labels())):
        learn = after_review(asking.run.folder, asking.images)
    fix = f"let the model learn from answers first:  {learn}"
    if error.count >= FEWEST_ANSWERS:
        words = ("--precision", f"{error.precision:g}", *again)
        command = join_command("fill", asking.run.folder, asking.images, *words)
        fix += f"\n   or: {command}  ({error.count} labels are probable enough for that)"
    else:
        number = counted(error.count, "unknown label is", "unknown labels are")
        fix += f"  ({number} more likely present than absent)"
    raise UserError(error.message, fix) from None


def _show_how_to_answer(asking: ControlQuestions) -> None:
    from halflabel.filling.control import FEWEST_ANSWERS
    from halflabel.filling.run import unlisted_photos

    number = len(asking.asked())
    enough = (
        f"{FEWEST_ANSWERS} are enough to begin, and with more, more can be filled"
        if number > FEWEST_ANSWERS
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
    if asking.further is None and (unlisted := len(unlisted_photos(asking.run, asking.labels, asking.images))):
        console.print(
            f"The labels do not list {counted(unlisted, 'photo')} of the folder {escape(str(asking.images))}. Add "
            "--all-photos to ask about them and fill them too."
        )
    show_command(after_next(asking.run.folder, asking.images, asking.run.control))
    show_command(after_review(asking.run.folder, asking.images, is_control=True), "Then")  # `review` shows it too
    console.print("Or fill without answers, under an assumption: --assume-random")
