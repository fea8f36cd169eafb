"""The door of the page: who may ask, by what name, how much at once; and what the browser may do with the answer."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["HEADERS", "TOKEN_HEADER", "Guard", "is_loopback"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_HEADER = "x-halflabel-token"
MOST_BYTES = 64 << 10  # of one request's body

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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what does not come from the page itself.

    Host: an address, or a name of this machine, with our port. A foreign name that was made to point here (DNS
    rebinding) is refused. Origin and Sec-Fetch-Site: our own, where the browser sends them. /api: only with the token,
    which a page of another origin can neither read nor send. Bodies: at most 64 KiB.
    """

    def __init__(self, app: App, token: str, host: str, port: int) -> None:
        self.app = app
        self.token = token.encode()
        self.host = host
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            return
        refused = self._refuse(scope)
        if refused is not None:
            await _say(send, *refused)
            return
        body = await _body(receive)
        if body is None:
            await _say(send, 413, "too long")
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_dress()]}
            await send(message)

        await self.app(scope, replayed, dressed)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or not self._is_ours(host[0]):
            return 421, "this server does not go by that name"
        if scope["method"] not in ("GET", "POST"):
            return 405, "no such method"
        if any(origin != f"http://{host[0]}" for origin in headers.get("origin", [])):
            return 403, "foreign origin"
        if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
            return 403, "foreign page"
        if scope["path"].startswith("/api"):
            given = headers.get(TOKEN_HEADER, [""])
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self.token):
                return 401, "the token is missing or wrong: open the address that the terminal shows"
        length = headers.get("content-length", ["0"])[0]
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return 413, "too long"
        return None

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, "80"
        if port != str(self.port):
            return False
        name = name.lower()
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))
            return True
        except ValueError:
            return name in {self.host.lower(), socket.gethostname().lower()}


async def _body(receive: Receive) -> bytes | None:
    """All of a request's body, whatever length it claims; None where it is too long, or the other side has gone."""
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        found += message.get("body", b"")
        if len(found) > MOST_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(found)


def _dress() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in HEADERS.items()]


async def _say(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *_dress()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
