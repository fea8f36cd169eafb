"""The command line: it parses, calls the function of the same name, and prints. Heavy imports wait until needed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.system import distributed
from halflabel.system.files import DISK_FULL
from halflabel.system.memory import keep_freed_memory

__all__ = ["app", "main"]

_TOGETHER = ("train", "evaluate", "predict", "fill")  # what several processes can do as one


class Commands(TyperGroup):
    """Errors that are the user's to fix are printed in one message and end with exit code 2: no traceback."""

    def invoke(self, ctx: Any) -> Any:
        from halflabel.cli.terminal import show_error

        try:
            return super().invoke(ctx)
        except UserError as error:
            if distributed.claim("error"):  # each process may have met it
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
        except BrokenPipeError:
            raise  # `halflabel ... | head`: the reader has seen enough, and typer ends quietly
        except OSError as error:
            show_error(_of_the_system(error))
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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Multi-label image classifiers from labels that are only partly known."""
    if ctx.invoked_subcommand is None:
        from halflabel.cli.terminal import show_next_step

        show_next_step(Path())
    elif distributed.is_distributed() and ctx.invoked_subcommand not in _TOGETHER:
        raise UserError(
            f"{ctx.invoked_subcommand} is work for one process, not for {distributed.world_size()}",
            f"start it without torchrun; together they can {', '.join(_TOGETHER)}",
        )


def main() -> None:
    """The `halflabel` command."""
    for stream in (sys.stdout, sys.stderr):
        # Bars and dashes are not ASCII, and file names may not be UTF-8: a terminal that cannot show them gets question
        # marks, not a crash; in UTF-8 such names go out as the bytes they are.
        is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        stream.reconfigure(errors="surrogateescape" if is_utf8 else "replace")  # type: ignore[union-attr]
    keep_freed_memory()
    try:
        if distributed.is_distributed():
            _join()
        else:
            app()
    except Exception as error:
        if isinstance(error, OSError) and not _is_interruption(error):  # before any command begins, as by --help
            from halflabel.cli.terminal import show_error

            show_error(_of_the_system(error))
            sys.exit(2)
        if not _is_interruption(error):
            raise
        # From a library: Ctrl-C while it was being imported comes out as its failure to be imported.
        typer.echo("Stopped", err=True)
        sys.exit(130)


def _of_the_system(error: OSError) -> UserError:
    """A full disk, a file without permission: the system's own words say it best."""
    said = error.strerror or str(error)
    message = f"{error.filename}: {said}" if error.filename else f"the output cannot be written: {said}"
    if error.errno in DISK_FULL:
        return UserError(message, "make room, or write to another place")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(message, "choose a place that you may read and write")
    return UserError(message, "check the path, or choose another")


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error comes from."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, KeyboardInterrupt):
            return True
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
    return False


def _join() -> None:
    """Be one of several processes: the first one alone prints results; all end when one does."""
    from halflabel.cli.terminal import show_error

    def stop(*_: object) -> None:
        if distributed.claim("error"):  # else another has said why all end
            show_error(UserError("stopped: another process of this job ended, or all were told to", "start again"))
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
    os._exit(code if isinstance(code, int) else 1)  # not by way of libraries that wait for the others


from halflabel.cli import labels as _labels  # noqa: E402, F401  # these register their commands on `app`
from halflabel.cli import train as _training  # noqa: E402, F401

# isort: split
from halflabel.cli import predict as _predict  # noqa: E402, F401

# isort: split
from halflabel.cli import methods as _methods  # noqa: E402, F401

# isort: split
from halflabel.cli import demo as _demo  # noqa: E402, F401

# isort: split
from halflabel.cli import cache as _cache  # noqa: E402, F401  # after the others: the order of `--help`
from halflabel.cli import compare as _compare  # noqa: E402, F401
from halflabel.cli import export as _export  # noqa: E402, F401
from halflabel.cli import fill as _fill  # noqa: E402, F401
from halflabel.cli import next as _next  # noqa: E402, F401
from halflabel.cli import pack as _pack  # noqa: E402, F401
from halflabel.cli import report as _report  # noqa: E402, F401
from halflabel.cli import reproduce as _reproduce  # noqa: E402, F401
from halflabel.cli import review as _review  # noqa: E402, F401
from halflabel.cli import serve as _serve  # noqa: E402, F401
from halflabel.cli import study as _study  # noqa: E402, F401
