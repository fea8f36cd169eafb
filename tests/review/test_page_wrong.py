"""The gallery of labels that look wrong, in a real browser: accept what the model says, keep the label, undo."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from digit_scenes import CLASSES
from page_examples import Server, expect

from halflabel.labels.answers import AnswerStore

FLIPPED = [(3, 0), (5, 1), (8, 1)]  # image, class


@pytest.fixture
def wrong(with_wrong_labels, context):
    """A project with three wrong labels, its server, and its page at the gallery."""
    project = with_wrong_labels(FLIPPED)
    server = Server(project)
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(server.url)
    page.click("[data-view=wrong]")
    page.wait_for_selector(".card .pic[src]")
    yield project, server, page
    server.stop()


def saved(server, page, values: list[int]) -> None:
    deadline = time.monotonic() + 5
    while sorted(server.values()) != values and time.monotonic() < deadline:
        page.wait_for_timeout(30)
    assert sorted(server.values()) == values


def test_a_label_is_corrected_or_kept_and_both_can_be_undone(wrong) -> None:
    project, server, page = wrong
    rows = project.run.read_rows()
    labels = rows.training.dense()
    cards = page.locator(".card")
    expect(cards).to_have_count(len(FLIPPED))
    first, second = cards.nth(0), cards.nth(1)
    entries = [divmod(int(card.get_attribute("data-entry")), len(CLASSES)) for card in (first, second)]
    assert set(entries) < set(FLIPPED)
    before = [int(labels[entry]) for entry in entries]
    assert "labelled present" in first.inner_text() if before[0] > 0 else "labelled absent" in first.inner_text()
    first.locator(f'.row [data-value="{-before[0]}"]').click()  # the model is right
    second.locator(f'.row [data-value="{before[1]}"]').click()  # the label is right
    expect(first.locator(".row [aria-pressed=true]")).to_have_text("No" if before[0] > 0 else "Yes")
    saved(server, page, sorted([-before[0], before[1]]))
    with closing(AnswerStore(server.answers)) as store:
        after = rows.append(store.label_rows(rows.images, rows.classes)).training.dense()
    assert [int(after[entry]) for entry in entries] == [-before[0], before[1]]

    page.keyboard.press("z")
    expect(second.locator(".mark")).to_have_text("")
    expect(first.locator(".mark")).not_to_have_text("")
    page.keyboard.press("z")
    saved(server, page, [])
    page.click("[data-view=grid]")
    page.click("[data-view=wrong]")
    expect(page.locator("#gallery-title")).to_have_text("Likely wrong")
    expect(cards).to_have_count(len(FLIPPED))
    assert page.faults == []


def test_a_class_without_doubtful_labels_and_an_answered_gallery_are_empty(wrong) -> None:
    _, server, page = wrong
    nothing = "There is nothing to check here."
    page.select_option("#filter-class", CLASSES[1])
    expect(page.locator(".card")).to_have_count(2)
    page.select_option("#filter-class", CLASSES[2])
    expect(page.locator("#gallery-text")).to_have_text(nothing)
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#gallery-more")).to_be_hidden()
    page.select_option("#filter-class", "")
    expect(page.locator(".card")).to_have_count(len(FLIPPED))
    for number in range(len(FLIPPED)):
        page.locator(".card").nth(number).focus()
        page.keyboard.press("u")
    saved(server, page, [0, 0, 0])
    page.click("[data-view=grid]")
    page.click("[data-view=wrong]")
    expect(page.locator("#gallery-text")).to_have_text(nothing)
    assert page.faults == []
