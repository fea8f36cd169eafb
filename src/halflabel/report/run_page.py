"""The HTML page of a training run: one file that needs no network, in light and dark, for desktop and phone.

`halflabel report RUN` calls `write_report`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.registry import shown_metrics
from halflabel.report import svg
from halflabel.report.labels_page import cooccurrence_section, known_labels_section
from halflabel.report.layout import (
    FEW_POSITIVES,
    GLOSSARY,
    WrittenPage,
    cell,
    glossary,
    has_few_positives,
    image_size,
    method_summary,
    name_cell,
    name_list,
    scroll_table,
    section,
    section_links,
    settings_table,
    split_into_panels,
    truncation_note,
    write_page,
)
from halflabel.report.quality_sections import (
    score_section,
    threshold_section,
    training_section,
)
from halflabel.report.run_facts import HeldOutResults, RunFacts, read_run_facts
from halflabel.report.svg import figure
from halflabel.runs.folder import RunFolder
from halflabel.system.format import decimal, points, shorten
from halflabel.system.html import PAGE_SIZE, Html, count, document, el, join, percent
from halflabel.system.remote import local_folder
from halflabel.system.reporter import SILENT, Reporter

# Every section has a limit, so that the page stays small whatever the run; what is left out is in the run's files.
MAX_PAGE_BYTES = 3_000_000
SCAN_IMAGES = 20_000  # training images scored for the galleries by default
INTERVAL_CLASSES = 60  # up to this number of classes, each AP is drawn with its interval
BEST = 14  # with more classes, so many of the best and of the weakest are drawn
TABLE_CLASSES = 200
TALL_TABLE = 30  # rows from which on the table scrolls in a box
NAME_LETTERS = 48  # of a class name in the table
_LINKS = {
    "photos": "Photos",
    "classes": "Classes",
    "threshold": "Threshold",
    "scores": "Scores",
    "labels": "Known",
    "pairs": "Together",
    "learning": "Learning",
}


def write_report(run: RunFolder, out: Path | None = None, **options: Any) -> WrittenPage:
    """Write the page of a run, by default as report.html in its folder; the options are those of `build_page`."""
    return write_page(out if out is not None else run / "report.html", lambda: build_page(run, **options))


def build_page(
    run: RunFolder,
    *,
    images: Path | None = None,
    scan: int = SCAN_IMAGES,
    maps: bool = False,
    reporter: Reporter = SILENT,
) -> str:
    """Return the page of a run as HTML text.

    With `images`, the folder of the photos, the page has galleries: held-out images with the scores in the run, and at
    most `scan` training images, which are scored now (`reporter` gets the progress); with `maps`, they show where the
    model sees the class. The page holds no folder names of this machine.
    """
    if images is not None:
        images = local_folder(images)
    facts = read_run_facts(run)
    results = facts.held_out
    listed = np.argsort(-facts.table.stats.positives, kind="stable")[:TABLE_CLASSES]
    sections = [
        _galleries(facts, run, images, scan=scan, maps=maps, reporter=reporter) if images else None,
        _class_section(facts, listed),
        threshold_section(results) if results is not None else None,
        score_section(results) if results is not None and results.knows_absence else None,
        known_labels_section(facts.table, len(facts.training) if facts.finished else None),
        cooccurrence_section(facts.table),
        training_section(facts.log),
        None if images else _no_galleries(),
    ]
    shown = [part for part in sections if part is not None]
    method = str(facts.config.get("method", "?"))
    title = f"{shorten(facts.name, 60)} · {shorten(method, 40)}"
    summary = method_summary(str(facts.config.get("method", "")))
    header = el(
        "header",
        el(
            "div",
            el("h1", title),
            _findings(facts),
            el("p", _subtitle(facts), class_="muted"),
            el("p", el("b", shorten(method, 40)), f": {summary}", class_="muted") if summary else None,
        ),
        _headline(facts),
        class_="beside",
    )
    links = section_links(_LINKS, shown, _class_filter(facts, listed))
    one_class = el("section", id="one-class", hidden=True, aria_live="polite")
    return document(title, [header, links, el("main", one_class, *shown), _footer(facts)])


def _galleries(*about: Any, **options: Any) -> Html | None:
    from halflabel.report.gallery import galleries  # imports torch

    return galleries(*about, **options)


def _no_galleries() -> Html:
    """Return the section without photos: how to get galleries."""
    hint = el("code", "halflabel report RUN --images PHOTOS")
    line = el(
        "p",
        "Galleries of likely missing labels, and of labels that the model disagrees with, need the photos: ",
        hint,
        ".",
    )
    return section("photos", "Labels to check", line)


def _class_filter(facts: RunFacts, listed: NDArray[np.int64]) -> Html:
    """Return the choice of a class, which the script of the page shows."""
    names = sorted((facts.table.classes[int(c)], int(c)) for c in listed)
    options = [el("option", "all classes", value="-1")]
    options += [el("option", shorten(name, NAME_LETTERS), value=c) for name, c in names]
    return el("label", "class ", el("select", *options, id="class-filter"), hidden=True)


def _subtitle(facts: RunFacts) -> str:
    config = facts.config
    trained = facts.made.get("trained") or f"backbone {'frozen' if config.get('tune') == 'head' else 'tuned'}"
    parts = [f"Training run: {config.get('backbone', '?')}, {image_size(config)}", shorten(str(trained), 400)]
    if not any("strength" in line for line in facts.log):  # of L-BFGS
        parts.append(f"{len(facts.log)} epoch{'s' * (len(facts.log) != 1)} in all")
    return "; ".join(parts) + _trained_at(facts)


def _trained_at(facts: RunFacts) -> str:
    """Return when training ended and by which version, where the run records it."""
    time, version = facts.made.get("time"), facts.made.get("halflabel", "?")
    if not time:
        return ""
    day, _, hour = str(time).partition("T")
    return f"; trained {day[:10]}, {hour[:5]} UTC, by halflabel {shorten(str(version), 20)}"


def _footer(facts: RunFacts) -> Html:
    lines = []
    if facts.held_out is not None and facts.held_out.protocol:
        lines.append(el("p", f"Protocol: {facts.held_out.protocol}."))
    version = facts.env.get("halflabel", "?")
    lines.append(el("p", f"Made by halflabel; the run was trained by version {version}. This file: ", PAGE_SIZE, "."))
    return el("footer", glossary(tuple(GLOSSARY)), settings_table(facts.config, facts.env), *lines)


def _findings(facts: RunFacts) -> Html | None:
    """Return the main result in one or two sentences, and what to do next."""
    results = facts.held_out
    if results is None or not facts.finished:
        return None
    value = results.overall
    if results.knows_absence:
        ranked = [row for row in results.per_class if np.isfinite(row["AP"]) and not has_few_positives(row)]
        ranked.sort(key=lambda row: -row["AP"])
        text = f"The model reaches a mean average precision of {points(value.get('mAP', np.nan))}."
        measured = sum(bool(np.isfinite(row["AP"])) for row in results.per_class)
        if len(ranked) > 1 and 2 * len(ranked) >= measured:  # else mAP is mostly that of other classes
            best, weakest = ranked[0], ranked[-1]
            text += (
                f" It is best at {shorten(str(best['class']), 40)} ({points(best['AP'])}) and weakest at "
                f"{shorten(str(weakest['class']), 40)} ({points(weakest['AP'])})."
            )
    else:
        text = (
            f"The model finds {points(value.get('OR', np.nan))} % of the known positives; about "
            f"{points(value.get('estimated_precision', np.nan))} % of what it calls present is present, by estimate."
        )
    unknown = facts.table.shape[0] * facts.table.shape[1] - facts.table.known
    if not unknown:
        return el("p", text, class_="found")
    following = f" {count(unknown)} labels are unknown. To let the model learn what it needs most: "
    return el("p", text, following, el("code", "halflabel next RUN PHOTOS"), ".", class_="found")


def _headline(facts: RunFacts) -> Html:
    """Return the most important numbers, and the cautions that go with them."""
    items, results = [], facts.held_out
    if results is not None:
        for shown in shown_metrics(results.overall):
            interval = f"95 % interval {shown.interval}; " if shown.interval else ""
            items.append((shown.title, shown.value, interval + shown.note))
    images, names = facts.table.shape
    share = percent(facts.table.known, images * names)
    items.append(("known labels", share, f"{count(images)} images × {count(names)} classes"))
    cautions = [el("li", caution) for caution in _cautions(facts)]
    return el("div", _cards(items), el("ul", *cautions, class_="notes") if cautions else None)


def _cautions(facts: RunFacts) -> list[str]:
    results, cautions = facts.held_out, []
    if not facts.finished:
        cautions.append("This run is unfinished: there are no weights yet. Continue it with halflabel train --resume.")
    elif results is None:
        cautions.append(
            "No images were held out, so nothing was measured: train with --set held_out=0.2, or use `evaluate`."
        )
    if results is not None:
        classes = count(len(results.per_class))
        if not results.knows_absence:
            cautions.append(
                "Hardly anything is known to be absent, so precision is estimated, assuming that "
                f"{results.assumption or 'scores are probabilities'}. To measure it, answer random questions: "
                "halflabel review, and train with the answers."
            )
        else:
            cautions.append(
                "Thresholds and calibration were fitted on the labels that are measured here, so F1 and calibration "
                "error are optimistic; the best epoch, or the strength of regularisation, was chosen on them too."
            )
        few = sum(map(has_few_positives, results.per_class)) if results.knows_absence else 0
        if few:
            cautions.append(
                f"Measured with fewer than {FEW_POSITIVES} known positives: {count(few)} of {classes} classes "
                "(rings instead of dots). Their AP is largely luck and on average too high, and so is the mAP. "
                "Label more photos of these classes, or measure on other images with halflabel evaluate."
            )
        without_positive = sum(not row["present"] > 0 for row in results.per_class)
        if without_positive:
            cautions.append(
                "Not measured, as these images have no known positive (shown as a dash): "
                f"{count(without_positive)} of {classes} classes."
            )
        without_negative = int(((results.labels > 0).any(axis=0) & ~(results.labels < 0).any(axis=0)).sum())
        if without_negative and results.knows_absence:
            cautions.append(
                f"Without a known negative among these images: {count(without_negative)} classes. They have no "
                "AP (a dash) and are left out of mAP."
            )
    if facts.unreadable:
        cautions.append(
            f"Images that could not be read: {count(facts.unreadable)}; the run's bad_images.csv lists them."
        )
    return cautions


def _class_section(facts: RunFacts, listed: NDArray[np.int64]) -> Html:
    """Draw average precision per class with its interval, and list it in a sortable table."""
    results = facts.held_out
    ap = (
        np.array([row["AP"] for row in results.per_class])
        if results is not None
        else np.full(len(facts.table.classes), np.nan)
    )
    measured = np.flatnonzero(np.isfinite(ap))
    positives = facts.table.stats.positives
    # Ties: the class with more known positives comes first, as a perfect AP on one image means little.
    support = np.array([row["present"] for row in results.per_class]) if results is not None else positives
    ranked = measured[np.lexsort((-support[measured], -ap[measured]))]
    panels = _ap_charts(results, ap, ranked) if results is not None and len(ranked) else []
    # As in the sentence above: a class that few positives measure is not called the weakest.
    is_unsure = np.array([has_few_positives(row) for row in results.per_class] if results is not None else ap, bool)
    weakest_first = listed[np.lexsort((np.nan_to_num(ap[listed], nan=np.inf), is_unsure[listed]))]
    elsewhere = "; per_label.csv in the run's folder holds all" if results is not None else ""
    return section(
        "classes",
        "Class by class",
        el("div", *panels, class_="grid") if panels else None,
        truncation_note(
            len(listed), len(facts.table.classes), "are listed: those with the most known positives" + elsewhere
        ),
        _class_table(facts, weakest_first),
        on=results.description if results is not None else "Nothing was measured: what is known, over all images.",
    )


def _ap_charts(results: HeldOutResults, ap: NDArray[Any], ranked: NDArray[np.int64]) -> list[Html]:
    """Draw the AP of all classes, or of the best and the weakest with a histogram of all."""
    panels = []
    mean = results.overall.get("mAP", np.nan)
    if len(ranked) <= INTERVAL_CLASSES:
        parts = split_into_panels("Average precision", ranked)
    else:
        parts = [(f"The {BEST} best classes", ranked[:BEST]), (f"The {BEST} weakest classes", ranked[-BEST:])]
    for title, columns in parts:
        rows = [results.per_class[int(c)] for c in columns]
        names = [str(row["class"]) for row in rows]
        value, low, high = (np.array([row[key] for row in rows]) for key in ("AP", "AP_low", "AP_high"))
        alt = f"{title} of {name_list(names)}: from {points(value.max())} down to {points(value.min())}"
        hollow = [has_few_positives(row) for row in rows]
        chart = svg.interval_chart(
            names, value, low, high, alt=alt, reference=mean, span=(0, 1), hollow=hollow, x_label="AP"
        )
        legend = [("f1 round", "AP, with its 95 % interval")] * (not all(hollow))
        legend += [("ring round", f"fewer than {FEW_POSITIVES} known positives")] * any(hollow)
        legend.append(("mark across", f"mean: {points(mean)}"))
        panels.append(figure(chart, title, legend=legend))
    if len(ranked) > INTERVAL_CLASSES:
        counts, edges = np.histogram(100 * ap[ranked], 20, (0, 100))
        alt = f"Average precision of {len(ranked)} classes: median {points(float(np.median(ap[ranked])))}"
        chart = svg.histogram(counts, edges, "plain", alt=alt, labels=("average precision", "classes"))
        panels.append(figure(chart, "All classes"))
    return panels


def _class_table(facts: RunFacts, order: NDArray[np.int64]) -> Html:
    stats, results = facts.table.stats, facts.held_out
    columns: list[tuple[str, NDArray[Any], Callable[[float], str]]] = [  # title, values (C,), and how one is shown
        ("present", stats.positives, count),
        ("absent", stats.negatives, count),
        ("unknown", stats.unknown, count),
    ]
    notes = "Present, absent and unknown: in how many images the class is known to be so, of all images."
    if results is not None:
        at = f"at the threshold {decimal(float(np.median(results.thresholds)), 2)}, one for all classes"
        measured = {key: np.array([row[key] for row in results.per_class]) for key in results.per_class[0]}
        if not results.knows_absence:
            precision, present = results.estimates_per_class()
            columns += [
                ("estimated present", present.round(), count),
                ("recall", measured["recall"], decimal),
                ("estimated precision", precision, decimal),
            ]
            notes += (
                f" Recall: of the known positives, {at}. The number of images that show the class, and the precision, "
                "are estimated from the probabilities."
            )
        else:
            if not facts.is_out_of_fold:
                columns += [(f"held-out {key}", measured[key], count) for key in ("present", "absent")]
                notes += " Held-out present, absent: the same, of the held-out images, by which the rest is measured."
            columns += [(key, measured[key], points) for key in ("AP", "AP_low", "AP_high")]
            columns += [(key, measured[key], decimal) for key in ("precision", "recall")]
            notes += (
                " AP (average precision): how well the model puts images with the class before those without; 100 is "
                f"best; low and high: its 95 % interval. Precision and recall: {at}."
            )
    notes += " A click on a title sorts, a click on a class shows it alone."
    rows = []
    for c in order.tolist():
        values = [(float(of_class[c]), show) for _, of_class, show in columns]
        cells = [cell(value, show(value) if np.isfinite(value) else "—") for value, show in values]
        rows.append(el("tr", name_cell(facts.table.classes[c], NAME_LETTERS), *cells, data_class=c))
    titles = ["class", *(title.replace("_", " ") for title, *_ in columns)]
    table = scroll_table(titles, rows, "Table of classes", sortable=True, tall=len(rows) > TALL_TABLE)
    return join([el("p", notes, class_="muted"), table])


def _cards(items: Sequence[tuple[str, str, str]]) -> Html:
    """Return the headline numbers of a page; each item is (title, value, note)."""
    boxes = [el("div", el("dt", title), el("dd", el("b", value), el("span", note))) for title, value, note in items]
    return el("dl", *boxes, class_="cards")
