"""Pictures and the model card of one training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from halflabel.papers.figures.canvas import BLUE, GREY, ORANGE, literal, save_figure
from halflabel.report.layout import FEW, thinly_judged
from halflabel.system.format import points
from halflabel.system.html import decimal

if TYPE_CHECKING:
    from halflabel.labels.table import LabelTable
    from halflabel.runs.evaluate import Evaluation

__all__ = ["draw_run", "model_card"]


def draw_run(log: Sequence[Mapping[str, Any]], found: Evaluation, folder: Path) -> None:
    """Loss and validation mAP per epoch (curves.png), AP per class with its interval (per_class.png), in points of 100.

    The AP of a class with few known positives is a ring, as on the page of the run.
    """
    from matplotlib.figure import Figure

    epochs = [line["epoch"] for line in log]
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    left = figure.subplots()
    left.plot(epochs, [line["loss"] for line in log], color=GREY, label="training loss")
    left.set_xlabel("epoch")
    left.set_ylabel("training loss", color=GREY)
    left.locator_params(axis="x", integer=True)
    right = left.twinx()
    name = "assumed_mAP" if any("assumed_mAP" in line for line in log) else "mAP"
    right.plot(epochs, [100 * line.get(name, np.nan) for line in log], color=BLUE, marker="o", ms=3)
    right.set_ylabel(f"validation {name.replace('_', ' ')}", color=BLUE)
    save_figure(figure, folder / "curves.png")

    rows = sorted((row for row in found.per_class if not np.isnan(row["AP"])), key=lambda row: float(row["AP"]))[-80:]
    if not rows:
        return
    figure = Figure(figsize=(6.5, 1 + 0.22 * len(rows)), layout="constrained")
    axes = figure.subplots()
    values = 100 * np.array([row["AP"] for row in rows])
    errors = 100 * np.array([[row["AP"] - row["AP_low"], row["AP_high"] - row["AP"]] for row in rows]).T
    weak = np.array([thinly_judged(row) for row in rows])
    for few, face in ((False, BLUE), (True, "white")):
        at = np.flatnonzero(weak == few)
        bars = {"xerr": np.maximum(errors[:, at], 0), "color": BLUE, "ecolor": GREY, "mfc": face}
        if len(at):
            axes.errorbar(values[at], at, fmt="o", ms=4, **bars)
    names = [f"{literal(row['class'])}  ({row['present']}+ {row['absent']}−)" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xlim(0, 102)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("average precision on known labels, 95 % interval")
    axes.axvline(100 * found.overall["mAP"], color=ORANGE, lw=1)
    note = f" (rings: fewer than {FEW} known positives)" if weak.any() else ""
    axes.set_title(f"mAP {points(found.overall['mAP'])}{note}", fontsize="medium")
    save_figure(figure, folder / "per_class.png")


def model_card(config: Mapping[str, Any], found: Evaluation, hidden: LabelTable) -> str:
    """What the model is, how it was judged and where not to trust it: only what was measured."""
    value = found.overall
    size = f"{config['size']} px" if config["size"] else "images in the size the backbone was made for"
    lines = [
        f"# {config['backbone']}, trained by `{config['method']}`",
        "",
        f"Multi-label classifier for {len(hidden.classes)} classes, {size}, "
        f"{'linear head on a frozen backbone' if config['tune'] == 'head' else 'fine-tuned'}.",
        "",
        "| measured on held-out images | |",
        "|---|---|",
        f"| mAP (95 % interval) | {points(value['mAP'])} ({points(value['mAP_low'])} – {points(value['mAP_high'])}) |",
        f"| micro F1 at per-class thresholds | {points(value['micro_f1'])} |",
        f"| macro F1 | {points(value['macro_f1'])} |",
        f"| calibration error | {decimal(value['ECE'])} |",
        "",
        f"Protocol: {found.protocol}.",
        "The thresholds and the calibration were fitted on the same held-out labels, so F1 and calibration error are "
        "optimistic; mAP is chosen over epochs on them too.",
    ]
    if not bool((hidden.value < 0).any()):
        lines += ["", "Nothing was known to be absent, so mAP on known labels says nothing here: get some negatives."]
    unjudged = [row for row in found.per_class if np.isnan(row["AP"])]
    for want, classes in (
        ("positive", [row["class"] for row in unjudged if not row["present"]]),
        ("negative", [row["class"] for row in unjudged if row["present"] and not row["absent"]]),
    ):
        if classes:
            shown = ", ".join(classes[:20]) + (" …" if len(classes) > 20 else "")
            lines += ["", f"Not judged, for want of a known {want} among the held-out images: {shown}."]
    return "\n".join(lines) + "\n"
