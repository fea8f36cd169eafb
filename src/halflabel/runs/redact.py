"""Remove folders from settings, and names before they go into pages and exported models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

# An allow-list: a new setting is private until it is added here.
_SHOWN = (
    *("method", "backbone", "pretrained", "size", "resize", "tune", "linear_init", "linear_lr", "targets", "single"),
    *("crop", "held_out", "max_bad", "workers"),
    *("select", "epochs", "batch_size", "lr", "backbone_lr", "optimizer", "weight_decay", "momentum", "schedule"),
    *("step_epochs", "step_factor", "warmup", "ema", "precision", "clip", "compile"),
    *("deterministic", "patience", "keep", "save_every", "seed", "device"),
)
_VALUE = re.compile(r"(?<==)[^:]*")  # the value of an option in METHOD:option=value:option=value
_FOLDERS = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^/\\'\"\n]+[/\\])+")


def shown_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run or a comparison that contain no folders."""
    shown = {name: config[name] for name in _SHOWN if name in config}
    if "options" in config:
        shown["options"] = shown_options(config["options"] or {})
    return shown


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a method; paths are reduced to their file names."""
    return {name: _last_part(value) if isinstance(value, str) else value for name, value in options.items()}


def shown_name(name: str) -> str:
    """Return the name of a candidate (a method and its options); paths are reduced to their file names.

    >>> shown_name("sst:vectors=/home/me/glove.txt:vector_size=50"), shown_name("em:alpha=0.05")
    ('sst:vectors=glove.txt:vector_size=50', 'em:alpha=0.05')
    """
    return _VALUE.sub(lambda match: _last_part(match[0]), name)


def without_folders(text: str) -> str:
    """Return a text in which absolute paths are reduced to their file names.

    >>> without_folders("'/home/me/my vectors/glove.txt' has 12 images/s")
    "'glove.txt' has 12 images/s"
    """
    return _FOLDERS.sub("", text)


def _last_part(text: str) -> str:
    """Return the file name of a path, and other text unchanged; the prefix "text:" of an encoder stays."""
    prefix = "text:" if text.startswith("text:") else ""
    path = text.removeprefix(prefix)
    # PureWindowsPath accepts both separators.
    return prefix + PureWindowsPath(path).name if "/" in path or "\\" in path else text
