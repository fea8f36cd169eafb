"""Protect the review page: check host, origin, token and size of requests; add security headers to responses.

Token and port are kept beside the answers: after a restart of the server open pages still work.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halflabel.system.sockets import is_own_host

TOKEN_HEADER = "x-halflabel-token"
MAX_BODY_BYTES = 64 << 10
BODY_SECONDS = 10.0

HEADERS = {
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


class Guard:
    """ASGI middleware that refuses requests that do not come from the review page.

    Host must be an IP address or a name of this machine, with our port; other names that resolve to this machine (DNS
    rebinding) are refused. Origin and Sec-Fetch-Site must be our own, where the browser sends them. /api needs the
    token, which a page of another origin can neither read nor send. Bodies have at most 64 KiB.
    """

    def __init__(self, app: ASGIApp, token: str, host: str, port: int, scheme: str = "http") -> None:
        self.app, self.scheme = app, scheme
        self.token = token.encode()
        self.host = host
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            return
        refusal, body = self._refusal(scope), None
        if refusal is None:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _read_body(receive)
            except TimeoutError:
                refusal = 408, "request too slow"
        if body is None:
            status, reason = refusal or (413, "request too large")
            await PlainTextResponse(reason, status, HEADERS)(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self.app(scope, receive_again, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not is_own_host(host[0], self.host, self.port, self.scheme):
            return 421, "this server does not have that name"
        if scope["method"] not in ("GET", "POST"):
            return 405, "method not allowed"
        if any(origin != f"{self.scheme}://{host[0]}" for origin in headers.getlist("origin")):
            return 403, "foreign origin"
        if any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
            return 403, "foreign page"
        if scope["path"].startswith("/api"):
            tokens = headers.getlist(TOKEN_HEADER)
            if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(), self.token):
                return 401, "the token is missing or wrong: open the address shown in the terminal"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return 413, "request too large"
        return None


async def _read_body(receive: Receive) -> bytes | None:
    """Read the whole body, whatever length the headers claim; None if it is too large or the client disconnected."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


class Address(NamedTuple):
    """The secret token of the page, and the port of its server, which is part of the origin of unsent answers."""

    token: str
    port: int


def read_address(file: Path) -> Address | None:
    """Return the address of the last server; None if there is none, or if other users can read its token."""
    try:
        if os.name == "posix" and file.stat().st_mode & 0o077:
            return None
        address = Address(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    is_valid = isinstance(address.token, str) and len(address.token) >= 32 and address.token.isascii()
    return address if is_valid and isinstance(address.port, int) and 0 < address.port < 1 << 16 else None


def keep_address(file: Path, address: Address) -> None:
    """Write the address for the next server, readable by this user only; where that fails the next one is new."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(address._asdict(), opened)
