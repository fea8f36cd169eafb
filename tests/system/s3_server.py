"""A local S3 server (moto) that fails on request, for the tests of object stores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["S3Server", "serve_s3"]

Fault = Callable[[str, str], str | None]  # method, path -> "500", "denied", "slow", "truncated", "short" or None


class S3Server:
    """moto behind a layer that counts requests and injects faults."""

    def __init__(self, port: int = 0) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class _Quiet(WSGIRequestHandler):
            def log(self, *given: Any) -> None:
                pass

        self.app = DomainDispatcherApplication(create_backend_app)
        self.fault: Fault = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        with mock.patch("socket.getfqdn", str):  # no look-up of the name of this machine
            self.server = make_server("127.0.0.1", port, self.answer, threaded=True, request_handler=_Quiet)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        kind = self.fault(method, path)
        if kind in ("500", "denied"):
            start("500 Internal Server Error" if kind == "500" else "403 Forbidden", [("Content-Length", "0")])
            return []
        if kind == "slow":
            time.sleep(0.7)
        if kind not in ("truncated", "short"):
            return self.app(environ, start)
        reply: list[Any] = []
        whole = b"".join(self.app(environ, lambda *given: reply.append(given)))
        part = whole[: len(whole) // 2]
        status, headers = reply[0][:2]
        length = len(part) if kind == "short" else len(whole)  # short: nothing in the reply says that bytes are missing
        others = [pair for pair in headers if pair[0].lower() != "content-length"]
        start(status, [*others, ("Content-Length", f"{length}")])
        return [part]

    def put(self, folder: Path, bucket: str) -> None:
        """Upload the files of a folder."""
        import boto3

        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            key = path.relative_to(folder).as_posix()
            client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes(), ACL="public-read")
        client.close()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serve_s3(cache: Path) -> Iterator[S3Server]:
    """Run a server, and let every s3:// address lead to it, with copies below `cache`."""
    from s3fs import S3FileSystem

    from halflabel.system import remote

    server = S3Server()
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "HALFLABEL_CACHE": str(cache),
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    S3FileSystem.clear_instance_cache()
    remote._copy.cache_clear()
    try:
        yield server
    finally:
        server.stop()
        remote._copy.cache_clear()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
