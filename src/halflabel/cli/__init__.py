"""The `halflabel` command. Commands parse options, call library functions and print; heavy imports are delayed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.system import distributed, remote
from halflabel.system.files import DISK_FULL
from halflabel.system.memory import keep_freed_memory

__all__ = ["app", "main"]

_TOGETHER = ("train", "evaluate", "predict", "fill")  # commands that several processes can run together


# The groups of commands in `--help`, most useful first.
_GROUPS = {
    "From labels to a model": ("demo", "inspect", "train", "evaluate", "predict", "report"),
    "From a model to more labels": ("fill", "next", "review", "rules"),
    "Label files and images": ("import", "convert", "drop", "pack", "embed", "cache"),
    "Ship a model": ("export", "serve"),
    "Compare methods": ("methods", "compare", "study", "reproduce", "figures"),
}


class Commands(TyperGroup):
    """Groups the commands in `--help`. Prints a UserError as one message, and exits with code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        for group, names in _GROUPS.items():
            for name in names:
                self.commands[name].rich_help_panel = group  # type: ignore[attr-defined]
        grouped = [name for names in _GROUPS.values() for name in names]
        return grouped + [name for name in super().list_commands(ctx) if name not in grouped]

    def invoke(self, ctx: Any) -> Any:
        from halflabel.cli.terminal import show_error

        try:
            return super().invoke(ctx)
        except UserError as error:
            if distributed.claim("error"):  # every process may have raised it
                show_error(error)
        except RuntimeError as error:
            if not (why := distributed.lost_connection(error)):
                raise
            if distributed.claim("error"):
                show_error(UserError(f"another process of this job ended ({why})", "start again"))
        except KeyboardInterrupt:
            if distributed.claim("error"):
                typer.echo("Stopped", err=True)
            return ctx.exit(130)
        except MemoryError as error:
            detail = f" ({error})" if str(error) else ""
            show_error(UserError(f"not enough memory{detail}", "use fewer images or classes, or a larger machine"))
        except BrokenPipeError:
            raise  # `halflabel ... | head`: the reader closed the pipe, and typer exits quietly
        except OSError as error:
            show_error(_system_error(error))
        return ctx.exit(2)


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
) -> None:
    """Multi-label image classifiers from labels that are only partly known."""
    if ctx.invoked_subcommand is None:
        from halflabel.cli.terminal import show_next_steps

        show_next_steps(Path())
    elif distributed.is_distributed() and ctx.invoked_subcommand not in _TOGETHER:
        raise UserError(
            f"{ctx.invoked_subcommand} runs in one process, not in {distributed.world_size()}",
            f"start it without torchrun; these run with several processes: {', '.join(_TOGETHER)}",
        )


def _copy_bar(title: str) -> Any:
    from halflabel.cli.progress import Bar

    return Bar(title, "files")


def main() -> None:
    """The `halflabel` command."""
    for stream in (sys.stdout, sys.stderr):
        # Bars and dashes are not ASCII, and file names may not be UTF-8. A terminal that cannot show them gets question
        # marks; with UTF-8, such names are written as their original bytes.
        is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        stream.reconfigure(errors="surrogateescape" if is_utf8 else "replace")  # type: ignore[union-attr]
    keep_freed_memory()
    remote.show_progress(_copy_bar)
    try:
        if distributed.is_distributed():
            _join()
        else:
            app()
    except Exception as error:
        if isinstance(error, OSError) and not _is_interruption(error):  # before a command starts, such as in --help
            from halflabel.cli.terminal import show_error

            show_error(_system_error(error))
            sys.exit(2)
        if not _is_interruption(error):
            raise
        # Ctrl-C during the import of a library is raised as an ImportError.
        typer.echo("Stopped", err=True)
        sys.exit(130)


def _system_error(error: OSError) -> UserError:
    """The UserError for an error of the operating system, such as a full disk, with the message of the system."""
    reason = error.strerror or str(error)
    message = f"{error.filename}: {reason}" if error.filename else f"the output cannot be written: {reason}"
    if error.errno in DISK_FULL:
        return UserError(message, "free disk space, or write to another folder")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(message, "choose a path that you may read and write")
    return UserError(message, "check the path, or choose another")


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause of an error."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, KeyboardInterrupt):
            return True
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            waiting += [cause.__cause__, cause.__context__]
    return False


def _join() -> None:
    """Run as one of several processes: only the main one prints results, and all end when one does."""
    from halflabel.cli.terminal import show_error

    def stop(*_: object) -> None:
        if distributed.claim("error"):  # otherwise another process has printed the reason
            show_error(UserError("stopped: another process of this job ended, or all were stopped", "start again"))
        os._exit(143)

    signal.signal(signal.SIGTERM, stop)
    code: object = 0
    try:
        distributed.initialize()
        if not distributed.is_main():
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process
        app()
    except SystemExit as end:
        code = end.code
    except UserError as error:
        show_error(error)
        code = 2
    if code in (0, None):
        distributed.shut_down()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)  # exit handlers of libraries would wait for the other processes


for _module in (
    *("cache", "compare", "demo", "embed", "export", "fill", "labels", "methods", "next", "pack", "predict"),
    *("report", "reproduce", "review", "rules", "serve", "study", "train"),
):
    import_module(f"halflabel.cli.{_module}")  # which registers its commands
