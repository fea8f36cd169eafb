"""Limits on connections to the servers: slow headers, idle connections, and connections per client."""

from __future__ import annotations

import asyncio
from typing import Any


def limited_protocol(*, header_seconds: float = 10.0, per_client: int = 128) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with limits.

    A connection whose request has not begun within `header_seconds`, headers included, is closed; uvicorn itself waits
    forever. A client that opens more than `per_client` connections loses the oldest that waits for a request, or the
    new one if all are being answered.
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
