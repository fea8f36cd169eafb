"""The page and its server: a killed server, a new address, duplicated tabs, a wrong token, no waiting."""

from __future__ import annotations

import re
import signal

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")
from page_examples import SHOWN, Server, count, expect, open_page, press, shown  # noqa: E402

from halflabel.questions.choose import choose_questions, write_questions  # noqa: E402


def test_undo_outlives_a_closed_page_and_a_restarted_server(server, project, context) -> None:
    page = open_page(context, server.url)
    first = shown(page)
    press(page, "y")
    count(page, 1)
    page.close()
    server.stop()
    again = Server(project, server.port)
    try:
        page = open_page(context, again.url)
        expect(page.locator("#recent-list li")).to_have_count(1)
        page.keyboard.press("z")
        count(page, 0)
        assert shown(page) == first
        assert server.values() == []
    finally:
        again.stop()


def test_a_killed_server_loses_nothing_confirmed_and_the_rest_is_sent_later(project, context) -> None:
    server = Server(project)
    page = open_page(context, server.url)
    press(page, "y")
    press(page, "n")
    count(page, 2)
    page.wait_for_timeout(300)  # the photos of the next questions
    server.stop(signal.SIGKILL)
    assert server.values() == [1, -1]
    press(page, "u")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Not saved yet: 1 answer" in page.inner_text("#trouble")

    again = Server(project, server.port)
    try:
        assert again.url == server.url
        expect(page.locator("#count")).to_have_text("3 of 100", timeout=15_000)  # the open page tries again by itself
        assert again.values() == [1, -1, 0]
        expect(page.locator("#trouble")).to_be_hidden()
        press(page, "y")
        count(page, 4)
        assert again.values() == [1, -1, 0, 1]
    finally:
        again.stop()


def test_the_new_address_saves_what_the_old_one_could_not(project, context) -> None:
    server = Server(project)
    old = open_page(context, server.url)
    over = open_page(context, server.url)
    for page in (old, over):
        page.wait_for_timeout(300)  # the photos of the next questions
    server.stop(signal.SIGKILL)
    press(old, "y")
    press(old, "n")
    press(over, "u")
    for page in (old, over):
        expect(page.locator("#trouble")).to_contain_text("is it still running?")
    again = Server(project, server.port, "--new-token")
    try:
        for page, many in ((old, "2 answers"), (over, "1 answer")):
            expect(page.locator("#trouble")).to_contain_text("Open the address shown in the terminal", timeout=15_000)
            assert page.inner_text("#trouble").startswith(f"Not saved yet: {many}, kept in this browser.")
            assert "Use this browser" in page.inner_text("#trouble")
            assert page.inner_text("#message-title") == "The questions cannot be shown"
        old.keyboard.press("y")  # nothing could send it
        old.keyboard.press("z")
        old.keyboard.press("2")
        assert "2 answers" in old.inner_text("#trouble")
        assert again.values() == []

        over.evaluate("(url) => { location = url; }", again.url)  # typed over the old address: the token alone is new
        over.wait_for_selector(SHOWN)
        count(over, 3)
        expect(over.locator("#trouble")).to_be_hidden()
        assert sorted(again.values()) == [-1, 0, 1]
        over.keyboard.press("z")  # of its own answers the last
        count(over, 2)
        assert sorted(again.values()) == [-1, 1]

        expect(old.locator("#trouble")).to_contain_text("Another page has taken over the unsaved answers")
        new = open_page(context, again.url)
        count(new, 2)
        assert not new.is_visible("#trouble")
    finally:
        again.stop()


@pytest.mark.parametrize("locks", [True, False])
def test_a_duplicated_tab_has_a_name_and_questions_of_its_own(server, context, locks) -> None:
    if not locks:  # as over plain http from another machine
        context.add_init_script("Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })")
    page = open_page(context, server.url)
    name = "sessionStorage.getItem('halflabel-tab')"
    mine = page.evaluate(name)
    first = shown(page)
    press(page, "y")
    count(page, 1)
    second = shown(page)
    with context.expect_page() as opened:
        page.evaluate("window.open(location.href); null")  # with a copy of the storage, as Duplicate makes it
    copy = opened.value
    assert copy.evaluate("sessionStorage.length") > 0
    count(copy, 1)
    assert shown(copy) not in (first, second)
    assert page.evaluate(name) == mine != copy.evaluate(name)
    copy.keyboard.press("z")  # what was answered there is taken back there
    expect(copy.locator("#status")).to_have_text(re.compile("nothing to undo"))
    press(copy, "n")
    count(copy, 2)
    named = copy.evaluate(name)
    for one, kept in ((page, mine), (copy, named)):
        before = shown(one)
        one.reload()
        assert shown(one) == before
        assert one.evaluate(name) == kept
    page.keyboard.press("z")
    count(page, 1)
    assert shown(page) == first
    assert server.values() == [-1]
    assert page.faults == []


def test_wrong_token_shows_only_the_reason(server, context) -> None:
    page = context.new_page()
    page.goto(server.url[:-1] + ("a" if server.url[-1] != "a" else "b"))
    page.wait_for_selector("#trouble:not([hidden])")
    assert "Open the address shown in the terminal" in page.inner_text("#trouble")
    assert page.locator("#photo img").count() == 0


def test_inline_code_is_refused_by_the_browser(server, context) -> None:
    page = open_page(context, server.url)
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.reached = 1'; document.head.append(s)"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.reached = 2\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("window.reached") is None
    assert any("Content Security Policy" in text for text in page.faults)


def test_photos_that_cannot_be_shown_get_no_answer(project, context) -> None:
    scored = project.scored()
    asked = [
        item
        for item in choose_questions(scored.scores, scored.table, scored.thresholds, 400, control=0)
        if item.column == 3
    ]
    asked = asked[:4]
    assert len({item.image for item in asked}) == 4
    write_questions(asked, scored.table, project.run.folder / "questions.csv")
    server = Server(project)
    (project.images / scored.table.images[asked[0].image]).write_bytes(b"no image")  # damaged since it was scored
    try:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("#stage[aria-busy=false]")
        assert "cannot be shown" in page.inner_text("#photo")
        assert page.is_disabled("#answers .yes")
        page.keyboard.press("y")
        expect(page.locator("#status")).to_have_text("There is no photo: answer unsure to continue.")
        page.keyboard.press("2")
        expect(page.locator("#grid-tiles .tile")).to_have_count(4)
        expect(page.locator("#grid-tiles .tile:disabled")).to_have_count(1)
        expect(page.locator("#grid-tiles img[src]")).to_have_count(3)
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_have_text("3 of 4")
        assert len(server.values()) == 3
        expect(page.locator("#message-title")).to_have_text("No photos for the grid")
        page.click("#message-button")  # one by one: the question is still there
        page.wait_for_selector("#stage[aria-busy=false]")
        page.keyboard.press("u")
        expect(page.locator("#message-title")).to_have_text("All questions are answered")
        page.select_option("#filter-state", "absent" if server.values()[0] == 1 else "present")
        expect(page.locator("#message-title")).to_have_text("No question matches these filters")
        page.click("#message-button")
        assert page.input_value("#filter-state") == "open"
    finally:
        server.stop()
