"""The binary format: round trips, damage is detected, and arrays are mapped, not copied."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats, table
from halflabel.labels.formats import binary
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table, last_of_each


def make_rows() -> Labels:
    """Statements that contradict and retract each other, of two sources, one with scores."""
    image, column = np.array([2, 0, 1, 0, 2, 1]), np.array([0, 1, 1, 1, 1, 0])
    value, source = np.array([1, 1, -1, -1, 1, 1]), np.array([0, 0, 1, 1, 0, 1])
    score = np.array([np.nan, np.nan, 0.25, 0.75, np.nan, 0.5])
    rows = Labels.build(
        Names(["ä", "b", "c", "none"]), Names(["x", "y", "z"]), image, column, value, source, score, ["p", "m"]
    )
    return rows.append(Labels.build(rows.images, rows.classes, np.array([2]), np.array([1]), np.array([0]), "p"))


@pytest.mark.parametrize("whole", [True, False])
def test_what_goes_in_comes_out(tmp_path: Path, whole: bool) -> None:
    rows = make_rows() if whole else Labels.from_table(make_rows().resolve(), "only")
    path = tmp_path / "a.labels"
    formats.write(rows, path)
    result = formats.read(path)
    assert result.audit.format == "binary"
    assert result.table() == rows.resolve() == binary.open_table(path)
    assert result.table().digest() == rows.resolve().digest()
    held = rows.holding()
    back = result.rows
    assert back.image.tolist() == rows.image[held].tolist()
    assert back.column.tolist() == rows.column[held].tolist()
    assert back.value.tolist() == rows.value[held].tolist()
    assert [back.sources[s] for s in back.source] == [rows.sources[s] for s in rows.source[held]]
    np.testing.assert_array_equal(back.score, rows.score[held])
    assert (back.image.dtype, back.column.dtype, back.count_conflicts()) == (np.int32, np.int32, 0)
    # From one binary file to another, and to rows of text, it is the same.
    formats.write(back, tmp_path / "b.labels")
    assert (tmp_path / "b.labels").read_bytes() == path.read_bytes()
    formats.write(back, tmp_path / "b.csv")
    assert formats.read(tmp_path / "b.csv").table() == rows.resolve()
    assert len(back.append(back)) == 2 * len(back)


def test_the_arrays_are_the_files_own_and_others_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    formats.write(make_rows(), path)
    opened = binary.open_table(path)
    for array in (opened.start, opened.column, opened.value):
        assert not array.flags.owndata
        assert not array.flags.writeable
    arrays = load_file(path)
    assert arrays["column"].tolist() == opened.column.tolist()
    assert bytes(arrays["image_text"]).decode() == "äbcnone"
    assert arrays["image_offset"].tolist() == [0, 2, 3, 4, 8]


@given(st.integers(0, 6), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_tables_of_any_shape(tmp_path_factory: pytest.TempPathFactory, images: int, classes: int, seed: int) -> None:
    path = tmp_path_factory.mktemp("any") / "a.labels"
    dense = np.random.default_rng(seed).integers(-1, 2, (images, classes))
    written = Table.from_dense(dense, images=[f"{i}ß" * (i % 3) + str(i) for i in range(images)])
    formats.write(written, path)
    assert binary.open_table(path) == written
    assert np.array_equal(binary.open_table(path).dense(), dense)


def test_every_changed_byte_and_every_missing_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    formats.write(make_rows(), path)
    whole, before = path.read_bytes(), binary.open_table(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(LabelError) as caught:
            binary.open_table(path)
        assert caught.value.fix
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(0, header, 7), *range(header, len(whole))]:
        spoiled = bytearray(whole)
        spoiled[place] ^= 0x11
        path.write_bytes(spoiled)
        if place >= header:
            with pytest.raises(LabelError, match="damaged"):
                binary.open_table(path)
            continue
        with suppress(LabelError):  # never another error; and where the header still reads, the labels are the same
            assert binary.open_table(path) == before
    path.write_bytes(whole + b"\0")
    with pytest.raises(LabelError, match="bytes instead of"):
        formats.read(path)


def rewritten(path: Path, **change: object) -> None:
    """The file with another word in its header, of the same length."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] |= change
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def test_files_of_others_and_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / "a.labels"
    formats.write(make_rows(), path)
    rewritten(path, version="2")
    with pytest.raises(LabelError, match="newer halflabel"):
        formats.read(path)
    rewritten(path, version="1", form="weights")
    with pytest.raises(LabelError, match="'weights'"):
        formats.read(path)
    path.write_text("image,class,value\na,b,1\n")
    with pytest.raises(LabelError, match="not a binary label file"):
        formats.read(path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("column", np.array([0, 5, 1, 0], np.int16)),
        ("value", np.array([1, 0, 1, 1], np.int8)),
        ("start", np.array([0, 3, 2, 4, 4])),
        ("source", np.array([0, 0, 2, 0], np.int16)),
        ("image_offset", np.array([0, 2, 1, 4, 8], np.int32)),
        ("image_text", np.frombuffer(b"\xff\xffbcnone", np.uint8)),
        ("score", np.zeros(3, np.float32)),
        ("image_text", np.frombuffer(b"xxxxxxxx", np.uint8)),
        ("class_text", np.frombuffer(b"xxx", np.uint8)),
        ("column", np.array([1, 1, 0, 0], np.int16)),
    ],
)
def test_arrays_that_do_not_fit_together(tmp_path: Path, monkeypatch, name: str, array: np.ndarray) -> None:
    plain = binary._arrays
    assert len(plain(make_rows())["value"]) == 4
    monkeypatch.setattr(binary, "_arrays", lambda rows: {**plain(rows), name: array})
    formats.write(make_rows(), tmp_path / "a.labels")
    with pytest.raises(LabelError, match="do not fit together"):
        formats.read(tmp_path / "a.labels")


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


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.labels"
    formats.write(make_rows(), path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        formats.write(make_rows().resolve(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.labels"]
    assert path.read_bytes() == before


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 1)), max_size=40), st.booleans())
def test_the_last_of_each_in_pieces(entries: list[tuple[int, int, int]], ascending: bool) -> None:
    """Against a dictionary; pieces of three entries, so that images are cut in two."""
    if ascending:
        entries = sorted(entries, key=lambda entry: entry[0])
    image, column, value = np.array(entries, np.int64).reshape(-1, 3).T
    held = {(i, c): v for i, c, v in entries}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_CHUNK", 3)
        order = last_of_each(image, column)
        written = Table.from_entries(Names.numbered(5), Names.numbered(4), image, column, value)
        part = written.keep(written.value > 0)
        small = written.digest()
        counted = written.stats
        turned = written.subset([4, 2, 3])
    result = list(zip(image[order].tolist(), column[order].tolist(), strict=True))
    assert result == sorted(held)
    assert value[order].tolist() == [held[pair] for pair in result]
    assert {(i, c): v for i, c, v in zip(*(part.tolist() for part in written.entries()), strict=True)} == {
        pair: v for pair, v in held.items() if v
    }
    assert np.array_equal(part.dense(), np.maximum(written.dense(), 0))
    assert written.digest() == small
    assert counted.positives.tolist() == (written.dense() > 0).sum(0).tolist()
    assert counted.negatives.tolist() == (written.dense() < 0).sum(0).tolist()
    assert np.array_equal(turned.dense(), written.dense()[[4, 2, 3]])
    assert list(turned.images) == ["4", "2", "3"]


def test_names_in_parts() -> None:
    names = Names(["", "aé", "b" * 70, "日本"])
    assert list(Names.from_parts(*names.parts())) == list(names)
    sliced = Names(names.array.slice(1, 2))
    offset, text = sliced.parts()
    assert (offset[0], offset[-1]) == (0, len(text))
    assert Names.from_parts(offset, text) == sliced
    large = Names(["x", "yz"])
    large.array = large.array.cast(pa.large_string())
    assert list(Names.from_parts(*large.parts())) == ["x", "yz"]
    assert "aé" in names
    assert "" in names
    assert "a" not in names
    assert 7 not in names
    for bad in (np.array([1, 2], np.int32), np.array([0, 3], np.int32), np.zeros(0, np.int32)):
        with pytest.raises(ValueError, match="names"):
            Names.from_parts(bad, np.zeros(2, np.uint8))


def test_names_are_given_out_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr("halflabel.labels.names._CHUNK", 2)
    assert list(Names("abcde")) == list("abcde")
