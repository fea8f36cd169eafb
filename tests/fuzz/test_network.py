"""No test reaches the network: the block works, and this machine stays reachable."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request

import pytest

from halflabel.features.backbones import build_backbone

Failed = pytest.fail.Exception

# Addresses kept for documentation (RFC 5737, RFC 3849): nobody answers there, should the block not hold.
AWAY = "192.0.2.1"
AWAY_6 = "2001:db8::1"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, AWAY), (socket.AF_INET6, AWAY_6)])
@pytest.mark.parametrize("call", ["connect", "connect_ex"])
def test_no_address_outside_can_be_reached(family: int, host: str, call: str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(0.1)
        with pytest.raises(Failed, match="reach the network"):
            getattr(link, call)((host, 80))


def test_no_packet_goes_out() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link, pytest.raises(Failed, match="sendto"):
        link.sendto(b"x", (AWAY, 53))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link, pytest.raises(Failed, match="sendto"):
        link.sendto(b"x", 0, (AWAY, 53))


def test_no_name_is_asked_for() -> None:
    with pytest.raises(Failed, match="example"):
        socket.getaddrinfo("example.com", 80)
    with pytest.raises(Failed, match="example"):
        socket.create_connection(("example.com", 80), timeout=0.1)
    with pytest.raises(Failed, match="example"):
        socket.gethostbyname("example.com")


def test_libraries_are_caught_too_though_their_errors_are_not() -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def pass_over() -> None:
        with contextlib.suppress(Exception):
            opener.open("http://example.com/", timeout=0.1)

    with pytest.raises(Failed, match="example"):
        pass_over()


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = threading.Thread(target=lambda: server.accept()[0].close())
        answer.start()
        with socket.create_connection(("localhost", server.getsockname()[1]), timeout=5) as link:
            assert link.recv(1) == b""
        answer.join()


def test_a_name_that_cannot_exist_is_an_ordinary_error() -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("no.such.host.invalid", 80)


def test_a_model_is_built_without_the_network() -> None:
    assert build_backbone("tiny").channels == 64
