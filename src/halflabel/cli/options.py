"""Options that several commands share, each declared once.

`takes_training_options` adds the options that `fitting.config` declares, `takes_label_options` those that say how to
read a label file.
"""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from halflabel.cli.terminal import in_shell, show_names_and_texts
from halflabel.errors import Options, UserError, alternatives, write_alternative
from halflabel.fitting.config import (
    COMMON,
    IMAGES,
    MODEL,
    OPTIMIZATION,
    SPEED,
    Option,
    declared_options,
    parse_option,
)
from halflabel.labels import formats, groups
from halflabel.labels.audit import LabelImport
from halflabel.labels.policy import LABEL_VALUES, Policy, forget_stated, keep_stated, policy_file, read_stated
from halflabel.system import distributed
from halflabel.system.files import absolute_path
from halflabel.system.remote import local_folder

HELP_ALL = "--help-all"
READING = "How to read the label file"
SHARED = "halflabel_shared_options"
ARGUMENTS = "halflabel_arguments"

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


class SharedOptions(TyperCommand):
    """A command with options that several commands share; they are declared when the command is called."""

    @cached_property
    def shared(self) -> list[Any]:
        declarations = getattr(self.callback, SHARED, ())
        return [option for declare in declarations for option in _make_options(declare())]

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        own = len(self.params)
        return [*params[:own], *self.shared, *params[own:]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":
                raise
            flags = [flag for parameter in self.get_params(ctx) for flag in parameter.opts]
            raise _no_such_option(str(ctx.info_name), error.option_name, flags) from None  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        ctx.meta[SHARED] = {option.name: ctx.params.pop(option.name) for option in self.shared}
        try:
            return super().invoke(ctx)
        except UserError as error:
            flags = {flag for parameter in self.get_params(ctx) for flag in parameter.opts}
            known = flags if "--set" in flags else ()
            error.fix = _commands(ctx, error.fix, flags)
            error.message, error.fix = in_shell(error.message, known), in_shell(error.fix, known)
            raise


class GroupedCommand(SharedOptions):
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
            for parameter in self.get_params(ctx):  # this process prints the help and ends
                panel = getattr(parameter, "rich_help_panel", None)
                if parameter.param_type_name == "option" and panel != COMMON:
                    parameter.hidden = True
        return super().parse_args(ctx, args)


def _no_such_option(command: str, flag: str, flags: list[str]) -> UserError:
    if close := get_close_matches(flag, flags, 1, cutoff=0.75):
        fix = f"did you mean {close[0]}?"
    elif "--set" in flags:
        fix = f"options without a flag are set by name: --set {flag[2:].replace('-', '_')}=VALUE; --set help lists them"
    else:
        fix = f"`halflabel {command} --help` lists all options"
    return UserError(f"`{command}` has no option {flag}", fix)


def _make_options(parameters: list[inspect.Parameter]) -> list[Any]:
    """The parsed options of these parameters of a function."""

    def declared(**_: Any) -> None: ...

    declared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    declared.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    single = typer.Typer(add_completion=False)
    single.command()(declared)
    return list(typer.main.get_command(single).params)


def share_options(
    command: Command, argument: str, declare: Callable[[], list[inspect.Parameter]], collect: Callable[[Any], Any]
) -> Command:
    """The command with shared options, whose values it gets together, as `collect` makes them, in one argument."""
    hints = get_type_hints(command, include_extras=True, localns={"LabelImport": Any})
    own = inspect.signature(command).parameters
    others = {name: each.replace(annotation=hints[name], kind=each.KEYWORD_ONLY) for name, each in own.items()}
    del others[argument]
    context = next((name for name, hint in hints.items() if hint is typer.Context), "")
    added = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [*others.values(), *([] if context else [added])]

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        shared = (values[context] if context else values.pop("context")).meta[SHARED]
        names = [parameter.name for parameter in declare()]
        return command(**values, **{argument: collect({name: shared[name] for name in names})})

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    setattr(wrapper, SHARED, (*getattr(command, SHARED, ()), declare))
    return wrapper


def takes_label_options(command: Command) -> Command:
    """Add the options on how to read a label file; the command's `read` argument becomes a reader that uses them."""
    return share_options(command, "read", label_parameters, lambda values: partial(_read, values))


def label_parameters() -> list[inspect.Parameter]:
    """The fields of `Policy`, the format, and what removes a policy that was stated before."""
    parameters = [make_option("format", str, READING, "The format of the file (default: detected from its content).")]
    for name, hint in get_type_hints(Policy, include_extras=True).items():
        is_repeated = name in ("values", "ignore", "where")
        parameters.append(make_option(name, list[str] if is_repeated else hint.__origin__, READING, *hint.__metadata__))
    forget = "Remove LABELS.policy.yaml, which keeps what these options said before."
    return [*parameters, make_option("forget_policy", bool, READING, forget)]


def make_option(
    name: str, kind: Any, group: str, help: str, metavar: str | None = None, **more: Any
) -> inspect.Parameter:
    flags = f"{spell(name)}/--no-{spell(name)[2:]}" if kind is bool and group != READING else spell(name)
    option = typer.Option(flags, help=help, metavar=metavar, rich_help_panel=group, show_default=False, **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


# Training options with a flag, by command: those that the documentation uses. All others are reached by --set.
_FLAGS = {
    "train": (
        "seed backbone names descriptions tune weights size resize group uncertain positives_per_image max_bad fit "
        "epochs batch_size lr precision compile deterministic save_every workers single"
    ),
    "compare": "backbone names tune group uncertain",
    "study": "backbone tune group uncertain",
    "reproduce": "backbone tune",
    "embed": "backbone size workers",
}


def takes_training_options(name: str) -> Callable[[Command], Command]:
    """Add the training options of the command `name`; its `training` argument becomes a dict of those given.

    Options that no command has are those of the method: their texts are the entry `options`.
    """
    return lambda command: share_options(
        command, "training", partial(_training_parameters, name), partial(_given, name)
    )


def _training_parameters(command: str) -> list[inspect.Parameter]:
    declared = training_options(command)
    parameters = [
        make_option(name, declared[name].type, declared[name].group, _help(declared[name]))
        for name in _FLAGS[command].split()
    ]
    more = "another option of training or of the method" if command == "train" else "another option of training"
    text = f"Set {more}, such as clip=1; may be repeated. `halflabel {command} --set help` lists them."

    def show(texts: list[str] | None) -> list[str] | None:
        if "help" in (texts or ()):
            _list_options(command)
            raise typer.Exit
        return texts

    # Eager: the list is shown although the arguments are missing.
    return [*parameters, make_option("set", list[str], COMMON, text, "NAME=VALUE", callback=show, is_eager=True)]


def _given(command: str, values: dict[str, Any]) -> dict[str, Any]:
    """The training options that were given, by a flag or by --set; paths become absolute."""
    texts = values.pop("set") or []  # `values` is a copy
    declared = training_options(command)
    given = {name: parse_option(name, str(value)) for name, value in values.items() if value is not None}
    of_method: dict[str, str] = {}
    for name, text in _pairs("--set", texts).items():
        name = name.replace("-", "_")
        if name in given:
            raise UserError(f"{name} is given twice", f"leave {spell(name)} or --set {name} out")
        if name in declared:
            given[name] = parse_option(name, text)
        elif command == "train":
            of_method[name] = text
        else:
            close = get_close_matches(name, declared, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(
                f"`{command}` has no option {name!r}", f"{hint}`halflabel {command} --set help` lists all options"
            )
    given = {name: absolute_path(value) if declared[name].is_path else value for name, value in given.items()}
    return {**given, "options": of_method} if command == "train" else given


def training_options(command: str) -> dict[str, Option]:
    """The training options of a command, by name."""
    return {name: each for name, each in declared_options().items() if command in each.commands}


def _help(option: Option) -> str:
    default = option.decided_by or option.command_default
    shown = "" if default is None else f" (default: {default})"
    return f"{option.help.removesuffix('.')}{shown}."


def _list_options(command: str) -> None:
    """Print every option that --set knows, with its values and help."""
    for group in (COMMON, MODEL, IMAGES, OPTIMIZATION, SPEED):
        of_group = {name: each for name, each in training_options(command).items() if each.group == group}
        if of_group:
            typer.echo(f"\n{group}")
            show_names_and_texts([(f"{name}={each.values}", _help(each)) for name, each in of_group.items()])
    if command == "train":
        typer.echo("\nMethods have options too: `halflabel methods NAME` lists them.")


def stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def spell(name: str) -> str:
    """The flag of an option."""
    return "--value" if name == "values" else "--" + name.replace("_", "-")


def _read(values: dict[str, Any], path: Path, *, also_ignore: tuple[str, ...] = ()) -> LabelImport:
    """Read a label file by the options that were given, and by those that were stated beside it before.

    What the file leaves open is asked on a terminal; elsewhere the error has a complete command for each answer.
    """
    given = {name: value for name, value in values.items() if value is not None and value not in ([], ())}
    if given.pop("forget_policy", False):
        forget_stated(path)
    for name, meanings in (("values", set(LABEL_VALUES)), ("where", None)):
        if name in given:
            given[name] = _pairs(spell(name), given[name], meanings)
    before = read_stated(path)
    while True:
        ignored = (*given.get("ignore", ()), *also_ignore)
        try:
            result = formats.read(path, **{**given, **({"ignore": ignored} if ignored else {})})
            break
        except UserError as error:
            answers = alternatives(error.fix)
            if answers and sys.stdin.isatty() and sys.stderr.isatty():
                _add_options(given, _ask(error, answers))
                continue
            if before and not answers and "forget_policy" not in error.fix:  # it may be about an earlier content
                error.fix += f"; or, if {policy_file(path)} is about another file, add ‹forget_policy›"
            raise
    if distributed.is_main():
        if stated := [f"{name}={value}" for name, value in before.items() if name not in given]:
            typer.echo(f"Read as {policy_file(path)} states: {', '.join(stated)}", err=True)
        if note := keep_stated(path, given):
            typer.echo(note, err=True)
    return result


def _ask(error: UserError, answers: list[tuple[Options, str]]) -> Options:
    """Show the answers to a question on the terminal, and return the options of the chosen one."""
    typer.echo(in_shell(error.message), err=True)
    for number, (options, why) in enumerate(answers, 1):
        typer.echo(f"  {number}  {in_shell(write_alternative(options))}" + f"  ({why})" * bool(why), err=True)

    def parse(text: str) -> Options:
        if text.strip() not in map(str, range(1, len(answers) + 1)):
            raise UserError(f"{text!r} is not the number of an answer", f"write a number from 1 to {len(answers)}")
        return answers[int(text) - 1][0]

    chosen: Options = typer.prompt("Number of the answer", value_proc=parse, err=True)
    return chosen


def _commands(ctx: Any, fix: str, flags: set[str]) -> str:
    """A fix that offers options, as complete commands; others as they are."""
    answers = alternatives(fix)
    if not answers or any("--set" not in flags and spell(name) not in flags for each, _ in answers for name, _ in each):
        return fix
    command = shlex.join(["halflabel", str(ctx.info_name), *ctx.meta[ARGUMENTS]])
    known = flags if "--set" in flags else ()
    lines = (
        f"{command} {in_shell(write_alternative(each), known)}" + f"    # {why}" * bool(why) for each, why in answers
    )
    return "\n   or: ".join(lines)


def _add_options(given: dict[str, Any], options: Options) -> None:
    """Add options to those given, as values of the policy."""
    for name, value in options:
        if name == "ignore":
            given[name] = (*given.get(name, ()), str(value))
        elif name in ("values", "where"):
            meanings = set(LABEL_VALUES) if name == "values" else None
            given[name] = {**given.get(name, {}), **_pairs(spell(name), [str(value)], meanings)}
        else:
            given[name] = True if value is None else float(value) if name == "machine" else value


def read_grouped(read: ReadLabels, labels: Path, group: str | None) -> tuple[LabelImport, str | None]:
    """Read labels and complete --group: a column of the label file becomes FILE:COLUMN, and is not a class."""
    completed = groups.column_group(group, labels)
    if (
        group is not None
        and completed != group
        and formats.can_ignore_columns(labels, _values_of(read)["format"] or "auto")
    ):
        read = partial(_read, _values_of(read), also_ignore=(group,))
    return read(labels), completed


def options_of(read: ReadLabels) -> dict[str, list[str]]:
    """The options that the user gave a reader made by `takes_label_options`: flags with their values."""
    given = {spell(name): value for name, value in _values_of(read).items() if name != "forget_policy" and value}
    return {flag: [] if value is True else [*_as_texts(value)] for flag, value in given.items()}


def _as_texts(value: Any) -> Iterator[str]:
    return map(str, value if isinstance(value, list | tuple) else [value])


def _values_of(read: ReadLabels) -> dict[str, Any]:
    """The values of the label options that a reader uses."""
    values: dict[str, Any] = read.args[0]  # type: ignore[attr-defined]
    return values


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
    for folder in folders:
        if folder is not None:
            local_folder(folder)
