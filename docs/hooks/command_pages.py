"""The page of the command line: every command with its arguments and options, as the program declares them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from typing import Any, get_args

from halflabel.cli import import_commands
from halflabel.fitting.config import declared_options

__all__ = ["command_page", "commands"]

_SHARED = "How to read the label file"  # the group of options that many commands share


def commands() -> dict[str, Any]:
    """Return every command by its words, such as "train" or "export onnx", in the order of `--help`."""
    return dict(_walk(import_commands(), ()))


def _walk(commands: dict[str, Any], words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        if subcommands := getattr(command, "commands", None):
            yield from _walk(subcommands, (*words, name))
        else:
            yield " ".join((*words, name)), command


def command_page() -> str:
    """Return the page in Markdown."""
    text = [
        "# Command line",
        "",
        "Generated from the program. `halflabel COMMAND --help` shows the same; where it shows only common options, "
        "`--help-all` shows all. `halflabel` alone shows the first steps.",
    ]
    shared: list[Any] = []
    for words, command in commands().items():
        text += ["", f"## halflabel {words}", "", *_description(command)]
        groups: dict[str, list[Any]] = {}
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                groups.setdefault("Argument", []).append(parameter)
            elif parameter.name not in ("help", "help_all"):
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or "Option", []).append(parameter)
        for group, parameters in groups.items():
            if group == _SHARED:
                shared = parameters
                text += ["", "Also the options on [how to read the label file](#how-to-read-the-label-file)."]
            else:
                text += ["", f"| {group} | | default |", "|---|---|---|", *map(_row, parameters)]
    text += [
        "",
        "## More options of training",
        "",
        "Set by `--set NAME=VALUE`: options of training that have no flag in all commands.",
    ]
    text += ["", "| Option | | default |", "|---|---|---|"]
    for name, each in declared_options().items():
        default = "" if each.command_default is None else f"`{each.command_default}`"
        help, shown = _escape(each.help), each.decided_by or default
        text.append(f"| `{name}={_escape(each.values)}` | {help} | {shown} |")
    text += [
        "",
        "## How to read the label file",
        "",
        "Options of every command that reads a label file; [Label files](formats.md) explains them.",
        "",
        "| Option | | default |",
        "|---|---|---|",
        *map(_row, shared),
    ]
    return "\n".join(text) + "\n"


def _description(command: Any) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        line = " ".join(paragraph.split())
        if line.startswith("Example: "):
            yield from ("```bash", line.removeprefix("Example: "), "```", "")
        else:
            yield from (line, "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{(parameter.metavar or parameter.name).upper().strip('[]')}`"
    else:
        name = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    notes = [_escape(getattr(parameter, "help", "") or ""), _values(parameter)]
    return f"| {name} | {' '.join(filter(None, notes))} | {_default(parameter)} |"


def _values(parameter: Any) -> str:
    """Return the allowed values of a choice, or the bounds of a number."""
    annotation = parameter.type_descriptor.annotation
    choices = [each.value for each in annotation] if isinstance(annotation, EnumType) else list(get_args(annotation))
    if choices and all(isinstance(choice, str) for choice in choices):
        return "Values: " + ", ".join(f"`{choice}`" for choice in choices) + "."
    low, high = parameter.min, parameter.max
    if low is not None and high is not None:
        return f"From {low:g} to {high:g}."
    return f"At least {low:g}." if low is not None else ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or default == () or type(default).__name__ == "Sentinel":
        return ""
    if default is True:
        return f"`{parameter.opts[0]}`"
    return f"`{getattr(default, 'value', default)}`"


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
