"""The review page in a real browser: its server in a process of its own, and steps on the page."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from command_line import CommandProcess

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")
from halflabel.labels.answers import AnswerStore  # noqa: E402
from halflabel.questions.choose import choose_questions, write_questions  # noqa: E402

expect = playwright.expect  # waits without evaluating text, which the page's policy forbids
SHOWN = "#stage[aria-busy=false] img"


class Server:
    """`halflabel review` in a process of its own."""

    def __init__(self, project, port: int = 0, *more: str, questions: Path | None = None) -> None:
        questions = questions or project.run.folder / "questions.csv"
        if not questions.exists():
            scored = project.scored()
            asked = choose_questions(scored.scores, scored.table, scored.thresholds, 100)
            write_questions(asked, scored.table, questions)
        words = ["review", str(project.run.folder), str(project.images), "--port", str(port), "--reviewer", "me"]
        words += ["--questions", str(questions), *more]
        output = project.run.folder.parent / "review.txt"
        output.unlink(missing_ok=True)
        self.process = CommandProcess(*words, output=output)
        self.answers = project.run / "answers.sqlite"
        match = self.process.wait_for(r"http://127\.0\.0\.1:(\d+)/#\S+")
        self.url, self.port = match[0], int(match[1])

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.stop(how)

    def values(self) -> list[int]:
        store = AnswerStore(self.answers)
        try:
            return [item.value for item in store.current()]
        finally:
            store.close()


def open_page(context, url: str):
    page = context.new_page()
    page.faults = []
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(url)
    page.wait_for_selector(SHOWN)
    expect(page.locator("#count")).to_have_text(re.compile("of 100$"))
    return page


def shown(page) -> tuple[str, str]:
    page.wait_for_selector(SHOWN)
    return page.inner_text("#asked-class"), page.get_attribute("#photo img", "alt")


def press(page, key: str) -> None:
    page.wait_for_selector(SHOWN)
    page.keyboard.press(key)


def count(page, number: int) -> None:
    """Wait until the server has confirmed so many answers."""
    expect(page.locator("#count")).to_have_text(f"{number} of 100")
