"""Multi-label image classifiers from labels that are only partly known."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "HalfLabelClassifier",
    "Head",
    "LabelTable",
    "Loss",
    "Method",
    "Policy",
    "Relabeler",
    "Settings",
    "Term",
    "UserError",
    "__version__",
    "compare",
    "drop",
    "evaluate",
    "fill_run",
    "fit",
    "grow",
    "metrics",
    "open_model",
    "read_labels",
    "recipes",
    "study",
    "write_labels",
]

if TYPE_CHECKING:
    from halflabel import metrics
    from halflabel.errors import UserError
    from halflabel.estimator import HalfLabelClassifier
    from halflabel.experiments.compare import compare
    from halflabel.experiments.study import grow, study
    from halflabel.fill.run import fill_run
    from halflabel.labels import drop
    from halflabel.labels.formats import read as read_labels
    from halflabel.labels.formats import write as write_labels
    from halflabel.labels.policy import Policy
    from halflabel.labels.table import LabelTable
    from halflabel.methods.base import Method, recipes
    from halflabel.methods.parts.losses import Loss
    from halflabel.methods.parts.relabel import Relabeler
    from halflabel.methods.parts.terms import Term
    from halflabel.models.heads import Head
    from halflabel.runs.predictor import evaluate_model as evaluate
    from halflabel.runs.predictor import open_model
    from halflabel.training.config import Settings
    from halflabel.training.loop import fit

# Exported name -> "module", "module:other name there", or "module:" for the module itself. Imported on
# first use: torch takes seconds, and most commands do not need it.
_HOMES = {
    "HalfLabelClassifier": "estimator",
    "Head": "models.heads",
    "LabelTable": "labels.table",
    "Loss": "methods.parts.losses",
    "Method": "methods.base",
    "Policy": "labels.policy",
    "Relabeler": "methods.parts.relabel",
    "Settings": "training.config",
    "Term": "methods.parts.terms",
    "UserError": "errors",
    "compare": "experiments.compare",
    "drop": "labels.drop:",
    "evaluate": "runs.predictor:evaluate_model",
    "fill_run": "fill.run",
    "fit": "training.loop",
    "grow": "experiments.study",
    "metrics": "metrics:",
    "open_model": "runs.predictor",
    "read_labels": "labels.formats:read",
    "recipes": "methods.base",
    "study": "experiments.study",
    "write_labels": "labels.formats:write",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path, colon, inside = _HOMES[name].partition(":")
    module = import_module(f"{__name__}.{path}")
    return module if colon and not inside else getattr(module, inside or name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
