"""Read a small YAML file, which others may have written: config.yaml, or the policy of a label file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halflabel.errors import UserError, error_summary
from halflabel.system.files import read_text

_MAX_BYTES = 1 << 20
_MAX_SETTINGS = 10_000


def read_yaml(path: Path, fix: str) -> dict[str, Any]:
    """Return the settings in a file; any failure is a UserError with the given fix."""
    import yaml

    text = read_text(path, fix, max_bytes=_MAX_BYTES)
    try:
        config = yaml.safe_load(text)
    except Exception as error:  # YAML's errors, and Python's for invalid dates and numbers
        raise UserError(f"{path} cannot be read ({error_summary(error)})", fix) from None
    if not isinstance(config, dict) or not _is_small(config):
        raise UserError(f"{path} does not hold settings", fix)
    return config


def _is_small(config: Any) -> bool:
    """Return whether the settings are few, counting YAML aliases each time: ten lines can expand to billions."""
    pending, visited = [config], 0
    while pending and visited < _MAX_SETTINGS:
        visited += 1
        item = pending.pop()
        if isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, list | tuple | set):
            pending += item
    return not pending
