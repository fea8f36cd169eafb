"""The binary format: round trips, damage is detected, and arrays are mapped, not copied."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from label_files import GOLDEN_FILES

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

BEFORE_CHECKSUM = b"halflabel labels 1, CRC-32 "


def make_rows() -> Labels:
    """Statements that contradict and retract each other, of two sources, one with scores."""
    image, column = np.array([2, 0, 1, 0, 2, 1]), np.array([0, 1, 1, 1, 1, 0])
    value, source = np.array([1, 1, -1, -1, 1, 1]), np.array([0, 0, 1, 1, 0, 1])
    score = np.array([np.nan, np.nan, 0.25, 0.75, np.nan, 0.5])
    rows = Labels.build(
        Names(["ä", "b", "c", "none"]), Names(["x", "y", "z"]), image, column, value, source, score, ["p", "m"]
    )
    return rows.append(Labels.build(rows.images, rows.classes, np.array([2]), np.array([1]), np.array([0]), "p"))


def entries(rows: Labels) -> list[tuple[object, ...]]:
    """The rows by name, with None for a missing score or weight."""
    images, classes = (rows.images[at] for at in rows.image), (rows.classes[at] for at in rows.column)
    numbers = ([None if np.isnan(x) else float(x) for x in values] for values in (rows.score, rows.weight))
    sources = (rows.sources[source] for source in rows.source)
    return list(zip(images, classes, rows.value.tolist(), sources, *numbers, strict=True))


def test_golden_file() -> None:
    rows = formats.read(GOLDEN_FILES / "binary" / "own.labels").rows
    assert list(rows.images) == ["0001.jpg", "empty.jpg", "0002.jpg"]
    assert list(rows.classes) == ["cat", "NA", "None", "unseen"]
    assert entries(rows) == [
        ("0001.jpg", "cat", 1, "ann", None, None),
        ("0001.jpg", "NA", -1, "model", 0.25, 0),
        ("0002.jpg", "cat", -1, "ann", None, 12.5),
    ]


@pytest.mark.parametrize("content", ["sources and scores", "weights", "neither"])
def test_what_goes_in_comes_out(tmp_path: Path, content: str) -> None:
    rows = make_rows()
    if content == "weights":
        rows = replace(rows, weight=np.array([np.nan, 0, 0.5, 12.5, 1e9, 3, 4], np.float32))
    elif content == "neither":
        rows = Labels.from_table(rows.training, "only")
    path = tmp_path / "a.labels"
    formats.write(rows, path)
    result = formats.read(path)
    back = result.rows
    assert result.audit.format == "binary"
    assert result.table() == rows.training
    assert result.table().digest() == rows.training.digest()
    assert (back.images, back.classes) == (rows.images, rows.classes)
    assert entries(back) == entries(rows.select(rows.holding()))
    assert (back.image.dtype, back.column.dtype, back.count_conflicts()) == (np.int32, np.int32, 0)
    # From one binary file to another, and to rows of text, it is the same.
    formats.write(back, tmp_path / "b.labels")
    assert (tmp_path / "b.labels").read_bytes() == path.read_bytes()
    formats.write(back, tmp_path / "b.csv")
    assert formats.read(tmp_path / "b.csv").table() == rows.training
    assert len(back.append(back)) == 2 * len(back)
    assert back.with_images(Names(["new"])).training.known == len(back)


def test_the_arrays_are_the_files_own_and_others_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    formats.write(make_rows(), path)
    before = pa.total_allocated_bytes()
    rows = formats.read(path).rows
    assert pa.total_allocated_bytes() == before
    for array in (rows.column, rows.value, rows.source, rows.score):
        assert not array.flags.owndata
        assert not array.flags.writeable
    with pa.ipc.open_file(path) as file:
        content = file.read_all().to_pylist()
    assert [line["image"] for line in content] == ["ä", "b", "c", "none"]
    labels = [[(label["class"], label["value"], label["source"]) for label in line["labels"]] for line in content]
    assert labels == [[("y", -1, "m")], [("x", 1, "m"), ("y", -1, "m")], [("x", 1, "p")], []]


def test_names_may_look_like_the_checksum(tmp_path: Path) -> None:
    path, odd = tmp_path / "a.labels", BEFORE_CHECKSUM.decode() + "????????"
    for sources in (odd, "m" * 100_000), (odd,), ("m" * 100_000,):
        names = {"images": Names([odd, "b", "c", "d"]), "classes": Names(["x", odd, "z"]), "sources": sources}
        rows = replace(make_rows(), source=np.zeros(7, np.int16), **names)
        formats.write(rows, path)
        assert entries(formats.read(path).rows) == entries(rows.select(rows.holding()))


def test_every_changed_bit_and_every_missing_end_is_noticed(tmp_path: Path) -> None:
    """Header, metadata, padding and footer included."""
    path, rng = tmp_path / "a.labels", random.Random(0)
    formats.write(make_rows(), path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(LabelError, match="damaged"):
            formats.read(path)
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(LabelError) as caught:
            formats.read(path)
        assert caught.value.fix
    path.write_bytes(whole + b"\0")
    with pytest.raises(LabelError, match="damaged"):
        formats.read(path)


def test_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    path.write_text("image,class,value\na,b,1\n")
    with pytest.raises(LabelError, match="not a binary label file"):
        formats.read(path)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([("image", pa.string())])):
        pass
    with pytest.raises(LabelError, match="not a binary label file"):
        formats.read(path)


def write_sealed(
    path: Path,
    *batches: pa.RecordBatch,
    schema: pa.Schema | None = None,
    change: tuple[bytes, bytes] = (b"?", b"?"),
    **options: Any,
) -> None:
    """Any content with a checksum that holds: what a hostile writer would send."""
    form = BEFORE_CHECKSUM + bytes(8)
    sink = pa.BufferOutputStream()
    schema = (schema or batches[0].schema).with_metadata({"source": "", "form": form})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    before, after = sink.getvalue().to_pybytes().replace(*change).split(form, 1)
    before += BEFORE_CHECKSUM
    path.write_bytes(before + b"%08x" % zlib.crc32(after, zlib.crc32(before)) + after)


def make_batch(
    image: Any = ("a", "b"),
    column: Any = (1, 0, 1),
    value: Any = (1, -1, 1),
    start: Any = (0, 1, 3),
    classes: Any = ("x", "y"),
    **more: pa.Array,
) -> pa.RecordBatch:
    """Two images with three labels; every argument is a sequence, or an array of any type."""

    def array(values: Any, kind: pa.DataType) -> pa.Array:
        return values if isinstance(values, pa.Array) else pa.array(values, kind)

    names = pa.DictionaryArray.from_arrays(array(column, pa.int32()), array(classes, pa.string()), safe=False)
    columns = {"class": names, "value": array(value, pa.int8()), **more}
    structs = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    labels = pa.ListArray.from_arrays(pa.array(start, pa.int32()), structs)
    return pa.record_batch([array(image, pa.string()), labels], ["image", "labels"])


def nest(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def test_sealed_files_are_read(tmp_path: Path) -> None:
    """Else hostile ones would be refused for another reason."""
    for more in ({}, {"score": pa.array([0, 1, float("nan")], pa.float32())}):
        write_sealed(tmp_path / "a.labels", make_batch(**more))
        assert formats.read(tmp_path / "a.labels").table().dense().tolist() == [[0, 1], [-1, 1]]


HOSTILE: dict[str, Callable[[], pa.RecordBatch]] = {
    "class out of range": lambda: make_batch(column=(1, 0, 2)),
    "negative class": lambda: make_batch(column=(1, 0, -1)),
    "classes not in order": lambda: make_batch(column=(1, 1, 0)),
    "class twice": lambda: make_batch(column=(1, 1, 1)),
    "value 0": lambda: make_batch(value=(1, 0, 1)),
    "value 2": lambda: make_batch(value=(1, 2, 1)),
    "value -128": lambda: make_batch(value=(1, -128, 1)),
    "image twice": lambda: make_batch(image=("a", "a")),
    "class name twice": lambda: make_batch(classes=("x", "x")),
    "missing image": lambda: make_batch(image=("a", None)),
    "missing class name": lambda: make_batch(classes=("x", None)),
    "missing class": lambda: make_batch(column=(1, None, 1)),
    "missing value": lambda: make_batch(value=(1, None, 1)),
    "missing list": lambda: make_batch(start=(0, None, 3)),
    "not UTF-8": lambda: make_batch(image=pa.array([b"a", b"\xff"]).view(pa.string())),
    "images of bytes": lambda: make_batch(image=pa.array([b"a", b"b"])),
    "values of another type": lambda: make_batch(value=pa.array([1, -1, 1], pa.int16())),
    "unknown column": lambda: make_batch(more=pa.array([1, 1, 1])),
    "scores of another type": lambda: make_batch(score=pa.array([1.0, 1.0, 1.0])),
    "missing score": lambda: make_batch(score=pa.array([1, None, 1], pa.float32())),
    "sources without names": lambda: make_batch(source=pa.array([0, 0, 0], pa.int16())),
    "negative weight": lambda: make_batch(weight=pa.array([1, -1, 1], pa.float32())),
    "no labels": lambda: make_batch().select(["image"]),
    "labels without lists": lambda: pa.record_batch([pa.array(["a"]), pa.array([1])], ["image", "labels"]),
    "lists of numbers": lambda: pa.record_batch([pa.array(["a"]), pa.array([[1]])], ["image", "labels"]),
    "no columns": lambda: make_batch().select([]),
    "deep types": lambda: pa.record_batch([pa.nulls(0, nest(50))], ["labels"]),
    "many columns": lambda: pa.record_batch([pa.array([1])] * 20_000, [str(number) for number in range(20_000)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_contents_that_do_not_fit_together(tmp_path: Path, name: str) -> None:
    write_sealed(tmp_path / "a.labels", HOSTILE[name]())
    with pytest.raises(LabelError, match="do not fit together"):
        formats.read(tmp_path / "a.labels")


@pytest.mark.parametrize(
    "start", [(0, 1, 2**31 - 1), (0, -1, 3), (0, 4, 3), (-1, 1, 3), (0, 1, 2), (1, 1, 3), (0, 2, 1), (3, 1, 0)]
)
def test_wrong_offsets_are_refused(tmp_path: Path, start: tuple[int, int, int]) -> None:
    change = struct.pack("<3i", 0, 1, 3), struct.pack("<3i", *start)
    write_sealed(tmp_path / "a.labels", make_batch(), change=change)
    with pytest.raises(LabelError, match="do not fit together"):
        formats.read(tmp_path / "a.labels")


def test_anything_but_one_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    write_sealed(path, make_batch(), make_batch())
    with pytest.raises(LabelError, match="several parts"):
        formats.read(path)
    for schema in (make_batch().schema, pa.schema({"labels": nest(2000)})):
        write_sealed(path, schema=schema)
        with pytest.raises(LabelError, match="do not fit together"):
            formats.read(path)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("long_name", ["image", "classes"])
def test_compressed_contents_are_refused(tmp_path: Path, compression: str, long_name: str) -> None:
    """A small file may unpack to any size."""
    path = tmp_path / "a.labels"
    batch = make_batch(**{long_name: ("x" * 10_000_000, "y")})
    write_sealed(path, batch if long_name == "classes" else batch.select(["image"]), compression=compression)
    assert path.stat().st_size < 100_000
    with pytest.raises(LabelError, match="compressed"):
        formats.read(path)
    write_sealed(path, make_batch(), metadata_version=pa.ipc.MetadataVersion.V4)  # may hide the compression
    with pytest.raises(LabelError, match="compressed"):
        formats.read(path)


def test_the_ending_tells_the_form(tmp_path: Path) -> None:
    rows = make_rows()
    with pytest.raises(UserError, match="does not end in"):
        formats.write(rows, tmp_path / "a.csv", format="binary")
    with pytest.raises(UserError, match="is the binary format"):
        formats.write(rows, tmp_path / "a.labels", format="long")
    assert not list(tmp_path.iterdir())
    formats.write(rows, tmp_path / "a.labels")
    with pytest.raises(UserError, match="means nothing"):
        formats.read(tmp_path / "a.labels", Policy(split="train"))
