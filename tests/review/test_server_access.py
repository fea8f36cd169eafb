"""Who is let in by the review server, and what every reply tells the browser."""

from __future__ import annotations

import http.client
import re
import socket
from importlib.resources import files

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient
from http_servers import serving
from server_examples import PORT, TOKEN, client_of, step

from halflabel.review.thumbnails import Thumbnails
from halflabel.serve.guard import PAGE_HEADERS as HEADERS
from halflabel.serve.guard import TOKEN_HEADER
from halflabel.system.sockets import is_loopback

SCRIPTS = sorted(
    f"/{item.name}" for item in (files("halflabel.review") / "static").iterdir() if item.name.endswith(".js")
)


@pytest.mark.parametrize("path", ["/api/state", "/api/gallery?kind=wrong", "/api/image/x", "/api", "/api/nothing"])
def test_requests_without_the_token_are_refused(client, path) -> None:
    for given in ("", "t" * 42, TOKEN + "t"):
        assert client.get(path, headers={TOKEN_HEADER: given}).status_code == 401
    bare = TestClient(client.app, base_url=f"http://127.0.0.1:{PORT}")
    assert bare.get(path).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example:8765", "127.0.0.1:80", "127.0.0.1", "localhost.evil.example:8765", "10.0.0.7:8765", ""]
)
def test_foreign_names_are_refused(client, host) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 421
    assert client.get("/api/state", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "127.0.0.2:8765"])
def test_own_names_are_not(client, host) -> None:
    assert client.get("/api/state", headers={"Host": host}).status_code == 200


def test_on_an_open_address_numbers_are_taken_and_names_are_not(project, session) -> None:
    client = client_of(session, Thumbnails(project.images, session.scored.paths), host="0.0.0.0")
    assert client.get("/", headers={"Host": f"192.168.1.4:{PORT}"}).status_code == 200
    assert client.get("/", headers={"Host": f"{socket.gethostname()}:{PORT}"}).status_code == 200
    assert client.get("/", headers={"Host": f"evil.example:{PORT}"}).status_code == 421
    assert (is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")) == (True, True, False)


def test_foreign_pages_are_refused(client) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8765"):
        assert client.post("/api/questions", json={"tab": "x"}, headers={"Origin": origin}).status_code == 403
    assert client.get("/api/state", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get("/api/state", headers={"Origin": f"http://127.0.0.1:{PORT}"}).status_code == 200


def test_idle_connections_shut_nobody_out(client) -> None:
    with serving(lambda _: client.app) as port:
        idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(300)]
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        link.request("GET", "/api/state", headers={"Host": f"127.0.0.1:{PORT}", TOKEN_HEADER: TOKEN})
        status = link.getresponse().status
        for connection in (*idle, link):
            connection.close()
    assert status == 200


def test_large_requests_are_refused_even_without_a_length(client, session) -> None:
    assert client.post("/api/answers", content=b"x" * 70_000).status_code == 413

    def stream():
        for _ in range(70):
            yield b" " * 1000

    assert client.post("/api/answers", content=stream()).status_code == 413
    assert session.answers.count() == (0, 0)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"])
def test_other_methods_are_refused(client, method) -> None:
    assert client.request(method, "/api/answers").status_code == 405


@pytest.mark.parametrize("path", ["/", *SCRIPTS, "/page.css", "/api/state", "/nothing", "/api/image/x"])
def test_every_reply_tells_the_browser_what_it_may_do(client, path) -> None:
    reply = client.get(path)
    for name, value in HEADERS.items():
        assert reply.headers[name] == value
    assert "access-control-allow-origin" not in reply.headers
    assert "unsafe" not in reply.headers["content-security-policy"]


def test_the_page_needs_no_network_and_no_inline_code(client) -> None:
    page = client.get("/").text
    assert "http" not in page.replace("http-equiv", "")
    assert "style=" not in page
    assert " on" + "click" not in page
    for path in (*SCRIPTS, "/page.css"):
        text = client.get(path).text
        assert "://" not in text
        assert "innerHTML" not in text


def test_scripts_import_what_others_export_and_export_nothing_else(client) -> None:
    texts = {path: client.get(path).text for path in SCRIPTS}
    exported = {
        (path, name)
        for path, text in texts.items()
        for name in re.findall(r"^export (?:async )?(?:function|class|const|let) ([$\w]+)", text, re.MULTILINE)
    }
    imported = set()
    for path, text in texts.items():
        for names, source in re.findall(r'^import \{([^}]*)\} from "([^"]*)";$', text, re.MULTILINE):
            actual = {name.strip() for name in names.split(",") if name.strip()}
            imported |= {(source, name) for name in actual}
            body = re.sub(r"^import [^;]*;$", "", text, flags=re.MULTILINE)
            assert [name for name in actual if not re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", body)] == [], (
                path
            )
    assert len(imported) > 40
    assert imported == exported
    page = client.get("/").text
    assert set(re.findall(r'(?:href|src)="(/\w+\.js)"', page)) == set(SCRIPTS)
    for path, text in texts.items():
        assert client.get(path).headers["content-type"] == "text/javascript; charset=utf-8"
        assert text.count("\n") < 300


def test_there_are_no_pages_of_the_framework(client) -> None:
    for path in ("/docs", "/redoc", "/openapi.json", "/page.html", "/static/page.js", "/..%2fserver.py"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"steps": []},
        {"steps": [step(0, 2, "k" * 8)]},
        {"steps": [step(-1, 1, "k" * 8)]},
        {"steps": [step(10**9, 1, "k" * 8)]},
        {"steps": [step(0, 1, "k'; DROP TABLE answer")]},
        {"steps": [{**step(0, 1, "k" * 8), "image": "../secret"}]},
        {"steps": [step(0, 1, f"key-{k:08}") for k in range(201)]},
    ],
)
def test_senseless_steps_write_nothing(client, session, body) -> None:
    assert client.post("/api/answers", json={"tab": "one", **body}).status_code == 422
    assert session.answers.count() == (0, 0)
