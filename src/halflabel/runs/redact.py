"""What may be passed on of a run's settings: pages and exported models go to others, folders of this machine do not."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any

from halflabel.training.config import Settings

__all__ = ["shown_command", "shown_name", "shown_options", "shown_settings", "without_folders"]

# Settings by name, not all but some: what is added later stays here until someone has asked whether it may leave.
_SHOWN = (
    "method",
    "backbone",
    "pretrained",
    "size",
    "resize",
    "tune",
    "linear_init",
    "linear_lr",
    "crop",
    "strong_ops",
    "strong_magnitude",
    "cutout",
    "held_out",
    "max_bad",
    "workers",
    "hold",
    "views_on",
    "decode_on",
    "mirror",
    "copies",
    "select",
    *(field.name for field in dataclasses.fields(Settings)),
)
_VALUE = re.compile(r"(?<==)[^:]*")  # of an option, in METHOD:option=value:option=value
_FOLDERS = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^/\\'\"\n]+[/\\])+")


def shown_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run or a comparison that say nothing of this machine's folders, those of the loop too."""
    loop = config.get("settings")
    given = {**config, **(loop if isinstance(loop, Mapping) else {})}
    found = {name: given[name] for name in _SHOWN if name in given}
    if "options" in given:
        found["options"] = shown_options(given["options"] or {})
    return found


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method, the last part alone of those that are paths.

    >>> shown_options({"vectors": "/home/me/glove.txt", "graph": "cooccurrence", "alpha": 0.5})
    {'vectors': 'glove.txt', 'graph': 'cooccurrence', 'alpha': 0.5}
    """
    return {name: _last_part(value) if isinstance(value, str) else value for name, value in options.items()}


def shown_name(name: str) -> str:
    """The name of what is compared, a method and its options, with the last part alone of paths.

    >>> shown_name("sst:vectors=/home/me/glove.txt:vector_size=50"), shown_name("em:alpha=0.05")
    ('sst:vectors=glove.txt:vector_size=50', 'em:alpha=0.05')
    """
    return _VALUE.sub(lambda found: _last_part(found[0]), name)


def shown_command(words: Sequence[str]) -> str:
    """A command as it is typed, with the last part alone of paths.

    >>> shown_command(["halflabel", "study", "/home/me/my labels.csv", "photos/", "--weights=/home/me/w.pt"])
    "halflabel study 'my labels.csv' photos --weights=w.pt"
    """

    def shown(word: str) -> str:
        flag, mark, value = word.partition("=") if word.startswith("--") else ("", "", word)
        return flag + mark + _last_part(shown_name(value))

    return shlex.join(map(shown, words))


def without_folders(text: str) -> str:
    """A sentence in which the paths that begin at the root of a disk have lost their folders.

    >>> without_folders("'/home/me/my vectors/glove.txt' has 12 images/s")
    "'glove.txt' has 12 images/s"
    """
    return _FOLDERS.sub("", text)


def _last_part(text: str) -> str:
    """The file's name where there are folders before it; "text:" before the name of an encoder stays."""
    kind = "text:" if text.startswith("text:") else ""
    rest = text.removeprefix(kind)
    return kind + PureWindowsPath(rest).name if "/" in rest or "\\" in rest else text  # it takes both separators
