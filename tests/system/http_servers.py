"""A real HTTP server in a thread, and raw connections to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from halflabel.system.sockets import limited_protocol, open_socket


@contextmanager
def serving(make_app: Callable[[int], Any], lifespan: str = "on", **limits: Any) -> Iterator[int]:
    """Serve the application for a free port, which is the value; `limits` are those of `limited_protocol`."""
    with open_socket("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        protocol = limited_protocol(**limits)
        config = uvicorn.Config(
            make_app(port), http=protocol, log_config=None, access_log=False, lifespan=lifespan, timeout_keep_alive=30
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join()


def connect(port: int, seconds: float = 60) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)
