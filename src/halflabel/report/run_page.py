"""One HTML file that shows a run: no network, no server, light and dark, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from halflabel.errors import UserError
from halflabel.report import gallery, judged
from halflabel.report import layout as sections
from halflabel.report.run_facts import Facts, gather
from halflabel.runs.folder import RunFolder
from halflabel.system.files import replacing
from halflabel.system.html import PAGE_SIZE, Html, document, el, short

__all__ = [
    "MOST_BYTES",
    "Report",
    "build_page",
    "check_name",
    "closing",
    "contents",
    "glossary",
    "method_summary",
    "trained_how",
    "write_page",
    "write_report",
]

MOST_BYTES = 3_000_000  # the most a page takes, whatever the run: every part of it has a limit
SCAN = 20_000  # training images that are scored for the galleries, unless told otherwise
_TITLES = {
    "labels": "Known",
    "learning": "Learning",
    "classes": "Classes",
    "recall": "Precision",
    "scores": "Scores",
    "pairs": "Together",
    "photos": "Photos",
}
_WORDS = {
    "entry": "one class in one image; its label is present, absent or unknown",
    "score": "between 0 and 1: how sure the model is that a class is present",
    "threshold": "the score from which on a class is called present; each class has its own",
    "precision": "of the entries called present, the share that is",
    "recall": "of the entries that are present, the share that is called so",
    "F1": "the harmonic mean of precision and recall; micro: over all entries, macro: the mean over classes",
    "AP": "average precision of one class: 100 if every image with it scores higher than every image without it",
    "mAP": "the mean of AP over classes; like AP and F1 in points of 100, where files and programs have 0 to 1",
    "95 % interval": "where the number probably lies on a great many images of the same kind; wide if few have the "
    "class",
    "held-out images": "images kept out of training, to measure on and to choose the epoch by",
    "calibration error": "the mean distance between score and share present, over 15 bins of score (ECE)",
    "loss": "what training makes small: it is larger the more scores and labels disagree",
    "epoch": "one pass over the training images",
}


class Report(NamedTuple):
    """A page that was written."""

    path: Path
    size: int  # bytes


def write_report(
    run: RunFolder,
    out: Path | None = None,
    *,
    images: Path | None = None,
    scan: int = SCAN,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the page of a run, by default as report.html in its folder. Arguments as in `build_page`."""
    path = out if out is not None else run / "report.html"
    return write_page(path, lambda: build_page(run, images=images, scan=scan, progress=progress))


def write_page(path: Path, build: Callable[[], str]) -> Report:
    """Write a page, whole or not at all; what is no name for one is refused before anything is built."""
    check_name(path)
    page = build().encode()
    with replacing(path) as temporary:
        temporary.write_bytes(page)
    return Report(path, len(page))


def check_name(path: Path) -> None:
    """Refuse what is no name for a page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path} is no name for a page", "end it in .html")
    if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
        raise UserError(f"{path} cannot be written", "name a file in a folder")


def build_page(
    run: RunFolder,
    *,
    images: Path | None = None,
    scan: int = SCAN,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """The page of a run as text.

    With `images`, the folder of the photos, it has galleries; for these at most `scan` training images are scored
    (`progress` is told how many of how many), beside the held-out ones, whose scores the run keeps. Folders of this
    machine are not written into the page.
    """
    if images is not None and not images.is_dir():
        raise UserError(f"{images} is not a folder", "name the folder with the images")
    facts = gather(run)
    found = facts.measured
    parts = [
        sections.known(facts),
        sections.learning(facts),
        judged.classes(facts),
        judged.curves(found) if found is not None else None,
        judged.calibration(found) if found is not None else None,
        sections.pairs(facts),
        gallery.galleries(facts, run, images, scan=scan, progress=progress) if images else gallery.no_galleries(),
    ]
    return _whole(facts, [part for part in parts if part is not None])


def _whole(facts: Facts, parts: list[Html]) -> str:
    title = f"{short(facts.name, 60)} · {short(str(facts.config.get('method', '?')), 40)}"
    said = method_summary(str(facts.config.get("method", "")))
    top = el(
        "header",
        el("h1", title),
        el("p", _subtitle(facts), class_="said"),
        el("p", el("b", short(str(facts.config.get("method")), 40)), f": {said}", class_="said") if said else None,
        sections.summary(facts),
    )
    return document(title, [top, contents(_TITLES, parts), el("main", *parts), _footer(facts)])


def _subtitle(facts: Facts) -> str:
    config = facts.config
    how = "linear head on a frozen backbone" if config.get("tune") == "head" else "fine-tuned"
    epochs = "1 epoch" if len(facts.log) == 1 else f"{len(facts.log)} epochs"
    return f"Training run: {config.get('backbone', '?')}, {_pixels(config)}, {how}; {epochs}{_made(facts)}"


def _made(facts: Facts) -> str:
    """When training ended and by which version, where the run says so."""
    time, version = facts.made.get("time"), facts.made.get("halflabel", "?")
    if not time:
        return ""
    day, _, hour = str(time).partition("T")
    return f"; trained {day[:10]}, {hour[:5]} UTC, by halflabel {short(str(version), 20)}"


def _pixels(config: Mapping[str, Any]) -> str:
    """The size of the images in words."""
    return f"{config['size']} px" if config.get("size") else "images in the size it was made for"


def trained_how(config: Mapping[str, Any]) -> str:
    """What all runs of a comparison or a study have in common, in words."""
    how = "linear heads on a frozen backbone" if config.get("tune") == "head" else "fine-tuned"
    return f"{config.get('backbone', '?')}, {_pixels(config)}, {how}; {config.get('epochs', '?')} epochs"


def closing(config: dict[str, Any], done: str, words: Sequence[str]) -> Html:
    """The end of the page of several runs: the words on it, the settings, and by which version all was done."""
    version = config.get("halflabel", "?")
    said = el("p", f"Made by halflabel; {done} by version {version}. This file: ", PAGE_SIZE, ".")
    return el("footer", glossary(words), sections.details(config, {"halflabel": version}), said)


def method_summary(name: str) -> str:
    """What a method does, in a sentence; nothing where this version has no such method."""
    from halflabel.methods.base import recipe  # it brings torch along

    try:
        return recipe(name).summary
    except UserError:
        return ""


def contents(titles: Mapping[str, str], parts: Sequence[Html]) -> Html:
    """Links to the sections that are there, of those that have a title."""
    there = [name for name in titles if any(f'<section id="{name}"' in part for part in parts)]
    return el("nav", *(el("a", titles[name], href=f"#{name}") for name in there), aria_label="Sections")


def glossary(words: Sequence[str]) -> Html:
    """What the words on a page mean, folded away."""
    listed = [el("div", el("dt", word), el("dd", _WORDS[word])) for word in words]
    return el("details", el("summary", "Words on this page"), el("dl", *listed, class_="words"))


def _footer(facts: Facts) -> Html:
    lines = []
    if facts.measured is not None and facts.measured.protocol:
        lines.append(el("p", f"Protocol: {facts.measured.protocol}."))
    version = facts.env.get("halflabel", "?")
    lines.append(el("p", f"Made by halflabel; the run was trained by version {version}. This file: ", PAGE_SIZE, "."))
    return el("footer", glossary(tuple(_WORDS)), sections.details(facts.config, facts.env), *lines)
