"""A client of the review server, and the requests that its tests send."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient

from halflabel.review.server import make_app
from halflabel.review.session import ReviewSession
from halflabel.review.thumbnails import Thumbnails
from halflabel.serve.guard import TOKEN_HEADER

TOKEN = "t" * 43
PORT = 8765


def client_of(
    session: ReviewSession, thumbnails: Thumbnails, host: str = "127.0.0.1", base: str = "127.0.0.1", maps=None
) -> TestClient:
    layout = thumbnails.folder / "map.npz"
    app = make_app(session, thumbnails, maps, token=TOKEN, host=host, port=PORT, layout=layout)
    return TestClient(app, base_url=f"http://{base}:{PORT}", headers={TOKEN_HEADER: TOKEN})


def ask(client: TestClient, tab: str = "one", **more) -> list[dict]:
    reply = client.post("/api/questions", json={"tab": tab, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["questions"]


def step(entry: int, value: int, key: str) -> dict:
    return {"kind": "answer", "key": key, "entry": entry, "value": value}
