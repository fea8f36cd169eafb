"""Label Studio: tasks written and answers read, golden exports, exports of other projects, and every fault."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import label_studio
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "label_studio"
CLASSES = ["cat", '$5 <note> & "coin"', "dôme"]
IMAGES = ["a b#1.jpg", "https://example.org/x/%C3%A9.png"]


def rows_of(
    *labels: tuple[int, int, int, str, float], images: list[str] = IMAGES, classes: list[str] = CLASSES
) -> Labels:
    sources = list(dict.fromkeys(item[3] for item in labels)) or [""]
    columns = [np.array([item[k] for item in labels]) for k in (0, 1, 2)]
    source = np.array([sources.index(item[3]) for item in labels])
    score = np.array([item[4] for item in labels])
    return Labels.build(Names(images), Names(classes), *columns, source, score, sources)


def statements(rows: Labels) -> list[tuple[str, str, int, str]]:
    """Every row as it would be told."""
    return [
        (rows.images[i], rows.classes[c], int(v), rows.sources[s])
        for i, c, v, s in zip(rows.image, rows.column, rows.value, rows.source, strict=True)
    ]


def tasks(folder: Path, content: Any) -> Path:
    path = folder / "export.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def answer(task: dict[str, Any], **answers: str) -> dict[str, Any]:
    """What Label Studio exports after a person has answered: ids of its own, the data as imported."""
    result = [
        {"id": f"r{k}", "from_name": group, "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
        for k, (group, choice) in enumerate(answers.items())
    ]
    return {"id": 900, **copy.deepcopy(task), "annotations": [{"id": 1, "was_cancelled": False, "result": result}]}


def test_golden_answers() -> None:
    result = label_studio.read(GOLDEN / "answers.json", Policy())
    assert label_studio.sniff(GOLDEN / "answers.json")
    assert statements(result.rows) == [
        ("a b#1.jpg", "cat", 1, "person"),
        ("a b#1.jpg", "traffic light", -1, "person"),
        ("00012.jpg", "cat", 1, "person"),  # the older answer, though it is listed last
        ("00012.jpg", "cat", -1, "person"),
        ("00012.jpg", "dôme", 1, "person"),
        ("d.jpg", "cat", 0, "person"),
    ]
    assert list(result.rows.images) == ["a b#1.jpg", "00012.jpg", "c.jpg", "d.jpg"]
    assert result.table().dense().tolist() == [[1, -1, 0], [-1, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert [tuple(line) for line in result.audit.value_counts] == [
        ("yes", "present", 3),
        ("no", "absent", 2),
        ("unsure", "retracted", 1),
        ("no answer", "unknown", 7),
    ]
    for words in (
        "1 times a task was skipped",
        "1 drafts",
        "1 answers were submitted as predicted",
        "1 results are left out",
    ):
        assert any(note.startswith(words) for note in result.audit.notes), words
    assert any("both present and absent" in note for note in result.audit.notes)


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("2024-01-02T10:00:00.500000Z", "2024-01-02T10:00:00Z"),
        ("2024-01-02T10:00:00+00:00", "2024-01-02T11:30:00+02:00"),
        ("2024-01-02T10:00:00", "2024-01-02T09:59:59Z"),
        ("2024-01-02 10:00:00Z", "2024-01-02T09:00:00Z"),
        ("2024-01-02T10:00:00Z", None),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_latest_answer_wins_in_any_zone(tmp_path: Path, yes: str, no: str | None, is_first: bool) -> None:
    def annotation(answer: str, time: str | None) -> dict[str, Any]:
        result = [{"type": "choices", "from_name": "class_dog", "value": {"choices": [answer]}}]
        return {"result": result, **({} if time is None else {"updated_at": time})}

    both = [annotation("yes", yes), annotation("no", no)]
    task = {"data": {"image": "a.jpg"}, "annotations": both if is_first else both[::-1]}
    (tmp_path / "a.json").write_text(json.dumps([task]))
    assert formats.read(tmp_path / "a.json").table().dense().tolist() == [[1]]


@pytest.mark.parametrize("time", ["yesterday", 1704189600, "2024-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, time: Any) -> None:
    result = [{"type": "choices", "from_name": "class_dog", "value": {"choices": ["yes"]}}]
    task = {"data": {"image": "a.jpg"}, "annotations": [{"result": result, "updated_at": time}, {"result": result}]}
    (tmp_path / "a.json").write_text(json.dumps([task]))
    with pytest.raises(LabelError, match="is not a time"):
        formats.read(tmp_path / "a.json")


def test_golden_tasks_are_written_and_read(tmp_path: Path) -> None:
    rows = rows_of(
        (0, 0, -1, "model:old", np.nan),
        (0, 2, -1, "", np.nan),
        (1, 1, 1, "x", 0.5),
        (1, 1, 0, "x", np.nan),
        (0, 0, 1, "model", 0.7),
    )
    formats.write(rows, tmp_path / "tasks.json", format="label-studio")
    for name in ("tasks.json", "tasks.config.xml"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (GOLDEN / name).read_text(encoding="utf-8")
    result = formats.read(tmp_path / "tasks.json")
    assert result.table() == rows.training
    assert statements(result.rows) == [(IMAGES[0], "cat", 1, "model"), (IMAGES[0], "dôme", -1, "")]
    np.testing.assert_array_equal(result.rows.score, np.array([0.7, np.nan], np.float32))
    assert any("no task is answered" in note for note in result.audit.notes)


def test_the_interface_has_one_question_per_class(tmp_path: Path) -> None:
    label_studio.write(rows_of(), tmp_path / "t.json")
    root = ElementTree.parse(label_studio.config_path(tmp_path / "t.json")).getroot()
    questions = root.findall("Choices")
    assert len({tag.get("name") for tag in questions}) == len(questions) == 3
    assert {tag.get("toName") for tag in questions} == {root.find("Image").get("name")}  # type: ignore[union-attr]
    assert [[choice.get("value") for choice in tag] for tag in questions] == [["yes", "no", "unsure"]] * 3
    # A value that starts with $ would be looked up in the task.
    assert [tag.get("value") for tag in root.findall("Header")] == ["cat", '＄5 <note> & "coin"', "dôme"]


def test_there_and_back(tmp_path: Path) -> None:
    """Export, a person's answers, import: appended to what was known, the answers win and unsure retracts."""
    before = rows_of((0, 0, 1, "model", 0.9), (0, 1, 1, "model", 0.8), (1, 0, -1, "person", np.nan))
    formats.write(before, tmp_path / "tasks.json", format="label-studio", image_url="/data/local-files/?d=my photos/")
    written = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    assert [task["data"]["image"] for task in written] == ["/data/local-files/?d=my photos/a%20b%231.jpg", IMAGES[1]]
    assert unquote(written[0]["data"]["image"]).endswith("my photos/a b#1.jpg")
    names = [tag.get("name") for tag in ElementTree.parse(tmp_path / "tasks.config.xml").getroot().iter("Choices")]
    cat, note, dome = map(str, names)
    exported = [
        answer(written[0], **{cat: "no", note: "unsure", dome: "yes"}),
        {**written[1], "annotations": [{"id": 2, "was_cancelled": True, "result": []}]},
    ]
    result = formats.read(tasks(tmp_path, exported))
    assert result.audit.format == "label-studio"
    assert set(result.rows.sources) == {"person"}
    after = before.append(result.rows)
    assert after.training.dense().tolist() == [[-1, 0, 1], [-1, 0, 0]]
    assert any("2 predictions are left out" in note for note in result.audit.notes)


def test_predictions_never_come_back_as_news(tmp_path: Path) -> None:
    """A label corrected since the export must not be overruled by what the tasks were filled in with."""
    old = rows_of((0, 0, 1, "model", 0.9))
    formats.write(old, tmp_path / "tasks.json", format="label-studio")
    corrected = old.append(rows_of((0, 0, -1, "person", np.nan)))
    written = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    result = formats.read(tasks(tmp_path, [answer(written[0], class_d_C3_B4me="yes"), written[1]]))
    assert corrected.append(result.rows).training.dense()[0].tolist() == [-1, 0, 1]


def predicted(version: Any, group: str = "class_cat", **data: Any) -> dict[str, Any]:
    result = [{"from_name": group, "type": "choices", "value": {"choices": ["yes"]}, "score": 0.7}]
    return {"data": {"image": "a.jpg", **data}, "predictions": [{"model_version": version, "result": result}]}


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ("yolo-v8", "model:yolo-v8"),
        ("model:bce:runs/1", "model:bce:runs/1"),
        ("machine", "machine"),
        (None, "model"),
        (3, "model:3"),
    ],
)
def test_what_another_model_predicted_is_a_models(tmp_path: Path, version: Any, source: str) -> None:
    result = label_studio.read(tasks(tmp_path, [predicted(version)]), Policy()).rows
    assert statements(result) == [("a.jpg", "cat", 1, source)]
    assert result.is_model_made().all()
    # Written by us and read again, it stays what it was.
    label_studio.write(result, tmp_path / "again.json")
    read_back = label_studio.read(tmp_path / "again.json", Policy()).rows
    assert statements(read_back) == statements(result)
    assert read_back.is_model_made().all()


def test_a_models_predictions_for_tasks_of_ours_are_not_taken_for_what_was_known(tmp_path: Path) -> None:
    ours = {"name": "a.jpg", "sources": {"class_cat": "person"}}
    for version, source in (("halflabel", "person"), (None, "person"), ("yolo-v8", "model:yolo-v8")):
        result = label_studio.read(tasks(tmp_path, [predicted(version, **ours)]), Policy()).rows
        assert statements(result) == [("a.jpg", "cat", 1, source)]


def test_other_projects_name_the_classes_present() -> None:
    path = GOLDEN / "foreign" / "choices.json"
    assert formats.detect_format(path) == "label-studio"
    assert "‹unlisted" in label_error(label_studio.read, path).fix
    unknown = label_studio.read(path, Policy(unlisted="unknown")).table()
    assert list(unknown.images) == ["beach.jpg", "street.jpg", "skipped.jpg", "dune one.jpg"]
    assert unknown.dense().tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]
    # Handed in empty is not the same as skipped: only what somebody has looked at is absent.
    absent = label_studio.read(path, Policy(unlisted="absent"))
    assert absent.table().dense().tolist() == [[1, 1], [-1, -1], [0, 0], [-1, 1]]
    assert ("not chosen", "absent", 3) in [tuple(line) for line in absent.audit.value_counts]
    assert "‹unlisted" in label_error(label_studio.read, GOLDEN / "answers.json", Policy(unlisted="absent")).fix


def test_labels_of_shapes_are_present() -> None:
    path = GOLDEN / "foreign" / "shapes.json"
    assert formats.detect_format(path) == "label-studio"
    assert "‹unlisted" in label_error(label_studio.read, path).fix
    absent = label_studio.read(path, Policy(unlisted="absent"))
    assert list(absent.rows.classes) == ["cat", "dog", "grass", "snow"]
    assert absent.table().dense().tolist() == [[1, 1, -1, -1], [-1, -1, 1, 1], [-1] * 4, [0] * 4]
    assert [tuple(line) for line in absent.audit.value_counts][:2] == [
        ("shape", "present", 3),
        ("chosen", "present", 1),
    ]


def test_the_field_of_the_image_can_be_named(tmp_path: Path) -> None:
    result = [{"from_name": "class_cat", "type": "choices", "value": {"choices": ["yes"]}}]
    path = tasks(tmp_path, [{"data": {"scan": "https://x.org/d/a%2Bb.png"}, "annotations": [{"result": result}]}])
    assert "‹image_column" in label_error(label_studio.read, path).fix
    assert list(label_studio.read(path, Policy(image_column="scan")).rows.images) == ["a+b.png"]


def one(**task: Any) -> list[dict[str, Any]]:
    return [{"data": {"image": "a.jpg"}, **task}]


def choosing(value: Any, group: Any = "class_cat") -> list[dict[str, Any]]:
    return one(annotations=[{"result": [{"from_name": group, "type": "choices", "value": value}]}])


FAULTS: dict[str, tuple[Any, str | None]] = {
    "is an object, not a list": ({"images": []}, None),
    "a text, not an object": (["a"], "[0]"),
    "missing, not an object": ([{"id": 1, "image": "a.jpg", "class_cat": "yes"}], "[0].data"),
    "no field has the URL of the image": ([{"data": {"text": 3}, "annotations": []}], "[0].data"),
    "an object, not a list": (one(annotations={"a": 1}), "[0].annotations"),
    "7, not an object": (one(annotations=[7]), "[0].annotations[0]"),
    "number 7, not an object": (one(annotations=[{"result": [7]}]), "[0].annotations[0].result[0]"),
    "the number 7, not an object": (one(predictions=[7]), "[0].predictions[0]"),
    "is a text, not a list": (choosing({"choices": "yes"}), "[0].annotations[0].result[0].value.choices"),
    "two answers": (choosing({"choices": ["yes", "no"]}), "[0].annotations[0].result[0].value.choices"),
    "name is empty": (choosing({"choices": [""]}), "[0].annotations[0].result[0].value.choices[0]"),
    "no choices": (one(annotations=[{"result": []}]), None),
    "has no image name": ([{"data": {"image": "https://x.org/"}, "annotations": []}], "[0].data.image"),
    "are both the image 'a.jpg'": (
        [{"data": {"image": f"s3://{bucket}/a.jpg"}, "annotations": [{"result": []}]} for bucket in "xy"],
        "[1].data.image",
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_fault_has_its_place(message: str, tmp_path: Path) -> None:
    content, place = FAULTS[message]
    error = label_error(label_studio.read, tasks(tmp_path, content))
    assert message in error.message
    assert error.column == place


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tasks\.json"):
        formats.write(rows_of(), tmp_path / "tasks.csv", format="label-studio")
    with pytest.raises(UserError, match="image_url means nothing for the format 'wide'"):
        formats.write(rows_of(), tmp_path / "wide.csv", format="wide", image_url="x")
    assert not list(tmp_path.iterdir())
