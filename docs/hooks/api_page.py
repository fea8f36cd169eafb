"""The page of the Python API: signatures and docstrings of what `SECTIONS` lists."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docstrings import to_markdown

__all__ = ["api_page"]

ALL = ("*",)
# Name, or module:name of what is not exported -> the members to show; `ALL`: those with a docstring.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Train and use a model": {
        "train": (),
        "continue_training": (),
        "Run": (
            *("model", "metrics", "predict", "evaluate", "fill", "questions", "review", "report"),
            "continue_training",
        ),
        "evaluate": (),
        "Model": ("open", "predict", "evaluate", "deciding", "logits", "scores", "labels"),
        "runs.predict:Prediction": ALL,
        "HalfLabelClassifier": ("fit", "predict_proba", "predict", "decision_function", "score"),
    },
    "Labels": {
        "read_labels": (),
        "write_labels": (),
        "Policy": (),
        "Table": ALL,
        "labels.audit:LabelImport": ALL,
        "drop": ALL,
    },
    "Fill and ask": {"fill": (), "filling.run:write_filled": (), "next_questions": ()},
    "Losses and data for PyTorch": {"loss": (), "methods.loss:MethodLoss": ("forward",), "dataset": ()},
    "Experiments": {"compare": (), "study": (), "grow": ()},
    "Metrics": {"evaluation.ranking": ALL, "evaluation.thresholded": ALL, "evaluation.intervals": ALL},
    "Methods of your own": {
        "recipes": (),
        "methods.base:method": (),
        "Method": ("step", "start", "plan", "parameter_groups", "head"),
        "Loss": ALL,
        "Relabeler": ALL,
        "Term": ALL,
        "Head": ALL,
        "fit": (),
        "Config": (),
    },
    "Errors": {"UserError": ()},
}
_WIDEST = 100


def api_page() -> str:
    """Return the page in Markdown."""
    text = [
        "# Python API",
        "",
        "Made from the docstrings. `import halflabel` is quick: torch is imported on first use.",
    ]
    for title, names in SECTIONS.items():
        text += ["", f"## {title}"]
        for name, members in names.items():
            text += _entry(name, members)
    return "\n".join(text) + "\n"


def _entry(name: str, members: tuple[str, ...]) -> Iterator[str]:
    home, _, attribute = name.rpartition(":")
    package = importlib.import_module(f"halflabel.{home}" if home else "halflabel")
    if "." in attribute:
        found: Any = importlib.import_module(f"halflabel.{attribute}")
    else:
        found = getattr(package, attribute)
    shown = attribute if home else f"halflabel.{attribute}"
    yield from _documented(f"### {shown}", attribute, found)
    if members == ALL:
        members = tuple(each for each, value in vars(found).items() if _is_documented(found, each, value))
    for member in members:
        value = inspect.getattr_static(found, member)
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield from _documented(f"#### {attribute.rpartition('.')[2]}.{member}", member, value)


def _is_documented(owner: Any, name: str, value: Any) -> bool:
    value = getattr(value, "__func__", value)
    if name.startswith("_") or not (callable(value) or isinstance(value, property) or hasattr(value, "func")):
        return False
    is_own = not isinstance(owner, ModuleType) or getattr(value, "__module__", "") == owner.__name__
    return is_own and bool(inspect.getdoc(value))


def _documented(heading: str, name: str, value: Any) -> Iterator[str]:
    yield from ("", heading, "")
    if signature := _signature(name, value):
        yield from ("```python", signature, "```", "")
    if text := inspect.getdoc(value):
        yield to_markdown(text)


def _signature(name: str, value: Any) -> str:
    """Return a call in Python, a parameter per line where it is long; "" for what is not called."""
    if isinstance(value, ModuleType | property) or not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    shown = [_parameter(each) for each in parameters]
    first = next((number for number, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        shown.insert(first, "*")
    end = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    if len(line := f"{name}({', '.join(shown)}){end}") <= _WIDEST:
        return line
    return "\n".join((f"{name}(", *(f"    {each}," for each in shown), f"){end}"))


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
    return f"{star}{parameter.name}{annotation}{default}"


def _value(default: Any) -> str:
    if repr(default) == "<factory>":
        return "…"
    if type(default).__module__.startswith("halflabel") and " at 0x" in repr(default):
        return f"{type(default).__name__}(…)"
    return getattr(default, "__name__", "") or repr(default)


def _type(annotation: Any) -> str:
    """Return a type in words of Python; of Annotated[type, …] the type.

    >>> _type("Annotated[Mapping[str, int], 'what it means']")
    'Mapping[str, int]'
    """
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    while text.startswith("Annotated["):
        text, depth = text.removeprefix("Annotated["), 0
        for number, letter in enumerate(text):
            depth += {"[": 1, "]": -1}.get(letter, 0)
            if letter == "," and not depth:
                text = text[:number].strip()
                break
    return text
