"""Listening sockets: a port in use is reported; connections that send too slowly, or are too many, are closed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from http_servers import connect, serving

from halflabel.errors import UserError
from halflabel.system.sockets import open_socket

HEADER_SECONDS = 0.4
PER_CLIENT = 6
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_port_in_use_is_an_error_or_the_next_one_is_taken() -> None:
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1, port {port}"):
            open_socket("127.0.0.1", port)
        with open_socket("127.0.0.1", port, 0) as second:
            assert second.getsockname()[1] not in (0, port)


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(UserError, match="cannot listen"):
        open_socket("no.such.host.invalid", 0)


def test_the_parts_of_a_reply_do_not_wait_for_each_other() -> None:
    with open_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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
