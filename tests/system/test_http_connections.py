"""Connections that send too slowly, or that are too many, do not keep others out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from http_servers import connect, serving

HEADER_SECONDS = 0.4
PER_CLIENT = 6
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(lambda _: app, "off", header_seconds=HEADER_SECONDS, per_client=PER_CLIENT) as number:
        yield number


def answer(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    received = b""
    while not received.endswith(b"ok"):
        received += connection.recv(1000)
    return received


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nX-a: "])
def test_slow_and_silent_connections_are_closed(port: int, sent: bytes) -> None:
    with connect(port) as slow:
        begin = time.monotonic()
        slow.sendall(sent)
        assert is_closed(slow)
        assert time.monotonic() - begin < 5


def test_slow_headers_of_a_second_request_are_closed(port: int) -> None:
    with connect(port) as slow:
        assert b"200 OK" in answer(slow)
        time.sleep(1.5 * HEADER_SECONDS)  # idle between requests is for uvicorn's own limit
        assert b"200 OK" in answer(slow)
        slow.sendall(b"GET / HT")
        assert is_closed(slow)


def test_idle_connections_do_not_block_their_client(port: int) -> None:
    idle = [connect(port) for _ in range(3 * PER_CLIENT)]
    with connect(port) as good:
        assert b"200 OK" in answer(good)
        assert all(is_closed(connection) for connection in idle[: 2 * PER_CLIENT])
    for connection in idle:
        connection.close()
