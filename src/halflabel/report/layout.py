"""What all report pages consist of: sections with charts and folded tables, laid out by page.html.j2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.runs.redact import shown_settings
from halflabel.system.files import atomic_write
from halflabel.system.format import group_digits, shorten
from halflabel.system.html import Html, render_page

PANEL_CLASSES = 18  # classes per panel of a chart
GLOSSARY = {
    "entry": "one class in one image; its label is present, absent or unknown",
    "score": "between 0 and 1: how sure the model is that a class is present",
    "threshold": "the score from which on a class is called present",
    "precision": "of the entries called present, the share that is",
    "recall": "of the entries that are present, the share that is called so",
    "F1": "the harmonic mean of precision and recall; micro: over all entries, macro: the mean over classes",
    "AP": "average precision of one class: 100 if every image with it scores higher than every image without it",
    "mAP": "the mean of AP over classes; like AP and F1 in points of 100, where files and programs have 0 to 1",
    "95 % interval": "where the number probably lies on a great many images of the same kind; wide if few have the "
    "class",
    "held-out images": "images kept out of training, to measure on and to choose the epoch by",
    "calibration error": "the mean distance between score and share present, over 15 bins of score (ECE)",
    "loss": "what training minimises: it is larger the more scores and labels disagree",
    "epoch": "one pass over the training images",
}


class Cell(NamedTuple):
    """A cell of a table: the number it is sorted by, its text, and small text below, such as an interval."""

    value: float
    text: str
    note: str = ""


class Line(NamedTuple):
    """A line of a table; `key` is the number of the class that it is about, and `note` follows the name."""

    name: str
    cells: Sequence[Cell]
    note: str = ""
    key: int | None = None


@dataclass(frozen=True)
class Table:
    """A table with text in its first column and numbers in the others; `label` names it for screen readers."""

    label: str
    titles: Sequence[str]
    lines: Sequence[Line]
    heading: str = ""
    note: str = ""  # after the heading
    letters: int = 40  # of a name; a longer one is cut, and shown in full on hover


@dataclass(frozen=True)
class Section:
    """A section of a page; what has `fold` as its summary is hidden until it is opened."""

    name: str
    link: str  # in the bar of links
    title: str
    on: str = ""  # which images and labels it was measured on
    text: Sequence[str] = ()
    warning: str = ""
    limits: Sequence[str] = ()  # what is left out, so that the page stays small
    body: Html = Html()
    panels: Sequence[Html] = ()
    fold: str = ""
    tables: Sequence[Table] = ()
    note: str = ""  # about the tables
    lists: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()  # heading, then (term, text)


class WrittenPage(NamedTuple):
    """A page on the disk."""

    path: Path
    size: int  # bytes


_VALUES = ("found", "advice", "more", "about", "chart", "cards", "cautions", "classes", "protocol", "made_by")


def report_page(title: str, sections: Sequence[Section | None], **values: Any) -> str:
    """Return a page with those sections that there are; `values` are those of page.html.j2 that it has."""
    shown = [section for section in sections if section is not None]
    return render_page("report/page.html.j2", title=title, sections=shown, **{**dict.fromkeys(_VALUES, ""), **values})


def write_page(path: Path, build: Callable[[], str]) -> WrittenPage:
    """Write a page atomically; a path that cannot hold a page is refused before anything is built."""
    check_page_path(path)
    page = build().encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(page)
    return WrittenPage(path, len(page))


def check_page_path(path: Path) -> None:
    """Refuse a path that does not end in .html or cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path} is not the name of an HTML page", "end it in .html")
    if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
        raise UserError(f"{path} cannot be written", "name a file in a folder")


def limit(shown: int, total: int, why: str, thing: str = "classes") -> list[str]:
    """Return a sentence such as "28 of 1200 classes are drawn: …"; none where everything is shown."""
    return [f"{group_digits(shown)} of {group_digits(total)} {thing} {why}."] if total > shown else []


def split_into_panels(title: str, order: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Split classes into equal panels of at most PANEL_CLASSES, in their order, each with a title."""
    if not len(order):
        return []
    parts = np.array_split(order, -(-len(order) // PANEL_CLASSES))
    if len(parts) == 1:
        return [(title, order)]
    ends = np.cumsum([len(part) for part in parts])
    return [(f"{title}, {end - len(part) + 1} to {end}", part) for end, part in zip(ends, parts, strict=True)]


def name_list(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text, for the descriptions that screen readers read."""
    shown = ", ".join(shorten(name, 40) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def method_summary(name: str) -> str:
    """Return what a method does, in a sentence; empty where this version does not have the method."""
    from halflabel.methods.base import recipe  # imports torch

    try:
        return recipe(name).summary.replace("`", "")
    except UserError:
        return ""


def image_size(config: Mapping[str, Any]) -> str:
    """Return the image size of a configuration in words."""
    return f"{config['size']} px" if config.get("size") else "images in the size it was made for"


def settings(config: Mapping[str, Any], env: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings and versions as text. Folder names are left out: pages are made to be shared."""
    shown = shown_settings(config)
    if "options" in shown:
        shown["options"] = ", ".join(f"{name} = {option}" for name, option in shown["options"].items()) or "—"
    return [(str(key), str(value)) for key, value in [*shown.items(), *env.items()]]
