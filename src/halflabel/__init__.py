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
    "drop",
    "fit",
    "metrics",
    "read_labels",
    "recipes",
    "write_labels",
]

if TYPE_CHECKING:
    from halflabel import metrics
    from halflabel.errors import UserError
    from halflabel.estimator import HalfLabelClassifier
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
    from halflabel.training.config import Settings
    from halflabel.training.loop import fit

# Name -> its module, and its name there ("" for the module itself). Imported when first asked for: torch takes seconds,
# and most commands need none of it.
_HOMES = {
    "HalfLabelClassifier": ("estimator", "HalfLabelClassifier"),
    "Head": ("models.heads", "Head"),
    "LabelTable": ("labels.table", "LabelTable"),
    "Loss": ("methods.parts.losses", "Loss"),
    "Method": ("methods.base", "Method"),
    "Policy": ("labels.policy", "Policy"),
    "Relabeler": ("methods.parts.relabel", "Relabeler"),
    "Settings": ("training.config", "Settings"),
    "Term": ("methods.parts.terms", "Term"),
    "UserError": ("errors", "UserError"),
    "drop": ("labels.drop", ""),
    "fit": ("training.loop", "fit"),
    "metrics": ("metrics", ""),
    "read_labels": ("labels.formats", "read"),
    "recipes": ("methods.base", "recipes"),
    "write_labels": ("labels.formats", "write"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, inside = _HOMES[name]
    module = import_module(f"{__name__}.{home}")
    return getattr(module, inside) if inside else module


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
