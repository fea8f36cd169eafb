"""Access to the server: checks of the Host header and the token."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from halflabel.system.sockets import is_own_host


class AccessCheck:
    """ASGI middleware that refuses requests without the token, or without one, requests to another host.

    The token is sent as `Authorization: Bearer TOKEN`, or as the password of any user, which browsers ask for. /health
    needs no token. Without a token the Host header must name this machine: else a page of another origin could reach a
    server on this machine through a name that resolves to it (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, token: str | None = None) -> None:
        self.app = app
        self.host, self.port = host, port
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if self.token is None:
            host = headers.getlist("host")
            if len(host) == 1 and is_own_host(host[0], self.host, self.port):
                return None
            return JSONResponse({"detail": "this server does not have that name"}, 421)
        sent = [value.encode("latin-1") for value in headers.getlist("authorization")]
        if scope["path"] == "/health" or (len(sent) == 1 and hmac.compare_digest(_token(sent[0]), self.token)):
            return None
        detail = {"detail": "the token is missing or wrong: send Authorization: Bearer TOKEN"}
        return JSONResponse(detail, 401, {"WWW-Authenticate": 'Basic realm="halflabel", charset="UTF-8"'})


def _token(authorization: bytes) -> bytes:
    """The token of an Authorization header, b"" if there is none."""
    kind, _, value = authorization.strip().partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
