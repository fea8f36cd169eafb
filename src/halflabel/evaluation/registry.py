"""The metrics that are shown: one table, read by `evaluate`, `compare`, the report and the model card.

A metric of your own is a function of scores (N, C), labels (N, C) in {−1, 0, +1} and thresholds, in a file that
HALFLABEL_PLUGINS lists:

    from halflabel.evaluation.registry import metric

    @metric("Hamming loss", note="share of wrong decisions; 0 is best")
    def hamming_loss(scores, labels, thresholds):
        known = labels != 0
        return float(((scores >= thresholds) != (labels > 0))[known].float().mean())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from halflabel.errors import UserError
from halflabel.system.format import decimal, points

if TYPE_CHECKING:
    from torch import Tensor

Compute = Callable[["Tensor", "Tensor", "Tensor"], float]

FEWEST_POSITIVES = 30  # present labels behind a stated metric: with fewer, intervals of F1 are about 25 points wide
_ASKED_PER_CLASS = 2  # where answers are all that is known; fewer do not show one curve for all classes


class Metric(NamedTuple):
    """A metric as it is shown: its title, whether in points of 100, and a note for the report."""

    title: str
    note: str
    is_share: bool = False
    compute: Compute | None = None  # None for those of `metrics.summary`


class Shown(NamedTuple):
    """The value of a metric as text, with its 95 % interval if it has one."""

    title: str
    value: str
    note: str
    interval: str = ""

    @property
    def with_interval(self) -> str:
        """The value, and the interval in brackets."""
        return f"{self.value} ({self.interval})" if self.interval else self.value


_TABLE: dict[str, Metric] = {
    "mAP": Metric("mAP", "mean over classes; 100 is best", is_share=True),
    "micro_f1": Metric("micro F1", "all entries together; 100 is best", is_share=True),
    "OP": Metric("precision", "all entries together; 100 is best", is_share=True),
    "OR": Metric("recall", "all entries together; 100 is best", is_share=True),
    "macro_f1": Metric("macro F1", "mean over classes; 100 is best", is_share=True),
    "ECE": Metric("calibration error", "how far scores are off; 0 is best"),
}
_ESTIMATED: dict[str, Metric] = {  # shown where hardly anything is known to be absent
    "OR": Metric("recall of known positives", "100 is best", is_share=True),
    "estimated_precision": Metric("estimated precision", "if scores hold", is_share=True),
    "estimated_recall": Metric("estimated recall", "all entries together", is_share=True),
    "estimated_f1": Metric("estimated F1", "all entries together; 100 is best", is_share=True),
    "called_present": Metric("called present", "classes per image"),
}


def metric(title: str, *, note: str = "", is_share: bool = False) -> Callable[[Compute], Compute]:
    """Register a function of calibrated scores (N, C), labels (N, C) and thresholds (C,) under its own name.

    NaN means that nothing can be measured. `is_share`: from 0 to 1, shown in points of 100.
    """

    def register(compute: Compute) -> Compute:
        name = compute.__name__
        earlier = _TABLE.get(name)
        if earlier is not None and (earlier.compute is None or earlier.compute.__module__ != compute.__module__):
            raise ValueError(f"two metrics are called {name!r}")
        _TABLE[name] = Metric(title, note, is_share, compute)
        return compute

    return register


def own_functions() -> dict[str, Compute]:
    """Return the functions of the metrics that plugins have registered, by name."""
    return {name: each.compute for name, each in sorted(_all().items()) if each.compute is not None}


def own_metrics(scores: Tensor, labels: Tensor, thresholds: Tensor) -> dict[str, float]:
    """Compute the metrics that plugins have registered."""
    values = {}
    for name, compute in own_functions().items():
        try:
            values[name] = float(compute(scores, labels, thresholds))
        except Exception as error:  # any error of the user's function
            raise UserError(
                f"the metric {name} fails: {type(error).__name__}: {error}",
                f"it takes scores, labels and thresholds and returns one number: see {compute.__code__.co_filename}",
            ) from error
    return values


def check_own_metrics() -> None:
    """Try the metrics of plugins on a small example, so that a training does not end in their error."""
    import torch

    labels = torch.tensor([[1, -1], [0, 1]], dtype=torch.int8)
    own_metrics(torch.tensor([[0.9, 0.2], [0.3, 0.8]]), labels, torch.tensor([0.5, 0.5]))


def has_too_few(values: Mapping[str, float]) -> bool:
    """Return whether too few present labels are behind what a training states about itself."""
    needed = max(FEWEST_POSITIVES, _ASKED_PER_CLASS * values.get("asked_classes", 0))
    return values.get("positives", needed) < needed


def shown_metrics(values: Mapping[str, float]) -> list[Shown]:
    """Return the metrics that `values` has, as text; those that are estimated where others cannot be measured."""
    table = _ESTIMATED if "estimated_precision" in values else _all()
    if has_too_few(values):
        return [Shown(each.title, "too few to say", each.note) for name, each in table.items() if name in values]
    return [_shown(each, name, values) for name, each in table.items() if name in values]


def _shown(each: Metric, name: str, values: Mapping[str, float]) -> Shown:
    text = points if each.is_share else decimal
    ends = [text(values[f"{name}_{end}"]) for end in ("low", "high") if f"{name}_{end}" in values]
    return Shown(each.title, text(values[name]), each.note, " – ".join(ends))


def _all() -> Mapping[str, Metric]:
    from halflabel.system import plugins

    plugins.load()
    return _TABLE
