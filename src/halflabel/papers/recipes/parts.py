"""What the recipes of several papers share."""

from __future__ import annotations

from halflabel.papers.spec import Hiding

__all__ = ["FLIP", "partial"]

FLIP = {"least": 1.0, "flip": 0.5}  # a mirror image of the whole picture, no crop


def partial(percent: int, *, exact: bool) -> Hiding:
    """Some labels of each image known: of each the same number (exact), or each label with the same chance."""
    return Hiding("partial", {"share": percent / 100, "exact": exact})
