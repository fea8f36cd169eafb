"""All formats: every golden file is detected as its format and read."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from label_files import GOLDEN_FILES, is_readable

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats.wide import CLASS_NUMBER_COLUMNS
from halflabel.labels.labels import Labels
from halflabel.labels.policy import VALUE_WORDS, Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES

# Where in tests/golden/<format> the things a user would name are, and what has to be stated to read them.
PLACES: dict[str, tuple[str, Policy]] = {
    "binary": ("own.labels", Policy()),
    "label-studio": ("*.json", Policy()),
    "fiftyone": ("own", Policy()),
    "labelme": ("*", Policy(unlisted="unknown")),
    "via": ("*.json", Policy(unlisted="unknown")),
    "megadetector": ("*.json", Policy(machine=0.5)),
    "datumaro": ("*.json", Policy(unlisted="unknown")),
    "cvat": ("*", Policy(unlisted="unknown")),
    "labelbox": ("*", Policy(unlisted="unknown")),
    "sagemaker": ("*", Policy(unlisted="unknown")),
    "coco-results": ("*", Policy(machine=0.5)),
    "voc-xml": ("*", Policy(unlisted="unknown")),
    "yolo": ("farm", Policy(unlisted="unknown", split="train")),
    "kitti": ("*", Policy(unlisted="unknown")),
    "lvis": ("*.json", Policy()),
    "coco": ("*.json", Policy(unlisted="unknown")),
    "open-images": ("**/train-annotations-*.csv", Policy()),
    "chexpert": ("*.csv", Policy()),
    "nih-chestxray": ("*.csv", Policy()),
    "camtrap-dp": (".", Policy()),
    "bigearthnet": ("*", Policy()),
    "voc": ("VOC*", Policy(split="trainval")),
    "cub": ("CUB*", Policy()),
    "nus-wide": (".", Policy()),
    "single-positive": (".", Policy(split="train")),
    "tags": ("*", Policy(unlisted="unknown")),
    "imagefolder": ("csv", Policy(ignore=("width",))),
    "long": ("own.csv", Policy()),
    "wide": ("plain.csv", Policy()),
    "webdataset": (".", Policy(unlisted="unknown")),
    "class-folders": ("photos", Policy(unlisted="unknown")),
}


def places(name: str, pattern: str) -> list[Path]:
    folder = GOLDEN / name.replace("-", "_")
    return [folder] if pattern == "." else sorted(folder.glob(pattern))


def test_every_format_has_golden_data() -> None:
    assert set(PLACES) == set(formats.FORMATS)
    for name, (pattern, _) in PLACES.items():
        assert places(name, pattern), name


@pytest.mark.parametrize("name", formats.FORMATS)
def test_golden_data_is_recognised_and_read(name: str) -> None:
    pattern, policy = PLACES[name]
    for path in places(name, pattern):
        assert formats.detect_format(path) == name
        result = formats.read(str(path), policy)
        assert isinstance(result, LabelImport)
        assert result.audit.format == name
        assert result.audit.files
        assert len(result.rows)
        assert sum(entry.entries for entry in result.audit.value_counts) >= result.table().known > 0


TWICE = {
    "fiftyone": '{"classes":["dog","cat"],"labels":{"a":["dog"],\n"a":["cat"]}}',
    "label-studio": '[{"data":{"image":"a.jpg"},"annotations":[{"result":[{"type":"choices","from_name":"class_dog",'
    '"value":{"choices":["yes"]},"value":{"choices":["no"]}}]}]}]',
    "lvis": '{"images":[{"id":1,"file_name":"a.jpg","neg_category_ids":[2],"neg_category_ids":[]}],"categories":'
    '[{"id":1,"name":"dog"},{"id":2,"name":"cat"}],"annotations":[]}',
    "coco": '{"images":[{"id":1,"file_name":"a.jpg"}],"categories":[{"id":1,"name":"dog"}],\n"annotations":[],'
    '"annotations":[{"image_id":1,"category_id":1}]}',
    "imagefolder": '{"file_name":"a.jpg","dog":true,"dog":false}',
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_occurs_twice_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("metadata.jsonl" if "imagefolder" in name else "labels.json")
    path.write_text(TWICE[name])
    with pytest.raises(LabelError, match="occurs twice") as refusal:
        formats.read(path, Policy(unlisted="unknown") if name in ("coco", "fiftyone") else None, format=name)
    assert refusal.value.line == (1 if path.suffix == ".jsonl" else None)


PROVENANCE = """image,class,value,source,score
a.jpg,dog,1,alice,
a.jpg,cat,-1,model:bce:runs/1,0.96875
b.jpg,dog,-1,model:bce:runs/1,0.9375
b.jpg,cat,1,bob,0.5
"""


@pytest.mark.parametrize("name", [name for name in formats.FORMATS if name not in formats.written_formats()])
def test_a_format_that_is_only_read_names_what_to_write(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        formats.write(Table.from_dense([[1]]), tmp_path / "out", format=name)
    assert re.search(r"‹to=(long|wide|tags)›|halflabel pack|one of: .*\blong\b", refusal.value.fix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in formats.written_formats() if name != "coco"])
def test_source_and_score_are_kept_or_writing_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(PROVENANCE)
    rows = formats.read(tmp_path / "rows.csv").rows
    ending = {"binary": ".labels", "label-studio": ".json", "lvis": ".json"}
    path = tmp_path / ("out" + ending.get(name, ""))
    if name in ("binary", "label-studio", "fiftyone", "long"):
        formats.write(rows, path, format=name)
        assert entries(formats.read(path, format=name).rows) == entries(rows)
        return
    with pytest.raises(UserError, match="made 2 of them") as refusal:
        formats.write(rows, path, format=name)
    assert "‹without_sources" in refusal.value.fix
    assert not path.exists()
    formats.write(rows, path, format=name, without_sources=True)
    assert path.exists()


@pytest.mark.parametrize("name", ["label-studio", "fiftyone", "wide"])
def test_a_format_without_inclusion_weights_refuses_answers(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("image,class,value,inclusion_weight\na.jpg,dog,1,0\na.jpg,cat,-1,40\n")
    rows = formats.read(tmp_path / "rows.csv").rows
    ending = {"label-studio": ".json", "wide": ".csv"}
    path = tmp_path / ("out" + ending.get(name, ""))
    with pytest.raises(UserError, match="of 2 labels"):
        formats.write(rows, path, format=name)
    formats.write(rows, path, format=name, without_sources=True)
    assert path.exists()


def test_coco_keeps_the_sources_of_present_labels_only(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(PROVENANCE)
    rows = formats.read(tmp_path / "rows.csv").rows
    with pytest.raises(UserError, match="model:bce:runs/1"):
        formats.write(rows, tmp_path / "out.json", format="coco")
    (tmp_path / "rows.csv").write_text(PROVENANCE.replace(",-1,", ",1,"))
    rows = formats.read(tmp_path / "rows.csv").rows
    formats.write(rows, tmp_path / "out.json", format="coco")
    read_back = formats.read(tmp_path / "out.json", Policy(unlisted="unknown"), format="coco").rows
    assert entries(read_back) == entries(rows)


def test_marks_of_complete_lists_may_be_lost(tmp_path: Path) -> None:
    (tmp_path / "tags.csv").write_text("image,tags\na.jpg,dog\nb.jpg,cat\n")
    rows = formats.read(tmp_path / "tags.csv", Policy(unlisted="absent")).rows
    formats.write(rows, tmp_path / "wide.csv", format="wide")
    assert formats.read(tmp_path / "wide.csv").table() == rows.training


def entries(rows: Labels) -> set[tuple[str, str, int, str, str]]:
    return {
        (
            rows.images[rows.image[k]],
            rows.classes[rows.column[k]],
            int(rows.value[k]),
            rows.sources[rows.source[k]],
            str(rows.score[k]),
        )
        for k in rows.holding()
    }


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("long", "*"),
        ("wide", "*"),
        ("tags", "*"),
        ("imagefolder", "*"),
        ("open-images", "*/*annotations*.csv"),
    ],
)
def test_the_format_of_every_golden_file_is_detected(name: str, pattern: str) -> None:
    result = places(name, pattern)
    assert len(result) > 2
    for path in result:
        assert formats.detect_format(path) == name, path


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_keeps_the_contract(name: str, tmp_path: Path) -> None:
    """Names of policy fields only; sniffing anything at all never raises and never claims what is not there."""
    result = formats.format_of(name)
    assert set(result.USES) <= set(Policy.__dataclass_fields__)
    (tmp_path / "words.bin").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "folder.parquet").mkdir()
    for path in (tmp_path, tmp_path / "nowhere", *tmp_path.iterdir()):
        assert not result.sniff(path), path
    (tmp_path / "odd.json").write_bytes(b'{"\xff": [')
    assert result.sniff(tmp_path / "odd.json") in (True, False)


def test_nothing_we_know(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="format"):
        formats.detect_format(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"\x00\x01")
    with pytest.raises(LabelError, match="not recognized"):
        formats.read(tmp_path / "x.bin")
    with pytest.raises(LabelError, match="no such file"):
        formats.read(tmp_path / "nowhere")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(LabelError, match="empty"):
        formats.read(tmp_path / "empty.csv")
    with pytest.raises(UserError, match="no label format is called 'excel'"):
        formats.read(tmp_path / "x.bin", format="excel")


def test_what_means_nothing_for_the_format_is_refused() -> None:
    path = GOLDEN / "wide" / "plain.csv"
    with pytest.raises(UserError, match="split means nothing for the format 'wide'"):
        formats.read(path, Policy(split="train"))


def test_a_stated_format_goes_before_the_recognised_one() -> None:
    """A file of long rows is a wide table too, if one says so: its class cells are then no labels."""
    path = GOLDEN / "long" / "semicolon_bom_crlf.csv"
    assert formats.detect_format(path) == "long"
    with pytest.raises(LabelError, match="'café' is not a label") as caught:
        formats.read(path, format="wide")
    assert (caught.value.line, caught.value.column) == (2, "label")


def test_write_takes_tables_and_rows(tmp_path: Path) -> None:
    table = Table.from_dense([[1, 0], [0, -1]], ["a", "b"], ["cat", "dog"])
    for labels in (table, Labels.from_table(table)):
        for name in ("long", "wide"):
            formats.write(labels, tmp_path / f"{name}.csv", format=name)
            assert formats.read(tmp_path / f"{name}.csv").table() == table


# Formats that are written -> the ending of the file, and what has to be stated to read it back.
ENDINGS: dict[str, tuple[str, Policy]] = {
    "binary": (".labels", Policy()),
    "long": (".csv", Policy()),
    "wide": (".csv", Policy()),
    "tags": (".csv", Policy()),
    "imagefolder": (".jsonl", Policy()),
    "label-studio": (".json", Policy()),
    "fiftyone": ("", Policy()),
    "lvis": (".json", Policy()),
    "coco": (".json", Policy(unlisted="unknown")),
}
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
RESERVED = {"image", *VALUE_WORDS, *CLASS_NUMBER_COLUMNS}
IN_HEADERS = ANY_TEXT.filter(lambda name: name == name.strip() and name.lower() not in RESERVED)
IN_LISTS = IN_HEADERS.filter(lambda name: len(name) > 1 and name.isalpha())


def test_every_written_format_has_a_round_trip() -> None:
    assert set(ENDINGS) == set(formats.written_formats())


@pytest.mark.parametrize("name", ENDINGS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_table_is_read_back(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    ending, policy = ENDINGS[name]
    names = {"wide": IN_HEADERS, "tags": IN_LISTS}.get(name, ANY_TEXT)
    images = data.draw(st.lists(names, min_size=1, max_size=5, unique_by=(lambda x: x, lambda x: x.rpartition(".")[0])))
    classes = data.draw(st.lists(names, min_size=1, max_size=4, unique=True))
    values = [0, 1] if name == "coco" else [-1, 0, 1]
    dense = data.draw(arrays(np.int8, (len(images), len(classes)), elements=st.sampled_from(values)))
    dense[0] = 1  # in the order of the classes, and none without a label
    table = Table.from_dense(dense, images, classes)
    path = tmp_path_factory.mktemp("any") / f"labels{ending}"
    formats.write(table, path, format=name)
    assert formats.read(path, policy, format=name).table() == table


@pytest.mark.parametrize("name", formats.FORMATS)
def test_damaged_golden_data_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """tests/fuzz damages files in more ways; this is the short form for one format."""
    pattern, policy = PLACES[name]
    path = places(name, pattern)[0]
    copy = tmp_path / path.name
    shutil.copytree(path.parent if path.is_file() else path, tmp_path if path.is_file() else copy, dirs_exist_ok=True)
    files = [file for file in sorted(tmp_path.rglob("*")) if file.is_file() and file.stat().st_size < 100_000]
    rng = np.random.default_rng(0)
    ends = Counter[bool]()
    for _ in range(60):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for at in rng.integers(0, max(len(whole), 1), rng.integers(1, 4)):
            damaged[at : at + 1] = bytes(rng.choice([*b'\n\r\t\0",;{}[]\\:-1', *rng.integers(0, 256, 8)], 1).tolist())
        file.write_bytes(damaged)
        ends[is_readable(partial(formats.read, format=name), copy, policy)] += 1
        file.write_bytes(whole)
    assert ends[False] > 0 or name == "class-folders"
