"""Listening sockets of the servers, and their names. Imports no torch, so that a port in use is reported at once."""

from __future__ import annotations

import ipaddress
import socket

from halflabel.errors import UserError


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
    listening = socket.create_server((host, port), family=family, backlog=1024)
    # Without it the body of a reply, sent after its head, waits 40 ms for the client to acknowledge the head. asyncio
    # sets it only for sockets that name their protocol; connections inherit it from this one.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def is_loopback(host: str) -> bool:
    """Whether a server on this address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_own_host(header: str, host: str, port: int, scheme: str = "http") -> bool:
    """Whether a Host header is an IP address or a name of the server that listens on `host` and `port`.

    Other names that resolve to this machine (DNS rebinding) are not its own.
    """
    name, _, sent_port = header.rpartition(":") if not header.endswith("]") else (header, "", "")
    if not name:
        name, sent_port = header, "443" if scheme == "https" else "80"
    if sent_port != str(port):
        return False
    name = name.lower()
    if is_loopback(name):
        return True
    if is_loopback(host):
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
        return True
    except ValueError:
        return name in {host.lower(), socket.gethostname().lower()}
