"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from halflabel.errors import UserError

__all__ = [
    "READING_OPTIONS",
    "Device",
    "Hold",
    "ImageFolder",
    "LabelFile",
    "Optimizer",
    "Precision",
    "Resize",
    "RunFolder",
    "Tune",
    "check_method",
    "panel",
    "takes_policy",
]


def panel(panel: str, help: str, *names: str, **more: Any) -> Any:
    """An option in a box of its own in the help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


LabelFile = Annotated[Path, typer.Argument(metavar="LABELS", help="A label file or folder of any known format.")]
ImageFolder = Annotated[Path, typer.Argument(metavar="IMAGES", help="The folder with the image files, or a pack.")]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="What `train --out` wrote, or `export`: a folder or an .onnx file.")
]

Tune = StrEnum("Tune", ["head", "all"])
Resize = StrEnum("Resize", ["squash", "crop"])
Optimizer = StrEnum("Optimizer", ["adamw", "adam", "sgd", "rmsprop"])
Precision = StrEnum("Precision", ["no", "bf16", "fp16"])
Hold = StrEnum("Hold", ["files", "device"])
Device = StrEnum("Device", ["auto", "cpu", "cuda"])

READING = "How to read the label file"


class Meaning(StrEnum):
    present = "present"
    absent = "absent"
    unknown = "unknown"


class Unlisted(StrEnum):
    unknown = "unknown"
    absent = "absent"


def _reading(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=READING, show_default=False, **more)


def _policy_options(
    format: Annotated[str, _reading("--format", help="The format, where it is not to be found out.")] = "auto",
    unlisted: Annotated[
        Unlisted | None, _reading("--unlisted", help="What it means that a label is not listed.")
    ] = None,
    minus_one: Annotated[
        Meaning | None, _reading("--minus-one", help="What -1 means, if the file does not say.")
    ] = None,
    zero: Annotated[Meaning | None, _reading("--zero", help="What 0 means.")] = None,
    value: Annotated[
        list[str] | None, _reading("--value", help="What another value means.", metavar="RAW=MEANING")
    ] = None,
    difficult: Annotated[
        Meaning | None, _reading("--difficult", help="Pascal VOC: what a difficult object means.")
    ] = None,
    machine: Annotated[
        float | None, _reading("--machine", help="Open Images: machine labels from this confidence on are present.")
    ] = None,
    image_column: Annotated[str | None, _reading("--image-column", help="The column that names the image.")] = None,
    ignore: Annotated[
        list[str] | None, _reading("--ignore", help="A column that is no class.", metavar="COLUMN")
    ] = None,
    where: Annotated[
        list[str] | None, _reading("--where", help="Only rows with this value.", metavar="COLUMN=VALUE")
    ] = None,
    separator: Annotated[
        str | None,
        _reading(
            "--separator", help="Lists of tags: what stands between two; or space, newline, none.", metavar="CHAR"
        ),
    ] = None,
    split: Annotated[str | None, _reading("--split", help="Which split, where the format has several.")] = None,
    encoding: Annotated[str | None, _reading("--encoding", help="Text encoding, UTF-8 if not stated.")] = None,
) -> None:
    """Only its signature counts: the options that `takes_policy` gives to a command."""


#: The names of these options.
READING_OPTIONS = frozenset(inspect.signature(_policy_options).parameters)


def takes_policy(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that wants `read: Callable[[Path], Import]` all options on how to read a label file."""
    shared = inspect.signature(_policy_options).parameters
    own = inspect.signature(command).parameters
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(_policy_options, include_extras=True)}
    hints.pop("read")
    hints.pop("return", None)

    @functools.wraps(command)
    def wrapper(**given: Any) -> Any:
        stated = {name: given.pop(name) for name in shared}
        return command(read=lambda path: _read(path, **stated), **given)

    parameters = [p for name, p in own.items() if name != "read"] + list(shared.values())
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in parameters]
    )
    wrapper.__annotations__ = hints
    return wrapper


def _read(path: Path, *, format: str, value: list[str] | None, where: list[str] | None, **stated: Any) -> Any:
    from halflabel.labels import formats
    from halflabel.labels.policy import Policy

    plain: dict[str, Any] = {name: str(item) if isinstance(item, StrEnum) else item for name, item in stated.items()}
    plain["ignore"] = tuple(plain["ignore"] or ())
    policy = Policy(values=_pairs("--value", value, set(Meaning)), where=_pairs("--where", where), **plain)
    return formats.read(path, policy, format=format)


def _pairs(flag: str, texts: list[str] | None, right: set[Any] | None = None) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts or ():
        key, equals, meaning = text.rpartition("=") if right else text.partition("=")
        if not equals or (right is not None and meaning not in right):
            allowed = "|".join(sorted(right)) if right else "VALUE"
            raise UserError(f"{flag} {text!r} cannot be read", f"write {flag} NAME={allowed}")
        if pairs.setdefault(key, meaning) != meaning:
            raise UserError(f"{flag} says {pairs[key]!r} and {meaning!r} of {key!r}", "choose one of them")
    return pairs


def check_method(name: str) -> None:
    """Raise if no method has this name; called before the label file is read."""
    from halflabel.methods.base import recipe

    recipe(name)
