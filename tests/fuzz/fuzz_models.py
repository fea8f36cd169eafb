"""Fuzzed readers of models and servers: run folders, exported models and requests."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_kit import CLASSES, TESTS, Reader, Refusal, Rng, gather, load_module, small_table

__all__ = ["models", "pages", "review_app", "small_run"]


def small_run(folder: Path) -> Any:
    """A copy of a model of 3 classes, which is trained once in a process."""
    from halflabel.runs.folder import RunFolder

    shutil.copytree(_trained_run(), folder)
    return RunFolder(folder)


@cache
def _trained_run() -> Path:
    """A model trained for a moment on 12 digit scenes; a model made one of its labels."""
    from halflabel.fitting.config import Config
    from halflabel.labels.labels import Labels
    from halflabel.labels.table import Table
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.train import train

    samples = load_module("fuzz_scenes", TESTS / "papers" / "datasets" / "digit_scenes.py").scenes(12, size=32)
    table = Table.from_dense(samples.labels[:, :3], samples.names, CLASSES)
    rows = Labels.from_table(table)
    source = np.zeros(len(rows.value), np.int32)
    source[0] = 1
    score = np.where(source == 1, 0.75, np.nan).astype(np.float32)
    rows = Labels.build(rows.images, rows.classes, rows.image, rows.column, rows.value, source, score, ("", "model:x"))
    run = RunFolder(Path(tempfile.mkdtemp(prefix="halflabel-fuzz-")) / "run")
    settings = Config(epochs=1, batch_size=4, device="cpu")
    train(
        rows,
        samples.images,
        dataclasses.replace(settings, backbone="tiny", size=32, held_out=0.4, images="photos"),
        run,
    )
    return run.folder


def models(place: Path) -> Iterator[Reader]:
    import torch

    from halflabel.features.backbones import build_backbone
    from halflabel.fitting.checkpoint import save, save_tensors
    from halflabel.runs.export.hub import export_hub

    run = small_run(place / "runs" / "run")
    files = gather(run.folder)
    for unread in [name for name in files if name.startswith(("last/", "report"))]:
        del files[unread]
    yield Reader("run", files, read_run)
    export_hub(run, place / "hub")
    yield Reader("hub", gather(place / "hub"), read_model, ("README.md",))
    with contextlib.suppress(ImportError):
        yield Reader("onnx", {"model.onnx": _onnx(run)}, partial(read_model, name="model.onnx"))
    for step in (1, 2):
        tensors = {"a": torch.ones(3, 2), "b": torch.zeros(0), "c": torch.tensor([1, 2])}
        save(place / "last", step, {"model": tensors, "state": {"step": step, "log": '[{"epoch": 1}]'}})
    yield Reader("checkpoint", gather(place / "last"), read_checkpoint)
    weights = build_backbone("tiny").model.state_dict()
    torch.save({"state_dict": weights}, place / "w.pt")
    save_tensors(weights, place / "w.safetensors")
    both = {name: (place / name).read_bytes() for name in ("w.pt", "w.safetensors")}
    yield Reader("weights", both, read_weights)


def _onnx(run: Any) -> bytes:
    """The least network with the names, types and metadata of our own exports."""
    from onnx import TensorProto, helper, numpy_helper

    from halflabel.runs.export.metadata import describe
    from halflabel.runs.model import Model

    image_input = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", 3, 32, 32])
    gives = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])
    axes = numpy_helper.from_array(np.array([2, 3], np.int64), "axes")
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["logits"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "small", [image_input], [gives], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    about = describe(Model.open(run))
    helper.set_model_props(model, {key: json.dumps(value) for key, value in about.items()})
    return bytes(model.SerializeToString())


def read_run(folder: Path, rng: Rng) -> None:
    from halflabel.labels.names import Names
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.scores import scored_images

    run = RunFolder.open(folder)
    if rng.random() < 0.6:
        read_model(folder, rng)
        return
    choices: tuple[Callable[[], Any], ...] = (
        run.read_labels, run.read_rows, run.read_truth, run.read_log, run.read_config,
        lambda: run.split_of(Names(["x"])),
        lambda: run.read_object("metrics.json"), lambda: scored_images(run, folder),
    )  # fmt: skip
    rng.choice(choices)()


def read_model(folder: Path, rng: Rng, name: str = "") -> None:
    import torch

    from halflabel.images.sources import Arrays
    from halflabel.labels.names import Names
    from halflabel.runs.model import Model

    predictor = Model.open(folder / name)
    size = predictor.views["plain"].size
    images = torch.zeros((1, 3, size, size), dtype=torch.uint8)
    scores = predictor.scores(Arrays(images, Names(["x"]), predictor.views))
    assert scores.shape == (1, len(predictor.classes))
    (scores >= predictor.thresholds).tolist()


def read_checkpoint(folder: Path, rng: Rng) -> None:
    from halflabel.fitting.checkpoint import load_newest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged one is skipped with a warning
        load_newest(folder)


def read_weights(folder: Path, rng: Rng) -> None:
    from halflabel.features.backbones import build_backbone

    build_backbone("tiny", weights=folder / rng.choice(("w.pt", "w.safetensors")))


# ---- servers: the files are bodies of requests


def review_app(place: Path, port: int = 8765) -> Any:
    """The review page over made-up scores of a small table; its answers lie in the folder."""
    from halflabel.labels.answers import AnswerStore
    from halflabel.questions.choose import choose_questions
    from halflabel.review.server import make_app
    from halflabel.review.session import ReviewSession
    from halflabel.review.thumbnails import Thumbnails
    from halflabel.runs.scores import ScoredImages

    table = small_table()
    scores, features = np.random.default_rng(0).random(table.shape, np.float32), np.zeros((4, 64), np.float16)
    paths = [None, "x.png", "../up.png", "y"]
    scored = ScoredImages(table, scores, features, np.zeros(4, bool), np.full(3, 0.5), place, paths)
    asked = choose_questions(scores, table, scored.thresholds, 6, control=0.5)
    desk = ReviewSession(scored, asked, AnswerStore(place / "answers.sqlite"), who="me", run="first")
    address = {"token": "t" * 43, "host": "127.0.0.1", "port": port}
    return make_app(desk, Thumbnails(place, paths), layout=place / "map.npz", **address)


def pages(place: Path) -> Iterator[Reader]:
    from fastapi.testclient import TestClient
    from PIL import Image

    from halflabel.runs.model import Model
    from halflabel.serve.app import make_app
    from halflabel.serve.guard import TOKEN_HEADER, Limits

    app = review_app(Path(tempfile.mkdtemp(prefix="halflabel-fuzz-")))
    review = TestClient(app, base_url="http://127.0.0.1:8765", headers={TOKEN_HEADER: "t" * 43})
    bodies: dict[str, Any] = {
        "questions": {"tab": "a", "count": 3, "label": "cat", "state": "open", "skip": [1]},
        "renew": {"tab": "a", "entries": [0, 1]},
        "release": {"tab": "a", "entries": [0, 1]},
        "answers": {"tab": "a", "steps": [{"kind": "answer", "key": "abcdefgh", "entry": 1, "value": 1}]},
    }
    for name, body in bodies.items():
        files = {f"{name}.json": json.dumps(body).encode()}
        yield Reader(f"review {name}", files, partial(read_review, review, name))
    limits = Limits(file_bytes=100_000, request_bytes=150_000, files=4, pixels=300_000, seconds=8.0)
    service = TestClient(make_app(Model.open(place / "runs" / "run"), "run", limits))
    service.__enter__()
    photo = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photo, "JPEG")
    yield Reader("serve body", {"photo.jpg": photo.getvalue()}, partial(read_served, service, "photo.jpg"))
    bench = load_module("fuzz_serve", TESTS.parent / "benchmarks" / "serve.py")
    form, _ = bench.form(("a.jpg", photo.getvalue()), ("b.txt", b"no image"))
    yield Reader("serve form", {"form.bin": form}, partial(read_served, service, "form.bin"))


def _body(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else b""


def judge(reply: Any) -> None:
    if reply.status_code >= 500:
        raise AssertionError(f"status {reply.status_code}: {reply.text[:200]}")
    if reply.status_code >= 400:
        raise Refusal(f"status {reply.status_code}: {reply.text[:200]}")


_WORDS = ("missing", "wrong", "x", "", "0", "-1", "9" * 30, "%00", "%ff", "cat", "../..", "NaN", "1e9", "[]", "a" * 600)


def read_review(client: Any, name: str, folder: Path, rng: Rng) -> None:
    what = rng.random()
    if what < 0.6:
        kind = rng.choice(
            ("application/json", "application/json", "text/plain", "", "application/json; charset=utf-16")
        )
        content = _body(folder / f"{name}.json")
        judge(client.post(f"/api/{name}", content=content, headers={"content-type": kind}))
    elif what < 0.8:
        words = "&".join(f"{key}={rng.choice(_WORDS)}" for key in ("kind", "label", "start", "count", "size"))
        judge(client.get(f"/api/gallery?{words}"))
    else:
        paths = ("image/{}", "map/{}/{}", "state/{}", "{}", "../{}")
        judge(client.get("/api/" + rng.choice(paths).format(rng.choice(_WORDS), rng.choice(_WORDS))))


def read_served(client: Any, name: str, folder: Path, rng: Rng) -> None:
    kinds: tuple[str, ...] = ("image/jpeg", "", "application/octet-stream", "text/plain", "multipart/mixed; boundary=x")
    if name == "form.bin":
        mark = "halflabel-bench-4711"
        kinds = (f"multipart/form-data; boundary={mark}",) * 6 + (
            "multipart/form-data", f"multipart/form-data; boundary={mark}; charset=cp037",
            "multipart/form-data; boundary=", f'multipart/form-data; boundary="{mark}',
        )  # fmt: skip
    query = rng.choice(("", "", f"?top={rng.choice(_WORDS)}", f"?all={rng.choice(_WORDS)}"))
    judge(client.post(f"/predict{query}", content=_body(folder / name), headers={"content-type": rng.choice(kinds)}))
