"""The HTML page of a training run: one file that needs no network, in light and dark, for desktop and phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.registry import shown_metrics
from halflabel.report import svg
from halflabel.report.labels_page import known_labels, known_per_class
from halflabel.report.layout import (
    GLOSSARY,
    Cell,
    Line,
    Section,
    Table,
    WrittenPage,
    image_size,
    limit,
    method_summary,
    name_list,
    report_page,
    settings,
    split_into_panels,
    write_page,
)
from halflabel.report.quality_sections import score_section, threshold_section, training_section
from halflabel.report.run_facts import FEW_POSITIVES, HeldOutResults, RunFacts, read_run_facts
from halflabel.report.svg import figure
from halflabel.runs.folder import RunFolder
from halflabel.system.format import counted, decimal, group_digits, percent, points, shorten
from halflabel.system.html import Html
from halflabel.system.remote import local_folder
from halflabel.system.reporter import SILENT, Reporter

# Every section has a limit, so that the page stays small whatever the run; what is left out is in the run's files.
MAX_PAGE_BYTES = 3_000_000
SCAN_IMAGES = 20_000  # training images scored for the galleries by default
INTERVAL_CLASSES = 60  # up to this number of classes, each AP is drawn with its interval
BEST = 14  # with more classes, so many of the best and of the weakest are drawn
TABLE_CLASSES = 200


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
    """Return the page of a run as HTML text, without folder names of this machine.

    With `images`, the folder of the photos, it has galleries, for which at most `scan` training images are scored now;
    with `maps`, they show where the model sees the class.
    """
    facts = read_run_facts(run)
    results, table, config = facts.held_out, facts.table, facts.config
    photos = Section(
        "photos",
        "Photos",
        "Labels to check",
        text=[
            "Galleries of likely missing labels, and of labels that the model disagrees with, need the photos: "
            "halflabel report RUN --images PHOTOS"
        ],
    )
    gallery = None
    if images is not None:
        from halflabel.report.gallery import galleries  # imports torch

        gallery = galleries(facts, run, local_folder(images), scan=scan, maps=maps, reporter=reporter)
    charts = _ap_charts(results) if results is not None else []
    first, *others = charts or known_per_class(table)[:1] or [Html()]
    listed = np.argsort(-table.stats.positives, kind="stable")[:TABLE_CLASSES]
    sections = [
        gallery,
        _class_section(facts, listed, others),
        threshold_section(results) if results is not None else None,
        score_section(results) if results is not None and results.knows_absence else None,
        known_labels(table, len(facts.training) if facts.finished else None),
        training_section(facts.log),
        photos if images is None else None,
    ]
    method = str(config.get("method", "?"))
    summary = method_summary(method)
    if others_of_average := config.get("averaged_with"):
        method, summary = f"average of {method}, {others_of_average}", ""
    cards = []
    for shown in shown_metrics(results.overall) if results is not None else ():
        interval = f"95 % interval {shown.interval}; " if shown.interval else ""
        cards.append((shown.title, shown.value, interval + shown.note))
    size = f"{group_digits(table.shape[0])} images × {group_digits(table.shape[1])} classes"
    cards.append(("known labels", percent(table.known, table.shape[0] * table.shape[1]), size))
    unknown = table.shape[0] * table.shape[1] - table.known
    learn = f"{group_digits(unknown)} labels are unknown. To let the model learn what it needs most:"
    found = _finding(results) if results is not None and facts.finished else ""
    return report_page(
        f"{shorten(facts.name, 60)} · {shorten(method, 40)}",
        sections,
        found=[found] if found else (),
        advice=(learn, "halflabel next RUN PHOTOS") if found and unknown else (),
        about=[_subtitle(facts), *([f"{shorten(method, 40)}: {summary}"] if summary else [])],
        chart=first,
        cards=cards,
        cautions=_cautions(facts),
        classes=sorted((table.classes[int(c)], int(c)) for c in listed),
        words=GLOSSARY,
        settings=settings(config, facts.env),
        protocol=results.protocol if results is not None else "",
        made_by=f"the run was trained by version {facts.env.get('halflabel', '?')}",
    )


def _subtitle(facts: RunFacts) -> str:
    """Return what was trained, when, and by which version."""
    config, made = facts.config, facts.made
    trained = made.get("trained") or f"backbone {'frozen' if config.get('tune') == 'head' else 'tuned'}"
    parts = [f"Training run: {config.get('backbone', '?')}, {image_size(config)}", shorten(str(trained), 400)]
    if not any("strength" in line for line in facts.log):  # of L-BFGS
        parts.append(f"{counted(len(facts.log), 'epoch')} in all")
    if time := made.get("time"):
        day, _, hour = str(time).partition("T")
        version = shorten(str(made.get("halflabel", "?")), 20)
        parts.append(f"trained {day[:10]}, {hour[:5]} UTC, by halflabel {version}")
    return "; ".join(parts)


def _finding(results: HeldOutResults) -> str:
    """Return the main result in one or two sentences."""
    value = results.overall
    if not results.knows_absence:
        return (
            f"The model finds {points(value.get('OR', np.nan))} % of the known positives; about "
            f"{points(value.get('estimated_precision', np.nan))} % of what it calls present is present, by estimate."
        )
    text = f"The model reaches a mean average precision of {points(value.get('mAP', np.nan))}."
    ap, names = results.per_class["AP"], results.classes
    ranked = np.flatnonzero(np.isfinite(ap) & ~results.has_few_positives)
    if len(ranked) > 1 and 2 * len(ranked) >= np.isfinite(ap).sum():  # else mAP is mostly that of other classes
        best, weakest = ranked[ap[ranked].argmax()], ranked[::-1][ap[ranked[::-1]].argmin()]
        text += (
            f" It is best at {shorten(names[int(best)], 40)} ({points(ap[best])}) and weakest at "
            f"{shorten(names[int(weakest)], 40)} ({points(ap[weakest])})."
        )
    return text


def _cautions(facts: RunFacts) -> list[str]:
    results, cautions = facts.held_out, []
    if not facts.finished:
        cautions.append("This run is unfinished: there are no weights yet. Continue it with halflabel train --resume.")
    elif results is None:
        cautions.append(
            "No images were held out, so nothing was measured: train with --set held_out=0.2, or use `evaluate`."
        )
    if results is not None:
        classes = group_digits(len(results.classes))
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
        if results.knows_absence and (few := int(results.has_few_positives.sum())):
            cautions.append(
                f"Measured with fewer than {FEW_POSITIVES} known positives: {group_digits(few)} of {classes} classes "
                "(rings instead of dots). Their AP is largely luck and on average too high, and so is the mAP. "
                "Label more photos of these classes, or measure on other images with halflabel evaluate."
            )
        if without_positive := int((~(results.per_class["present"] > 0)).sum()):
            cautions.append(
                "Not measured, as these images have no known positive (shown as a dash): "
                f"{group_digits(without_positive)} of {classes} classes."
            )
        without_negative = int(((results.labels > 0).any(axis=0) & ~(results.labels < 0).any(axis=0)).sum())
        if without_negative and results.knows_absence:
            cautions.append(
                f"Without a known negative among these images: {group_digits(without_negative)} classes. They have no "
                "AP (a dash) and are left out of mAP."
            )
    if facts.unreadable:
        unreadable = group_digits(facts.unreadable)
        cautions.append(f"Images that could not be read: {unreadable}; the run's bad_images.csv lists them.")
    return cautions


def _class_section(facts: RunFacts, listed: NDArray[np.int64], charts: list[Html]) -> Section:
    """Return the charts of average precision that the page does not begin with, and the table, weakest class first."""
    results, elsewhere, on = facts.held_out, "", "Nothing was measured: what is known, over all images."
    if results is not None:
        elsewhere, on = "; per_label.csv in the run's folder holds all", results.description
        # As in the first sentence of the page: a class that few positives measure is not called the weakest.
        ap = np.nan_to_num(results.per_class["AP"], nan=np.inf)
        listed = listed[np.lexsort((ap[listed], results.has_few_positives[listed]))]
    limits = limit(len(listed), len(facts.table.classes), f"are listed: those with the most known positives{elsewhere}")
    table, note = _class_table(facts, listed)
    return Section(
        *("classes", "Classes", "Class by class", on),
        limits=limits,
        panels=charts,
        fold="The table of classes",
        tables=[table],
        note=note,
    )


def _ap_charts(results: HeldOutResults) -> list[Html]:
    """Draw the AP of all classes with intervals, or of the best and the weakest with a histogram of all."""
    ap, present = results.per_class["AP"], results.per_class["present"]
    measured = np.flatnonzero(np.isfinite(ap))
    # Ties: the class with more known positives comes first, as a perfect AP on one image means little.
    ranked = measured[np.lexsort((-present[measured], -ap[measured]))]
    parts, panels = split_into_panels("Average precision", ranked), []
    if len(ranked) > INTERVAL_CLASSES:
        parts = [(f"The {BEST} best classes", ranked[:BEST]), (f"The {BEST} weakest classes", ranked[-BEST:])]
    mean = results.overall.get("mAP", np.nan)
    for title, columns in parts:
        names = [results.classes[int(c)] for c in columns]
        value, low, high = (results.per_class[key][columns] for key in ("AP", "AP_low", "AP_high"))
        alt = f"{title} of {name_list(names)}: from {points(value.max())} down to {points(value.min())}"
        hollow = results.has_few_positives[columns].tolist()
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


def _class_table(facts: RunFacts, order: NDArray[np.int64]) -> tuple[Table, str]:
    """Return the table, and what its columns mean."""
    stats, results = facts.table.stats, facts.held_out
    columns: list[tuple[str, NDArray[Any], Callable[[float], str]]] = [  # title, values (C,), and how one is shown
        ("present", stats.positives, group_digits),
        ("absent", stats.negatives, group_digits),
        ("unknown", stats.unknown, group_digits),
    ]
    note = "Present, absent and unknown: in how many images the class is known to be so, of all images."
    if results is not None:
        at = f"at the threshold {decimal(float(np.median(results.thresholds)), 2)}, one for all classes"
        measured = results.per_class
        if not results.knows_absence:
            precision, present = results.estimates_per_class()
            columns += [
                ("estimated present", present.round(), group_digits),
                ("recall", measured["recall"], decimal),
                ("estimated precision", precision, decimal),
            ]
            note += (
                f" Recall: of the known positives, {at}. The number of images that show the class, and the precision, "
                "are estimated from the probabilities."
            )
        else:
            if not facts.is_out_of_fold:
                columns += [(f"held-out {key}", measured[key], group_digits) for key in ("present", "absent")]
                note += " Held-out present, absent: the same, of the held-out images, by which the rest is measured."
            columns += [(key, measured[key], points) for key in ("AP", "AP_low", "AP_high")]
            columns += [(key, measured[key], decimal) for key in ("precision", "recall")]
            note += (
                " AP (average precision): how well the model puts images with the class before those without; 100 is "
                f"best; low and high: its 95 % interval. Precision and recall: {at}."
            )
    lines = []
    for c in order.tolist():
        values = [(float(of_class[c]), show) for _, of_class, show in columns]
        cells = [Cell(value, show(value) if np.isfinite(value) else "—") for value, show in values]
        lines.append(Line(facts.table.classes[c], cells, key=c))
    titles = ["class", *(title.replace("_", " ") for title, *_ in columns)]
    note += " A click on a title sorts, a click on a class shows it alone."
    return Table("Table of classes", titles, lines, letters=48), note
