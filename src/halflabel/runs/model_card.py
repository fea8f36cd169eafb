"""The model card of a training run: a short Markdown text about the model and its measured quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halflabel.evaluation.evaluate import Evaluation
from halflabel.evaluation.scores import MEASURED_ON, Kind
from halflabel.labels.table import Table
from halflabel.system.format import markdown


def model_card(config: Mapping[str, Any], trained: str, evaluation: Evaluation, held_out: Table, kind: Kind) -> str:
    """Describe the model, its evaluation on the labels of `held_out` and its limits; contains only measured values."""
    out_of_fold = kind == "out-of-fold"
    images = "images" if out_of_fold else "held-out images"
    measured_on = f"all images by {MEASURED_ON[kind]}" if out_of_fold else MEASURED_ON[kind]
    chosen = "the regularisation and the use of similar images were" if out_of_fold else "the epoch was"
    size = f"{config['size']} px" if config["size"] else "images in the size that suits the backbone"
    lines = [
        f"# {config['backbone']}, trained by `{config['method']}`",
        "",
        f"Multi-label classifier for {len(held_out.classes)} classes, {size}. Trained: {trained}.",
        "",
        f"| measured on {measured_on} | |",
        "|---|---|",
        *(
            f"| {line.title}{' (95 % interval)' if line.interval else ''} | {line.with_interval} |"
            for line in evaluation.lines()
        ),
        "",
        f"Protocol: {evaluation.protocol}.",
        f"The thresholds and the calibration were fitted on the same {'' if out_of_fold else 'held-out '}labels, so F1 "
        f"and calibration error are optimistic; {chosen} selected on them too.",
    ]
    known = [int(row["present"] + row["absent"]) for row in evaluation.per_class]
    thresholds = [float(row["threshold"]) for row in evaluation.per_class]
    span = " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(thresholds), max(thresholds))))
    lines.append(
        f"A class is called present from a probability of {span} on, fitted on {sum(known)} known "
        f"labels ({min(known)} to {max(known)} per class)."
    )
    not_evaluated = [row for row in evaluation.per_class if np.isnan(row["AP"])]
    for missing, classes in (
        ("positive", [row["class"] for row in not_evaluated if not row["present"]]),
        ("negative", [row["class"] for row in not_evaluated if row["present"] and not row["absent"]]),
    ):
        if classes:
            shown = ", ".join(map(markdown, classes[:20])) + (" …" if len(classes) > 20 else "")
            lines += [
                "",
                f"Not evaluated, because the {images} have no known {missing}: {shown}.",
            ]
    return "\n".join(lines) + "\n"
