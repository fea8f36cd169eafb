"""Wide tables: golden files, what each value means, round trips, and every fault with its line and column."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, label_error

from halflabel.cli.show import in_shell
from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import wide
from halflabel.labels.formats.wide import CLASS_NUMBER_COLUMNS
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "wide"


def refusal(path: Path, policy: Policy | None = None, content: str | None = None) -> LabelError:
    if content is not None:
        path.write_text(content)
    return label_error(wide.read, path, policy)


def test_plain() -> None:
    """Leading zeros stay, NA, None and null are classes in the header and unknown in a cell."""
    rows, audit = wide.read(GOLDEN / "plain.csv", Policy())
    table = rows.training
    assert list(table.images) == ["0001", "0002", "0010"]
    assert list(table.classes) == ["cat", "NA", "None", "null"]
    assert table.dense().tolist() == [[1, -1, 0, 0], [-1, 1, 0, 1], [0, 0, 1, -1]]
    assert sorted(audit.value_counts) == [
        ValueCount("0", "absent", 3),
        ValueCount("1", "present", 4),
        ValueCount("?", "unknown", 1),
        ValueCount("NA", "unknown", 1),
        ValueCount("blank", "unknown", 2),
        ValueCount("nan", "unknown", 1),
    ]


def test_semicolon_byte_order_mark_crlf_quotes() -> None:
    table = wide.read(GOLDEN / "semicolon_bom_crlf.csv", Policy()).table()
    assert list(table.images) == ["a;b", "c\r\nd"]
    assert list(table.classes) == ["cat; big", "dog"]
    assert table.dense().tolist() == [[1, -1], [0, 1]]


def test_minus_one_is_never_guessed() -> None:
    path = GOLDEN / "minus_one.csv"
    error = refusal(path)
    assert (error.line, error.column, "‹minus_one" in error.fix) == (2, "cat", True)
    error = refusal(path, Policy(minus_one="absent"))
    assert (error.line, error.column, "‹zero" in error.fix) == (3, "cat", True)
    for policy, labels in (
        (Policy(minus_one="absent", zero="unknown"), [[-1, 1], [0, -1], [1, 0]]),
        (Policy(minus_one="unknown"), [[0, 1], [-1, 0], [1, 0]]),
        (Policy(values={"-1": "unknown"}), [[0, 1], [-1, 0], [1, 0]]),
    ):
        assert wide.read(path, policy).table().dense().tolist() == labels


def test_where() -> None:
    rows, audit = wide.read(GOLDEN / "splits.csv", Policy(where={"split": "train"}))
    assert (list(rows.images), list(rows.classes)) == (["1", "3"], ["cat", "dog"])
    assert rows.training.dense().tolist() == [[1, -1], [0, 1]]
    assert audit.notes == ["1 of 3 rows left out by ‹where›"]
    assert "‹where=split=train›" in refusal(GOLDEN / "splits.csv").fix


def test_what_is_suggested_can_be_copied(file: Path) -> None:
    fix = in_shell(refusal(file, None, 'image,my tags\na,"dog, cat"\n').fix)
    assert "--value 'dog, cat=present'" in fix
    assert "--ignore 'my tags'" in fix
    assert "--where 'my tags=dog, cat'" in fix
    fix = in_shell(refusal(file, None, 'image,notes\na,"dog\nand cat"\n').fix)
    assert "--ignore notes" in fix
    assert "--where" not in fix
    assert "\n" not in fix


def test_image_column(file: Path) -> None:
    file.write_text("cat,Filename,dog\n1,a,0\n")
    assert list(wide.read(file, Policy()).rows.images) == ["a"]
    file.write_text("photo,cat\na,0\n")
    assert list(wide.read(file, Policy()).rows.images) == ["a"]
    file.write_text("id,photo,cat\n1,a,0\n")
    assert list(wide.read(file, Policy(image_column="photo", ignore=("id",))).rows.images) == ["a"]


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ("image,cat\na,1\n\nb,maybe\n", 4, "cat", "'maybe' is not a label"),
        ('image,cat\n"a\nb",1\nb,2\n', 4, "cat", "'2' is not a label"),
        ("image,cat\na,1\n,0\n", 3, "image", "no name"),
        ("image,cat\na,1\nb,0\n\na,0\n", 5, "image", "'a' has other labels on line 2"),
        ("image,cat\na,1\nb,0,1\n", 3, None, "3 fields"),
        ("image\na\n", 1, None, "no column is left"),
        ("image,cat\n", None, None, "no rows"),
        ("image,cat,cat\na,1,1\n", 1, "cat", "occurs twice"),
        ("image,cat\na\0,1\n", 2, None, "byte 0x00"),
    ],
)
def test_faults(file: Path, content: str, line: int | None, column: str | None, words: str) -> None:
    error = refusal(file, content=content)
    assert (error.line, error.column) == (line, column)
    assert words in error.message


def test_lines_of_faults_count_in_the_file_not_among_the_rows_kept(file: Path) -> None:
    text = "image,split,cat\na,val,1\nb,train,1\nc,val,0\nb,train,0\n"
    error = refusal(file, Policy(where={"split": "train"}), text)
    assert (error.line, "on line 3" in error.message) == (5, True)
    error = refusal(file, Policy(where={"split": "train"}), "image,split,cat\na,val,1\nb,train,1\nc,train,huh\n")
    assert (error.line, error.column) == (4, "cat")


@pytest.mark.parametrize("policy", [Policy(ignore=("age",)), Policy(image_column="age"), Policy(where={"age": "1"})])
def test_columns_that_are_not_there(file: Path, policy: Policy) -> None:
    assert "no column 'age'" in refusal(file, policy, "image,cat\na,1\n").message


def test_files_stay_plain(file: Path) -> None:
    wide.write(Labels.from_table(Table.from_dense([[1, 0], [0, -1]], ["a", "b,c"], ["cat", "dog, big"])), file)
    assert file.read_text() == 'image,cat,"dog, big"\na,1,\n"b,c",,0\n'


def test_the_last_row_is_written(file: Path) -> None:
    blank = Table.from_dense([[0, 0]], ["a"], ["x", "y"])
    zeros = np.zeros(4, int)
    wide.write(Labels.build(blank.images, blank.classes, zeros, np.array([0, 0, 1, 1]), np.array([1, -1, 1, 0])), file)
    assert file.read_text() == "image,x,y\na,0,\n"


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
headers = cells.filter(
    lambda name: name == name.strip() and name != "image" and name.lower() not in CLASS_NUMBER_COLUMNS
)


# Names that make the header look like that of another form, among plain ones.
LIKE_LONG = ("class", "label", "Tag", "category", "value", "source", "score", "confidence", "id", "path", "annotator")
LIKE_OPEN_IMAGES = ("ImageID", "LabelName", "Confidence")
odd_headers = st.sampled_from([*LIKE_LONG, *LIKE_OPEN_IMAGES, "Image", "cat", "a\nb", "1", "0"])


@given(
    st.lists(st.sampled_from(["a", "1", "0", "b,c", "d\ne", "cat"]), min_size=1, max_size=4, unique=True),
    st.lists(odd_headers, min_size=1, max_size=10, unique=True),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_recognised_and_read_back(images: list[str], classes: list[str], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(-1, 2, (len(images), len(classes)))
    table = Table.from_dense(labels, images, classes)
    is_long = "value" in classes and set(classes) & {"class", "label", "Tag", "category"} and len(classes) < 8
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        is_number = len(classes) == 1 and classes[0] in ("class", "label", "category")
        if is_long or is_number or set(LIKE_OPEN_IMAGES) <= set(classes):
            with pytest.raises(UserError, match=r"would be read as|only class"):
                wide.write(Labels.from_table(table), path)
            assert not path.exists()
        else:
            wide.write(Labels.from_table(table), path)
            result = formats.read(path)
            assert (result.audit.format, result.table()) == ("wide", table)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("image,tag,cat\na,1,0\nb,,1\n", "wide"),
        ("image,label\na,1\nb,0\n", "wide"),
        ("image,label\na,1\nb,0\nc,2\n", "long"),
        ("image,class,value\na,0,1\nb,1,-1\n", "long"),
        ("image,class,value,source,score\n,0,,,\na,0,1,,\n", "long"),
    ],
)
def test_cells_tell_long_from_wide(file: Path, content: str, name: str) -> None:
    file.write_text(content)
    assert formats.detect_format(file) == name


@pytest.mark.parametrize(("image", "label"), [("a", "image"), ("a", " cat"), ("a", ""), ("", "cat")])
def test_write_refuses_names_it_cannot_hold(file: Path, image: str, label: str) -> None:
    with pytest.raises(UserError, match="Fix: "):
        wide.write(Labels.from_table(Table.from_dense([[1]], [image], [label])), file)
    assert not file.exists()


def test_one_error_lists_all_options_that_must_be_stated(file: Path) -> None:
    content = (
        "image,split,age,dog,cat\na.jpg,train,3,1,0\nb.jpg,test,40,-1,1\nc.jpg,train,7,0,0\nd.jpg,train,0,1,maybe\n"
    )
    error = refusal(file, content=content)
    assert "in all, 5 things must be stated" in error.message
    for part in ("'split'", "'age'", "what 'maybe' in 'cat' means", "what -1 means", "what 0 means beside it"):
        assert part in error.message
    options = "--ignore split --ignore age --value maybe=unknown --minus-one absent --zero unknown"
    assert in_shell(error.fix) == f"add {options} (or what is true of your file)"
    policy = Policy(ignore=("split", "age"), values={"maybe": "unknown"}, minus_one="absent", zero="unknown")
    assert wide.read(file, policy).table().dense().tolist() == [[1, 0], [-1, 1], [0, 0], [1, 0]]


def test_minus_one_beside_zeros_and_blanks_is_taken_for_uncertain(file: Path) -> None:
    error = refusal(file, content="image,Sex,Edema\na.jpg,Female,1\nb.jpg,Male,0\nc.jpg,Male,-1\nd.jpg,Female,\n")
    assert error.fix == "add ‹ignore=Sex› ‹minus_one=uncertain› (or what is true of your file)"
    assert wide.read(file, Policy(ignore=("Sex",), minus_one="unknown")).table().dense().tolist() == [
        [1],
        [-1],
        [0],
        [0],
    ]


def test_what_is_stated_already_is_not_asked_again(file: Path) -> None:
    content = "image,split,dog\na.jpg,train,1\nb.jpg,test,-1\nc.jpg,val,0\n"
    error = refusal(file, Policy(ignore=("split",)), content)
    assert "in all, 2 things" in error.message
    assert error.fix.startswith("add ‹minus_one=absent› ‹zero=unknown›")
    error = refusal(file, Policy(ignore=("split",), minus_one="absent"))
    assert "in all" not in error.message
    assert wide.read(file, Policy(ignore=("split",), minus_one="unknown")).table().known == 2
