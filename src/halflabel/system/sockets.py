"""Listening sockets of the servers, their names, and limits on connections; without torch."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

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
        raise UserError(f"cannot listen at {host}, port {last} ({error})", "choose another ‹port› or ‹host›") from None


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


def limited_protocol(*, header_seconds: float = 10.0, per_client: int = 128) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with limits.

    A connection whose request has not begun within `header_seconds` is closed; uvicorn itself waits forever. A client
    with more than `per_client` connections loses the oldest that waits for a request, or else the new one.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    connections: dict[str, dict[Any, None]] = {}  # by address of the client, oldest first

    class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            same_client = connections.setdefault(self.client_address, {})
            same_client[self] = None
            self.start_timer()
            if len(same_client) > per_client:
                surplus = next(connection for connection in same_client if connection.is_waiting)
                del same_client[surplus]
                surplus.transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            self.stop_timer()
            same_client = connections.get(self.client_address, {})
            same_client.pop(self, None)
            if not same_client:
                connections.pop(self.client_address, None)
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.is_waiting:
                self.stop_timer()
            elif self.timer is None:
                self.start_timer()

        @property
        def client_address(self) -> str:
            return str(self.client[0]) if self.client else ""

        @property
        def is_waiting(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def start_timer(self) -> None:
            self.timer = self.loop.call_later(header_seconds, self.close_if_waiting)

        def stop_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def close_if_waiting(self) -> None:
            self.timer = None
            if self.is_waiting:
                self.transport.abort()

    return LimitedProtocol
