"""The page by fingers, by keys alone and by a screen reader: gestures, focus, names and announcements."""

from __future__ import annotations

import re

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")
from page_examples import count, expect, open_page, press, shown  # noqa: E402


class Fingers:
    """Touch events at a phone, as the browser gets them."""

    def __init__(self, page) -> None:
        self.session = page.context.new_cdp_session(page)

    def move(self, *places) -> None:
        """Put fingers down, move them along places ((x, y) of each finger), and lift them."""
        for number, fingers in enumerate(places):
            points = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(fingers)]
            kind = "touchMove" if number else "touchStart"
            self.session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        self.session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


@pytest.fixture
def phone(server, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield open_page(context, server.url)
    context.close()


def test_swipes_answer_and_short_ones_do_not(server, phone) -> None:
    fingers = Fingers(phone)
    first = shown(phone)
    fingers.move([(200, 300)], [(220, 302)], [(250, 304)])  # too short
    fingers.move([(200, 200)], [(202, 260)], [(203, 330)])  # scrolls
    assert shown(phone) == first
    for number, path in enumerate(([240, 330], [150, 60])):
        fingers.move([(200, 300)], *([(x, 300)] for x in path))
        count(phone, number + 1)
        phone.wait_for_selector("#stage[aria-busy=false] img")
    fingers.move([(200, 330)], [(202, 290)], [(202, 230)])
    count(phone, 3)
    assert server.values() == [1, -1, 0]
    assert phone.faults == []


def test_two_fingers_zoom_the_photo_alone_and_one_moves_it(server, phone) -> None:
    fingers = Fingers(phone)
    first = shown(phone)
    place = "['--scale', '--x'].map((name) => parseFloat(photo.style.getPropertyValue(name)))"
    fingers.move([(150, 300), (250, 300)], [(130, 300), (270, 300)], [(50, 300), (350, 300)])
    assert "zoomed" in phone.get_attribute("#photo", "class")
    scale, x = phone.evaluate(place)
    assert scale == pytest.approx(3, abs=0.2)
    fingers.move([(200, 300)], [(260, 302)], [(320, 300)])  # no answer: it moves the photo
    assert phone.evaluate(place)[1] < x - 10
    assert phone.evaluate("visualViewport.scale") == 1  # the buttons stay where they are
    fingers.move([(50, 300), (350, 300)], [(150, 300), (250, 300)], [(180, 300), (220, 300)])
    assert "zoomed" not in phone.get_attribute("#photo", "class")
    phone.touchscreen.tap(200, 300)
    assert "zoomed" in phone.get_attribute("#photo", "class")
    assert shown(phone) == first
    assert server.values() == []
    assert phone.faults == []


def test_the_focus_stays_where_a_key_was_pressed(server, context) -> None:
    page = open_page(context, server.url)
    press(page, "y")
    count(page, 1)
    page.click("#recent summary")
    page.locator("#recent-list button.no").focus()
    page.keyboard.press("Space")
    expect(page.locator("#recent-list button.no")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#recent-list button.no")).to_be_focused()
    expect(page.locator("#status")).to_contain_text("Changed:")
    page.keyboard.press("p")
    page.wait_for_selector("#photo-large img")
    button = page.locator("#photo-classes button").nth(2)
    button.focus()
    state = button.get_attribute("aria-pressed")
    page.keyboard.press("Space")
    expect(button).not_to_have_attribute("aria-pressed", state)
    expect(button).to_be_focused()
    assert page.faults == []


def test_letters_can_be_turned_off(server, context) -> None:
    page = open_page(context, server.url)
    page.keyboard.press("?")
    page.locator("#keys-on").press("Space")
    page.locator("#help-close").press("Enter")
    page.reload()
    first = shown(page)
    page.keyboard.press("y")
    assert shown(page) == first
    page.get_by_role("button", name="Yes", exact=True).press("Enter")
    count(page, 1)
    assert server.values() == [1]


def test_a_screen_reader_learns_what_changes(server, context) -> None:
    page = open_page(context, server.url)
    heading = page.get_by_role("heading", level=2, name=re.compile("^Do you see"))
    assert heading.get_attribute("aria-live") == "polite"
    for name in ("Yes", "No", "Unsure", "Undo"):  # without the letter of the key
        assert page.get_by_role("button", name=name, exact=True).count() == 1
    page.keyboard.press("2")
    page.locator("#grid-tiles .tile").first.wait_for()
    page.keyboard.press("a")
    expect(page.locator("#status")).to_contain_text("0 yes")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name=re.compile(r"^\d (known: yes|chance)")).first).to_be_visible()
    assert page.faults == []
