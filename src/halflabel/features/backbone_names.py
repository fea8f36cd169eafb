"""Names of backbones that need no download; importing them does not import torch, so that `--help` stays fast."""

from __future__ import annotations

DEFAULT = "efficientnet-lite2"
FAST = "efficientnet-lite0"


def full_name(name: str) -> str:
    """The name of a backbone, for which `fast` is short.

    >>> full_name("fast"), full_name("resnet50")
    ('efficientnet-lite0', 'resnet50')
    """
    return FAST if name == "fast" else name
