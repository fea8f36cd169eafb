"""Labels: tables of present, absent and unknown labels, and everything that reads, writes and changes them.

table       LabelTable: the known labels of N images × C classes
rows        Rows: labels with source and score, in the order they were written; `Rows.resolve` gives a LabelTable
provenance  which labels a model made; the gate that keeps them out of every evaluation
names       Names: the ordered names of images or classes
formats/    readers and writers of label files, one module per format
policy      Policy: what the user states about a label file because the file does not say it
audit       LabelImport and Audit: the result of reading a file and how each raw value was read
drop        protocols that hide or corrupt labels
rules       implications and exclusions between classes
split       stratified splits
stats       counts and co-occurrences
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halflabel.labels.audit import Audit, LabelImport
    from halflabel.labels.names import Names
    from halflabel.labels.policy import Policy
    from halflabel.labels.provenance import evaluation_rows, training_and_evaluation_tables
    from halflabel.labels.rows import Rows
    from halflabel.labels.table import LabelTable

__all__ = [
    "Audit",
    "LabelImport",
    "LabelTable",
    "Names",
    "Policy",
    "Rows",
    "evaluation_rows",
    "training_and_evaluation_tables",
]

# Imported on first use: NumPy and Arrow take a second to load, and `halflabel --help` needs neither.
_MODULES = {
    "Audit": "audit",
    "LabelImport": "audit",
    "LabelTable": "table",
    "Names": "names",
    "Policy": "policy",
    "Rows": "rows",
    "evaluation_rows": "provenance",
    "training_and_evaluation_tables": "provenance",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
