"""The section of a run's page about training: loss, validation mAP, relabelling, and what else the method logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.report import svg
from halflabel.report.layout import section, truncation_note
from halflabel.report.svg import Series, figure
from halflabel.system.format import points, shorten
from halflabel.system.html import Html, count, el

OTHER_COLUMNS = 6  # columns of the log that are drawn beside the standard ones
_STANDARD = {"epoch", "loss", "lr", "images_per_s", "seconds", "mAP", "assumed_mAP", "select"}
_RATES = {
    "label_proportion": "share labelled",
    "tp_rate": "TP rate",
    "tn_rate": "TN rate",
    "accuracy": "accuracy",
}


def training_section(log: Sequence[dict[str, Any]]) -> Html | None:
    """Draw the log of a run: over its epochs, or the strengths that were tried; None where there is nothing to see."""
    if not log:
        return None
    if any("strength" in line for line in log):
        return _strength_section(log) if len(log) > 1 else None
    loss = _column(log, "loss")
    assumed = any("assumed_mAP" in line for line in log)
    validation = _column(log, "assumed_mAP" if assumed else "mAP")
    has_validation = bool(np.isfinite(validation).any())
    caption = "what training minimises; losses of different methods cannot be compared"
    caption += ", and with this method the loss may be below 0" if bool((loss < 0).any()) else ""
    panels = [_chart("Training loss", log, {"loss": loss}, caption, y_label="loss")]
    if has_validation:
        best = int(np.nanargmax(validation))
        panels.append(
            _chart(
                "mAP of the held-out images",
                log,
                {"mAP": 100 * validation},
                "unknown counted as absent: nothing is known to be absent, and epochs must be ranked by something"
                if assumed
                else "over known entries; the model is that of the best epoch",
                y_label="mAP",
                mark=(float(log[best]["epoch"]), f"best: {points(validation[best])}"),
                value_format=".1f",
            )
        )
    rates = {title: values for key, title in _RATES.items() if np.isfinite(values := _column(log, key)).any()}
    if rates:
        caption = "share of all training entries that are known or have a pseudo-label"
        caption += "; rates of the pseudo-labels against the hidden truth" if len(rates) > 1 else ""
        panels.append(_chart("Pseudo-labels of the method", log, rates, caption, y_label="share", y_range=(0, 1)))
    others = [key for key in dict.fromkeys(key for line in log for key in line) if key not in {*_STANDARD, *_RATES}]
    for key in others[:OTHER_COLUMNS]:
        title, values = shorten(key.replace("_", " "), 40), _column(log, key)
        if np.isfinite(values).any():
            panels.append(_chart(title, log, {title: values}))
    lost = int((~np.isfinite(loss)).sum())
    return section(
        "learning",
        "How it learned",
        el("p", f"Epochs in which the loss was not a finite number: {count(lost)}.", class_="warn") if lost else None,
        truncation_note(
            OTHER_COLUMNS, len(others), "of what the method logged are drawn; log.csv holds all", thing="columns"
        ),
        el("div", *panels, class_="grid"),
        on="Loss: training images." + (" mAP: held-out images, after each epoch." if has_validation else ""),
    )


def _strength_section(log: Sequence[dict[str, Any]]) -> Html:
    """Draw the quality of each regularisation strength that the solver tried."""
    tried = sorted((float(line["strength"]), 100 * float(line["out_of_fold_mAP"])) for line in log)
    strengths, quality = np.array(tried).T
    best = strengths[quality.argmax()]
    chart = svg.line_chart(
        [Series("out-of-fold mAP", np.log10(strengths), quality)],
        alt=f"Out-of-fold mAP by regularisation strength, best at {best:g}",
        x_label="log10 of the strength",
        x_range=(float(np.log10(strengths[0])), float(np.log10(strengths[-1]))),
        y_label="mAP",
    )
    return section(
        "learning",
        "How it learned",
        el("p", f"L-BFGS fitted the head to all images; the strength {best:g} ranked known labels best."),
        el(
            "details",
            el("summary", "Strengths that were tried"),
            el("div", figure(chart, "Choice of the regularisation strength", "before similar images"), class_="grid"),
        ),
        on="Each image scored by a head that was fitted without it.",
    )


def _column(log: Sequence[dict[str, Any]], key: str) -> NDArray[np.float64]:
    """Return one column of the log; NaN in epochs that lack it."""
    values = (line.get(key) for line in log)
    return np.array([np.nan if value is None else float(value) for value in values])


def _chart(
    title: str,
    log: Sequence[dict[str, Any]],
    columns: Mapping[str, NDArray[np.float64]],
    caption: str = "",
    **options: Any,
) -> Html:
    """Draw named columns of the log over the epochs, several with a legend."""
    epochs = _column(log, "epoch")
    series = [Series(name, epochs, values, shade) for shade, (name, values) in enumerate(columns.items(), start=1)]
    last = [(line.name, line.y[np.isfinite(line.y)][-1:]) for line in series]
    alt = f"{title} over {len(log)} epochs, at last: " + ", ".join(f"{name} {v:.4g}" for name, end in last for v in end)
    ends = float(epochs[0]), float(epochs[-1])
    chart = svg.line_chart(series, alt=alt, x_label="epoch", x_range=ends, **options)
    legend = [(f"f{line.shade}", line.name) for line in series]
    return figure(chart, title, caption, legend if len(legend) > 1 else ())
