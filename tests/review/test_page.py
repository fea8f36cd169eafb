"""The page in a real browser: keys, undo, grid, galleries, filters, the map, a phone, a silent console."""

from __future__ import annotations

import csv
import re
import time

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")
from page_examples import SHOWN, Server, count, expect, open_page, press, shown  # noqa: E402

from halflabel.labels.answers import AnswerStore  # noqa: E402
from halflabel.questions.choose import CONTROL_FILL, choose_questions, write_questions  # noqa: E402


def test_keys_undo_reload_and_two_tabs(server, context) -> None:
    page = open_page(context, server.url)
    first = shown(page)
    press(page, "y")
    second = shown(page)
    assert second != first
    press(page, "n")
    press(page, "u")
    count(page, 3)
    assert server.values() == [1, -1, 0]
    page.keyboard.press("z")
    page.keyboard.press("Backspace")
    count(page, 1)
    assert shown(page) == second
    assert server.values() == [1]

    other = open_page(context, server.url)
    assert shown(other) != shown(page)
    press(other, "y")
    count(other, 2)

    page.reload()
    page.wait_for_selector(SHOWN)
    assert shown(page) == second
    count(page, 2)
    page.keyboard.press("z")  # what was answered before the reload
    count(page, 1)
    assert shown(page) == first
    assert server.values() == [1]

    page.keyboard.down("n")
    page.keyboard.down("n")  # held down: a repeat
    page.keyboard.up("n")
    count(page, 2)
    page.keyboard.press("?")
    assert page.is_visible("#help")
    page.keyboard.press("y")  # keys do not reach through the dialog
    page.keyboard.press("Escape")
    page.focus("#filter-class")
    page.keyboard.press("n")  # nor while a filter is chosen
    page.wait_for_timeout(100)
    count(page, 2)
    assert page.faults == other.faults == []


def test_a_list_of_control_questions_ends_with_the_command_that_uses_them(project, context) -> None:
    scored = project.scored()
    asked = choose_questions(scored.scores, scored.table, scored.thresholds, 3, control=0)
    asked = [question._replace(why=CONTROL_FILL, weight=2.0) for question in asked]
    write_questions(asked, scored.table, project.run.control)
    command = f"halflabel fill {project.run.folder} {project.images} --precision 0.9 --out mine.csv"
    project.run.fill_options.write_text('{"precision": 0.9, "out": "mine.csv"}')
    server = Server(project, questions=project.run.control)
    try:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator("#basis")).to_contain_text("so far 0 of what could be filled in")
        assert page.locator("#filter-class option").all_inner_texts() == ["all classes"]
        for _ in range(3):
            press(page, "y")
        expect(page.locator("#message-text")).to_contain_text(command)
    finally:
        server.stop()


def test_grid_saves_all_and_undo_takes_all_back(server, context) -> None:
    page = open_page(context, server.url)
    page.keyboard.press("2")
    page.wait_for_selector("#grid-tiles .tile .pic[src]")
    expect(page.locator("#grid-tiles img:not([src])")).to_have_count(0)  # what nobody has seen is not saved
    tiles = page.locator("#grid-tiles .tile")
    many = tiles.count()
    assert many > 3
    if "NOT" not in page.inner_text("#grid-word"):
        page.keyboard.press("i")
    assert page.inner_text("#grid-word") == "are NOT"
    tiles.nth(0).click()
    tiles.nth(1).click()
    tiles.nth(1).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert [tiles.nth(k).get_attribute("data-value") for k in range(4)] == ["-1", "0", "-1", ""]
    page.keyboard.press("Enter")
    count(page, many)
    assert sorted(server.values()) == [-1, -1, 0] + [1] * (many - 3)
    page.keyboard.press("z")
    count(page, 0)
    assert server.values() == []
    for k, word in enumerate(("no", "unsure", "no", "yes")):  # the marks are still there
        expect(tiles.nth(k)).to_have_attribute("aria-label", re.compile(f", {word}$"))

    page.set_viewport_size({"width": 1280, "height": 420})
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("Enter")  # photos that nobody has seen are not saved
    expect(page.locator("#status")).to_have_text(re.compile("There are more photos"))
    assert server.values() == []
    page.keyboard.press("Enter")
    count(page, many)
    assert page.faults == []


def test_grid_shows_answers_and_saving_does_not_change_them(server, context) -> None:
    page = open_page(context, server.url)
    press(page, "y")
    press(page, "n")
    press(page, "u")
    count(page, 3)
    page.keyboard.press("2")
    for state, word in ((1, "yes"), (-1, "no"), (0, "unsure")):
        page.select_option("#filter-state", {1: "present", -1: "absent", 0: "unsure"}[state])
        tile = page.locator("#grid-tiles .tile")
        expect(tile).to_have_count(1)
        for _ in range(2):  # whichever answer the grid takes for the usual one
            expect(tile.locator(".mark")).to_have_text(word)
            assert tile.get_attribute("data-value") == str(state)
            page.keyboard.press("i")
        page.keyboard.press("Enter")
        expect(page.locator("#message-title")).to_have_text("No question matches these filters")
    page.wait_for_timeout(200)
    assert server.values() == [1, -1, 0]
    store = AnswerStore(server.answers)
    assert store.count() == (3, 0)  # nobody is said to have answered again
    store.close()

    page.select_option("#filter-state", "present")
    tile = page.locator("#grid-tiles .tile")
    tile.focus()
    page.keyboard.press("n")
    expect(tile.locator(".mark")).to_have_text("no")
    page.keyboard.press("Enter")
    expect(page.locator("#message-title")).to_have_text("No question matches these filters")
    deadline = time.monotonic() + 5
    while 1 in server.values() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert sorted(server.values()) == [-1, -1, 0]
    page.keyboard.press("z")  # what was said before holds again
    expect(tile.locator(".mark")).to_have_text("yes")
    assert page.faults == []


def test_the_filter_by_class_counts_what_it_shows(server, context) -> None:
    page = open_page(context, server.url)
    press(page, "y")  # a random check
    count(page, 1)
    label = page.locator("#filter-class option")

    def counts() -> list[int]:
        return [int(re.search(r"\((\d+)\)$", text)[1]) for text in label.all_inner_texts()[1:]]

    with (server.answers.parent / "questions.csv").open() as file:
        checks = sum(float(row["inclusion_weight"]) > 0 for row in csv.DictReader(file))
    assert 0 < checks < 100
    assert sum(counts()) == 100 - checks
    page.select_option("#filter-state", "present")
    expect(page.locator("#caption")).to_contain_text("your answer: yes")
    assert sum(counts()) == 1
    page.select_option("#filter-state", "open")
    page.keyboard.press("2")
    most = max(counts())
    page.locator("#grid-tiles .tile").first.wait_for()
    assert page.locator("#grid-tiles .tile").count() == min(most, 15)
    assert page.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_question_photo_and_answers_without_scrolling(server, browser, scheme) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, color_scheme=scheme)
    try:
        page = open_page(context, server.url)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for selector in ("#asked", "#photo img", "#answers .yes", "#answers .no", "#answers .unsure"):
            box = page.locator(selector).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 844
            assert box["x"] + box["width"] <= 390
        for selector in ("#answers .yes", "#undo", "nav button"):
            assert page.locator(selector).first.bounding_box()["height"] >= 40
        page.tap("#answers .yes")
        count(page, 1)
        page.tap("nav [data-view=grid]")
        page.locator("section:visible .tile .pic[src]").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.faults == []
    finally:
        context.close()


CONTRAST = """() => {
  const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(channel);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('button, select, h1, h2, p, label, span, figcaption')]
    .filter((e) => e.offsetParent && e.textContent.trim() && !e.disabled)
    .map((e) => { const a = light(getComputedStyle(e).color), b = light(ground(e));
      return [e.textContent.trim().slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_all_can_be_named(server, browser, scheme) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    try:
        page = open_page(context, server.url)
        evaluation = page.evaluate(CONTRAST)
        assert len(evaluation) > 15
        assert [item for item in evaluation if item[1] < 4.5] == []
        nameless = "[...document.querySelectorAll('button, select')].filter((e) => !(e.textContent.trim()"
        nameless += " || e.getAttribute('aria-label')) || (e.matches('select') && !e.closest('label')))"
        assert page.evaluate(f"{nameless}.length") == 0
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert page.get_attribute("#status", "aria-live") == "polite"
    finally:
        context.close()


def test_all_classes_of_a_photo_a_range_and_the_last_answers(server, context) -> None:
    page = open_page(context, server.url)
    page.click("nav [data-view=photo]")
    page.wait_for_selector("#photo-large img")
    name = page.inner_text("#photo-name")
    classes = page.locator("#photo-classes .class")
    before = [classes.nth(k).get_attribute("aria-pressed") for k in range(10)]
    page.keyboard.press("2")
    assert classes.nth(1).get_attribute("aria-pressed") != before[1]
    page.keyboard.press("2")
    page.keyboard.press("3")
    page.keyboard.press("Enter")
    expect(page.locator("#recent")).to_be_visible()
    expect(page.locator("#status")).to_have_text(re.compile("Saved 9 answers"))  # one positive was known
    deadline = time.monotonic() + 5
    while len(server.values()) < 9 and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert sorted(server.values()) == [-1] * 8 + [1]

    page.keyboard.press("z")
    expect(page.locator("#photo-name")).to_have_text(name)
    expect(page.locator("#photo-large img")).to_have_attribute("alt", f"Photo {name}")
    expect(page.locator("#photo-classes .class", has_text="known: ")).to_have_count(1)
    assert server.values() == []
    classes.nth(2).click()
    page.keyboard.press("Enter")  # saves, and does not repeat the click
    deadline = time.monotonic() + 5
    while len(server.values()) < 9 and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert sorted(server.values()) == [-1] * 8 + [1]

    page.click("#recent summary")
    page.locator("#recent-list li").first.locator("button.unsure").click()
    deadline = time.monotonic() + 5
    while 0 not in server.values() and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert server.values().count(0) == 1

    page.click("nav [data-view=grid]")
    page.select_option("#filter-order", "high")
    expect(page.locator("#grid-tiles .tile")).to_have_count(15)
    expect(page.locator("#grid-tiles img:not([src])")).to_have_count(0)
    tiles = page.locator("#grid-tiles .tile")
    tiles.nth(1).click()
    tiles.nth(4).click(modifiers=["Shift"])
    marked = [tiles.nth(k).get_attribute("data-value") for k in range(6)]
    assert marked[0] == marked[5] == ""
    assert len(set(marked[1:5])) == 1
    first, last = (tiles.nth(k).bounding_box() for k in (7, 9))
    page.mouse.move(first["x"] + 40, first["y"] + 40)
    page.mouse.down()
    page.mouse.move(last["x"] + 40, last["y"] + 40, steps=8)
    page.mouse.up()
    dragged = [tiles.nth(k).get_attribute("data-value") for k in range(6, 11)]
    assert dragged == ["", *[marked[1]] * 3, ""]
    page.click("#grid-all")
    assert {tiles.nth(k).get_attribute("data-value") for k in range(15)} == {marked[1]}
    page.locator(".cell").nth(3).hover()
    page.locator(".alike").nth(3).click()
    expect(page.locator("#grid-like")).to_be_visible()
    assert page.faults == []


def test_an_address_with_a_class_opens_its_photos(server, context) -> None:
    page = context.new_page()
    page.goto(f"{server.url}&class=7")
    expect(page.locator("#grid-class")).to_have_text("7")
    expect(page.locator("#filter-class")).to_have_value("7")


def open_map(page):
    page.click('nav [data-view="map"]')
    page.wait_for_selector("#map-key li")
    box = page.locator("#map-canvas").bounding_box()
    return box["x"], box["y"], box["width"], box["height"]


def test_a_line_round_photos_on_the_map_opens_them_in_the_grid(server, context) -> None:
    page = open_page(context, server.url)
    left, top, width, height = open_map(page)
    page.select_option("#filter-class", "7")
    page.wait_for_selector("#map-colour:visible")
    expect(page.locator("#map-key li").first).to_have_text("7: 0 %")
    page.click("#map-colour")
    expect(page.locator("#map-key li").first).to_have_text("7: present")
    page.mouse.move(left + 20, top + 3)  # the corners are round
    page.mouse.down()
    for x, y in ((width - 2, 2), (width - 2, height - 2), (2, height - 2), (2, 4)):
        page.mouse.move(left + x, top + y, steps=4)
    page.mouse.up()
    expect(page.locator("#grid-like")).to_contain_text("From the map: 80 photos")
    expect(page.locator("#grid-class")).to_have_text("7")
    expect(page.locator("#grid-tiles img[src]")).to_have_count(15)
    page.keyboard.press("Enter")  # nobody has seen the last row yet
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Saved 15 new answers on 7")
    expect(page.locator("#grid-like")).to_contain_text("From the map")
    deadline = time.monotonic() + 20  # the page shows answers as saved while it sends them
    while len(server.values()) < 15 and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert len(server.values()) == 15
    assert (server.answers.parent / "map.npz").exists()
    assert page.faults == []


def test_the_map_by_keys_hover_and_click(server, context) -> None:
    page = open_page(context, server.url)
    left, top, width, height = open_map(page)
    page.focus("#map-canvas")
    for _ in range(12):
        page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("0")
    for step in range(600):  # some photo stands on this line
        page.mouse.move(left + width * (step % 60) / 60, top + height / 2)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if page.is_visible("#map-tip img[src]"):  # no move is waiting any more, so it stays
            break
    name = page.inner_text("#map-tip figcaption")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#grid-like")).to_contain_text(f"Most similar to {name}")
    open_map(page)
    page.focus("#map-canvas")
    page.keyboard.press("Enter")
    expect(page.locator("#grid-like")).to_contain_text("From the map: 80 photos")
    assert page.faults == []
