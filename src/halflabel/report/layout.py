"""The parts of a run's page, each from facts to HTML: what was known, how it learned, what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.stats import conditional_probabilities, top_pairs
from halflabel.report import svg as charts
from halflabel.report.run_facts import Facts
from halflabel.report.svg import Series, figure
from halflabel.runs.redact import shown_settings
from halflabel.system.format import points
from halflabel.system.html import Html, count, decimal, el, join, percent, short

__all__ = [
    "FEW",
    "cards",
    "cell",
    "details",
    "known",
    "learning",
    "left_out",
    "listed",
    "missing",
    "pairs",
    "panelled",
    "scrolled",
    "section",
    "seed_spread",
    "signed",
    "summary",
    "thinly_judged",
    "two",
]

STATES = (("present", "known present"), ("absent", "known absent"), ("unknown", "unknown"))
REGIMES = {
    "full": "Every class is known for every image that has labels.",
    "partial": "Some entries are known to be present, some to be absent, the rest is unknown.",
    "positives-only": "Only presence is known: nothing is known to be absent.",
    "single-positive": "One class per image is known to be present, and nothing else is known.",
    "empty": "Nothing is known.",
}
# What a page can hold and a reader can take in; what is left out is said, and lies in the run's files.
PANEL = 14  # classes per panel
BARS = 28  # classes with bars of what is known
GRID = 14  # classes in the table of shades
FEW = 5  # known positives below which the AP of a class is mostly luck
_OWN = {"epoch", "loss", "lr", "images_per_s", "seconds", "mAP", "assumed_mAP", "select"}
_RATES = ("label_proportion", "tp_rate", "tn_rate", "accuracy")
_MEANING = {
    "label_proportion": "share labelled",
    "tp_rate": "TP rate",
    "tn_rate": "TN rate",
    "accuracy": "accuracy",
}


def section(name: str, title: str, *content: object, on: str | None = None) -> Html:
    """A part of the page with its heading and a line on what it was measured."""
    heading = el("h2", title, id=f"{name}-title")
    return el(
        "section", heading, el("p", on, class_="on") if on else None, *content, id=name, aria_labelledby=f"{name}-title"
    )


def summary(facts: Facts) -> Html:
    """The few numbers that matter most, and what to bear in mind about them."""
    shown, found = [], facts.measured
    if found is not None:
        value = found.overall
        low, mean, high = (value.get(key, np.nan) for key in ("mAP_low", "mAP", "mAP_high"))
        if found.knows_absence:
            shown += [
                ("mAP", points(mean), f"95 % interval {points(low)} – {points(high)}; 100 is best"),
                ("micro F1", points(value.get("micro_f1", np.nan)), "all entries together; 100 is best"),
                ("macro F1", points(value.get("macro_f1", np.nan)), "mean over classes; 100 is best"),
                ("calibration error", decimal(value.get("ECE", np.nan)), "how far scores are off; 0 is best"),
            ]
        else:
            shown.append(("mAP", "—", "needs known absences"))
    images, names = facts.table.shape
    share = percent(facts.table.known, images * names)
    shown.append(("known labels", share, f"{count(images)} images × {count(names)} classes"))
    notes = [el("li", note) for note in _cautions(facts)]
    return join([cards(shown), el("ul", *notes, class_="notes") if notes else None])


def cards(shown: Sequence[tuple[str, str, str]]) -> Html:
    """The few things that matter most: what, its value, and a note on it."""
    listed = [el("div", el("dt", name), el("dd", el("b", value), el("span", note))) for name, value, note in shown]
    return el("dl", *listed, class_="cards")


def _cautions(facts: Facts) -> list[str]:
    found, notes = facts.measured, []
    if not facts.finished:
        notes.append("This run is unfinished: there are no weights yet. Go on with halflabel train --resume.")
    elif found is None:
        notes.append(
            "No images were held out, so nothing was measured: train with --held-out 0.2, or use halflabel evaluate."
        )
    if found is not None:
        if not found.knows_absence:
            notes.append(
                "Nothing is known to be absent among the held-out images, so only recall can be measured: label some "
                "negatives."
            )
        else:
            notes.append(
                "Thresholds and calibration were fitted on the same held-out labels, so F1 and calibration error are "
                "optimistic; the best epoch was chosen on them too."
            )
        blind = sum(not row["present"] > 0 for row in found.per_class)
        thin = sum(map(thinly_judged, found.per_class)) if found.knows_absence else 0
        if thin:
            notes.append(
                f"Judged by fewer than {FEW} known positives: {count(thin)} of {count(len(found.per_class))} classes "
                "(rings instead of dots). Their AP is largely luck, and mAP has its share of it: both are too high on "
                "average. Hold out more images, or judge by other ones with halflabel evaluate."
            )
        if blind:
            notes.append(
                "Not judged, for want of a known positive among the held-out images (shown as a dash): "
                f"{count(blind)} of {count(len(found.per_class))} classes."
            )
        alone = int(((found.labels > 0).any(axis=0) & ~(found.labels < 0).any(axis=0)).sum())
        if alone and found.knows_absence:
            notes.append(
                f"Without a known negative among the held-out images: {count(alone)} classes. They have no AP (a dash) "
                "and are left out of mAP."
            )
    if facts.unreadable:
        notes.append(f"Images that could not be read: {count(facts.unreadable)}; the run's bad_images.csv lists them.")
    return notes


def known(facts: Facts) -> Html:
    """What was known before training, over all and per class."""
    table = facts.table
    stats = table.stats()
    total = stats.images * stats.classes
    counts = np.array([stats.positives.sum(), stats.negatives.sum(), stats.unknown.sum()])
    words = ", ".join(
        f"{count(n)} {meaning} ({percent(n, total)})" for n, (_, meaning) in zip(counts, STATES, strict=True)
    )
    split = f"{count(len(facts.training))} images to train on, {count(stats.images - len(facts.training))} held out."
    order = np.argsort(-stats.positives, kind="stable")[:BARS]
    per_class = np.stack([stats.positives, stats.negatives, stats.unknown], axis=1)
    states = [state for state, _ in STATES]
    whole = charts.bars(["all classes"], counts[None], states, alt=f"All entries: {words}", whole=max(total, 1))
    over_all = [figure(whole, "All entries", legend=STATES)]
    for title, spread in (
        ("Known labels per image", stats.known_per_image),
        ("Known positives per image", stats.positives_per_image),
    ):
        numbers = np.flatnonzero(spread)
        alt = f"{title}: from {int(numbers[0])} to {int(numbers[-1])}" if len(numbers) else title
        counted, edges = _grouped(spread)
        drawn = charts.columns(counted, edges, "plain", alt=alt, x_label=title.lower(), y_label="images", whole=True)
        over_all.append(figure(drawn, title))
    panels = [el("div", *over_all)]
    for title, part in panelled("Known per class", order):
        names = [table.classes[int(c)] for c in part]
        alt = "Images known present, known absent and unknown for " + listed(names)
        drawn = charts.bars(names, per_class[part], states, alt=alt, whole=max(stats.images, 1))
        panels.append(figure(drawn, title, f"a full line is {count(stats.images)} images", STATES))
    return section(
        "labels",
        "What was known",
        el("p", el("b", f"{stats.regime.capitalize()} labels."), " ", REGIMES[stats.regime], " ", split),
        el("p", words[:1].upper() + words[1:], "."),
        left_out(len(order), stats.classes, "are drawn: those with the most known positives"),
        el("div", *panels, class_="grid"),
        on=f"All {count(stats.images)} images of the run, training and held-out.",
    )


def _grouped(spread: NDArray[np.int64], most: int = 40) -> tuple[NDArray[Any], NDArray[Any]]:
    """Counts per number of labels, several numbers to a bin where there are many; the edges lie between numbers."""
    step = -(-len(spread) // most)
    padded = np.pad(spread, (0, -len(spread) % step))
    return padded.reshape(-1, step).sum(axis=1), np.arange(0, len(padded) + 1, step) - 0.5


def learning(facts: Facts) -> Html | None:
    """Loss and validation over the epochs, what relabelling did, and what else the method logged."""
    log = facts.log
    if not log:
        return None
    epoch = np.array([line["epoch"] for line in log], np.float64)

    def column(key: str) -> NDArray[np.float64]:
        values = (line.get(key) for line in log)
        return np.array([np.nan if value is None else float(value) for value in values])

    span = (float(epoch[0]), float(epoch[-1]))
    loss = column("loss")
    panels = [
        figure(
            charts.lines(
                [Series("loss", epoch, loss)],
                alt=f"Training loss over {len(log)} epochs, at last {loss[-1]:.4g}",
                x_label="epoch",
                y_label="loss",
                x_range=span,
            ),
            "Training loss",
            "what training makes small; its size has no meaning of its own"
            + (", and with this method it may be below 0" if bool((loss < 0).any()) else ""),
        )
    ]
    key = "assumed_mAP" if any("assumed_mAP" in line for line in log) else "mAP"
    judged = column(key)
    if np.isfinite(judged).any():
        best = int(np.nanargmax(judged))
        note = (
            "unknown counted as absent: nothing is known to be absent, and epochs must be ranked by something"
            if key == "assumed_mAP"
            else "over known entries; the model is that of the best epoch"
        )
        panels.append(
            figure(
                charts.lines(
                    [Series("mAP", epoch, 100 * judged)],
                    alt=f"Validation mAP, best {points(judged[best])} in epoch {epoch[best]:g}",
                    x_label="epoch",
                    y_label="mAP",
                    x_range=span,
                    mark=(float(epoch[best]), f"best: {points(judged[best])}"),
                    shape=".1f",
                ),
                "mAP of the held-out images",
                note,
            )
        )
    rates = [(key, column(key)) for key in _RATES]
    rates = [(key, values) for key, values in rates if np.isfinite(values).any()]
    if rates:
        series = [Series(_MEANING[key], epoch, values, shade) for shade, (key, values) in enumerate(rates, start=1)]
        alt = "After each relabelling: " + ", ".join(
            f"{line.name} at last {line.y[np.isfinite(line.y)][-1]:.3f}" for line in series
        )
        told = any(key in ("tp_rate", "tn_rate") for key, _ in rates)
        panels.append(
            figure(
                charts.lines(series, alt=alt, x_label="epoch", y_label="share", x_range=span, y_range=(0, 1)),
                "Labels the method made up",
                "share of all training entries that are known or made up"
                + ("; rates of the made-up ones against the hidden truth" if told else ""),
                [(f"f{line.shade}", line.name) for line in series],
            )
        )
    others = [key for key in dict.fromkeys(key for line in log for key in line) if key not in {*_OWN, *_RATES}]
    for key in others[:6]:
        values, title = column(key), short(key.replace("_", " "), 40)
        if np.isfinite(values).any():
            alt = f"{title} over the epochs, at last {values[np.isfinite(values)][-1]:.4g}"
            panels.append(
                figure(charts.lines([Series(title, epoch, values)], alt=alt, x_label="epoch", x_range=span), title)
            )
    lost = int((~np.isfinite(loss)).sum())
    return section(
        "learning",
        "How it learned",
        el("p", f"Epochs in which the loss was not a finite number: {count(lost)}.", class_="warn") if lost else None,
        left_out(6, len(others), "of what the method logged are drawn; log.csv holds all", thing="columns"),
        el("div", *panels, class_="grid"),
        on="Loss: training images." + (" mAP: held-out images, after each epoch." if np.isfinite(judged).any() else ""),
    )


def pairs(facts: Facts) -> Html | None:
    """Which classes come together: the most frequent pairs, and a table of shades of the classes in them."""
    table = facts.table
    top = top_pairs(table, 60)
    if not top:
        return None
    stats = table.stats()
    certain = bool(stats.negatives.any())
    chosen = list(dict.fromkeys(name for pair in top for name in (pair.first, pair.second)))[:GRID]
    at = table.classes.index(chosen)
    at = at[np.argsort(-stats.positives[at], kind="stable")]
    names = [table.classes[int(c)] for c in at]
    known_of = conditional_probabilities(table)
    seen = known_of.seen[at][:, at].toarray()
    together = known_of.together[at][:, at].toarray().astype(np.float64)
    if certain:
        shade = np.where(seen > 0, together / np.maximum(seen, 1), np.nan)
        title, said = (
            "P(column | row)",
            "where the row's class is present: how often the column's class is too, of the images where it is known",
        )
    else:
        off = together - np.diag(np.diag(together))
        shade = np.sqrt(together / max(float(off.max()), 1.0)).clip(0, 1)
        title, said = (
            "Images with both",
            "counts, not shares: nothing is known to be absent, so shares would all be 1",
        )
    tips = [
        [
            f"{short(a, 40)}, {short(b, 40)}: {count(together[i, j])} images with both"
            + (f", {decimal(shade[i, j], 2)} of {count(seen[i, j])} where the second is known" if certain else "")
            for j, b in enumerate(names)
        ]
        for i, a in enumerate(names)
    ]
    alt = f"{title} for {listed(names)}; most often together: {short(top[0].first, 40)} and {short(top[0].second, 40)}"
    keys = [("shade zero", "0"), ("shade half", "½"), ("shade one", "1"), ("shade nil", "no image tells")]
    ends = [("shade zero", "no image"), ("shade one", "most images")]
    drawn = figure(charts.heat(names, shade, tips, alt=alt), title, said, keys if certain else ends)
    lines = []
    for pair in top[:15]:
        both = [el("td", short(name, 26), class_="name", title=short(name, 200)) for name in (pair.first, pair.second)]
        numbers = [(pair.probability, 2), (pair.lift, 1)] if certain else []
        cells = [cell(pair.together, count(pair.together)), *(cell(v, decimal(v, d)) for v, d in numbers)]
        lines.append(el("tr", *both, *cells))
    heads = [el("th", head, scope="col", class_="name") for head in ("A", "B")]
    heads += [el("th", head, scope="col") for head in ("images", *(("P(B\u00a0|\u00a0A)", "lift") if certain else ()))]
    written = el("table", el("thead", el("tr", *heads)), el("tbody", *lines))
    box = el("div", written, class_="scroll", tabindex="0", role="region", aria_label="Pairs of classes")
    meaning = (
        "P(B | A): of the images with A in which B is known, the share with B. Lift: how many times its usual share "
        "that is; 1 means A says nothing about B."
    )
    told = el("p", meaning, class_="said") if certain else None
    return section(
        "pairs",
        "What comes together",
        left_out(len(names), stats.classes, "are drawn: those of the most frequent pairs"),
        el("div", drawn, el("div", el("p", el("b", "Most frequent pairs")), told, box), class_="grid"),
        on=f"Known labels of all {count(stats.images)} images.",
    )


def thinly_judged(row: Mapping[str, Any]) -> bool:
    """Whether a class was judged, but by so few known positives that its AP says little."""
    return bool(np.isfinite(row["AP"])) and 0 < row["present"] < FEW


def left_out(shown: int, of: int, why: str, thing: str = "classes") -> Html | None:
    """A line on what the page leaves out, where it does."""
    return el("p", f"{count(shown)} of {count(of)} {thing} {why}.", class_="cap") if of > shown else None


def panelled(title: str, order: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Equal parts of at most PANEL classes, in their order, each with a title that says which they are."""
    if not len(order):
        return []
    parts = np.array_split(order, -(-len(order) // PANEL))
    if len(parts) == 1:
        return [(title, order)]
    ends = np.cumsum([len(part) for part in parts])
    return [(f"{title}, {end - len(part) + 1} to {end}", part) for end, part in zip(ends, parts, strict=True)]


def cell(value: float, shown: str) -> Html:
    """A number in a table, with what to sort it by."""
    return el("td", shown, data_v=f"{value:.6g}" if np.isfinite(value) else "")


def two(value: float, shown: str, below: str) -> Html:
    """A number in a table with something smaller below it, such as its interval."""
    return cell(value, join([shown, el("br"), el("span", below, class_="said")]) if below else shown)


def signed(value: float) -> str:
    """A difference of mAP with its sign."""
    return points(value, 2, signed=True)


def scrolled(
    titles: Sequence[str], rows: Sequence[Html], label: str, *, sortable: bool = False, names: int = 1
) -> Html:
    """A table that may be wider than the page, with a name for those who hear it; its first columns are `names`."""
    heads = [el("th", title, scope="col", class_="name" if 0 < k < names else None) for k, title in enumerate(titles)]
    head = el("thead", el("tr", *heads))
    table = el("table", head, el("tbody", *rows), class_="sortable" if sortable else None)
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def seed_spread(names: Sequence[str], dots: Sequence[NDArray[Any]], title: str) -> Html:
    """The mAP of every seed, two or more for each name, their mean and ± one standard deviation."""
    value = np.array([one.mean() for one in dots])
    sd = np.array([one.std(ddof=1) for one in dots])
    widest = int(np.argmax(sd))
    apart = f"{short(names[widest], 60)}, standard deviation {points(sd[widest], 2)}"
    alt, span = f"mAP of each seed. {title}; most apart: {apart}", charts.around(*dots, value - sd, value + sd)
    drawn = charts.intervals(names, value, value - sd, value + sd, alt=alt, mean=np.nan, span=span, dots=dots)
    return figure(drawn, title, "dots: one seed each; across: their mean; bar: ± one standard deviation")


def missing(failed: Sequence[Html], runs: int, waiting: Sequence[Html] = (), most: int = 40) -> Html | None:
    """What failed, a line each, and the runs that the budget left no time for."""
    parts: list[object] = []
    if failed:
        parts += [el("h3", "Failed"), el("ul", *failed[:most], class_="notes")]
        parts += [left_out(most, len(failed), "are listed", thing="failures")]
    if runs:
        said = f"The budget left no time for {count(runs)} runs. The same command goes on with them."
        parts += [el("h3", "Left out"), el("p", said), el("ul", *waiting, class_="notes") if waiting else None]
    return section("missing", "What is missing", *parts) if parts else None


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names in words, for those who hear the page."""
    shown = ", ".join(short(name, 40) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def details(config: dict[str, Any], env: dict[str, Any]) -> Html:
    """Settings and versions, folded away. Folders stay out: a page is made to be passed on."""
    rows = []
    for title, values in (("setting", shown_settings(config)), ("version", env)):
        for key, value in values.items():
            if key == "options":
                value = ", ".join(f"{name} = {own}" for name, own in dict(value or {}).items()) or "—"
            rows.append(
                el("tr", el("th", short(str(key), 40), scope="row"), el("td", short(str(value), 200)), class_=title)
            )
    return el(
        "details", el("summary", "Settings and versions"), el("div", el("table", el("tbody", *rows)), class_="scroll")
    )
