"""Token and port of the review page, kept beside the answers: after a restart of the server open pages still work."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple


class Address(NamedTuple):
    """The secret token of the page, and the port of its server, which is part of the origin of unsent answers."""

    token: str
    port: int


def new_token() -> str:
    """Return 256 random bits, which pages of other origins can neither guess nor read."""
    return secrets.token_urlsafe(32)


def read_address(file: Path) -> Address | None:
    """Return the address of the last server; None if there is none, or if other users can read its token."""
    try:
        if os.name == "posix" and file.stat().st_mode & 0o077:
            return None
        address = Address(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    is_valid = isinstance(address.token, str) and len(address.token) >= 32 and address.token.isascii()
    return address if is_valid and isinstance(address.port, int) and 0 < address.port < 1 << 16 else None


def keep_address(file: Path, address: Address) -> None:
    """Write the address for the next server, readable by this user only; where that fails the next one is new."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(address._asdict(), opened)
