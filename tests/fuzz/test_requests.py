"""Raw damaged requests to both servers: answered with 4xx or closed, and good requests are answered afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import random
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from fuzz_models import review_app, small_run
from fuzz_requests import Damaged, Request, damage_request
from http_servers import connect, serving
from PIL import Image

from halflabel.runs.model import Model
from halflabel.serve.app import make_app
from halflabel.serve.guard import TOKEN_HEADER, Guard, Limits


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, Request]]]:
    """The port of each server, and a good request to it."""
    model = Model.open(small_run(tmp_path_factory.mktemp("runs") / "run").folder)
    limits = Limits(file_bytes=100_000, request_bytes=150_000, files=4, pixels=300_000)
    photo = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photo, "JPEG")
    question = json.dumps({"tab": "a", "count": 2}).encode()
    place = tmp_path_factory.mktemp("review")
    with (
        serving(lambda port: Guard(make_app(model, "x", limits), host="127.0.0.1", port=port)) as serve,
        serving(lambda port: review_app(place, port), "off") as review,
    ):
        yield {
            "serve": (serve, make_request(serve, "/predict", "image/jpeg", photo.getvalue())),
            "review": (review, make_request(review, "/api/questions", "application/json", question, "t" * 43)),
        }


def make_request(port: int, path: str, kind: str, body: bytes, token: str = "none") -> Request:
    headers = {"Host": f"127.0.0.1:{port}", "Content-Type": kind, TOKEN_HEADER: token, "Connection": "close"}
    return Request("POST", path, (*headers.items(), ("Content-Length", str(len(body)))), body)


def exchange(port: int, sent: Damaged, seconds: float = 30) -> bytes:
    """The beginning of the answer; empty if the connection was closed, or if the client did not wait."""
    with connect(port, seconds) as link, contextlib.suppress(ConnectionError):
        for piece in sent.pieces:
            link.sendall(piece)
            time.sleep(0.002 if len(sent.pieces) > 2 else 0)
        if not sent.is_complete:
            link.settimeout(0.03)
            with contextlib.suppress(TimeoutError):
                return link.recv(200)
            return b""
        return link.recv(200)
    return b""


def check(port: int, good: Request, numbers: range, caplog: pytest.LogCaptureFixture) -> None:
    wrong, ends = [], Counter[str]()
    intact = Damaged("none", (good.as_bytes(),))
    for number in numbers:
        sent = damage_request(good, port, random.Random(number))
        try:
            reply = exchange(port, sent)
        except TimeoutError:
            wrong.append(f"{number} {sent.kind}: no answer")
            continue
        status = reply[9:12].decode("latin-1") if reply.startswith(b"HTTP/1.1 ") else ""
        ends[status] += 1
        is_right = status < "500" and not (sent.is_forbidden and status == "200")
        if not is_right or (reply and not status):
            wrong.append(f"{number} {sent.kind}: {reply!r:.100}")
        if number % 10 == 0 and not exchange(port, intact).startswith(b"HTTP/1.1 200"):
            wrong.append(f"a good request after {number} {sent.kind} was not answered")
    assert exchange(port, intact).startswith(b"HTTP/1.1 200")
    assert not wrong, "\n".join(wrong[:10])
    assert sum(ends[status] for status in ends if status.startswith("4")) > len(numbers) / 8
    faults = [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert not faults, faults[:3]


@pytest.mark.parametrize("name", ["serve", "review"])
def test_damaged_requests_are_refused(servers: dict, name: str, caplog: pytest.LogCaptureFixture) -> None:
    check(*servers[name], range(120), caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve", "review"])
def test_many_damaged_requests_are_refused(servers: dict, name: str, caplog: pytest.LogCaptureFixture) -> None:
    check(*servers[name], range(120, 4000), caplog)
