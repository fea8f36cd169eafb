"""Listening sockets of the servers. Imports no torch, so that a port in use is reported at once."""

from __future__ import annotations

import socket

from halflabel.errors import UserError

__all__ = ["open_socket"]


def open_socket(host: str, *ports: int) -> socket.socket:
    """Listen on the first of the ports that is free; 0 means any free port. None free raises a UserError."""
    *others, last = ports
    for port in others:
        try:
            return _listen(host, port)
        except (OSError, OverflowError):
            continue
    try:
        return _listen(host, last)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {last} ({error})", "choose another --port or --host") from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)
