"""Fill: complete a label table with what a trained model is sure of, with probability and provenance; and undo it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from halflabel.fill.undo import undo

if TYPE_CHECKING:
    from halflabel.fill.plan import RULE_SOURCE, Filling, Tally, plan
    from halflabel.fill.run import fill_run, write_filled
    from halflabel.runs.crossfit import Scores, cross_fit, score_run

__all__ = [
    "RULE_SOURCE",
    "Filling",
    "Scores",
    "Tally",
    "cross_fit",
    "fill_run",
    "plan",
    "score_run",
    "undo",
    "write_filled",
]

# Imported when first asked for: to undo needs no torch, which takes seconds.
_HOMES = {
    **dict.fromkeys(("Scores", "cross_fit", "score_run"), "halflabel.runs.crossfit"),
    **dict.fromkeys(("RULE_SOURCE", "Filling", "Tally", "plan"), "halflabel.fill.plan"),
    **dict.fromkeys(("fill_run", "write_filled"), "halflabel.fill.run"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
