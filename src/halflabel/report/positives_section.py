"""Report of a run from positives only: what is estimated for each class, and the questions that would tell most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.report.layout import cell, scroll_box, section
from halflabel.report.run_facts import HeldOutResults, RunFacts
from halflabel.review.questions import choose_questions
from halflabel.system.format import decimal, shorten
from halflabel.system.html import Html, el

__all__ = ["estimates_per_class", "questions_section"]

_QUESTIONS = 10
_NAME_LETTERS = 48


def estimates_per_class(results: HeldOutResults) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the expected precision of the decisions and the expected number of present images, per class (C,).

    Known labels count as certain; scores of unknown ones are taken as probabilities.
    """
    p = np.where(results.labels == 0, results.scores, results.labels > 0).astype(np.float64)
    called = results.scores >= results.thresholds
    with np.errstate(invalid="ignore"):
        return (p * called).sum(0) / called.sum(0), p.sum(0)


def questions_section(facts: RunFacts) -> Html | None:
    """List the unknown labels whose answers would tell most, if precision could only be estimated."""
    results = facts.held_out
    if results is None or results.knows_absence or not len(results.images):
        return None
    table = facts.table.subset(results.images)
    asked = choose_questions(results.scores, table, results.thresholds, _QUESTIONS, control=0, per_image=1)
    if not asked:
        return None
    heads = [el("th", title, scope="col") for title in ("image", "class", "probability", "why")]
    rows = [
        el(
            "tr",
            el("th", shorten(table.images[item.image], _NAME_LETTERS), scope="row", class_="name"),
            el("td", shorten(table.classes[item.column], _NAME_LETTERS)),
            cell(item.probability, decimal(item.probability)),
            el("td", item.why),
        )
        for item in asked
    ]
    return section(
        "questions",
        "Questions that would tell most",
        scroll_box(el("table", el("thead", el("tr", *heads)), el("tbody", *rows)), "Table of questions"),
        on="Unknown labels whose answers would teach most, at most one per image. halflabel review asks these and "
        "more, with random ones among them that show how often the model is right.",
    )
