"""Names of backbones that need no download; importing them does not import torch, so that `--help` stays fast."""

from __future__ import annotations

from pathlib import Path

DEFAULT = "efficientnet-lite2"
FAST = "efficientnet-lite0"


def full_name(name: str) -> str:
    """The name of a backbone, for which `fast` is short; the absolute path of an .onnx file."""
    if name.endswith(".onnx"):
        return str(Path(name).absolute())
    return FAST if name == "fast" else name
