"""The model card of a training run: a short Markdown text about the model and its measured quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halflabel.evaluation.evaluate import Evaluation
from halflabel.evaluation.scores import MEASURED_ON, Kind
from halflabel.labels.table import Table
from halflabel.system.html import render


def model_card(config: Mapping[str, Any], trained: str, evaluation: Evaluation, held_out: Table, kind: Kind) -> str:
    """Describe the model, its evaluation on the labels of `held_out` and its limits; contains only measured values."""
    ends = (function(float(row["threshold"]) for row in evaluation.per_class) for function in (min, max))
    missing = [row for row in evaluation.per_class if np.isnan(row["AP"])]
    return str(
        render(
            "runs/model_card.md.j2",
            config=config,
            classes=len(held_out.classes),
            trained=trained,
            evaluation=evaluation,
            out_of_fold=kind == "out-of-fold",
            measured_on=MEASURED_ON[kind],
            thresholds=" to ".join(dict.fromkeys(f"{value:.3f}" for value in ends)),
            known=[int(row["present"] + row["absent"]) for row in evaluation.per_class],
            not_evaluated=[
                ("positive", [row["class"] for row in missing if not row["present"]]),
                ("negative", [row["class"] for row in missing if row["present"] and not row["absent"]]),
            ],
        )
    )
