"""Helpers for the tests of label readers: golden files, and errors that must tell the user what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halflabel.errors import LabelError
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

GOLDEN_FILES = Path(__file__).parents[1] / "golden"

Reader = Callable[[Path, Policy], Any]


def label_error(read: Reader, path: Path, policy: Policy | None = None) -> LabelError:
    """The LabelError that reading a file raises; it must suggest a fix."""
    with pytest.raises(LabelError) as caught:
        read(path, policy or Policy())
    assert caught.value.fix
    return caught.value


def is_readable(read: Reader, path: Path, policy: Policy | None = None) -> bool:
    """Whether a file can be read. A LabelError must suggest a fix; any other exception fails the test."""
    fault = None
    try:
        read(path, policy or Policy())
    except LabelError as error:
        fault = error
    assert fault is None or fault.fix
    return fault is None


def source_of(rows: Labels) -> list[str]:
    """The source of each row."""
    return [rows.sources[number] for number in rows.source]
