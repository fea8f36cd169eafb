"""Small files that expand to large content: refused, or read within a memory limit."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from pathlib import Path

import fuzz_cases
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halflabel.errors import LabelError, UserError
from halflabel.features.backbones import build_backbone
from halflabel.images.decode import BadImage, read_image
from halflabel.labels import formats
from halflabel.labels.formats import _csv
from halflabel.labels.formats import _sheets as sheet
from halflabel.labels.policy import Policy
from halflabel.runs.folder import RunFolder

DEEP = 200_000


pytestmark = pytest.mark.usefixtures("limited")


@pytest.mark.parametrize("name", ["coco", "lvis", "label-studio", "fiftyone", "imagefolder"])
@pytest.mark.parametrize("unit", [("[", "]"), ('{"a":', "}"), ('[{"data":', "}]")])
@pytest.mark.parametrize("closed", [True, False])
def test_deep_json(tmp_path: Path, name: str, unit: tuple[str, str], closed: bool) -> None:
    path = tmp_path / ("metadata.jsonl" if "imagefolder" in name else "labels.json")
    path.write_text(unit[0] * DEEP + ("1" + unit[1] * DEEP if closed else ""))
    for form in (name, "auto"):
        with pytest.raises(LabelError):
            formats.read(path, format=form)


@pytest.mark.parametrize("digits", [5000, 400])
def test_numbers_of_many_digits(tmp_path: Path, digits: int) -> None:
    number = "9" * digits
    texts = {
        "coco": f'{{"images":[{{"id":{number}}}],"categories":[{{"id":1,"name":"a"}}],"annotations":'
        f'[{{"image_id":{number},"category_id":1,"score":{number}}}]}}',
        "fiftyone": f'{{"classes":["a"],"labels":{{"x":[{{"label":0,"confidence":{number}}}]}}}}',
        "label-studio": '[{"data":{"image":"a.jpg"},"predictions":[{"result":[{"type":"choices","from_name":"q",'
        f'"score":{number},"value":{{"choices":["a"]}}}}]}}]}}]',
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        with pytest.raises(LabelError):
            formats.read(path, Policy(unlisted="unknown"), format=name)


def test_settings_that_repeat_themselves(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    for text in ("\n".join(lines), "a: &a [*a]", "a: &a {b: *a}", "[" * 2000, "x: " * 2000, "a: " + "1" * 2_000_000):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError):
            RunFolder.open(tmp_path).read_config()
    (tmp_path / "config.yaml").write_text("method: bce\noptions: {a: [1, 2]}\n")
    assert RunFolder.open(tmp_path).read_config() == {"method": "bce", "options": {"a": [1, 2]}}


def test_an_interface_whose_entities_multiply(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "label_studio" / "tasks.json"
    (tmp_path / "tasks.json").write_bytes(golden.read_bytes())
    entities = '<!ENTITY a0 "xxxxxxxxxx">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    for bomb in (entities, '<!ENTITY a11 SYSTEM "file:///etc/passwd">'):
        text = f'<!DOCTYPE View [{bomb}]><View><Choices name="&a11;"/><Header>&a11;</Header></View>'
        (tmp_path / "tasks.config.xml").write_text(text)
        table = formats.read(tmp_path / "tasks.json").table()
        assert not any("root:" in name or "xxxx" in name for name in table.classes)


def bomb(path: Path, texts: list[str], rows: int, **more: object) -> None:
    """Parquet in which every row repeats the same long text, some kilobytes in all."""
    zeros = pa.array(np.zeros(rows, np.int32))
    image = pa.DictionaryArray.from_arrays(zeros, pa.array(texts))
    labels = pa.DictionaryArray.from_arrays(zeros, pa.array(["cat"]))
    value = pa.array(np.ones(rows, np.int8))
    table = pa.table({"image": image, "file_name": image, "class": labels, "value": value})
    pq.write_table(table, path, store_schema=False, compression="zstd", **more)


def test_parquet_of_one_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb(tmp_path / "metadata.parquet", ["x" * 50_000], 1_000_000)
    assert (tmp_path / "metadata.parquet").stat().st_size < 100_000
    monkeypatch.setattr(sheet, "physical_memory", lambda: 1 << 34)  # as on a machine of 16 GiB
    for form in ("long", "imagefolder", "auto"):
        with pytest.raises(LabelError, match="memory"):
            formats.read(tmp_path / "metadata.parquet", Policy(), format=form)


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("kind", ["binary", "large_string", "list", "struct"])
def test_parquet_of_long_bytes_and_nested_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, use_dictionary: bool
) -> None:
    """50 MB of the same text, in some kilobytes."""
    text, rows = "x" * 100_000, 500
    column = {
        "binary": lambda: pa.array([text.encode()] * rows, pa.binary()),
        "large_string": lambda: pa.array([text] * rows, pa.large_string()),
        "list": lambda: pa.array([[text]] * rows, pa.list_(pa.string())),
        "struct": lambda: pa.array([{"a": text}] * rows),
    }[kind]()
    image = column if kind in ("binary", "large_string") else [f"{n}.jpg" for n in range(rows)]
    table = pa.table(
        {"file_name": image, "labels": column, "image": image, "class": ["dog"] * rows, "value": [1] * rows}
    )
    path = tmp_path / "metadata.parquet"
    pq.write_table(table, path, compression="zstd", use_dictionary=use_dictionary)
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(sheet, "physical_memory", lambda: 60 << 20)
    for form in ("long", "imagefolder", "auto"):
        with pytest.raises(LabelError, match="memory"):
            formats.read(path, Policy(unlisted="unknown"), format=form)


def test_parquet_of_bytes_is_read_as_text(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([b"a.jpg", b"b.jpg"]), "class": [b"dog", b"dog"], "value": [1, -1]})
    pq.write_table(table, tmp_path / "labels.parquet")
    assert formats.read(tmp_path / "labels.parquet").table().dense().tolist() == [[1], [-1]]
    table = pa.table({"file_name": ["a.jpg", "b.jpg"], "labels": [["dog", "cat"], []], "absent": [[], ["dog"]]})
    pq.write_table(table, tmp_path / "metadata.parquet")
    assert formats.read(tmp_path / "metadata.parquet").table().dense().tolist() == [[1, 1], [-1, 0]]


def test_a_table_of_many_columns_takes_time_in_proportion(tmp_path: Path) -> None:
    names = ",".join(f"c{n}" for n in range(20_000))
    (tmp_path / "wide.csv").write_text(f"image,{names}\na.jpg,{'1,' * 19_999}0\n")
    with fuzz_cases.limit(15):  # it was 13 s on an idle machine
        assert formats.read(tmp_path / "wide.csv").table().known == 20_000


def test_a_table_of_too_many_columns_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(120_000)]
    (tmp_path / "wide.csv").write_text(f"image,{','.join(names)}\na.jpg{',1' * len(names)}\n")
    for form in ("auto", "wide"):
        with fuzz_cases.limit(10), pytest.raises(LabelError, match=r"120,001 columns, over the limit of 100,000"):
            formats.read(tmp_path / "wide.csv", format=form)
    monkeypatch.setattr(_csv, "MOST_COLUMNS", 50)
    columns = {"image": ["a.jpg"], "class": ["dog"], "value": [1]}
    pq.write_table(pa.table({**columns, **dict.fromkeys(names[:50], pa.array([1]))}), tmp_path / "long.parquet")
    with pytest.raises(LabelError, match="53 columns, over the limit of 50"):
        formats.read(tmp_path / "long.parquet", format="long")


def test_parquet_of_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb(tmp_path / "labels.parquet", ["x"], 2_000_000)
    monkeypatch.setattr(sheet, "physical_memory", lambda: 50 << 20)
    with pytest.raises(LabelError, match=r"takes 0\.032 GB"):
        formats.read(tmp_path / "labels.parquet", format="long")
    monkeypatch.undo()
    bomb(tmp_path / "labels.parquet", ["x"], 2000)
    assert formats.read(tmp_path / "labels.parquet", Policy(zero="unknown"), format="long").table().shape == (1, 1)


def png(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_pictures_of_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    for width, height in ((2**31 - 1, 2**31 - 1), (20_000, 20_000), (100_000_001, 1), (1, 2**31 - 1)):
        path.write_bytes(png(width, height, zlib.compress(bytes(1000))))
        with pytest.raises(BadImage, match=r"pixels|damaged|truncated"):
            read_image(path)


def test_a_small_picture_with_a_large_text_beside_it(tmp_path: Path) -> None:
    good = png(2, 2, zlib.compress(bytes(14)))
    text = b"x\0\0" + zlib.compress(bytes(500 << 20), 1)
    extra = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    (tmp_path / "x.png").write_bytes(good[:33] + extra + good[33:])
    with contextlib.suppress(BadImage):  # as this version of Pillow likes it; the memory is what counts
        assert tuple(read_image(tmp_path / "x.png").shape) == (3, 2, 2)


def test_files_with_holes_are_not_taken_into_memory(tmp_path: Path) -> None:
    """A file may claim any size, and take no room on the disk."""
    for name in ("labels.csv", "labels.parquet", "labels.labels", "formatted_train_images.npy", "config.yaml"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 40)
    for name in ("labels.csv", "labels.parquet", "labels.labels"):
        with pytest.raises(LabelError):
            formats.read(tmp_path / name)
    with pytest.raises(LabelError):
        formats.read(tmp_path / "formatted_train_images.npy", format="single-positive")
    with pytest.raises(UserError, match="over the limit"):
        RunFolder.open(tmp_path).read_config()


def test_arrays_that_claim_more_than_they_have(tmp_path: Path) -> None:
    for shape in ("(1099511627776,)", "(9999999999, 9999999999)", "(-1,)", "(0, 1099511627776)"):
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        data = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(64)
        for name in ("images", "labels"):
            (tmp_path / f"formatted_train_{name}.npy").write_bytes(data)
        with pytest.raises(LabelError):
            formats.read(tmp_path, format="single-positive")


def test_weights_whose_header_lies(tmp_path: Path) -> None:
    for header in ({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, {"x": [1]}, [], "x" * 100):
        text = json.dumps(header).encode()
        for reported in (len(text), 2**63, 2**64 - 1):
            (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", reported) + text + bytes(16))
            with pytest.raises(UserError):
                build_backbone("tiny", weights=tmp_path / "w.safetensors")
