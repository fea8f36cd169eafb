"""The section of a run's page about training: loss, validation mAP, relabelling, and what else the method logged."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Draw the log of a run over its epochs; None where no epoch is finished."""
    if not log:
        return None
    if any("strength" in line for line in log):
        return _strength_section(log)
    loss = _column(log, "loss")
    assumed = any("assumed_mAP" in line for line in log)
    validation = _column(log, "assumed_mAP" if assumed else "mAP")
    has_validation = bool(np.isfinite(validation).any())
    panels = [_loss_chart(log, loss)]
    if has_validation:
        panels.append(_validation_chart(log, validation, assumed))
    panels += _relabelling_chart(log)
    others = [key for key in dict.fromkeys(key for line in log for key in line) if key not in {*_STANDARD, *_RATES}]
    for key in others[:OTHER_COLUMNS]:
        values, title = _column(log, key), shorten(key.replace("_", " "), 40)
        if np.isfinite(values).any():
            alt = f"{title} over the epochs, at last {values[np.isfinite(values)][-1]:.4g}"
            panels.append(figure(_epoch_chart(log, [Series(title, _epochs(log), values)], alt), title))
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


def _epochs(log: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    return np.array([line["epoch"] for line in log], np.float64)


def _column(log: Sequence[dict[str, Any]], key: str) -> NDArray[np.float64]:
    """Return one column of the log; NaN in epochs that lack it."""
    values = (line.get(key) for line in log)
    return np.array([np.nan if value is None else float(value) for value in values])


def _epoch_chart(log: Sequence[dict[str, Any]], series: Sequence[Series], alt: str, **options: Any) -> Html:
    epochs = _epochs(log)
    return svg.line_chart(series, alt=alt, x_label="epoch", x_range=(float(epochs[0]), float(epochs[-1])), **options)


def _loss_chart(log: Sequence[dict[str, Any]], loss: NDArray[np.float64]) -> Html:
    alt = f"Training loss over {len(log)} epochs, at last {loss[-1]:.4g}"
    chart = _epoch_chart(log, [Series("loss", _epochs(log), loss)], alt, y_label="loss")
    caption = "what training minimises; losses of different methods cannot be compared"
    caption += ", and with this method the loss may be below 0" if bool((loss < 0).any()) else ""
    return figure(chart, "Training loss", caption)


def _validation_chart(log: Sequence[dict[str, Any]], validation: NDArray[np.float64], assumed: bool) -> Html:
    epochs, best = _epochs(log), int(np.nanargmax(validation))
    caption = (
        "unknown counted as absent: nothing is known to be absent, and epochs must be ranked by something"
        if assumed
        else "over known entries; the model is that of the best epoch"
    )
    chart = _epoch_chart(
        log,
        [Series("mAP", epochs, 100 * validation)],
        f"Validation mAP, best {points(validation[best])} in epoch {epochs[best]:g}",
        y_label="mAP",
        mark=(float(epochs[best]), f"best: {points(validation[best])}"),
        value_format=".1f",
    )
    return figure(chart, "mAP of the held-out images", caption)


def _relabelling_chart(log: Sequence[dict[str, Any]]) -> list[Html]:
    """Draw the share of labelled entries and the rates of pseudo-labels, where the method logged them."""
    rates = [(key, _column(log, key)) for key in _RATES]
    rates = [(key, values) for key, values in rates if np.isfinite(values).any()]
    if not rates:
        return []
    series = [Series(_RATES[key], _epochs(log), values, shade) for shade, (key, values) in enumerate(rates, start=1)]
    alt = "After each relabelling: " + ", ".join(
        f"{line.name} at last {line.y[np.isfinite(line.y)][-1]:.3f}" for line in series
    )
    chart = _epoch_chart(log, series, alt, y_label="share", y_range=(0, 1))
    caption = "share of all training entries that are known or have a pseudo-label"
    if any(key in ("tp_rate", "tn_rate") for key, _ in rates):
        caption += "; rates of the pseudo-labels against the hidden truth"
    return [figure(chart, "Pseudo-labels of the method", caption, [(f"f{line.shade}", line.name) for line in series])]
