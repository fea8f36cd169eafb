"""The `halflabel` command. Commands parse options, call library functions and print; heavy imports are delayed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import chain
from pkgutil import resolve_name
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from halflabel import __version__
from halflabel.cli import show
from halflabel.cli.progress import Bar
from halflabel.errors import UserError
from halflabel.system import distributed, remote
from halflabel.system.files import DISK_FULL
from halflabel.system.memory import keep_freed_memory, lacks_memory

__all__ = ["app", "import_commands", "main"]

_TOGETHER = ("train", "evaluate", "predict", "fill")  # commands that several processes can run together


# The commands with their one-line helps, in the groups of `--help`, most useful first.
_COMMANDS = {
    "From labels to a model": {
        "demo": "Show the whole job on real photos: train on few labels, decide, fill, ask, report. Takes about two "
        "minutes.",
        "inspect": "Show how many labels are known, per class and per image, and recommend a method.",
        "train": "Train a classifier from partly known labels, and evaluate it on known labels it did not see.",
        "evaluate": "Evaluate a trained run on other labels: metrics over known entries, with confidence intervals.",
        "predict": "Predict the labels of images, with probabilities.",
        "report": "Write an HTML report of a run: the known labels, the training, the evaluation and labels to check.",
    },
    "From a model to more labels": {
        "fill": "Fill in unknown labels where the model is confident enough; known labels are never changed.",
        "next": "Choose the labels to ask a person for next: those that are likely to improve the model most.",
        "review": "Answer questions about images in the browser; the model learns while you click. All data stay on "
        "this machine.",
        "rules": "Rules between labels, such as: a dog is an animal; day is not night.",
    },
    "Label files and images": {
        "import": "Convert labels of any format to halflabel's long format, and report how each raw value was read.",
        "convert": "Convert labels from one format to another; what the format cannot hold is an error, never lost "
        "silently.",
        "drop": "Hide or corrupt known labels by a protocol of the papers, to test methods on the remaining labels.",
        "pack": "Resize images once and store them in WebDataset tars with an index, so that later passes over them "
        "are faster.",
        "embed": "Compute the features of images once, and write them to Parquet files, for many trainings or other "
        "programs.",
        "cache": "List or remove cached features, with their origin, size and time of last use.",
    },
    "Ship a model": {
        "export": "Export a trained model as an ONNX file or for the Hugging Face Hub.",
        "serve": "Serve predictions over HTTP: POST /predict returns labels with calibrated probabilities, as JSON.",
    },
    "Compare methods": {
        "methods": "List the methods by what they need, recommended ones first; or show the page of one: formula and "
        "options.",
        "compare": "Compare methods on your data, with confidence intervals, paired differences, F1 and time.",
        "study": "Measure on your images how best to spend labels, and whether more labels would help.",
        "reproduce": "Reproduce a published table with its protocol, and show the published numbers beside the "
        "measured ones.",
        "figures": "Draw the figures of the papers for a run, as PNG files with their numbers as JSON or CSV.",
    },
}
# The modules of commands that have another name.
_MODULES = {
    **dict.fromkeys(("inspect", "import", "convert", "drop", "rules"), "labels"),
    **dict.fromkeys(("pack", "embed", "cache"), "images"),
    **dict.fromkeys(("evaluate", "export", "serve"), "predict"),
    **dict.fromkeys(("report", "next"), "review"),
    **dict.fromkeys(("study", "reproduce", "figures"), "compare"),
}


class _LazyModule(ModuleType):
    """A module that is executed when a name of it is first used; `importlib.util.LazyLoader` counts __file__ as one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        SourceFileLoader.exec_module(self.__loader__, self)  # type: ignore[arg-type]
        return getattr(self, name)


class _LazyLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _LazyModule


class _LazyFinder(PathFinder):
    """Finds the modules of this package as lazy ones, for `from package import module`."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target) if fullname.startswith("halflabel.") else None
        if spec is not None and spec.origin is not None:
            spec.loader = _LazyLoader(fullname, spec.origin)
        return spec


class Commands(TyperGroup):
    """Knows all commands, and imports the module of one when it is called; modules that it uses follow on first use.

    Prints a UserError as one message, and exits with code 2.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        imported = self.commands
        self.commands = {}
        for group, helps in _COMMANDS.items():
            for name, help in helps.items():
                self.commands[name] = command = imported.get(name) or TyperCommand(name, help=help)
                command.rich_help_panel = group  # type: ignore[attr-defined]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = import_commands(*args[:1])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `halflabel ... | head`: the reader closed the pipe, and typer exits quietly
        except (Exception, KeyboardInterrupt) as error:
            return ctx.exit(_report(error))


app = typer.Typer(
    name="halflabel",
    cls=Commands,
    help="Multi-label image classifiers from labels that are only partly known.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"halflabel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            envvar=remote.TIMEOUT,
            min=0,
            help="Seconds for which a request to an object store that fails is repeated (default: 60).",
        ),
    ] = None,
) -> None:
    """Multi-label image classifiers from labels that are only partly known."""
    if timeout is not None:
        os.environ[remote.TIMEOUT] = f"{timeout:g}"  # for the other processes of the command, too
    if ctx.invoked_subcommand is None:
        show.first_steps()
    elif distributed.is_distributed() and ctx.invoked_subcommand not in _TOGETHER:
        raise UserError(
            f"{ctx.invoked_subcommand} runs in one process, not in {distributed.world_size()}",
            f"start it without torchrun; these run with several processes: {', '.join(_TOGETHER)}",
        )


def main() -> None:
    """The `halflabel` command."""
    is_closed = sys.stdout is None
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    if is_closed:
        show.error(UserError("the standard output is closed", "write it to a file, or to /dev/null"))
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        # Bars and dashes are not ASCII, and file names may not be UTF-8. A terminal that cannot show them gets question
        # marks; with UTF-8, such names are written as their original bytes.
        is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        stream.reconfigure(errors="surrogateescape" if is_utf8 else "replace")  # type: ignore[union-attr]
    keep_freed_memory()
    remote.show_progress(lambda title: Bar(title, "files"), lambda line: typer.echo(line, err=True))
    code: Any = 0
    try:
        if distributed.is_distributed():
            _join()
        app()
    except SystemExit as end:
        code = end.code
    except Exception as error:  # before a command starts, such as in --help
        code = _report(error)
    if distributed.is_distributed() and code not in (0, None):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)  # exit handlers of libraries would wait for the other processes
    if distributed.is_distributed():
        distributed.shut_down()
    if code not in (0, None):
        sys.exit(code)


def _join() -> None:
    """Become one of several processes: only the main one prints results, and all end when one does."""

    def stop(*_: object) -> None:
        if distributed.claim("error"):  # otherwise another process has printed the reason
            show.error(UserError("stopped: another process of this job ended, or all were stopped", "start again"))
        os._exit(143)

    signal.signal(signal.SIGTERM, stop)
    distributed.initialize()
    if not distributed.is_main():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process


def _report(error: BaseException) -> int:
    """Print an error that the user can fix, once, and return the exit code; raise faults of this package."""
    cause: BaseException | None = error  # Ctrl-C during the import of a library is raised as an ImportError
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    explained = None if cause is not None else _explain(error)
    if cause is None and explained is None:
        raise error
    if distributed.claim("error"):  # every process may have raised it
        if explained is None:
            typer.echo("Stopped", err=True)
        else:
            show.error(explained)
    return 130 if explained is None else 2


def _explain(error: BaseException) -> UserError | None:
    """Return the UserError for an error that the user can fix; None for others, which are faults of this package."""
    if isinstance(error, UserError):
        return error
    if lacks_memory(error):
        detail = f" ({error})" if str(error) else ""
        return UserError(f"not enough memory{detail}", "use fewer images or classes, or a larger machine")
    if isinstance(error, RuntimeError) and (why := distributed.lost_connection(error)):
        return UserError(f"another process of this job ended ({why})", "start again")
    if not isinstance(error, OSError):
        return None
    reason, fix = error.strerror or str(error), "check the path, or choose another"
    if error.errno in DISK_FULL:
        fix = "free disk space, or write to another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "choose a path that you may read and write"
    return UserError(f"{error.filename or 'the output cannot be written'}: {reason}", fix)


def import_commands(*names: str) -> Any:
    """Import the modules of these commands, or of all if none are named, and return all commands."""
    known = list(chain.from_iterable(_COMMANDS.values()))
    sys.meta_path.insert(0, _LazyFinder)
    try:
        for name in set(names or known).intersection(known):
            resolve_name(f"halflabel.cli.{_MODULES.get(name, name)}:command")
    finally:
        sys.meta_path.remove(_LazyFinder)
    return typer.main.get_group(app).commands
