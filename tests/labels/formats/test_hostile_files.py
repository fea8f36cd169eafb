"""Label files that a stranger may bring: read right, or refused in one line that says what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.policy import Policy

GOLDEN = Path(__file__).parents[2] / "golden"
LONG = "image,class,value\na.jpg,dog,1\nb.jpg,dog,1\n"
WIDE = "image,dog,cat\na.jpg,1,0\nb.jpg,0,1\n"
TAGS = "image,tags\na.jpg,dog;cat\nb.jpg,cat\n"
LISTED = Policy(unlisted="unknown")


def coco(**annotation: object) -> str:
    images, categories = [{"id": 1, "file_name": "a.jpg"}], [{"id": 1, "name": "dog"}]
    annotations = [{"id": 1, "image_id": 1, "category_id": 1, **annotation}]
    return json.dumps({"images": images, "categories": categories, "annotations": annotations})


def tagged(*cells: str, columns: str = "image,tags") -> str:
    return "\n".join([columns, *(f"{number}.jpg,{cell}" for number, cell in enumerate(cells))])


def studio(*results: tuple[str, str], image: str = "a.jpg", score: object = None) -> str:
    items = [
        {"from_name": question, "to_name": "i", "type": "choices", "value": {"choices": [choice]}, "score": score}
        for question, choice in results
    ]
    item = {"id": 1, "result": items}
    return json.dumps([{"data": {"image": image}, "predictions" if score else "annotations": [item]}])


REFUSED: dict[str, tuple[str, str | bytes, Policy, str]] = {
    "spreadsheet": ("x.csv", b"PK\x03\x04" + bytes(30), Policy(), "cannot be unpacked"),
    "Git LFS": ("x.csv", "version https://git-lfs.github.com/spec/v1\noid x\n", Policy(), "git lfs pull"),
    "web page": ("x.csv", "\n <!DOCTYPE HTML><html>404, not found", Policy(), "web page"),
    "text as Parquet": ("x.parquet", LONG, Policy(), "not a Parquet file"),
    "blank lines": ("x.csv", "\ufeff\n  \n", Policy(), "only blank lines"),
    "two long files": ("x.csv", LONG + LONG, Policy(), "line 4: the header is repeated"),
    "two lists of tags": ("x.csv", TAGS + "\ufeff" + TAGS, LISTED, "line 4: the header is repeated"),
    "transposed": ("x.csv", "class,a.jpg,b.jpg\ndog,1,0\ncat,0,1\n", Policy(), "columns are images"),
    "numbers of classes": ("x.csv", "image,label\na.jpg,0\nb.jpg,1\n", Policy(), "numbers of two classes"),
    "numbers in JSON": ("metadata.jsonl", '{"file_name":"a.jpg","label":0}\n', Policy(), "numbers of two classes"),
    "NUL in a name": ("metadata.jsonl", '{"file_name":"a\\u0000.jpg","dog":1}\n', Policy(), "NUL"),
    "NUL in a URL": ("x.json", studio(("t", "dog"), image="/data/local-files/?d=a%00.jpg"), LISTED, "NUL"),
    "annotation denied": ("x.json", coco(value=-1), LISTED, "value = -1 may say that the class is absent"),
    "annotation not present": ("x.json", coco(present=False), LISTED, "present = False may say"),
    "annotation deleted": ("x.json", coco(deleted=True), LISTED, "deleted = True may say"),
    "score as text": ("x.json", coco(score="0.9"), LISTED, "not a score"),
    "source as an object": ("x.json", coco(source={"model": "x"}), LISTED, "not a source"),
    "two questions": ("x.json", studio(("a", "yes"), ("b", "yes")), LISTED, "answers two questions, 'a' and 'b'"),
    "prediction's score as text": ("x.json", studio(("class_dog", "yes"), score="high"), Policy(), "not a score"),
    "class not listed": ("labels.json", '{"classes":["cat"],"labels":{"a":"1"}}', LISTED, "'1' is not in the list"),
    "confidence as text": ("labels.json", '{"labels":{"a":{"label":"b","confidence":"1"}}}', LISTED, "not a score"),
    "vectors as tags": ("x.csv", tagged("0 1 1", "1 0 0"), LISTED, "the cells are values"),
    "not dog": ("x.csv", tagged("not dog;cat", "dog"), LISTED, "'not dog' may mean"),
    "dog?": ("x.csv", tagged("dog?;cat", "dog"), LISTED, "may mean"),
    "dog=0": ("x.csv", tagged("dog=0;cat", "dog"), LISTED, "'dog=0' may mean"),
    "comma of another script": ("x.csv", tagged("dog、cat", "cat"), LISTED, "several readings.*separator"),
    "scores of tags": ("x.csv", tagged("dog;cat,0.1;0.9", columns="image,tags,scores"), LISTED, "how probable"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    name, content, policy, message = REFUSED[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as refused:
        formats.read(tmp_path / name, policy)
    assert "\n" not in f"{refused.value.message}{refused.value.fix}"


READ = {
    "two byte order marks": ("x.csv", "\ufeff\ufeff" + LONG, Policy(), "utf-8", {("a.jpg", "dog"): 1}),
    "no header": ("x.csv", "17,1,0\n18,0,1\n", Policy(), "utf-8", {("17", "2"): 1, ("18", "2"): -1}),
    "UTF-16": ("x.csv", WIDE, Policy(), "utf-16", {("b.jpg", "dog"): -1}),
    "UTF-32": ("x.csv", WIDE, Policy(encoding="utf-32"), "utf-32", {("b.jpg", "dog"): -1}),
    "0 stated": ("x.csv", "image,label\na,0\nb,1\n", Policy(zero="absent"), "utf-8", {("a", "label"): -1}),
    "classes of numbers": ("x.csv", "image,1,0\na,1,0\n", Policy(), "utf-8", {("a", "0"): -1, ("a", "1"): 1}),
    "comma": ("x.csv", tagged("a、b"), Policy(unlisted="unknown", separator="、"), "utf-8", {("0.jpg", "b"): 1}),
    "no score": ("x.json", coco(score=None, ignore=0, value=1), LISTED, "utf-8", {("a.jpg", "dog"): 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_it_is_read(tmp_path: Path, case: str) -> None:
    name, content, policy, encoding, expected = READ[case]
    (tmp_path / name).write_bytes(content.encode(encoding))
    table = formats.read(tmp_path / name, policy).table()
    labels = table.dense()
    for (image, label), value in expected.items():
        assert labels[list(table.images).index(image), list(table.classes).index(label)] == value


@pytest.mark.parametrize("pair", [("dog", "Dog"), ("dog ", " dog"), ("cat", "ｃａｔ")])
def test_classes_that_are_nearly_the_same_are_noted(tmp_path: Path, pair: tuple[str, str]) -> None:
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_name": "a.jpg", pair[0]: 1, pair[1]: 0}))
    notes = formats.read(tmp_path / "metadata.jsonl").audit.notes
    assert any("nearly the same" in note and ascii(pair[1]) in note for note in notes)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("06:00:05Z", "later", "'.*later' is not a time"),
        ("0.91", "91", "too large"),
        ("machine", "robot", "method 'robot' is not known"),
    ],
)
def test_camera_traps_with_odd_cells_are_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    folder = shutil.copytree(GOLDEN / "camtrap_dp", tmp_path / "traps")
    text = (folder / "observations.csv").read_text()
    (folder / "observations.csv").write_text(text.replace(before, after))
    with pytest.raises(UserError, match=message):
        formats.read(folder)


def test_events_of_camera_traps_are_compared_as_times(tmp_path: Path) -> None:
    """08:00 in a zone two hours ahead is 06:00 UTC."""
    folder = shutil.copytree(GOLDEN / "camtrap_dp", tmp_path / "traps")
    before = formats.read(folder).table()
    text = (folder / "observations.csv").read_text()
    (folder / "observations.csv").write_text(text.replace("T06:00:05Z", "T08:00:05+02:00"))
    assert formats.read(folder).table() == before


def test_class_folders_leave_out_hidden_ones_and_refuse_splits_and_loops(tmp_path: Path) -> None:
    for name in ("dog/a.jpg", "dog/._a.jpg", ".git/a.jpg", "__MACOSX/a.jpg", "cat/b.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    table = formats.read(tmp_path, LISTED, format="class-folders").table()
    assert (list(table.images), list(table.classes)) == (["cat/b.jpg", "dog/a.jpg"], ["cat", "dog"])
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(UserError, match="leads back"):
        formats.read(tmp_path, LISTED, format="class-folders")
    (tmp_path / "splits" / "train" / "dog").mkdir(parents=True)
    with pytest.raises(UserError, match="splits, not classes"):
        formats.read(tmp_path / "splits", LISTED, format="class-folders")


def test_parquet_of_another_name_or_shape_is_described(tmp_path: Path) -> None:
    for name, message in (("x.csv", "Parquet file.*ending .parquet"), ("x.parquet", "the columns are image")):
        pq.write_table(pa.table({"image": ["a"]}), tmp_path / name)
        with pytest.raises(UserError, match=message):
            formats.read(tmp_path / name)
