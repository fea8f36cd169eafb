"""Options that several commands share, each declared once.

`command` registers a command, with the training options that `fitting.config` declares and those that say how to read a
label file.
"""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from halflabel.cli import app, show
from halflabel.cli.show import in_shell
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
ARGUMENTS = "halflabel_arguments"
_REPEATED = ("values", "where", "ignore")  # options on how to read a label file

Function = Callable[..., Any]


def shared(help: str, *names: str, **more: Any) -> Any:
    """An option for an annotation, for types that several commands share."""
    return typer.Option(*names, help=help, **more)


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(default, *names, help=help, **more)


def panel(group: str, default: Any, help: str, *names: str, **more: Any) -> Any:
    """An option in a named group of `--help`."""
    return option(default, help, *names, rich_help_panel=group, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


LabelFile = Annotated[Path, argument("LABELS", "A label file or folder of any known format.")]
ImageFolder = Annotated[Path, argument("IMAGES", "The folder with the image files, or a pack.")]
RunArgument = Annotated[Path, argument("RUN", "A run folder of `train`.")]
ModelArgument = Annotated[Path, argument("RUN", "A run of `train`, or a folder or .onnx file that `export` wrote.")]
Force = Annotated[bool, shared("Overwrite the output if it exists.", "--force")]
ExcelSafe = Annotated[
    bool, shared("CSV: write an apostrophe before names that Excel would run as formulas.", "--excel-safe")
]
Threshold = Annotated[
    str | None,
    shared(
        "Call a class present from this probability on, or so that precision=0.9 or recall=0.8 is expected: a mean by "
        "the probabilities, not a bound (`fill` gives bounds).",
        show_default="the model's threshold",
    ),
]
PositivesPerImage = Annotated[
    float | None,
    shared(
        "Present classes of an image, on average: probabilities are made to agree with it. Needs a run.",
        show_default="as estimated in training",
    ),
]
Engine = Annotated[
    str,
    shared(
        "Where features and scores are computed: local, or ray for very many images on a cluster (RAY_ADDRESS, else "
        "Ray on this machine).",
        metavar="local|ray",
        rich_help_panel=SPEED,
    ),
]


class Command(TyperCommand):
    """A command whose errors name its options: what it does not know, and complete commands that answer a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":
                raise
            raise _no_such_option(str(ctx.info_name), error.option_name, self._flags()) from None  # type: ignore[attr-defined]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            flags = self._flags()
            known = flags if "--set" in flags else ()
            error.fix = _commands(ctx, error.fix, flags)
            error.message, error.fix = in_shell(error.message, known), in_shell(error.fix, known)
            raise

    def _flags(self) -> list[str]:
        return [flag for parameter in self.params for flag in parameter.opts]


class GroupedCommand(Command):
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
            parameters: list[Any] = self.params
            for parameter in parameters:  # this process prints the help and ends
                parameter.hidden = getattr(parameter, "rich_help_panel", None) not in (None, COMMON)
        return super().parse_args(ctx, args)


def _no_such_option(command: str, flag: str, flags: list[str]) -> UserError:
    if close := get_close_matches(flag, flags, 1, cutoff=0.75):
        fix = f"did you mean {close[0]}?"
    elif "--set" in flags:
        fix = f"options without a flag are set by name: --set {flag[2:].replace('-', '_')}=VALUE; --set help lists them"
    else:
        fix = f"`halflabel {command} --help` lists all options"
    return UserError(f"`{command}` has no option {flag}", fix)


def _commands(ctx: Any, fix: str, flags: Collection[str]) -> str:
    """A fix that offers options, as complete commands; others as they are."""
    answers, known = alternatives(fix), flags if "--set" in flags else ()
    if not answers or any(not known and spell(name) not in flags for each, _ in answers for name, _ in each):
        return fix
    command = shlex.join(["halflabel", str(ctx.info_name), *ctx.meta[ARGUMENTS]])
    lines = (
        f"{command} {in_shell(write_alternative(each), known)}" + f"    # {why}" * bool(why) for each, why in answers
    )
    return "\n   or: ".join(lines)


def command(name: str | None = None, *, among: typer.Typer = app) -> Callable[[Function], Function]:
    """Register a command, of `halflabel` or `among` others.

    In place of a parameter `read` the command has the options on how to read a label file, and gets a reader that uses
    them. In place of `training` it has the training options of its name, and gets those that were given as a dict.
    """

    def register(function: Function) -> Function:
        shared, parameters = function, inspect.signature(function).parameters
        if "training" in parameters:
            shared = _share_options(shared, "training", *_training_options(function.__name__))
        if "read" in parameters:
            shared = _share_options(shared, "read", label_parameters(), LabelReader)
        among.command(name, cls=GroupedCommand if "training" in parameters else Command)(shared)
        return function

    return register


def _share_options(
    function: Function, argument: str, parameters: list[inspect.Parameter], collect: Callable[[dict[str, Any]], Any]
) -> Function:
    """Put options in the place of an argument, which gets what `collect` makes of their values."""
    signature = inspect.signature(function, eval_str=True)
    others = [each.replace(kind=each.KEYWORD_ONLY) for each in signature.parameters.values() if each.name != argument]

    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        shared = {each.name: values.pop(each.name) for each in parameters}
        return function(**values, **{argument: collect(shared)})

    wrapper.__signature__ = signature.replace(parameters=[*others, *parameters])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in (*others, *parameters)}
    return wrapper


def label_parameters() -> list[inspect.Parameter]:
    """The fields of `Policy`, the format, and what removes a policy that was stated before."""
    parameters = [_parameter("format", str, READING, "The format of the file (default: detected from its content).")]
    for name, hint in get_type_hints(Policy, include_extras=True).items():
        kind = list[str] if name in _REPEATED else hint.__origin__
        parameters.append(_parameter(name, kind, READING, *hint.__metadata__))
    forget = "Remove LABELS.policy.yaml, which keeps what these options said before."
    return [*parameters, _parameter("forget_policy", bool, READING, forget)]


def _parameter(
    name: str, kind: Any, group: str, help: str, metavar: str | None = None, **more: Any
) -> inspect.Parameter:
    flags = f"{spell(name)}/--no-{spell(name)[2:]}" if kind is bool and group != READING else spell(name)
    declared = shared(help, flags, metavar=metavar, show_default=False, rich_help_panel=group, **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared]
    )


# Training options with a flag, by command: those that the documentation uses. All others are reached by --set.
_FLAGS = {
    "train": "seed backbone names descriptions tune weights size resize group uncertain positives_per_image max_bad "
    "fit epochs batch_size lr precision compile deterministic save_every workers single",
    "compare": "backbone names tune group uncertain",
    "study": "backbone tune group uncertain",
    "reproduce": "backbone tune",
    "embed": "backbone size workers",
}


def _training_options(command: str) -> tuple[list[inspect.Parameter], Callable[[dict[str, Any]], Any]]:
    """The training options of a command, and what makes a dict of those given.

    Options that no command has are those of the method: their texts are the entry `options`.
    """
    declared = {name: each for name, each in declared_options().items() if command in each.commands}
    of_flags = {name: declared[name] for name in _FLAGS[command].split()}
    flags = [_parameter(name, each.type, each.group, _help(each)) for name, each in of_flags.items()]
    more = "another option of training or of the method" if command == "train" else "another option of training"
    text = f"Set {more}, such as clip=1; may be repeated. `halflabel {command} --set help` lists them."

    def list_and_exit(texts: list[str] | None) -> list[str] | None:
        if "help" in (texts or ()):
            _list_options(command, declared)
            raise typer.Exit
        return texts

    # Eager: the list is shown although the arguments are missing.
    others = _parameter("set", list[str], COMMON, text, "NAME=VALUE", callback=list_and_exit, is_eager=True)
    return [*flags, others], partial(_given, command, declared)


def _given(command: str, declared: Mapping[str, Option], values: dict[str, Any]) -> dict[str, Any]:
    """The training options that were given, by a flag or by --set; paths become absolute."""
    texts = _pairs("--set", values.pop("set") or [])
    given = {name: parse_option(name, str(value)) for name, value in values.items() if value is not None}
    of_method: dict[str, str] = {}
    for name, text in texts.items():
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


def _help(option: Option) -> str:
    default = option.decided_by or option.command_default
    shown = "" if default is None else f" (default: {default})"
    return f"{option.help.removesuffix('.')}{shown}."


def _list_options(command: str, declared: Mapping[str, Option]) -> None:
    """Print every option that --set knows, with its values and help."""
    for group in (COMMON, MODEL, IMAGES, OPTIMIZATION, SPEED):
        of_group = {name: each for name, each in declared.items() if each.group == group}
        if of_group:
            typer.echo(f"\n{group}")
            show.names_and_texts([(f"{name}={each.values}", _help(each)) for name, each in of_group.items()])
    if command == "train":
        typer.echo("\nMethods have options too: `halflabel methods NAME` lists them.")


def spell(name: str) -> str:
    """The flag of an option."""
    return "--value" if name == "values" else "--" + name.replace("_", "-")


def option_words(options: Mapping[str, Any]) -> list[Any]:
    """Options as words of a command.

    >>> option_words({"out": "a.csv", "all_photos": True, "rules": None, "values": ["x=unknown", "y=absent"]})
    ['--out', 'a.csv', '--all-photos', '--value', 'x=unknown', '--value', 'y=absent']
    """
    words: list[Any] = []
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is True:
                words.append(spell(name))
            elif each is not None and each is not False:
                words += [spell(name), each]
    return words


def training_words(training: Mapping[str, Any]) -> list[Any]:
    """Training options as words of `train`, those without a flag by --set."""
    given = {name: value for name, value in training.items() if value is not None}
    flags = {name: given.pop(name) for name in _FLAGS["train"].split() if name in given}
    return option_words({**flags, "set": [f"{name}={value}" for name, value in given.items()]})


class LabelReader:
    """Reads label files by the options that were given, and by those that were stated beside a file before.

    What the file leaves open is asked on a terminal; elsewhere the error has a complete command for each answer.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.given = {name: value for name, value in values.items() if value not in (None, [], ())}
        self._forgets = self.given.pop("forget_policy", False)

    def __call__(self, path: Path, *, also_ignore: tuple[str, ...] = ()) -> LabelImport:
        if self._forgets:
            forget_stated(path)
        given, before = dict(self.given), read_stated(path)
        while True:
            stated = _policy_fields(given)
            ignored = (*stated.get("ignore", ()), *also_ignore)
            try:
                result = formats.read(path, **stated | ({"ignore": ignored} if ignored else {}))
                break
            except UserError as error:
                answers = alternatives(error.fix)
                if answers and sys.stdin.isatty() and sys.stderr.isatty():
                    for name, value in _ask(error, answers):
                        given[name] = [*given.get(name, ()), value] if name in _REPEATED else value or True
                    continue
                if before and not answers and "forget_policy" not in error.fix:  # it may be about an earlier content
                    error.fix += f"; or, if {policy_file(path)} is about another file, add ‹forget_policy›"
                raise
        if distributed.is_main():
            if known := [f"{name}={value}" for name, value in before.items() if name not in stated]:
                typer.echo(f"Read as {policy_file(path)} states: {', '.join(known)}", err=True)
            if note := keep_stated(path, stated):
                typer.echo(note, err=True)
        return result

    def grouped(self, labels: Path, group: str | None) -> tuple[LabelImport, str | None]:
        """Read labels and complete --group: a column of the label file becomes FILE:COLUMN, and is not a class."""
        completed = groups.column_group(group, labels)
        if (
            group is None
            or completed == group
            or not formats.can_ignore_columns(labels, self.given.get("format", "auto"))
        ):
            return self(labels), completed
        return self(labels, also_ignore=(group,)), completed


def _policy_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options as fields of the policy."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "values": lambda texts: _pairs("--value", texts, LABEL_VALUES),
        "where": lambda texts: _pairs("--where", texts),
        "ignore": tuple,
        "machine": float,
    }
    return {name: kinds[name](value) if name in kinds else value for name, value in given.items()}


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


def _pairs(flag: str, texts: Iterable[str], meanings: Collection[str] = ()) -> dict[str, Any]:
    """NAME=VALUE texts as a dict; `meanings` are the allowed values."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, meaning = text.rpartition("=") if meanings else text.partition("=")
        if not equals or (meanings and meaning not in meanings):
            raise UserError(
                f"{flag} {text!r} cannot be read", f"write {flag} NAME={'|'.join(sorted(meanings)) or 'VALUE'}"
            )
        if pairs.setdefault(key, meaning) != meaning:
            raise UserError(f"{flag} gives {key!r} two values, {pairs[key]!r} and {meaning!r}", "give one of them")
    return pairs


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the user gave an option on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def free_name(path: Path) -> Path:
    """Return the path, or the first of NAME-2, NAME-3, … that does not exist."""
    number, free = 2, path
    while free.exists():
        number, free = number + 1, path.with_stem(f"{path.stem}-{number}")
    return free


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
