"""A real HTTP server in a thread, and raw connections to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from halflabel.system.http_connections import limited_protocol
from halflabel.system.sockets import open_socket


@contextmanager
def serving(app: Any, lifespan: str = "on", **limits: Any) -> Iterator[int]:
    """Serve an application; the value is its port, `limits` are those of `limited_protocol`."""
    protocol = limited_protocol(**limits)
    with open_socket("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        config = uvicorn.Config(app, http=protocol, log_level="error", lifespan=lifespan, timeout_keep_alive=30)
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
