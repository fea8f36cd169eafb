"""Long rows: golden files, the last row wins, the order of names, round trips, and every fault with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from label_files import GOLDEN_FILES, label_error, source_of

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import long
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "long"
HEADER = "image,class,value,source,score\n"

UNKNOWN = Policy(unlisted="unknown")


def refusal(path: Path, content: str | bytes, policy: Policy | None = None) -> LabelError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return label_error(long.read, path, policy)


def test_own_file() -> None:
    """NA and None are classes, what nothing is known of keeps its place, the last row wins and 0 retracts."""
    rows, audit = long.read(GOLDEN / "own.csv", Policy())
    assert list(rows.images) == ["0001.jpg", "empty.jpg", "0002.jpg"]
    assert list(rows.classes) == ["cat", "NA", "None", "unseen"]
    assert rows.value.tolist() == [1, -1, 1, -1, 1, 0]
    assert source_of(rows) == ["ann", "ann", "model", "ann", "model", "ann"]
    assert np.array_equal(rows.score, np.float32([np.nan, 0.25, 0.75, np.nan, 0.5, np.nan]), equal_nan=True)
    assert rows.training.dense().tolist() == [[1, -1, 0, 0], [0, 0, 0, 0], [-1, 0, 0, 0]]
    assert audit.value_counts == [
        ValueCount("1", "present", 3),
        ValueCount("-1", "absent", 2),
        ValueCount("0", "retracted", 1),
    ]
    assert "1 entries are both present and absent" in audit.notes[0]


def test_semicolon_byte_order_mark_crlf_blank_line() -> None:
    path = GOLDEN / "semicolon_bom_crlf.csv"
    with pytest.raises(LabelError, match="value 0 may mean absent, or unknown") as caught:
        long.read(path, Policy())
    assert (caught.value.line, caught.value.column) == (4, "value")
    for zero, value in (("absent", -1), ("unknown", 0)):
        table = long.read(path, Policy(zero=zero)).table()  # type: ignore[arg-type]
        assert (list(table.images), list(table.classes)) == (["007", "008"], ["café", "null"])
        assert table.dense().tolist() == [[1, 0], [0, value]]


def test_latin_1() -> None:
    path = GOLDEN / "latin1.csv"
    with pytest.raises(LabelError, match="byte 0xe9 is not UTF-8") as caught:
        long.read(path, UNKNOWN)
    assert caught.value.line == 2
    rows = long.read(path, Policy(unlisted="unknown", encoding="latin-1")).rows
    assert (list(rows.images), list(rows.classes)) == (["été.jpg"], ["château"])


def test_quotes_sources_scores_and_unlisted() -> None:
    path = GOLDEN / "quoted.csv"
    ignore = {"ignore": ("confidence",)}
    with pytest.raises(LabelError, match="may say present or absent, or how probable"):
        long.read(path, UNKNOWN)
    with pytest.raises(LabelError, match='unlisted="unknown"'):
        long.read(path, Policy(**ignore))
    rows, audit = long.read(path, Policy(unlisted="unknown", **ignore))
    assert list(rows.images) == ["a, b.jpg", "two\nlines.jpg"]
    assert list(rows.classes) == ["tree, tall", 'said "no"', "cat"]
    assert source_of(rows) == ["eve", "", "bob"]
    assert np.isnan(rows.score).all()
    assert rows.training.dense().tolist() == [[1, 0, 1], [0, 1, 0]]
    assert audit.value_counts == [ValueCount("listed", "present", 3)]
    rows, audit = long.read(path, Policy(unlisted="absent", **ignore))
    assert rows.training.dense().tolist() == [[1, -1, 1], [-1, 1, -1]]
    assert audit.value_counts == [ValueCount("listed", "present", 3), ValueCount("not listed", "absent", 3)]
    assert source_of(rows)[3:] == ["unlisted"] * 3


def test_values_as_stated(file: Path) -> None:
    file.write_text("id,tag,value,more\na,cat,-1,p\na,dog,maybe,q\n")
    with pytest.raises(LabelError, match="minus_one") as caught:
        long.read(file, Policy())
    assert caught.value.line == 2
    with pytest.raises(LabelError, match="'maybe' is not a label") as caught:
        long.read(file, Policy(minus_one="absent"))
    assert (caught.value.line, caught.value.column) == (3, "value")
    rows, audit = long.read(file, Policy(minus_one="absent", values={"maybe": "present"}))
    assert rows.training.dense().tolist() == [[-1, 1]]
    assert audit.notes == ["columns not used: more"]


def test_where_and_image_column(file: Path) -> None:
    file.write_text("image,photo,class,split\nx,p1,cat,train\ny,p2,dog,val\nz,p3,cat,train\n")
    rows = long.read(file, Policy(unlisted="unknown", image_column="photo", where={"split": "train"})).rows
    assert (list(rows.images), list(rows.classes)) == (["p1", "p3"], ["cat"])
    with pytest.raises(LabelError, match="no column 'picture'"):
        long.read(file, Policy(unlisted="unknown", image_column="picture"))


def test_lines_of_faults_count_in_the_file_not_among_the_rows_kept(file: Path) -> None:
    text = 'image,class,value,split\n"a\nb",cat,1,val\n\nc,cat,1,train\nd,cat,huh,train\n'
    error = refusal(file, text, Policy(where={"split": "train"}))
    assert (error.line, error.column) == (6, "value")


def test_inclusion_weights_say_how_a_label_was_asked_for(file: Path) -> None:
    file.write_text("image,class,value,inclusion_weight\na,cat,1,0\nb,cat,-1,\nc,cat,1, 12.5\n")
    rows = long.read(file, Policy()).rows
    assert np.array_equal(rows.weight, np.float32([0, np.nan, 12.5]), equal_nan=True)
    assert rows.is_answer().tolist() == [True, False, True]


def test_answered_questions_are_labels(file: Path) -> None:
    lines = ["image,class,probability,why,inclusion_weight,value", "a,cat,0.6,control: called present,40,1"]
    file.write_text("\n".join([*lines, "a,dog,0.5,uncertain,0,-1", "b,dog,0.5,uncertain,0,"]) + "\n")
    rows = long.read(file, Policy()).rows
    assert rows.value.tolist()[-2:] == [1, -1]
    assert rows.weight.tolist()[-2:] == [40, 0]
    assert rows.training.known == 2


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        (HEADER + "a,cat,1,,\n,,1,,\n", 3, None, "neither an image nor a class"),
        (HEADER + "a,cat,1,,\na,cat,1,,high\n", 3, "score", "'high' is not a number"),
        (HEADER + "a,cat,1,,\na,cat,1,,1e39\n", 3, "score", "'1e39' is too large"),
        (HEADER + "a,cat,1,,\na,cat,1,, -1e39\n", 3, "score", "' -1e39' is too small"),
        ("image,class,value,inclusion_weight\na,cat,1,\nb,cat,1,-2\n", 3, "inclusion_weight", "'-2' is negative"),
        ("image,class,value,inclusion_weight\na,cat,1,1e39\n", 2, "inclusion_weight", "'1e39' is too large"),
        ("image,class,value,inclusion_weight\na,cat,1,many\n", 2, "inclusion_weight", "'many' is not a number"),
        (HEADER + "a,cat,1,,\na,cat,2,,\n", 3, "value", "'2' is not a label"),
        (HEADER + "a,cat,1,,\na,cat,1,\n", 3, None, "4 fields where the first line has 5"),
        (HEADER + "a,cat,1,,\na,c\0at,1,,\n", 3, None, "byte 0x00"),
        (HEADER, None, None, "no rows"),
        ("", None, None, "empty"),
        ("image,value\na,1\n", 1, None, "no column 'class'"),
        ("class,value\na,1\n", 1, None, "no column 'image'"),
        ('image,class\na,cat\nb,"dog\nc,cat\n', 3, None, "unexpected end"),
    ],
)
def test_faults(file: Path, content: str, line: int | None, column: str | None, words: str) -> None:
    error = refusal(file, content, UNKNOWN)
    assert (error.line, error.column) == (line, column)
    assert words in error.message


def test_more_sources_than_there_is_room_for(file: Path) -> None:
    text = "image,class,source\n" + "".join(f"a,cat,s{number}\n" for number in range(40000))
    assert refusal(file, text, UNKNOWN).column == "source"


def test_parquet_with_nulls_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {
        "image": pa.array(["a", None, "b", "c"]),
        "class": pa.array([None, "cat", "cat", "dog"]),
        "value": pa.array([None, None, -1, 1], pa.int64()),
        "source": pa.array([None, "", "ann", None]),
        "score": pa.array([None, None, 0.5, None]),
    }
    pq.write_table(pa.table(columns), path)
    rows = long.read(path, Policy()).rows
    assert (list(rows.images), list(rows.classes)) == (["a", "b", "c"], ["cat", "dog"])
    assert rows.training.dense().tolist() == [[0, 0], [-1, 0], [0, 1]]
    assert source_of(rows) == ["ann", ""]
    columns["value"] = pa.array([None, None, -1, 7], pa.int64())
    pq.write_table(pa.table(columns), path)
    with pytest.raises(LabelError, match="'7' is not a label") as caught:
        long.read(path, Policy())
    assert (caught.value.line, caught.value.column) == (4, "value")


@pytest.mark.parametrize(
    ("column", "cells"),
    [("confidence", "0.9 0.2"), ("score", "97 3"), ("p", "0.5 0.5"), ("verified", "0 1"), ("seen", "yes no")],
)
def test_a_column_that_may_be_a_value_is_asked_about(file: Path, column: str, cells: str) -> None:
    first, second = cells.split()
    file.write_text(f"image,class,{column}\na.jpg,dog,{first}\nb.jpg,dog,{second}\n")
    with pytest.raises(LabelError, match="present or absent") as refusal:
        formats.read(file, UNKNOWN)
    assert refusal.value.column == column
    assert f"‹ignore={column}›" in refusal.value.fix
    assert formats.read(file, Policy(unlisted="unknown", ignore=(column,))).table().dense().tolist() == [[1], [1]]


@pytest.mark.parametrize(("column", "cells"), [("width", "640 480"), ("note", "old new"), ("count", "1 1")])
def test_other_columns_are_left_out_with_a_note(file: Path, column: str, cells: str) -> None:
    first, second = cells.split()
    file.write_text(f"image,class,{column}\na.jpg,dog,{first}\nb.jpg,dog,{second}\n")
    assert formats.read(file, UNKNOWN).audit.notes == [f"columns not used: {column}"]


def test_what_predict_and_next_write_is_not_read_as_labels(file: Path) -> None:
    outputs = {
        "fill": "probability,present,error\na.jpg,dog,0.4,0,\n",
        "review": "probability,why\na.jpg,dog,0.4,near\n",
    }
    for command, text in outputs.items():
        file.write_text("image,class," + text)
        for form in ("auto", "long"):
            with pytest.raises(LabelError, match="not labels") as refusal:
                formats.read(file, UNKNOWN, format=form)
            assert f"halflabel {command}" in refusal.value.fix


@pytest.mark.parametrize("answer", ["", "n/a", "unknown", "?"])
@pytest.mark.parametrize("header", ["image,class,value,annotator", "image,class,value,source,score"])
def test_a_row_without_an_answer_removes_nothing(file: Path, answer: str, header: str) -> None:
    end = "," if header.endswith("score") else ""
    file.write_text(f"{header}\na.jpg,dog,1,ann{end}\na.jpg,dog,{answer},bob{end}\nb.jpg,dog,{answer},bob{end}\n")
    label_import = formats.read(file)
    assert label_import.table().dense().tolist() == [[1], [0]]
    assert "1 rows have no answer where another row has one: they change nothing" in label_import.audit.notes
    formats.write(label_import.rows, file.with_name("again.csv"))
    assert formats.read(file.with_name("again.csv")).table() == label_import.table()


def test_a_retraction_in_our_own_files_still_retracts(file: Path) -> None:
    file.write_text(HEADER + "a.jpg,dog,1,ann,\na.jpg,dog,0,bob,\n")
    assert formats.read(file).table().known == 0


def test_source_and_score_may_be_left_out(file: Path) -> None:
    file.write_text("image,class,value\na,cat,1\na,dog,-1\n")
    rows, audit = long.read(file, Policy())
    assert rows.training.dense().tolist() == [[1, -1]]
    assert ValueCount("-1", "absent", 1) in audit.value_counts
    assert long.read(file, Policy(minus_one="unknown")).table().dense().tolist() == [[1, 0]]
    error = refusal(file, "image,class,value\na,cat,1\na,dog,0\n")  # 0 retracts in our files, others mean absent
    assert (error.line, error.column) == (3, "value")
    assert "‹zero=absent› or ‹zero=unknown›" in error.fix
    file.write_text("image,class,value\na,cat,1\na,dog,0\na,cow,-1\n")  # then -1 may be unsure
    with pytest.raises(LabelError, match="value -1 may mean"):
        long.read(file, Policy(zero="absent"))
    for other in ("no", " 0", "unknown", ""):  # nor is it ours that has a word of its own for what -1 may be
        file.write_text(f"image,class,value\na,cat,1\na,dog,{other}\na,cow,-1\n")
        with pytest.raises(LabelError, match="value -1 may mean"):
            long.read(file, Policy(zero="absent"))
    for header in ("image,class,value,annotator", "image,label,value", "id,class,value"):  # not ours
        row = "a,dog,-1" + ",x" * (header.count(",") - 2)
        assert "‹minus_one=absent›" in refusal(file, f"{header}\n{row}\n").fix


def test_own_files_say_what_their_values_mean() -> None:
    with pytest.raises(UserError, match="zero means nothing"):
        long.read(GOLDEN / "own.csv", Policy(zero="absent"))


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ("image,class,value\na.jpg,cat,1\n,dog,1\n", 3, "image", "value '1' has no image"),
        ("image,class,value\na.jpg,cat,1\n\nb.jpg, ,-1\n", 4, "class", "value '-1' has no class"),
        (HEADER + ",cat,,,\na.jpg,cat,1,,\nb.jpg,,0,,\n", 4, "class", "value '0' has no class"),
        (HEADER + "a.jpg,cat,1,,\n,dog,,me,\n", 3, "image", "source 'me' has no image"),
        (HEADER + "a.jpg,cat,1,,\nb.jpg,,,,0.5\n", 3, "class", "score '0.5' has no class"),
        ("image,class,value,inclusion_weight\na,cat,1,\nb,,,0\n", 3, "class", "inclusion_weight '0' has no class"),
    ],
)
def test_a_row_that_says_something_names_image_and_class(
    file: Path, content: str, line: int, column: str, words: str
) -> None:
    error = refusal(file, content)
    assert (error.line, error.column) == (line, column)
    assert words in error.message


def test_a_row_that_says_nothing_still_names(file: Path) -> None:
    file.write_text("image,class,value\na.jpg,cat,1\n,dog,\nb.jpg,, \n")
    rows = long.read(file, Policy()).rows
    assert (list(rows.images), list(rows.classes), len(rows)) == (
        ["b.jpg", "a.jpg"],
        ["dog", "cat"],
        1,
    )  # declared first


def test_blanks_around_names_do_not_count(file: Path) -> None:
    file.write_text("image,class,value\n a.jpg , dog ,1\na.jpg,dog,-1\nb.jpg,\tdog,1\n")
    rows, audit = long.read(file, Policy())
    assert (list(rows.images), list(rows.classes)) == (["a.jpg", "b.jpg"], ["dog"])
    assert rows.training.dense().tolist() == [[-1], [1]]
    assert "1 rows have blanks around the name of the image, which are removed" in audit.notes
    assert "2 rows have blanks around the name of the class, which are removed" in audit.notes


@pytest.mark.parametrize("header", ["image,class,label,value", "image,class,value,Value"])
def test_two_columns_of_one_role_are_asked_about(file: Path, header: str) -> None:
    second = header.split(",")[-2 if "label" in header else -1]
    file.write_text(f"{header}\na.jpg,dog,1,1\n")
    with pytest.raises(LabelError, match="both") as refusal:
        formats.read(file)
    assert f"‹ignore={second}›" in refusal.value.fix


def test_an_underscore_is_not_part_of_a_number(file: Path) -> None:
    file.write_text(HEADER + "a.jpg,dog,1,x,1_0\n")
    with pytest.raises(LabelError, match="not a number"):
        formats.read(file)
