"""CSV and Parquet tables: text exactly as in the file, and errors with their line."""

from __future__ import annotations

import csv
import mmap
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.formats._csv import (
    _has_cells_of_one_line,
    first_line,
    read_lines,
    read_records,
)
from halflabel.labels.formats._sheets import CsvTable, ParquetTable


def refusal(path: Path, content: bytes, **options: str) -> LabelError:
    path.write_bytes(content)
    with pytest.raises(LabelError) as caught:
        CsvTable(path, **options)  # type: ignore[arg-type]
    assert caught.value.fix
    assert caught.value.file == str(path)
    return caught.value


def columns(sheet: CsvTable) -> dict[str, list[str]]:
    return {name: sheet.column(name).to_pylist() for name in sheet.header}


def test_everything_stays_text(file: Path) -> None:
    file.write_text("image,a, b \n007,NA,1.50\n 8 ,None,\n")
    assert columns(CsvTable(file)) == {"image": ["007", " 8 "], "a": ["NA", "None"], "b": ["1.50", ""]}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_delimiters_line_ends_byte_order_marks(file: Path, delimiter: str, end: str, start: str) -> None:
    rows = [["image", "é"], ["x", "1"], [], ["y", ""]]
    file.write_text(start + end.join(map(delimiter.join, rows)) + end, encoding="utf-8", newline="")
    sheet = CsvTable(file)
    assert columns(sheet) == {"image": ["x", "y"], "é": ["1", ""]}
    shift = start.count("\n")
    assert [sheet.line(0), sheet.line(1)] == [2 + shift, 4 + shift]


def test_quoted_fields_with_everything_in_them(file: Path) -> None:
    file.write_bytes(b'image;"a, b, c and d"\r\n"x;y";"say ""hi"""\r\n"two\r\nlines";2\r\nlast;3\r\n')
    sheet = CsvTable(file)
    assert columns(sheet) == {"image": ["x;y", "two\r\nlines", "last"], "a, b, c and d": ['say "hi"', "2", "3"]}
    assert [sheet.line(row) for row in range(3)] == [2, 3, 5]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "UTF16", "utf-16-le", "utf_32", "utf-8-sig"])
def test_encodings(file: Path, encoding: str) -> None:
    file.write_bytes("image,é\nü,1\n\nz,0\n".encode(encoding))
    sheet = CsvTable(file, encoding=encoding)
    assert columns(sheet) == {"image": ["ü", "z"], "é": ["1", "0"]}
    assert sheet.line(1) == 4


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"image,cat\na,1\nb\n", 3, "1 fields where the first line has 2"),
        (b"image,cat\n\n\na,1,1\n", 4, "3 fields where the first line has 2"),
        (b'image,cat\n"a\nb",1\nc\n', 4, "1 fields"),
        (b"image,cat\n\xe9,1\n", 2, "byte 0xe9 is not UTF-8"),
        (b"image,\xff\xff\na,1\n", 1, "byte 0xff is not UTF-8"),
        (b"image,cat\na,1\nb\x00,1\n", 3, "byte 0x00"),
        ("image,cat\na,1\n".encode("utf-16-le"), 1, "byte 0x00"),
        (b"image,,cat\na,1,1\n", 1, "column 2 has no name"),
        (b"image,cat,cat \na,1,1\n", 1, "the column 'cat' occurs twice"),
        (b"image,cat\n", None, "no rows"),
        (b"image,cat\n\n\n", None, "no rows"),
        (b"\n\r\n\n", None, "only blank lines"),
        (b"", None, "empty"),
        (b'image,cat\na,1\nb,"0\nc,1\n', 3, "unexpected end of data"),
        (b'image,cat\na,1\n"b,0\nc,1\n', 3, "unexpected end of data"),
        (b'image,tags\na.jpg,"dog\nb.jpg,"cat\n', 2, "expected after"),
        (b'image,cat\n"a.jpg,1\nb".jpg,0\n', 2, "expected after"),
        (b'image,tags\ra.jpg,"dog\rb.jpg,cat\rc.jpg,dog\r', 2, "unexpected end of data"),
        (b'image,tags\na.jpg,"dog\nb.jpg,cat"\nc.jpg,dog\n', 2, "2 lines into one cell"),
    ],
)
def test_faults_have_their_line(file: Path, content: bytes, line: int | None, words: str) -> None:
    error = refusal(file, content)
    assert error.line == line
    assert words in error.message


def test_bytes_cut_off_in_utf_16(file: Path) -> None:
    error = refusal(file, "image,cat\na,1\nb,1\n".encode("utf-16") + b"x", encoding="utf-16")
    assert "not UTF-16 text" in error.message


def test_a_missing_column_names_those_there_are(file: Path) -> None:
    file.write_text("image,cat\na,1\n")
    sheet = CsvTable(file)
    assert "cat" in sheet
    assert "dog" not in sheet
    with pytest.raises(LabelError, match="found: 'image', 'cat'") as caught:
        sheet.column("dog")
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("where", "images", "lines"),
    [({"split": "train"}, "ac", [2, 4]), ({"split": "train", "fold": "2"}, "c", [4]), ({}, "abc", [2, 3, 4])],
)
def test_select(file: Path, where: dict[str, str], images: str, lines: list[int]) -> None:
    file.write_text("image,split,fold\na,train,1\nb,val,1\nc,train,2\n")
    sheet = CsvTable(file)
    for _ in range(2):
        sheet.select(where, Audit("x", []))
        assert sheet.column("image").to_pylist() == list(images)
        assert [sheet.line(row) for row in range(len(sheet))] == lines
    with pytest.raises(LabelError, match="found: ") as caught:
        sheet.select({"split": "test"}, Audit("x", []))
    assert caught.value.column == "split"


def test_a_column_too_long_for_32_bit_offsets_is_one_array() -> None:
    from halflabel.labels.formats import _sheets as sheet

    class Long:
        """Stands for a column of more than 2 GiB, which a test cannot afford."""

        nbytes = 2**31

        def cast(self, kind: pa.DataType) -> pa.ChunkedArray | Long:
            return self if kind == pa.string() else pa.chunked_array([["a"], ["b"]], kind)

    whole = sheet._combine(Long())
    assert whole.type == pa.large_string()
    assert whole.to_pylist() == ["a", "b"]


def test_parquet_columns_as_text(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table(
        {
            "image": pa.array(["007", None]).dictionary_encode(),
            "cat": pa.array([1, None], pa.int8()),
            "ok": [True, False],
            "score": [0.5, None],
            "none": pa.nulls(2),
        }
    )
    pq.write_table(table, path)
    sheet = ParquetTable(path)
    assert columns(sheet) == {
        "image": ["007", ""],
        "cat": ["1", ""],
        "ok": ["true", "false"],
        "score": ["0.5", ""],
        "none": ["", ""],
    }
    assert sheet.error("x", "y", row=1).line == 2


def test_parquet_faults(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and then nonsense")
    with pytest.raises(LabelError, match="cannot be read as Parquet"):
        ParquetTable(path)
    pq.write_table(pa.table({"image": [["a"]]}), path)
    with pytest.raises(LabelError, match="cannot hold labels") as caught:
        ParquetTable(path).column("image")
    assert caught.value.column == "image"
    pq.write_table(pa.table({"image": pa.array([], pa.string())}), path)
    with pytest.raises(LabelError, match="no rows"):
        ParquetTable(path)
    pq.write_table(pa.table({"": ["a"]}), path)
    with pytest.raises(LabelError, match="has no name"):
        ParquetTable(path)


def test_first_line_never_fails(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content, first in (
        (b"\xef\xbb\xbfa,b\r\nc", "a,b"),
        (b"\n\r\n x \n", " x "),
        (b"a\rb\rc", "a"),
        (b"\xff,b\n", "\ufffd,b"),
        ("\r\na,é\r\nb".encode("utf-16"), "a,é"),
        ("a,b\n".encode("utf-16") + b"x", "a,b"),
        (b"", ""),
        (b"y" * (3 << 20), "y" * (1 << 20)),
    ):
        path.write_bytes(content)
        assert first_line(path) == first
    assert first_line(tmp_path) == ""
    assert first_line(tmp_path / "nowhere") == ""


def test_lines_and_records(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbfa,b\r\n"c\nd",e\r\n\r\nf,g')
    assert list(read_lines(file)) == ["a,b\r\n", '"c\n', 'd",e\r\n', "\r\n", "f,g"]
    assert list(read_records(file, ",")) == [(1, ["a", "b"]), (2, ["c\nd", "e"]), (5, ["f", "g"])]
    file.write_bytes(b'a,b\nx,"1"2\n')
    with pytest.raises(LabelError, match="not CSV") as caught:
        list(read_records(file, ","))
    assert caught.value.line == 2


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5), st.sampled_from(",;\t|"))
@settings(max_examples=100, deadline=None)
def test_what_csv_writes_comes_back_with_its_lines(rows: list[tuple[str, str]], delimiter: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerow(["image", "value"])
            writer.writerows(rows)
        sheet = CsvTable(path)
        assert list(zip(sheet.columns[0].to_pylist(), sheet.columns[1].to_pylist(), strict=True)) == rows
        text = list(read_records(path, delimiter))
        assert [sheet.line(row) for row in range(len(rows))] == [line for line, _ in text[1:]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [";", ",", "\t", "|"])
def test_the_separator_that_excel_states(tmp_path: Path, mark: str, end: str, encoding: str) -> None:
    path = tmp_path / "x.csv"
    # Of the two marks in the header the stated one counts, though the other is there more often.
    other = "," if mark != "," else ";"
    text = [f"sep={mark}", f"image{mark}a{other}b{other}c", f"1.jpg{mark}2", f"3.jpg{mark}4"]
    path.write_bytes((end.join(text) + end).encode(encoding))
    assert first_line(path) == text[1]
    sheet = CsvTable(path, encoding="utf-16" if encoding == "utf-16" else None)
    assert sheet.header == ["image", f"a{other}b{other}c"]
    assert sheet.column("image").to_pylist() == ["1.jpg", "3.jpg"]
    assert sheet.line(1) == 4


def test_a_fault_below_excels_separator(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("sep=;\nimage;cat\na;1\nb;1;0\n")
    with pytest.raises(LabelError, match="3 fields where the first line has 2") as caught:
        CsvTable(path)
    assert caught.value.line == 4


@settings(max_examples=300, deadline=None)
@given(text=st.text('a,"\n', max_size=24))
def test_quotes_that_are_passed_at_once_are_well_formed(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "quotes.csv"
    path.write_text(text + '\n"x"\n')
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        passed = _has_cells_of_one_line(data, ",")
    cells = r'(?:"(?:[^"]|"")*"|[^",]*)'
    assert passed == all(re.fullmatch(f"{cells}(?:,{cells})*", line) for line in text.split("\n"))
