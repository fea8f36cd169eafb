"""Two people in two browsers: names, a question for both, and a conflict that is settled."""

from __future__ import annotations

import pytest
from command_line import CommandProcess

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")

from halflabel.labels.answers import AnswerStore  # noqa: E402
from halflabel.questions.choose import choose_questions, write_questions  # noqa: E402

expect = playwright.expect
SHOWN = "#stage[aria-busy=false] img"


def join(browser, url: str, name: str):
    """Open the page in a browser of its own and give a name."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.faults = []
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(url)
    expect(page.locator("#name-dialog")).to_be_visible()
    page.keyboard.press("Escape")  # a name is needed
    expect(page.locator("#name-dialog")).to_be_visible()
    page.fill("#name-input", name)
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text(name)
    page.wait_for_selector(SHOWN)
    return page


def answer(page, value: str, count: int, before: int = 0) -> None:
    for number in range(before, before + count):
        page.wait_for_selector(SHOWN)
        page.keyboard.press(value)
        expect(page.locator("#count")).to_have_text(f"{number + 1} of 4")


def test_two_people_differ_and_one_settles_it(project, browser, tmp_path) -> None:
    scored = project.scored()
    questions = choose_questions(scored.scores, scored.table, scored.thresholds, 4)
    write_questions(questions, scored.table, tmp_path / "q.csv")
    words = ["review", project.run.folder, project.images, "--port", "0", "--questions", tmp_path / "q.csv"]
    process = CommandProcess(*words, "--twice", "1", output=tmp_path / "review.txt")
    try:
        url = process.wait_for(r"http://127\.0\.0\.1:(\d+)/#\S+")[0]
        ann = join(browser, url, "Ann")
        answer(ann, "y", 4)
        expect(ann.locator("#message-title")).to_have_text("All questions are answered")
        bob = join(browser, url, "Bob Ö.")
        expect(bob.locator("#count")).to_have_text("0 of 4")
        assert "yes" not in bob.inner_text("#caption")
        answer(bob, "y", 3)
        answer(bob, "n", 1, before=3)
        expect(bob.locator("#conflicts-open")).to_have_text("Conflicts (1)")
        assert "4 of 20 questions" in bob.inner_text("#team-text")
        assert not bob.is_visible("#team-kappa")  # too few to tell
        bob.click("#conflicts-open")
        expect(bob.locator("#gallery-title")).to_have_text("Conflicts")
        text = bob.inner_text("#gallery-tiles .about")
        assert "Ann: yes" in text
        assert "Bob Ö.: no" in text
        assert bob.get_attribute("#gallery-tiles .card", "aria-description") == "Ann: yes, Bob Ö.: no"
        bob.click("#gallery-tiles .no")
        expect(bob.locator("#conflicts-open")).to_have_text("Conflicts")
        bob.keyboard.press("z")  # undo opens it again
        expect(bob.locator("#conflicts-open")).to_have_text("Conflicts (1)")
        bob.click("#gallery-tiles .no")
        expect(bob.locator("#conflicts-open")).to_have_text("Conflicts")
        ann.reload()
        expect(ann.locator("#name")).to_have_text("Ann")  # asked once
        assert not ann.is_visible("#name-dialog")
        assert ann.faults == bob.faults == []
    finally:
        process.stop()
        for context in list(browser.contexts):
            context.close()
    store = AnswerStore(project.run / "answers.sqlite")
    rows = store.label_rows(scored.table.images, scored.table.classes)
    store.close()
    assert sorted(rows.value.tolist()) == [-1, 1, 1, 1]
