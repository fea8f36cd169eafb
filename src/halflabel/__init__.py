"""Multi-label image classifiers from labels that are only partly known."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = [
    "Config",
    "HalfLabelClassifier",
    "Head",
    "Loss",
    "Method",
    "Policy",
    "Relabeler",
    "Table",
    "Term",
    "UserError",
    "__version__",
    "compare",
    "continue_training",
    "dataset",
    "drop",
    "evaluate",
    "fill",
    "fit",
    "grow",
    "loss",
    "metrics",
    "next_questions",
    "open_model",
    "read_labels",
    "recipes",
    "study",
    "train",
    "write_labels",
]

if TYPE_CHECKING:
    from halflabel import evaluation as metrics
    from halflabel.comparison.compare import compare
    from halflabel.comparison.study import grow, study
    from halflabel.errors import UserError
    from halflabel.estimator import HalfLabelClassifier
    from halflabel.features.heads import Head
    from halflabel.filling.run import fill
    from halflabel.fitting.config import Config
    from halflabel.fitting.loop import fit
    from halflabel.images.torch_dataset import LabelledImages as dataset
    from halflabel.labels import drop
    from halflabel.labels.formats import read as read_labels
    from halflabel.labels.formats import write as write_labels
    from halflabel.labels.policy import Policy
    from halflabel.labels.table import Table
    from halflabel.methods.base import Method, recipes
    from halflabel.methods.loss import loss
    from halflabel.methods.parts.losses import Loss
    from halflabel.methods.parts.relabel import Relabeler
    from halflabel.methods.parts.terms import Term
    from halflabel.questions.next import next_questions
    from halflabel.runs.new_run import continue_run as continue_training
    from halflabel.runs.new_run import train_run as train
    from halflabel.runs.predictor import evaluate_model as evaluate
    from halflabel.runs.predictor import open_model

# Exported name -> "module", "module:other name there", or "module:" for the module itself. Imported on
# first use: torch takes seconds, and most commands do not need it.
_HOMES = {
    "Config": "fitting.config",
    "HalfLabelClassifier": "estimator",
    "Head": "features.heads",
    "Table": "labels.table",
    "Loss": "methods.parts.losses",
    "Method": "methods.base",
    "Policy": "labels.policy",
    "Relabeler": "methods.parts.relabel",
    "Term": "methods.parts.terms",
    "UserError": "errors",
    "compare": "comparison.compare",
    "continue_training": "runs.new_run:continue_run",
    "dataset": "images.torch_dataset:LabelledImages",
    "drop": "labels.drop:",
    "evaluate": "runs.predictor:evaluate_model",
    "fill": "filling.run",
    "fit": "fitting.loop",
    "grow": "comparison.study",
    "loss": "methods.loss",
    "metrics": "evaluation:",
    "next_questions": "questions.next",
    "open_model": "runs.predictor",
    "read_labels": "labels.formats:read",
    "recipes": "methods.base",
    "study": "comparison.study",
    "train": "runs.new_run:train_run",
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
