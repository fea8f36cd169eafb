"""Generated texts and documents (hypothesis) for everything that reads text or JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fuzz_cases import limit
from fuzz_kit import Refusal, small_table
from hypothesis import given, settings
from hypothesis import strategies as st

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.labels import formats
from halflabel.labels.policy import Policy
from halflabel.labels.rules import read_rules
from halflabel.methods.parts.label_graph import from_file
from halflabel.questions.choose import read_questions
from halflabel.runs.export.metadata import read_description
from halflabel.runs.folder import RunFolder
from halflabel.system.validate import check_fields

few = settings(max_examples=40)

# Pieces that mean something to one reader or another, put together at random.
PIECES = (
    "image", "class", "value", "file_name", "cat", "dog", "1", "0", "-1", "0.5", "", '"', '""', ",", ";", "\t", "|",
    "\n", "\r\n", "\r", " ", "\0", "\ufeff", "é", "\u2028", "implies", "excludes", "nan", "ImageID", "LabelName",
    "Confidence", "Source", "x" * 300, "1e999", "true", "null", "[", "]", "{", "}", ":", "\ud800",
)  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.lists(st.sampled_from(PIECES[:14]), min_size=1, max_size=4).map(",".join), max_size=8).map("\n".join),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
contents = st.one_of(
    texts, st.binary(max_size=200), texts.map(lambda text: text.decode("utf-8", "replace").encode("utf-16"))
)
numbers = st.one_of(st.integers(), st.sampled_from([2**63, 10**400, -(10**400)]), st.floats())
leaves = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from([*PIECES, "a.jpg", "images", "x"]))
documents = st.recursive(
    leaves,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(PIECES), below, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with limit(60):
        yield tmp_path_factory.mktemp("text")


@pytest.mark.parametrize("name", ["long", "wide", "open-images", "imagefolder"])
@few
@given(
    content=contents, stated=st.sampled_from([{}, {"zero": "unknown"}, {"unlisted": "absent"}, {"encoding": "utf-16"}])
)
def test_tables_of_labels(place: Path, name: str, content: bytes, stated: dict[str, str]) -> None:
    path = place / "metadata.csv"
    path.write_bytes(content)
    for form in (name, "auto"):
        with suppress(UserError):
            table = formats.read(path, Policy(**stated), format=form).table()
            assert table.dense().shape == table.shape


@few
@given(content=contents)
def test_lists_of_classes(place: Path, content: bytes) -> None:
    table = small_table()
    path = place / "list.csv"
    path.write_bytes(content)
    for read in (
        partial(from_file, path, table.classes),
        partial(read_rules, path, table.classes),
        partial(read_questions, path, table),
    ):
        with suppress(UserError):
            read()


KEYS = {
    "coco": ("images", "annotations", "categories"),
    "lvis": ("images", "annotations", "categories"),
    "fiftyone": ("classes", "labels", "file_names"),
    "label-studio": ("data", "annotations", "predictions"),
}


@pytest.mark.parametrize("name", list(KEYS))
@few
@given(data=st.data())
def test_documents(place: Path, name: str, data: st.DataObject) -> None:
    document: Any = {key: data.draw(documents) for key in KEYS[name]}
    if name == "label-studio":
        document = [document, {"data": {"image": "a.jpg"}, "annotations": [{"result": data.draw(documents)}]}]
    elif name != "fiftyone":
        marks = [{"image_id": 1, "category_id": 1, "score": data.draw(leaves), "source": data.draw(leaves)}]
        document = data.draw(st.sampled_from([document, {**_coco(data), "annotations": marks}]))
    path = place / "labels.json"
    path.write_text(json.dumps(document))
    for unlisted in ("absent", "unknown", None):
        with suppress(UserError):
            table = formats.read(path, Policy(unlisted=unlisted), format=name).table()
            assert table.stats.known == table.known


def _coco(data: st.DataObject) -> dict[str, Any]:
    image = {"id": 1, "file_name": data.draw(leaves), "neg_category_ids": data.draw(documents)}
    return {"images": [image], "categories": [{"id": data.draw(leaves), "name": "cat"}, {"id": 1, "name": "dog"}]}


@few
@given(data=st.data())
def test_settings(data: st.DataObject) -> None:
    """What is accepted has the types that the rest of the code counts on."""
    good = Config().as_dict()
    key = data.draw(st.sampled_from(sorted(good)))
    good[key] = data.draw(documents)
    with suppress(UserError):
        content = asdict(Config.from_dict(good))
        check_fields(Config, content)
        assert isinstance(content["epochs"], int)
        assert content["resize"] in ("squash", "crop", "keep")


def test_good_settings_are_accepted() -> None:
    assert Config.from_dict(Config(method="em", size=64, linear_lr=1).as_dict()) == Config(
        method="em", size=64, linear_lr=1
    )
    wrong = [
        ("size", 1.5),
        ("resize", "x"),
        ("crop", "0.5"),
        ("deterministic", 1),
        ("nothing", 1),
        ("crop", float("nan")),
    ]
    for name, value in wrong:
        with pytest.raises(UserError, match=r"config\.yaml"):
            Config.from_dict({**Config().as_dict(), name: value})


@few
@given(data=st.data())
def test_what_an_export_says_of_itself(data: st.DataObject) -> None:
    preprocess = {
        "size": 32,
        "resize": "squash",
        "interpolation": "bilinear",
        "crop_pct": 1,
        "mean": [0] * 3,
        "std": [1] * 3,
    }
    good: dict[str, Any] = {
        "halflabel": {"layout": 1}, "classes": ["a"], "thresholds": [0.5], "calibration": {}, "preprocess": preprocess,
        "backbone": "tiny", "method": "bce", "options": {}, "tune": "head", "mirror": False,
    }  # fmt: skip
    read_description(good, "x")
    where = data.draw(st.sampled_from([good, preprocess]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(documents)
    with suppress(UserError):
        read_description(good, "x")


@few
@given(content=documents)
def test_thresholds_and_calibration(place: Path, content: Any) -> None:
    run = RunFolder(place)
    for name, read in (("thresholds.json", run.read_thresholds), ("calibration.json", run.read_calibration)):
        (place / name).write_text(json.dumps(content))
        with suppress(UserError):
            read()


@few
@given(text=st.one_of(texts, st.binary(max_size=80)))
def test_settings_as_text(place: Path, text: bytes) -> None:
    (place / "config.yaml").write_bytes(text)
    with suppress(UserError):
        assert isinstance(RunFolder.open(place).read_config(), dict)
    (place / "log.jsonl").write_bytes(text)
    with suppress(UserError):
        assert all(isinstance(line, dict) for line in RunFolder.open(place).read_log())


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from fastapi.testclient import TestClient
    from fuzz_models import review_app

    from halflabel.serve.guard import TOKEN_HEADER

    app = review_app(tmp_path_factory.mktemp("review"))
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={TOKEN_HEADER: "t" * 43})


@pytest.mark.parametrize("call", ["next", "hold", "release", "say"])
@few
@given(data=st.data())
def test_what_a_page_may_send(review: Any, call: str, data: st.DataObject) -> None:
    from fuzz_models import judge

    good: dict[str, Any] = {
        "next": {"tab": "a", "count": 3, "low": 0.1, "skip": [1]},
        "say": {"tab": "a", "steps": [{"kind": "answer", "key": "abcdefgh", "entry": 1, "value": 1}]},
    }.get(call, {"tab": "a", "entries": [0, 1]})
    key = data.draw(st.sampled_from([*good, "\ud800", "extra"]))
    body = data.draw(st.sampled_from([json.dumps({**good, key: data.draw(documents)}).encode(), data.draw(contents)]))
    with suppress(Refusal):
        judge(review.post(f"/api/{call}", content=body, headers={"content-type": "application/json"}))


def test_damage_of_every_kind_is_defined_for_any_bytes() -> None:
    from fuzz_mutate import KINDS, damage

    for name in ("x", "x.csv", "x.json", "x.yaml", "x.parquet", "x.safetensors", "x.labels", "x.png"):
        for number in range(3 * len(KINDS)):
            messages, actual = damage(random.Random(number).randbytes(number), random.Random(number), name)
            assert isinstance(actual, bytes)
            assert messages
