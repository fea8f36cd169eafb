"""The server: the same labels as `predict`, bad input refused with a reason, limits, a graceful end."""

from __future__ import annotations

import http.client
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from http_servers import connect, serving
from typer.testing import CliRunner

from halflabel.cli import app as cli
from halflabel.errors import UserError
from halflabel.runs.model import Model
from halflabel.serve.app import make_app
from halflabel.serve.guard import Guard, Limits

SMALL = Limits(file_bytes=200_000, request_bytes=500_000, files=4, pixels=200_000, seconds=5, requests=8)


@pytest.fixture(scope="module")
def predictor(model: Path) -> Model:
    return Model.open(model)


@pytest.fixture(scope="module")
def client(predictor: Model) -> Iterator[TestClient]:
    with TestClient(make_app(predictor, "run", SMALL)) as opened:
        yield opened


@pytest.fixture
def photo(bench: Any, tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(bench.saved(bench.picture(random.Random(1)), "JPEG"))
    return path


def files(*contents: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{number}.jpg", content)) for number, content in enumerate(contents)]


@pytest.mark.parametrize("query", ["", "?top=5", "?all=true", "?top=0"])
def test_labels_are_those_of_predict(client: TestClient, predictor: Model, photo: Path, query: str) -> None:
    top = {"": 3, "?top=5": 5, "?all=true": 0, "?top=0": 0}[query]
    (expected,) = predictor.predict([photo], top=top, all_scores="all" in query)
    for reply in (
        client.post(f"/predict{query}", files=files(photo.read_bytes())),
        client.post(f"/predict{query}", content=photo.read_bytes()),
    ):
        assert reply.status_code == 200, reply.text
        (actual,) = reply.json()["images"]
        assert actual["error"] == ""
        assert [label["class"] for label in actual["labels"]] == [label["class"] for label in expected.labels]
        assert [label["present"] for label in actual["labels"]] == [label["present"] for label in expected.labels]
        assert [label["probability"] for label in actual["labels"]] == pytest.approx(
            [label["probability"] for label in expected.labels], abs=1e-6
        )


def test_every_kind_of_model_can_be_served(model: Path, photo: Path, tmp_path: Path) -> None:
    from halflabel.runs.export.hub import export_hub
    from halflabel.runs.export.onnx import export_onnx
    from halflabel.runs.folder import RunFolder

    export_hub(RunFolder.open(model), tmp_path / "hub")
    export_onnx(Model.open(model), tmp_path / "model.onnx")
    answers = []
    for path in (model, tmp_path / "hub", tmp_path / "model.onnx"):
        with TestClient(make_app(Model.open(path), "x", SMALL)) as client:
            answers.append(client.post("/predict?all=true", content=photo.read_bytes()).json()["images"][0]["labels"])
    scores = [{label["class"]: label["probability"] for label in labels} for labels in answers]
    assert len(scores[0]) == 10
    assert scores[1] == pytest.approx(scores[0], abs=1e-6)
    assert scores[2] == pytest.approx(scores[0], abs=1e-4)


def test_predictions_follow_the_order_of_files_and_name_bad_files(client: TestClient, bench: Any, photo: Path) -> None:
    cmyk = bench.saved(bench.picture(random.Random(2), "CMYK"), "JPEG")
    reply = client.post("/predict?all=true", files=files(photo.read_bytes(), b"<html>", cmyk))
    assert reply.status_code == 200
    first, bad, last = reply.json()["images"]
    assert [item["image"] for item in (first, bad, last)] == ["0.jpg", "1.jpg", "2.jpg"]
    assert (bad["error"], bad["labels"]) == ("not an image", [])
    alone = client.post("/predict?all=true", content=cmyk).json()["images"][0]
    scores = [{label["class"]: label["probability"] for label in item["labels"]} for item in (last, alone, first)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[0] != pytest.approx(scores[2], abs=1e-6)


def test_bad_requests_are_refused_with_a_reason(client: TestClient, bench: Any, photo: Path) -> None:
    good = photo.read_bytes()
    form = "multipart/form-data; boundary=x"
    odd = b'--x\r\nContent-Disposition: form-data; name="f"; filename="\xff\xfe"\r\n\r\n'
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (400, "empty file", {"content": b""}),
        (400, "empty file", {"files": files(b"")}),
        (400, "truncated", {"content": good[:300]}),
        (400, "truncated|damaged", {"content": good[: len(good) // 2]}),
        (415, "not an image", {"content": b"<svg></svg>", "headers": {"content-type": "image/svg+xml"}}),
        (415, "0.jpg: not an image", {"files": files(b"<html>")}),
        (413, "over the limit of 200000", {"content": bench.png_of_nothing(30_000, 30_000, rows=1)}),
        (413, "65535 × 65535 pixels", {"files": files(bench.png_of_nothing(65_535, 65_535, rows=1))}),
        (413, "the limit is 0.2 MB", {"content": bytes(200_001)}),
        (413, "0.jpg: larger than 0.2 MB", {"files": files(bytes(200_001))}),
        (413, "the limit is 0.5 MB", {"files": files(*[bytes(150_000)] * 4)}),
        (413, "Too many files", {"files": files(*[good] * 5)}),
        (400, "has no file", {"data": {"a": "b"}, "files": {"c": (None, "text")}}),
        (400, "boundary", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
        (400, "nvalid", {"content": b"--y\r\n--y--", "headers": {"content-type": form}}),
        (400, ".", {"content": odd + b"z\r\n--x--", "headers": {"content-type": form + "; charset=punycode"}}),
        (415, "multipart/mixed", {"content": b"x", "headers": {"content-type": "multipart/mixed; boundary=x"}}),
        (400, "empty file; 1.jpg: not an image", {"files": files(b"", b"no")}),
    ]
    for status, reason, request in cases:
        reply = client.post("/predict", **request)
        assert reply.status_code == status, (reason, reply.text)
        assert re.search(reason, reply.json()["detail"]), reply.text
    assert client.post("/predict?top=-1", content=good).status_code == 400
    assert "top" in client.post("/predict?top=many", content=good).json()["detail"]
    assert client.get("/predict").status_code == 405
    assert client.get("/nowhere").status_code == 404


def test_a_body_without_content_length_is_limited(client: TestClient, photo: Path) -> None:
    def stream(parts: int) -> Iterator[bytes]:
        for _ in range(parts):
            yield bytes(50_000)

    assert client.post("/predict", content=stream(3)).status_code == 415
    reply = client.post("/predict", content=stream(30))
    assert reply.status_code == 413
    assert "larger than 0.2 MB" in reply.json()["detail"]


def test_file_names_that_are_not_text_are_returned_as_text(client: TestClient, photo: Path) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="\\ud800<b>"\r\n\r\n'
    for charset in ("utf-8", "unicode_escape", "hex", "utf-16", "nonsense"):
        kind = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
        reply = client.post("/predict", content=head + photo.read_bytes() + b"\r\n--x--\r\n", headers=kind)
        assert reply.status_code in (200, 400), reply.text
        if charset in ("utf-8", "unicode_escape"):
            assert reply.status_code == 200
            reply.json()["images"][0]["image"].encode()


def test_a_busy_server_answers_503_with_retry_after(model: Path, photo: Path) -> None:
    predictor = Model.open(model)
    scores = predictor.scores
    with TestClient(make_app(predictor, "x", replace(SMALL, requests=1))) as client:
        predictor.scores = lambda source: time.sleep(0.5) or scores(source)  # type: ignore[method-assign]
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client.post, "/predict", content=photo.read_bytes())
            time.sleep(0.15)
            second = client.post("/predict", content=photo.read_bytes())
        assert (first.result().status_code, second.status_code) == (200, 503)
        assert int(second.headers["retry-after"]) >= 1
        assert client.post("/predict", content=photo.read_bytes()).status_code == 200


def test_temporary_files_are_removed(
    predictor: Model, photo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with TestClient(make_app(predictor, "x", SMALL)) as client:
        for request in ({"content": photo.read_bytes()}, {"content": b"x"}, {"files": files(b"", photo.read_bytes())}):
            client.post("/predict", **request)
        client.post("/predict", files=files(bytes(200_001)))
        assert list(tmp_path.iterdir()) == [photo]


def test_health_classes_and_docs(client: TestClient, predictor: Model, photo: Path) -> None:
    before = client.get("/health").json()
    client.post("/predict", files=files(photo.read_bytes(), photo.read_bytes()))
    after = client.get("/health").json()
    assert (after["status"], after["model"], after["classes"]) == ("UP", "run", 10)
    assert after["images"] == before["images"] + 2
    listed = client.get("/classes").json()["classes"]
    assert [item["class"] for item in listed] == list(predictor.classes)
    assert [item["threshold"] for item in listed] == pytest.approx(predictor.thresholds.tolist())
    page = client.get("/docs")
    assert page.text == client.get("/").text
    assert not re.findall(r'(?:src|href)="', page.text)
    assert "https://" not in page.text
    assert "default-src &#39;none&#39;" in page.text
    schema = client.get("/openapi.json").json()
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert {"multipart/form-data", "image/*"} <= set(body)
    assert {"200", "400", "408", "413", "415", "503"} <= set(schema["paths"]["/predict"]["post"]["responses"])
    assert set(schema["components"]["schemas"]["Label"]["properties"]) == {"class", "probability", "present"}


def test_the_slider_sets_the_threshold(browser: Any, bench: Any, model: Path, photo: Path) -> None:
    server = bench.Server(model)
    tab = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    try:
        console: list[str] = []
        tab.on("console", lambda message: console.append(message.text))
        tab.on("pageerror", lambda error: console.append(str(error)))
        tab.goto(f"http://127.0.0.1:{server.port}/")
        upload = {"name": "<b>one</b>.png", "mimeType": "image/png", "buffer": photo.read_bytes()}
        tab.locator("#files").set_input_files([upload, {**upload, "name": "two.png"}])
        tab.locator(".result").nth(1).locator(".bars li").first.wait_for()
        tab.locator(".result").nth(0).locator(".bars li").first.wait_for()
        assert tab.locator(".result b").all_inner_texts() == ["two.png", "<b>one</b>.png"]
        tab.locator("#threshold").fill("100")
        assert tab.locator(".bars li.called").count() == 0
        assert tab.locator(".result .count").first.inner_text() == "no classes"
        tab.locator("#threshold").fill("0")
        assert tab.locator(".result").first.locator(".bars li.called").count() == 10
        tab.locator("#reset").click()
        assert not tab.is_visible("#reset")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert console == []
        dropped = "const data = new DataTransfer(); data.items.add(new File(['no image'], 'three.png')); "
        tab.evaluate(f"() => {{ {dropped} document.dispatchEvent(new DragEvent('drop', {{ dataTransfer: data }})); }}")
        tab.get_by_role("alert").get_by_text("Refused: three.png: not an image").wait_for()
    finally:
        tab.close()
        server.stop()


@pytest.mark.parametrize(
    ("host", "address"),
    [("photos.example:81", "http://photos.example:81/predict"), ("[::1]:8", "&#39;http://[::1]:8/predict&#39;")]
    + [(bad, "http://testserver/predict") for bad in ("a;rm -rf ~", "<b>", "[::1 x", "")],
)
def test_the_examples_show_the_address_of_the_page(client: TestClient, host: str, address: str) -> None:
    page = client.get("/docs", headers={"host": host})
    assert page.status_code == 200
    assert f"curl -F files=@photo.jpg {address}<" in page.text


def test_a_model_with_nan_scores_is_refused_at_the_start(model: Path) -> None:
    broken = Model.open(model)
    for weight in broken.network.parameters():
        torch.nn.init.constant_(weight, torch.nan)
    with pytest.raises(UserError, match="not finite"):
        make_app(broken)


FAULTS: dict[str, tuple[Exception | None, int, str]] = {
    "any": (RuntimeError("secret"), 500, "the model failed (RuntimeError)"),
    "memory": (torch.OutOfMemoryError("secret"), 503, "not enough memory for these images"),
    "no numbers": (None, 500, "the model returns scores that are not finite"),
}


@pytest.mark.parametrize(("raised", "status", "detail"), FAULTS.values(), ids=FAULTS)
def test_errors_of_the_model_are_json(
    model: Path, photo: Path, raised: Exception | None, status: int, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Model.open(model)
    app = make_app(broken, "run", SMALL)

    def scores(source: Any, progress: Any = None) -> torch.Tensor:
        if raised is not None:
            raise raised
        return torch.full((len(source), len(broken.classes)), torch.nan)

    broken.scores = scores  # type: ignore[method-assign]
    with TestClient(app) as opened:
        answer = opened.post("/predict", files=files(photo.read_bytes()))
        assert (answer.status_code, answer.json()) == (status, {"detail": detail})
        assert ("retry-after" in answer.headers) == (status == 503)
        assert opened.get("/health").status_code == 200
    assert ("secret" in caplog.text) == (raised is not None)


def test_unexpected_errors_are_json(predictor: Model, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: Any, **__: Any) -> None:
        raise KeyError("secret")

    with TestClient(make_app(predictor, "run", SMALL), raise_server_exceptions=False) as opened:
        monkeypatch.setattr(predictor, "labels", odd)
        answer = opened.post("/predict", files=files(photo.read_bytes()))
    assert (answer.status_code, answer.json()) == (500, {"detail": "the server failed (KeyError)"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "127.0.0.1:80"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": ""}, 421),
    ],
)
def test_without_a_token_the_host_must_be_this_machine(predictor: Model, headers: Any, status: int) -> None:
    with TestClient(Guard(make_app(predictor), host="127.0.0.1", port=8000)) as client:
        assert client.get("/classes", headers=headers).status_code == status


TOKEN = "a-token-of-some-length"


def test_with_a_token_other_requests_are_refused(predictor: Model, photo: Path) -> None:
    with TestClient(Guard(make_app(predictor), host="127.0.0.1", port=8000, token=TOKEN)) as client:
        assert client.get("/health").status_code == 200
        for path in ("/", "/classes", "/openapi.json", "/nothing"):
            assert client.get(path).status_code == 401
        refused = ["Bearer " + TOKEN[:-1], "Bearer", "Basic x", f"Token {TOKEN}", f"Basic {TOKEN}", TOKEN]
        for sent in refused:
            response = client.post("/predict", content=photo.read_bytes(), headers={"authorization": sent})
            assert response.status_code == 401
            assert "Basic" in response.headers["www-authenticate"]
        accepted = {"authorization": f"Bearer {TOKEN}", "host": "any.example"}
        assert client.post("/predict", content=photo.read_bytes(), headers=accepted).status_code == 200
        assert client.get("/", auth=("anybody", TOKEN)).status_code == 200


def test_a_short_token_is_refused(model: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", str(model), "--token", "secret"])
    assert result.exit_code == 2
    assert "16 characters" in result.stderr


def test_a_body_that_never_ends_is_refused(predictor: Model) -> None:
    with serving(lambda _: make_app(predictor, "x", replace(SMALL, seconds=0.3))) as port, connect(port) as link:
        link.sendall(f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100\r\n\r\nabc".encode())
        assert link.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.slow
def test_a_real_server_with_bad_requests(bench: Any, model: Path) -> None:
    """A seeded part of the benchmark; then a client that sends too much, and a server stopped while a client waits."""
    # The default time limit: a busy machine needs seconds for what an idle one does at once.
    server = bench.Server(model)
    try:
        makes = bench.samples(48, seed=7, without=("49 megapixels, 16-bit", "bomb", "bomb in form", "100 MB"))
        bench.send(server.port, makes[0])
        handles = server.handles()
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda make: bench.send(server.port, make), makes))
        assert [reply for reply in replies if not reply.right] == []
        assert {reply.status for reply in replies} == {0, 200, 400, 413, 415}
        host = f"127.0.0.1:{server.port}"
        with connect(server.port) as link:
            lines = ("POST /predict HTTP/1.1", f"Host: {host}", "Expect: 100-continue", "Content-Length: 99000000")
            link.sendall("\r\n".join([*lines, "", ""]).encode())
            assert link.recv(1000).startswith(b"HTTP/1.1 413")
        deadline = time.monotonic() + 60
        while (left := server.handles()) > handles + 4 and time.monotonic() < deadline:
            time.sleep(0.2)  # connections that were hung up are closed a moment later
        assert left <= handles + 4
        assert server.ask("/health")["status"] == "UP"
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        content = bench.saved(bench.picture(random.Random(3)), "JPEG")
        client.putrequest("POST", "/predict")
        client.putheader("Content-Length", str(len(content)))
        client.endheaders(content[:100])
        time.sleep(0.2)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(server.stop)
            time.sleep(0.3)
            client.send(content[100:])  # it was under way when the server was asked to stop
            assert client.getresponse().status == 200
            code, messages = ended.result(60)
        client.close()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()
    assert (code, "Traceback" in messages, "Stopped." in messages) == (0, False, True), messages
