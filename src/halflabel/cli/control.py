"""The control questions of `fill`: draw them, count their answers, and print how to answer them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    from halflabel.labels.labels import Labels
    from halflabel.labels.names import Names
    from halflabel.runs.folder import RunFolder


@dataclass(frozen=True)
class ControlQuestions:
    """The random questions in RUN/control.csv whose answers show how often a filled label is wrong.

    They cover the photos of the labels and `further`, the photos of the folder that `--all-photos` adds.
    """

    run: RunFolder
    images: Path
    labels: Labels | None
    further: Names | None
    precision: float
    count: int

    def find_answers_or_ask(
        self, given: Labels | None, again: Sequence[str | Path], *, from_file: bool
    ) -> Labels | None:
        """Return the answers to the control questions; if there are too few, write questions and print how to answer.

        All answers `from_file` count. `again` are options of the command that fills.
        """
        from halflabel.filling.control import NothingToFill
        from halflabel.filling.run import unlearned_answers

        asked = self._asked()
        answers = given if from_file else self._enough_answers(given, asked)
        random = None if answers is None else answers.select(answers.weight != 0)
        if random is not None and not len(unlearned_answers(random, self.run.read_labels())):
            console.print(
                "The run has learned from these answers, or their questions were chosen: they cannot show how often "
                "its fills are wrong."
            )
            answers = None
        if answers is not None and (from_file or self._covers(_entries(answers))):
            return answers
        if not asked or not self._covers(asked):
            try:
                self._draw(only_further=bool(asked))
            except NothingToFill as error:
                if answers is not None:  # nothing can be asked about the further photos
                    return answers
                if not asked:
                    self._refuse(error, again, given)
        self._show_how_to_answer()
        return None

    def _enough_answers(self, answers: Labels | None, asked: dict[tuple[str, str], float]) -> Labels | None:
        """Return the answers to the questions that were asked, with these weights, or None if there are too few."""
        import numpy as np

        from halflabel.filling.control import FEWEST_ANSWERS

        if answers is None or not asked:
            return None
        weight = np.array([asked.get(entry, np.nan) for entry in _entries(answers)], np.float32)
        rows = replace(answers, weight=weight).select(~np.isnan(weight))
        return rows if len(rows) >= min(FEWEST_ANSWERS, len(asked)) else None

    def _refuse(self, error: NothingToFill, again: Sequence[str | Path], answers: Labels | None) -> NoReturn:
        """Raise the error with what helps: to learn from answers, or a precision at which enough could be filled."""
        from halflabel.filling.control import FEWEST_ANSWERS
        from halflabel.filling.run import unlearned_answers

        learn = join_command("review", self.run.folder, self.images)
        if answers is not None and len(unlearned_answers(answers, self.run.read_labels())):
            learn = after_review(self.run.folder, self.images)
        fix = f"let the model learn from answers first:  {learn}"
        if error.count >= FEWEST_ANSWERS:
            words = ("--precision", f"{error.precision:g}", *again)
            command = join_command("fill", self.run.folder, self.images, *words)
            fix += f"\n   or: {command}  ({error.count} labels are probable enough for that)"
        else:
            number = counted(error.count, "unknown label is", "unknown labels are")
            fix += f"  ({number} more likely present than absent)"
        raise UserError(error.message, fix) from None

    def _show_how_to_answer(self) -> None:
        from halflabel.filling.control import FEWEST_ANSWERS
        from halflabel.filling.run import unlisted_photos

        number = len(self._asked())
        enough = (
            f"{FEWEST_ANSWERS} are enough to begin, and with more, more can be filled"
            if number > FEWEST_ANSWERS
            else "all of them are needed"
        )
        console.print(
            "Nothing is filled yet. Hardly any label is known to be absent, so no known label shows how often a filled "
            f"one would be wrong. Answers to the {counted(number, 'random question')} in "
            f"[bold]{escape(str(self.run.control))}[/] will; {enough}."
        )
        if number < self.count:
            console.print(
                f"There are {number} questions and not {self.count}: only about {2 * number} unknown labels were "
                "probable enough to be filled, and half of them are left to fill."
            )
        if self.further is None and (unlisted := len(unlisted_photos(self.run, self.labels, self.images))):
            console.print(
                f"The labels do not list {counted(unlisted, 'photo')} of the folder {escape(str(self.images))}. Add "
                "--all-photos to ask about them and fill them too."
            )
        show_command(after_next(self.run.folder, self.images, self.run.control))
        show_command(after_review(self.run.folder, self.images, is_control=True), "Then")  # `review` shows it too
        console.print("Or fill without answers, under an assumption: --assume-random")

    def _asked(self) -> dict[tuple[str, str], float]:
        """Return the weights of the questions that are written already, without those about other photos."""
        from halflabel.questions.choose import asked_entries

        asked = asked_entries(self.run.control) if self.run.control.exists() else {}
        if self.further is None and asked:  # an earlier fill may have had --all-photos
            listed = self.run.read_rows().images
            listed = listed if self.labels is None else listed.union(self.labels.images)
            asked = {entry: weight for entry, weight in asked.items() if entry[0] in listed}
        return asked

    def _covers(self, entries: Iterable[tuple[str, str]]) -> bool:
        """Whether the entries include one of the further photos, if there are any."""
        return not self.further or any(image in self.further for image, _ in entries)

    def _draw(self, *, only_further: bool) -> None:
        """Draw questions, and write them after those that are written already."""
        from halflabel.cli.progress import Bar
        from halflabel.filling.run import control_questions
        from halflabel.questions.choose import read_questions, write_questions

        with Bar("scores") as bar:
            table, drawn = control_questions(
                self.run,
                self.images,
                labels=self.labels,
                precision=self.precision,
                count=self.count,
                further_photos=self.further,
                only_further=only_further,
                reporter=Reporter(bar, show_message),
            )
        earlier = read_questions(self.run.control, table) if only_further else []
        write_questions([*earlier, *drawn], table, self.run.control)


def _entries(rows: Labels) -> list[tuple[str, str]]:
    """Return image and class of rows, by name."""
    return [(rows.images[i], rows.classes[c]) for i, c in zip(rows.image.tolist(), rows.column.tolist(), strict=True)]
