"""Where a server listens. It needs no torch, so that a port that is taken is said at once."""

from __future__ import annotations

import socket

from halflabel.errors import UserError

__all__ = ["open_socket"]


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 is any free port. A host or port that cannot be had is said at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error})", "choose another --port or --host") from None
