"""Guard both servers, `serve` and `review`: who may send requests, how large and how slow they may be.

Imports no torch, so that the review page starts at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import signal
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from halflabel.errors import missing_package
from halflabel.system.sockets import is_own_host, limited_protocol

try:
    import uvicorn
    from starlette.datastructures import Headers
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise missing_package(error, "web") from None

TOKEN_HEADER = "x-halflabel-token"  # of the review page
PAGE_BYTES = 64 << 10  # of a request of the review page
PAGE_SECONDS = 10.0  # in which it has to arrive
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class RequestRefused(Exception):
    """A request that is not served, with status (below 500 if the request is at fault) and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def megabytes(number: float) -> str:
    """Format a number of bytes."""
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{int(number)} bytes"


@dataclass(frozen=True)
class Limits:
    """Limits on requests of `serve`.

    Decoding an image needs 10 to 14 bytes of memory per pixel, 28 for 16-bit grey; `decoders` images are decoded at a
    time.
    """

    file_bytes: int = 20_000_000
    request_bytes: int = 64_000_000
    files: int = 16
    pixels: int = 50_000_000
    seconds: float = 30.0  # to receive a request, and again to answer it
    requests: int = 64  # at a time; more are refused with 503
    decoders: int = 2

    @property
    def description(self) -> str:
        """The limits in words, for the page and the API description."""
        return (
            f"JPEG, PNG, WebP, AVIF, GIF (first frame), BMP, TIFF, HEIC or DICOM; {self.files} files per request, "
            f"{megabytes(self.file_bytes)} per file, {megabytes(self.request_bytes)} per request, "
            f"{self.pixels / 1e6:g} million pixels per image, {self.requests} requests at a time."
        )


class Upload(NamedTuple):
    """An image of a request with the client's name for it; without a file, the reason why it was refused."""

    name: str
    file: Path | IO[bytes] | None
    status: int = 200
    reason: str = ""


@asynccontextmanager
async def refuse_after(seconds: float, refused: RequestRefused) -> AsyncIterator[None]:
    """Refuse the request if what is done in this context takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise refused from None


class Body:
    """The body of a request; raises when it exceeds the limit, so that no more is ever stored."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.bytes, self.ended = 0, False

    async def __call__(self) -> Message:
        message = await self._next()
        if self.bytes > self.limit:
            raise RequestRefused(413, f"the request is larger than {megabytes(self.limit)}")
        return message

    async def read(self, seconds: float) -> bytes:
        """Return the whole body, whatever length the headers claim, if it arrives in time."""
        content = bytearray()
        async with refuse_after(seconds, RequestRefused(408, f"the request did not arrive within {seconds:g} s")):
            while not self.ended:
                message = await self()
                if message["type"] != "http.request":
                    raise RequestRefused(400, "the client has disconnected")
                content += message.get("body", b"")
        return bytes(content)

    async def _next(self) -> Message:
        message = await self._receive()
        self.bytes += len(message.get("body", b""))
        self.ended = not message.get("more_body", False)  # also if the client has disconnected
        return message

    async def drain(self, *, max_bytes: int = 1 << 28, seconds: float = 5.0) -> None:
        """Read and discard the rest for a while: a client that is still sending would not read the refusal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self.bytes < max_bytes:
                    await self._next()


class Guard:
    """ASGI middleware that refuses requests of strangers.

    Without a token, Host must be an IP address or a name of this machine, with our port: else a page of another origin
    could reach the server through a name that resolves to this machine (DNS rebinding). Programs send the token as
    `Authorization: Bearer TOKEN`, or as the password of any user; /health needs none.

    With `for_page`, requests come from the review page: /api needs the token in its own header, which a page of another
    origin can neither read nor send; Host, Origin and Sec-Fetch-Site must be our own; bodies have at most 64 KiB.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        token: str | None = None,
        scheme: str = "http",
        for_page: bool = False,
    ) -> None:
        self.app, self.host, self.port, self.scheme = app, host, port, scheme
        self.token = None if token is None else token.encode()
        self.for_page = for_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # no web sockets
                await self.app(scope, receive, send)
            return
        reply_headers = PAGE_HEADERS if self.for_page else {}
        try:
            headers = Headers(scope=scope)
            if self.for_page or self.token is None:
                self._check_host(headers)
            self._check_token(headers, scope["path"])
            if self.for_page:
                self._check_page(headers, scope["method"])
                receive = _again(await Body(receive, PAGE_BYTES).read(PAGE_SECONDS), receive)
        except RequestRefused as refused:
            if refused.status == 401 and not self.for_page:
                reply_headers = {"WWW-Authenticate": 'Basic realm="halflabel", charset="UTF-8"'}
            await JSONResponse({"detail": refused.reason}, refused.status, reply_headers)(scope, receive, send)
            return
        await self.app(scope, receive, _adding(reply_headers, send) if reply_headers else send)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_own_host(hosts[0], self.host, self.port, self.scheme):
            raise RequestRefused(421, "this server does not have that name")

    def _check_page(self, headers: Headers, method: str) -> None:
        if method not in ("GET", "POST"):
            raise RequestRefused(405, "method not allowed")
        if any(origin != f"{self.scheme}://{headers['host']}" for origin in headers.getlist("origin")):
            raise RequestRefused(403, "foreign origin")
        if any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
            raise RequestRefused(403, "foreign page")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > PAGE_BYTES:
            raise RequestRefused(413, f"the request is larger than {megabytes(PAGE_BYTES)}")

    def _check_token(self, headers: Headers, path: str) -> None:
        needs_token = path.startswith("/api") if self.for_page else path != "/health"
        if self.token is None or not needs_token:
            return
        sent, fix = [_password(text) for text in headers.getlist("authorization")], "send Authorization: Bearer TOKEN"
        if self.for_page:
            sent, fix = [token.encode() for token in headers.getlist(TOKEN_HEADER)], "open the address in the terminal"
        if len(sent) != 1 or not hmac.compare_digest(sent[0], self.token):
            raise RequestRefused(401, f"the token is missing or wrong: {fix}")


def _password(authorization: str) -> bytes:
    """Return the token of an Authorization header, b"" if there is none."""
    kind, _, value = authorization.encode("latin-1").strip().partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _adding(headers: Mapping[str, str], send: Send) -> Send:
    """Return a function that sends replies with further headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            further = [(name.encode(), value.encode()) for name, value in headers.items()]
            message = {**message, "headers": [*message.get("headers", ()), *further]}
        await send(message)

    return send_with_headers


def run_server(app: ASGIApp, listening: socket.socket, *, patience: int, tls: tuple[Path, Path] | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; requests in progress then have `patience` seconds to finish.

    `tls` are the files of a certificate and its key, for https.
    """
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    settings |= {"timeout_keep_alive": 75, "timeout_graceful_shutdown": patience}
    settings |= {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
    server = uvicorn.Server(uvicorn.Config(app, http=limited_protocol(), **settings))
    # After it has stopped, uvicorn raises the signal again; that must not end the process before it has cleaned up.
    signals = (signal.SIGINT, signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, lambda *_: None) for number in signals if is_main}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listening.close()
