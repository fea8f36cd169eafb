"""Building blocks of all report pages: sections, tables, cards, notes, glossary, footer, and writing the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.runs.redact import shown_settings
from halflabel.system.files import atomic_write
from halflabel.system.format import shorten
from halflabel.system.html import Html, count, el

T = TypeVar("T")
PANEL_CLASSES = 9  # classes per panel of a chart
FEW_POSITIVES = 5  # with fewer known positives, the AP of a class is mostly luck
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


class WrittenPage(NamedTuple):
    """A page on the disk."""

    path: Path
    size: int  # bytes


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


def section(name: str, title: str, *content: object, on: str | None = None) -> Html:
    """Return a section of a page; `on` says which images and labels it was measured on."""
    heading = el("h2", title, id=f"{name}-title")
    return el(
        "section", heading, el("p", on, class_="on") if on else None, *content, id=name, aria_labelledby=f"{name}-title"
    )


def section_links(titles: Mapping[str, str], sections: Sequence[Html], *more: Html) -> Html:
    """Return the navigation bar: a link to each section of the page that has a title, then `more`."""
    names = [name for name in titles if any(f'<section id="{name}"' in part for part in sections)]
    return el("nav", *(el("a", titles[name], href=f"#{name}") for name in names), *more, aria_label="Sections")


def has_few_positives(row: Mapping[str, Any]) -> bool:
    """Whether a class has an AP, but one measured by so few known positives that it says little."""
    return bool(np.isfinite(row["AP"])) and 0 < row["present"] < FEW_POSITIVES


def truncation_note(shown: int, total: int, why: str, thing: str = "classes") -> Html | None:
    """Return a line such as "28 of 1200 classes are drawn: …"; None where everything is shown."""
    return el("p", f"{count(shown)} of {count(total)} {thing} {why}.", class_="cap") if total > shown else None


def split_into_panels(title: str, order: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Split classes into equal panels of at most PANEL_CLASSES, in their order, each with a title."""
    if not len(order):
        return []
    parts = np.array_split(order, -(-len(order) // PANEL_CLASSES))
    if len(parts) == 1:
        return [(title, order)]
    ends = np.cumsum([len(part) for part in parts])
    return [(f"{title}, {end - len(part) + 1} to {end}", part) for end, part in zip(ends, parts, strict=True)]


def name_cell(name: str, letters: int = 40, *more: object) -> Html:
    """Return the table cell with the name of a row; a long name is cut, and shown in full on hover."""
    return el("th", shorten(name, letters), *more, scope="row", class_="name", title=shorten(name, 200))


def cell(value: float, shown: str) -> Html:
    """Return a table cell with the number it is sorted by."""
    return el("td", shown, data_v=f"{value:.6g}" if np.isfinite(value) else "")


def scroll_table(
    titles: Sequence[str],
    rows: Sequence[Html],
    label: str,
    *,
    sortable: bool = False,
    tall: bool = False,
    name_columns: int = 1,
) -> Html:
    """Return a table that may be wider than the page; its first `name_columns` columns hold text, not numbers.

    `label` names it for screen readers; a `tall` table scrolls in a box.
    """
    heads = [
        el("th", title, scope="col", class_="name" if 0 < k < name_columns else None) for k, title in enumerate(titles)
    ]
    head = el("thead", el("tr", *heads))
    table = el("table", head, el("tbody", *rows), class_="sortable" if sortable else None)
    return el("div", table, class_="scroll tall" if tall else "scroll", tabindex="0", role="region", aria_label=label)


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


def glossary(words: Sequence[str]) -> Html:
    """Return a folded list of what the words on a page mean."""
    entries = [el("div", el("dt", word), el("dd", GLOSSARY[word])) for word in words]
    return el("details", el("summary", "Words on this page"), el("dl", *entries, class_="words"))


def settings_table(config: dict[str, Any], env: dict[str, Any]) -> Html:
    """Return a folded table of settings and versions. Folder names are left out: pages are made to be shared."""
    rows = []
    for title, values in (("setting", shown_settings(config)), ("version", env)):
        for key, value in values.items():
            if key == "options":
                value = ", ".join(f"{name} = {option}" for name, option in dict(value or {}).items()) or "—"
            rows.append(
                el("tr", el("th", shorten(str(key), 40), scope="row"), el("td", shorten(str(value), 200)), class_=title)
            )
    return el(
        "details", el("summary", "Settings and versions"), el("div", el("table", el("tbody", *rows)), class_="scroll")
    )
