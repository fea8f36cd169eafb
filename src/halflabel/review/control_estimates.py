"""Estimates of the model's quality from the answers to control questions, for the review page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halflabel.metrics.intervals import wilson
from halflabel.review.answers import CurrentAnswer
from halflabel.review.questions import CONTROL_ABSENT, CONTROL_FILL, CONTROL_PRESENT, Question


def estimate_from_controls(
    questions: Mapping[int, Question], answers: Mapping[int, CurrentAnswer], run: str
) -> dict[str, Any]:
    """Estimate the share of present entries of each kind of control question, from control answers of a run.

    Questions and answers are given by the numbers of their entries.
    """
    kinds: dict[str, list[int]] = {CONTROL_PRESENT: [], CONTROL_ABSENT: [], CONTROL_FILL: []}
    for e, question in questions.items():
        if question.why in kinds:
            kinds[question.why].append(e)
    estimates = {}
    for name, (why, asked) in zip(("precision", "missed", "fillable"), kinds.items(), strict=True):
        given = [answers[e] for e in asked if e in answers]
        counted = [item.value for item in given if item.value and item.why == why and item.run == run]
        proportion = _proportion(counted.count(1), len(counted))
        estimates[name] = proportion | {"asked": len(asked), "unsure": sum(not item.value for item in given)}
    return estimates


def _proportion(part: int, total: int) -> dict[str, Any]:
    """Return a proportion with its 95 % interval; null where nothing was counted."""
    share = (part / total, *map(float, wilson(part, total))) if total else (None, None, None)
    return {"part": part, "total": total, **dict(zip(("share", "low", "high"), share, strict=True))}
