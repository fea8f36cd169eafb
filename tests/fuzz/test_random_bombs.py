"""Random small files with large content: refused in one line, or read, in little time and memory."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, read_image
from halflabel.labels import formats
from halflabel.labels.formats import _entries as unlisted_policy
from halflabel.labels.formats import _sheets as parquet
from halflabel.labels.policy import Policy

pytestmark = pytest.mark.usefixtures("limited")


def parquet_bomb(folder: Path, rng: random.Random) -> Path:
    """A long text in every row: plain, as bytes, and in lists and structs, some levels deep."""
    text, rows = "x" * rng.choice((20_000, 100_000)), rng.choice((200, 800))
    column = pa.array([text.encode() if rng.random() < 0.5 else text]).take(pa.array(np.zeros(rows, np.int32)))
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.5:
            column = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), column)
        else:
            column = pa.StructArray.from_arrays([column], ["a"])
    names = pa.array([f"{number}.jpg" for number in range(rows)])
    columns = {"file_name": names, "image": names, "class": ["dog"] * rows, "value": [1] * rows}
    columns[rng.choice(("labels", "class", "image", "file_name", "value"))] = column
    path = folder / rng.choice(("metadata.parquet", "labels.parquet"))
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=rng.random() < 0.5)
    return path


def wide_bomb(folder: Path, rng: random.Random) -> Path:
    """Thousands of columns, with or without a name that occurs twice or a value that is none, at the end."""
    count = rng.choice((2000, 5000))
    header = ["image", *(f"c{number}" for number in range(count))]
    cells = ["a.jpg", *rng.choices(("1", "0", ""), k=count)]
    if rng.random() < 0.3:
        header[-1] = header[1]
    if rng.random() < 0.3:
        cells[-1] = "maybe"
    path = folder / "labels.csv"
    path.write_text("\n".join([",".join(header), ",".join(cells), ",".join(["b.jpg", *cells[1:]])]))
    return path


def tag_bomb(folder: Path, rng: random.Random) -> Path:
    """Hundreds of tags on each of hundreds of images, all different or all the same."""
    images, tags, is_new = rng.choice((200, 400)), rng.choice((300, 500)), rng.random() < 0.4
    lists = (";".join(f"t{tag + is_new * image * tags}" for tag in range(tags)) for image in range(images))
    path = folder / "labels.csv"
    path.write_text("\n".join(["image,tags", *(f"{number}.jpg,{cell}" for number, cell in enumerate(lists))]))
    return path


def json_bomb(folder: Path, rng: random.Random) -> Path:
    """Brackets nested deep in one of the places of a file, or a number of many digits there."""
    depth = rng.choice((900, 3000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"data":', "}]")))
    deep = rng.choice(
        (opening * depth + "1" + closing * depth, opening * depth, "9" * depth, '"' + "\\\\" * depth + '"')
    )
    whole = {"images": [{"id": 1, "file_name": "a"}], "categories": [{"id": 1, "name": "b"}], "annotations": []}
    text = json.dumps({**whole, "data": [{"image": "a"}], "classes": ["a"], "labels": {"a": 0}, "file_name": "a.jpg"})
    place = rng.choice(("1", '"a"', "[]", "{"))
    path = folder / rng.choice(("labels.json", "metadata.jsonl"))
    path.write_text(text.replace(place, deep, 1))
    return path


def image_bomb(folder: Path, rng: random.Random) -> Path:
    """An image of a few pixels whose header claims up to billions."""
    kind, ending = rng.choice((("PNG", "png"), ("BMP", "bmp"), ("GIF", "gif"), ("JPEG", "jpg"), ("TIFF", "tif")))
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, kind)
    content = bytearray(stream.getvalue())
    side = rng.choice((20_000, 60_000, 65_535, 2**31 - 1))
    if kind == "PNG":
        content[16:24] = struct.pack(">II", side, side)
    elif kind == "BMP":
        content[18:26] = struct.pack("<ii", side, side)
    elif kind == "GIF":
        content[6:10] = struct.pack("<HH", side & 0xFFFF, side & 0xFFFF)
    elif kind == "JPEG":
        place = content.index(b"\xff\xc0")
        content[place + 5 : place + 9] = struct.pack(">HH", side & 0xFFFF, side & 0xFFFF)
    else:
        for tag in (256, 257):
            place = content.index(struct.pack("<HH", tag, 3) if struct.pack("<HH", tag, 3) in content else b"")
            content[place + 8 : place + 12] = struct.pack("<I", side & 0xFFFF)
    path = folder / f"bomb.{ending}"
    path.write_bytes(content)
    return path


BOMBS: tuple[Callable[[Path, random.Random], Path], ...] = (
    parquet_bomb, wide_bomb, tag_bomb, json_bomb, image_bomb,
)  # fmt: skip


def read(path: Path, rng: random.Random) -> None:
    if path.name.startswith("bomb."):
        read_image(path)
        return
    is_wide = path.suffix == ".csv" and "tags" not in path.read_text().partition("\n")[0]
    unlisted = None if is_wide else rng.choice(("unknown", "absent", None))
    table = formats.read(path, Policy(unlisted=unlisted)).table()
    assert table.stats.known == table.known


@pytest.mark.parametrize("make", BOMBS)
def test_it_is_refused_or_read_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, random.Random], Path]
) -> None:
    explode(make, tmp_path, monkeypatch, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4, 124, 4))
@pytest.mark.parametrize("make", BOMBS)
def test_many_are_refused_or_read_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, random.Random], Path], start: int
) -> None:
    explode(make, tmp_path, monkeypatch, range(start, start + 4))


def explode(make: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    for module in (parquet, unlisted_policy):
        monkeypatch.setattr(module, "physical_memory", lambda: 100 << 20)
    for number in numbers:
        rng = random.Random(f"{make.__name__} {number}")
        path = make(folder, rng)
        assert path.stat().st_size < 10_000_000
        refusal = ""
        try:
            read(path, rng)
        except (BadImage, UserError) as refused:
            refusal = str(refused)
        assert "\n" not in refusal, number
        assert len(refusal) < 5000, number
        path.unlink()
