"""Damaged HTTP requests, byte by byte as a hostile client sends them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

__all__ = ["Damaged", "Request", "damage_request"]


class Request(NamedTuple):
    """A good request: it is answered with status 200."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def as_bytes(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


class Damaged(NamedTuple):
    """What is sent, in pieces; whether the server must answer or close by itself, and may not answer with 200."""

    kind: str
    pieces: tuple[bytes, ...]
    is_complete: bool = True
    is_forbidden: bool = True


_LENGTHS = ("-1", "+5", "1e3", "0x10", " ", "9" * 18, "9" * 400, "5, 6", "abc", "\xb2", "18446744073709551617")
_HEADERS = (
    "no colon here", ": no name", "X y: blank in a name", "X-a: \x00", "X-a: \x0b\x7f", "\xff\xfe: x", "X-a: b\rX-b: c",
    " folded: value", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: \x0bchunked",
)  # fmt: skip
_PATHS = (
    "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..;/", "/%00", "/%", "/\xff", "/a/./b/../../..",
    "http://evil.example/", "*", "evil:80", "/api/image/../../../etc/passwd", "/api/image/%2e%2e%2f%2e%2e%2fx",
    "/" + "a" * 90_000, "/?" + "a=b&" * 9_000, "/#x", "/static/%5c..%5c", "/page.css/../../server.py", "",
)  # fmt: skip
_HOSTS = ("evil.example", "127.0.0.1", "127.0.0.1:1", "[::1", "127.0.0.1:PORT:9", "127.0.0.1:PORT@evil", "\xff", "")
_METHODS = ("PUT", "DELETE", "TRACE", "CONNECT", "OPTIONS", "PATCH", "post", "G\x00T", "P" * 5000, "", "PRI")
_CHUNKS = (b"zz\r\nabc\r\n", b"-5\r\n", b"ffffffffffffffffff\r\nabc", b"3\r\nabcdef\r\n", b"3;" + b"x" * 90_000)


def damage_request(good: Request, port: int, rng: Random) -> Damaged:
    """One of many kinds of damage, chosen by the generator."""
    kinds = (_host, _path, _header, _length, _method, _version, _cut, _noise, _slow, _many, _chunks, _protocol, _bits)
    return rng.choice(kinds)(good, port, rng)


def _host(good: Request, port: int, rng: Random) -> Damaged:
    others = tuple(pair for pair in good.headers if pair[0] != "Host")
    host = rng.choice(_HOSTS).replace("PORT", str(port))
    hosts = rng.choice(((), (("Host", host),), (("Host", f"127.0.0.1:{port}"), ("Host", host)), (("Host", host),)))
    return Damaged(f"host {hosts!r:.80}", (good._replace(headers=(*hosts, *others)).as_bytes(),))


def _path(good: Request, port: int, rng: Random) -> Damaged:
    path = rng.choice(_PATHS)
    method = rng.choice(("GET", good.method))
    body = good.body if method == good.method else b""
    headers = tuple(pair for pair in good.headers if body or pair[0] != "Content-Length")
    sent = Request(method, path, headers, body).as_bytes()
    # What is below "/" may be the page itself, which everybody may read.
    return Damaged(f"path {path[:60]!r}", (sent,), is_forbidden="passwd" in path and "?" not in path)


def _header(good: Request, port: int, rng: Random) -> Damaged:
    line = rng.choice(_HEADERS)
    head, _, body = good.as_bytes().partition(b"\r\n\r\n")
    sent = head + b"\r\n" + line.encode("latin-1") + b"\r\n\r\n" + body
    return Damaged(f"header {line!r}", (sent,), is_complete="chunked" not in line, is_forbidden=False)


def _length(good: Request, port: int, rng: Random) -> Damaged:
    value = rng.choice(_LENGTHS)
    others = tuple(pair for pair in good.headers if pair[0] != "Content-Length")
    again = (("Content-Length", str(len(good.body))),) if rng.random() < 0.3 else ()
    sent = good._replace(headers=(*others, *again, ("Content-Length", value))).as_bytes()
    return Damaged(f"length {value[:30]!r} {again}", (sent,), is_complete=False)


def _method(good: Request, port: int, rng: Random) -> Damaged:
    method = rng.choice(_METHODS)
    return Damaged(f"method {method[:20]!r}", (good._replace(method=method).as_bytes(),), is_complete=bool(method))


def _version(good: Request, port: int, rng: Random) -> Damaged:
    version = rng.choice((b"HTTP/0.9", b"HTTP/9.9", b"HTTP/1.", b"HTTP/1.1.1", b"ICY/1.1", b"", b"HTTP/1.1 x"))
    sent = good.as_bytes().replace(b"HTTP/1.1", version, 1)
    return Damaged(f"version {version!r}", (sent,), is_complete=False, is_forbidden=False)


def _cut(good: Request, port: int, rng: Random) -> Damaged:
    sent = good.as_bytes()
    return Damaged("cut", (sent[: rng.randrange(len(sent) - 1)],), is_complete=False)


def _noise(good: Request, port: int, rng: Random) -> Damaged:
    return Damaged("noise", (rng.randbytes(rng.choice((1, 40, 3000, 200_000))),), is_complete=False)


def _slow(good: Request, port: int, rng: Random) -> Damaged:
    sent = good.as_bytes()
    start = rng.randrange(max(len(sent) - 30, 1))
    return Damaged("slow", (sent[:start], *(bytes([byte]) for byte in sent[start : start + 12])), is_complete=False)


def _many(good: Request, port: int, rng: Random) -> Damaged:
    count, size = rng.choice(((2000, 10), (5, 20_000), (1, 300_000)))
    extra = tuple((f"X-{number}", "a" * size) for number in range(count))
    sent = good._replace(headers=(*good.headers, *extra)).as_bytes()
    return Damaged(f"{count} headers of {size}", (sent,), is_forbidden=False)


def _chunks(good: Request, port: int, rng: Random) -> Damaged:
    others = tuple(pair for pair in good.headers if pair[0] != "Content-Length")
    head = good._replace(headers=(*others, ("Transfer-Encoding", "chunked")), body=b"").as_bytes()
    return Damaged("chunks", (head, rng.choice(_CHUNKS)), is_complete=False)


def _protocol(good: Request, port: int, rng: Random) -> Damaged:
    upgrade = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" % port
    tls = bytes.fromhex("16030100c8010000c403030000")
    return Damaged("protocol", (rng.choice((upgrade, tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),), False, False)


def _bits(good: Request, port: int, rng: Random) -> Damaged:
    sent = bytearray(good.as_bytes())
    for _ in range(rng.randint(1, 4)):
        sent[rng.randrange(min(len(sent), 400))] ^= 1 << rng.randrange(8)
    return Damaged("bits", (bytes(sent),), is_complete=False, is_forbidden=False)
