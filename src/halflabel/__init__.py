"""Multi-label image classifiers from labels that are only partly known."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from halflabel.api import Run, continue_training, evaluate, train
    from halflabel.comparison.compare import compare
    from halflabel.comparison.study import grow, study
    from halflabel.errors import UserError
    from halflabel.estimator import HalfLabelClassifier
    from halflabel.evaluation import metrics
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
    from halflabel.runs.model import Model

# Exported name -> "module", "module:other name there", or "module:" for the module itself. Imported on
# first use: torch takes seconds, and most commands do not need it.
_HOMES = {
    "Config": "fitting.config",
    "HalfLabelClassifier": "estimator",
    "Head": "features.heads",
    "Table": "labels.table",
    "Loss": "methods.parts.losses",
    "Method": "methods.base",
    "Model": "runs.model",
    "Policy": "labels.policy",
    "Relabeler": "methods.parts.relabel",
    "Run": "api",
    "Term": "methods.parts.terms",
    "UserError": "errors",
    "compare": "comparison.compare",
    "continue_training": "api",
    "dataset": "images.torch_dataset:LabelledImages",
    "drop": "labels.drop:",
    "evaluate": "api",
    "fill": "filling.run",
    "fit": "fitting.loop",
    "grow": "comparison.study",
    "loss": "methods.loss",
    "metrics": "evaluation.metrics:",
    "next_questions": "questions.next",
    "read_labels": "labels.formats:read",
    "recipes": "methods.base",
    "study": "comparison.study",
    "train": "api",
    "write_labels": "labels.formats:write",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path, colon, inside = _HOMES[name].partition(":")
    module = import_module(f"{__name__}.{path}")
    return module if colon and not inside else getattr(module, inside or name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
