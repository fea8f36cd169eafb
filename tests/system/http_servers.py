"""A real HTTP server in a thread, and raw connections to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from halflabel.system.sockets import limited_protocol, open_socket


@contextmanager
def serving(
    make_app: Callable[[int], Any], lifespan: str = "on", tls: Sequence[Path | None] = (None, None), **limits: Any
) -> Iterator[int]:
    """Serve the application for a free port, which is the value; `limits` are those of `limited_protocol`."""
    with open_socket("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        protocol = limited_protocol(**limits)
        settings: dict[str, Any] = {"http": protocol, "log_config": None, "access_log": False, "lifespan": lifespan}
        settings |= {"timeout_keep_alive": 30, "ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
        config = uvicorn.Config(make_app(port), **settings)
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
