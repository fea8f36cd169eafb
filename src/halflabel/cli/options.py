"""Options that several commands share, each declared once.

`takes_training_options` adds the options that `fitting.config` declares, `takes_label_options` those that say how to
read a label file.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from halflabel.errors import UserError
from halflabel.fitting.config import COMMON, IMAGES, MODEL, OPTIMIZATION, SPEED, DeclaredOption, declared_options
from halflabel.system.files import absolute_path

if TYPE_CHECKING:
    from halflabel.labels.audit import LabelImport


HELP_ALL = "--help-all"
READING = "How to read the label file"
_GROUPS = (COMMON, MODEL, IMAGES, OPTIMIZATION, SPEED)  # in the order of `--help`

ReadLabels = Callable[[Path], "LabelImport"]
Command = Callable[..., Any]


def panel(group: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a named group of `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=group, **more)


LabelFile = Annotated[Path, typer.Argument(metavar="LABELS", help="A label file or folder of any known format.")]
ImageFolder = Annotated[Path, typer.Argument(metavar="IMAGES", help="The folder with the image files, or a pack.")]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder of `train`, or a folder or .onnx file that `export` wrote."),
]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `train`.")]

Threshold = Annotated[
    str | None,
    typer.Option(
        help="Call a class present from this probability on, or so that precision=0.9 or recall=0.8 is expected: a "
        "mean by the probabilities, not a bound (`fill` gives bounds).",
        show_default="the model's threshold",
    ),
]
PositivesPerImage = Annotated[
    float | None,
    typer.Option(
        help="Present classes of an image, on average: probabilities are made to agree with it. Needs a run.",
        show_default="as estimated in training",
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        help="Where features and scores are computed: local, or ray for very many images on a cluster "
        "(RAY_ADDRESS, else Ray on this machine).",
        metavar="local|ray",
        rich_help_panel=SPEED,
    ),
]

Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]

ExcelSafe = Annotated[
    bool,
    typer.Option("--excel-safe", help="CSV: write an apostrophe before names that Excel would run as formulas."),
]


class GroupedCommand(TyperCommand):
    """A command whose `--help` shows the common options, and `--help-all` all of them."""

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = COMMON
            option.help = f"Show this message and exit; {HELP_ALL} shows all options."
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if HELP_ALL in args:
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        if not {"--help", "-h"}.isdisjoint(args):
            for parameter in self.params:  # this process prints the help and ends
                panel = getattr(parameter, "rich_help_panel", None)
                if parameter.param_type_name == "option" and panel != COMMON:
                    parameter.hidden = True  # type: ignore[attr-defined]
        return super().parse_args(ctx, args)


Meaning = StrEnum("Meaning", ["present", "absent", "unknown", "uncertain"])
Unlisted = StrEnum("Unlisted", ["unknown", "absent"])


# The options that say how to read a label file: type, help, and a word for the value.
_LABEL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "format": (str, "The format of the label file (default: detected from its content)."),
    "unlisted": (Unlisted, "What it means if an image does not list a label."),
    "minus_one": (Meaning, "What -1 means, if the file does not define it."),
    "zero": (Meaning, "What 0 means."),
    "value": (list[str], "What another value means.", "RAW=MEANING"),
    "difficult": (Meaning, "Pascal VOC: what a difficult object means."),
    "machine": (float, "Open Images: machine labels of at least this confidence are present."),
    "image_column": (str, "The column with the image names."),
    "tag_column": (str, "Lists of tags: the column with the list.", "COLUMN"),
    "ignore": (list[str], "A column that is not a class.", "COLUMN"),
    "where": (list[str], "Read only rows with this value.", "COLUMN=VALUE"),
    "separator": (str, "Lists of tags: the character between two tags; or space, newline, none.", "CHAR"),
    "merge_names": (bool, "Lists of tags: read tags that differ only in capitals or blanks as one."),
    "split": (str, "The split to read, if the format has several."),
    "encoding": (str, "Text encoding (default: UTF-8)."),
}
LABEL_OPTIONS = frozenset(_LABEL_OPTIONS)


def _label_parameter(name: str, kind: Any, help: str, metavar: str | None = None) -> inspect.Parameter:
    flag, default = "--" + name.replace("_", "-"), "auto" if name == "format" else None
    option = typer.Option(flag, help=help, metavar=metavar, rich_help_panel=READING, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind | None, option]
    )


def takes_label_options(command: Command) -> Command:
    """Add the options on how to read a label file; the command's `read` argument becomes a reader that uses them."""
    parameters = [_label_parameter(name, *declared) for name, declared in _LABEL_OPTIONS.items()]
    return _add_parameters(command, "read", parameters, lambda values: functools.partial(_read, **values))


def takes_training_options(name: str, *, decided_by: str = "", **defaults: Any) -> Callable[[Command], Command]:
    """Add the training options of the command `name`; its `training` argument becomes a dict of their values.

    `defaults` replace declared defaults. None means that the user did not give the option: something else decides, such
    as the method, or what `decided_by` names. Paths become absolute.
    """
    declared = [each for each in declared_options().values() if name in each.option.commands]
    declared.sort(key=lambda each: _GROUPS.index(each.option.group))
    parameters = [_training_parameter(each, defaults, decided_by) for each in declared]

    def collect(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: absolute_path(value) if isinstance(value, Path) else value for key, value in values.items()}

    return lambda command: _add_parameters(command, "training", parameters, collect)


def _training_parameter(declared: DeclaredOption, defaults: Mapping[str, Any], decided_by: str) -> inspect.Parameter:
    """The typer option of one declared training option."""
    option = declared.option
    default = declared.default if option.command_default is None else option.command_default
    default = defaults.get(declared.name, None if option.decided_by else default)
    decider = decided_by if declared.name in defaults else option.decided_by
    shown = f" (default: {decider})" if default is None and decider else ""
    kind: Any = Path | None if option.is_path else declared.type
    if default is None:
        kind = kind | None
    bounds = {} if kind is bool else {"min": declared.minimum, "max": declared.maximum}
    annotation = Annotated[
        kind,
        typer.Option(
            help=f"{option.help.removesuffix('.')}{shown}.",
            rich_help_panel=option.group,
            show_default=default is not None,
            **bounds,
        ),
    ]
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _add_parameters(
    command: Command, argument: str, parameters: list[inspect.Parameter], collect: Callable[[dict[str, Any]], Any]
) -> Command:
    """The command with more options, whose values it gets together, as `collect` makes them, in one argument."""
    hints = get_type_hints(command, include_extras=True, localns={"LabelImport": Any})
    of_command = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != argument
    ]
    added = {parameter.name for parameter in parameters}

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        others = {name: value for name, value in values.items() if name not in added}
        return command(**others, **{argument: collect({name: values[name] for name in added})})

    signature = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*of_command, *parameters)]
    wrapper.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    return wrapper


def _read(path: Path, *, format: str, value: list[str] | None, where: list[str] | None, **others: Any) -> LabelImport:
    from halflabel.labels import formats
    from halflabel.labels.policy import Policy

    values: dict[str, Any] = {name: str(item) if isinstance(item, StrEnum) else item for name, item in others.items()}
    values["ignore"] = tuple(values["ignore"] or ())
    policy = Policy(values=_pairs("--value", value, set(Meaning)), where=_pairs("--where", where), **values)
    return formats.read(path, policy, format=format)


def read_grouped(read: ReadLabels, labels: Path, group: str | None) -> tuple[LabelImport, str | None]:
    """Read labels and complete --group: a column of the label file becomes FILE:COLUMN, and is not a class."""
    from halflabel.labels.formats import can_ignore_columns
    from halflabel.labels.groups import column_group

    completed = column_group(group, labels)
    keywords = read.keywords  # type: ignore[attr-defined]
    if group is not None and completed != group and can_ignore_columns(labels, keywords["format"]):
        read = functools.partial(_read, **{**keywords, "ignore": [*(keywords["ignore"] or ()), group]})
    return read(labels), completed


def words_of(read: ReadLabels) -> list[str]:
    """The options that the user gave a reader made by `takes_label_options`, as words of a command."""
    words: list[str] = []
    for name, value in read.keywords.items():  # type: ignore[attr-defined]
        if value is not None and (name, value) != ("format", "auto"):
            for each in value if isinstance(value, list) else [value]:
                words += ["--" + name.replace("_", "-"), *([] if each is True else [str(each)])]
    return words


def _pairs(flag: str, texts: list[str] | None, meanings: set[Any] | None = None) -> dict[str, Any]:
    """NAME=VALUE texts as a dict; `meanings` are the allowed values."""
    pairs: dict[str, Any] = {}
    for text in texts or ():
        key, equals, meaning = text.rpartition("=") if meanings else text.partition("=")
        if not equals or (meanings is not None and meaning not in meanings):
            allowed = "|".join(sorted(meanings)) if meanings else "VALUE"
            raise UserError(f"{flag} {text!r} cannot be read", f"write {flag} NAME={allowed}")
        if pairs.setdefault(key, meaning) != meaning:
            raise UserError(f"{flag} gives {key!r} two values, {pairs[key]!r} and {meaning!r}", "give one of them")
    return pairs


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the user gave an option on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_free(out: Path | None, force: bool) -> None:
    """Refuse to overwrite a file without --force."""
    if out is not None and out.exists() and not force:
        raise UserError(f"{out} already exists", "choose another name, or add --force to overwrite it")


def check_needs(needed: str, given: Mapping[str, bool]) -> None:
    """Refuse options that are given without the option that they need, such as "--undo FILE"."""
    for flag, is_given in given.items():
        if is_given:
            raise UserError(f"{flag} needs {needed.partition(' ')[0]}", f"add {needed}, or leave {flag} out")


def check_image_folder(*folders: Path | None) -> None:
    """Refuse a path that is not a folder, here or in an object store; None is skipped."""
    from halflabel.system.remote import local_folder

    for folder in folders:
        if folder is not None:
            local_folder(folder)
