"""The ML backend of Label Studio: requests in its format, answered by the names of the images."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from halflabel.labels import formats
from halflabel.labels.formats.label_studio import config_path, question_name
from halflabel.labels.table import Table
from halflabel.runs.model import Model
from halflabel.serve.app import make_app


@pytest.fixture(scope="module")
def folder(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(3):
        (folder / f"a {number}.jpg").write_bytes(bench.saved(bench.picture(random.Random(number)), "JPEG"))
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


@pytest.fixture(scope="module")
def predictor(model: Path) -> Model:
    return Model.open(model)


@pytest.fixture(scope="module")
def client(predictor: Model, folder: Path) -> Iterator[TestClient]:
    with TestClient(make_app(predictor, "run", images=folder)) as opened:
        yield opened


def request(addresses: list[str], interface: str) -> dict[str, Any]:
    """As Label Studio 1.13 sends it."""
    tasks = [{"id": n, "data": {"image": address}, "annotations": []} for n, address in enumerate(addresses)]
    more = {
        "model_version": "run",
        "project": "7.1700000000",
        "params": {"login": None, "password": None, "context": None},
    }
    return {"tasks": tasks, "label_config": interface, **more}


def test_health_and_setup(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "UP"
    sent = {"project": "7.1700000000", "schema": "<View/>", "hostname": "http://localhost:8080", "access_token": "x"}
    assert client.post("/setup", json=sent).json() == {"model_version": "run"}


def test_questions_of_convert_get_the_answers_of_predict(
    client: TestClient, predictor: Model, folder: Path, tmp_path: Path
) -> None:
    names = [f"a {number}.jpg" for number in range(3)]
    table = Table.from_dense([[1] + [0] * (len(predictor.classes) - 1)] * 3, names, predictor.classes)
    formats.write(table, tmp_path / "tasks.json", format="label-studio")
    interface = config_path(tmp_path / "tasks.json").read_text()
    addresses = [task["data"]["image"] for task in json.loads((tmp_path / "tasks.json").read_text())]
    addresses += ["/data/upload/3/0a1b2c3d-" + quote("a 0.jpg"), "/data/local-files/?d=gone.jpg", "../../etc/passwd"]
    reply = client.post("/predict", json=request(addresses, interface)).json()["results"]
    assert [len(task["result"]) for task in reply] == [len(predictor.classes)] * 4 + [0, 0]
    expected = predictor.predict([folder / name for name in names], top=0, all_scores=True)
    for task, prediction in zip(reply, expected, strict=False):
        assert task["model_version"] == "run"
        chosen = [result["value"]["choices"] for result in task["result"]]
        assert chosen == [["yes" if label["present"] else "no"] for label in prediction.labels]
    questions = [[result["from_name"] for result in reply[k]["result"]] for k in (0, 3)]
    assert questions[0] == questions[1]
    # What Label Studio stores of it is read back as predictions of a model.
    tasks = [{"data": {"image": addresses[0]}, "predictions": [reply[0]]}]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    rows = formats.read(tmp_path / "export.json").rows
    assert rows.is_model_made().all()
    assert len(rows) == len(predictor.classes)


def test_choices_of_other_projects_get_the_present_classes(client: TestClient, predictor: Model) -> None:
    offered = "".join(f'<Choice value="{name}"/>' for name in [*list(predictor.classes)[:5], "zebra"])
    interface = f'<View><Image name="img" value="$image"/><Choices name="tags" toName="img">{offered}</Choices></View>'
    every = client.post("/predict", json=request(["a 1.jpg"], "")).json()["results"][0]["result"]
    yes = {result["from_name"] for result in every if result["value"]["choices"] == ["yes"]}
    present = {name for name in list(predictor.classes)[:5] if question_name(name) in yes}
    reply = client.post("/predict", json=request(["a 1.jpg"], interface)).json()["results"][0]["result"]
    names = [name for result in reply for name in result["value"]["choices"]]
    assert set(names) == present
    assert len(every) == len(predictor.classes)
    assert all((result["from_name"], result["to_name"]) == ("tags", "img") for result in reply)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not JSON"),
        (b'{"tasks": 3}', "list of tasks"),
        (b'{"tasks": [{"data": {"image": "a 1.jpg"}}], "label_config": "<View"}', "not XML"),
    ],
)
def test_bad_requests_are_refused(client: TestClient, sent: bytes, reason: str) -> None:
    reply = client.post("/predict", content=sent, headers={"content-type": "application/json"})
    assert (reply.status_code, reason in reply.json()["detail"]) == (400, True)


def test_odd_tasks_and_a_server_without_images(client: TestClient, predictor: Model) -> None:
    tasks = [
        None,
        {},
        {"data": []},
        {"data": {"image": 3}},
        {"data": {"image": "broken.jpg"}},
        {"data": {"image": "a 2.jpg"}},
    ]
    reply = client.post("/predict", json={"tasks": tasks})
    assert [bool(task["result"]) for task in reply.json()["results"]] == [False] * 5 + [True]
    with TestClient(make_app(predictor, "run")) as plain:
        assert "--images FOLDER" in plain.post("/predict", json={"tasks": []}).json()["detail"]
