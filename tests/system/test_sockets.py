"""Listening sockets: a port in use is reported, or the next one is taken."""

from __future__ import annotations

import socket

import pytest

from halflabel.errors import UserError
from halflabel.system.sockets import open_socket


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
