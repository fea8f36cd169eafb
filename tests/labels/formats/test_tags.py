"""Lists of tags: golden files, splitting of cells, unlisted tags, round trips, and every fault with its place."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.audit import LabelImport, ValueCount
from halflabel.labels.formats import tags
from halflabel.labels.formats._into import add_to_table
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "tags"
UNKNOWN, ABSENT = Policy(unlisted="unknown"), Policy(unlisted="absent")


def made(path: Path, content: str, policy: Policy = UNKNOWN) -> LabelImport:
    path.write_text(content, encoding="utf-8", newline="")
    return formats.read(path, policy)


def refusal(path: Path, content: str, policy: Policy = UNKNOWN, format: str = "tags") -> LabelError:
    path.write_text(content, encoding="utf-8", newline="")
    return label_error(partial(formats.read, format=format), path, policy)


def listed(result: LabelImport) -> dict[str, list[str]]:
    """Image -> the classes present, in the order of the classes."""
    table = result.table()
    return {
        image: [name for name, value in zip(table.classes, row, strict=True) if value > 0]
        for image, row in zip(table.images, table.dense().tolist(), strict=True)
    }


def test_comma() -> None:
    path = GOLDEN / "comma.csv"
    with pytest.raises(LabelError, match=r"split at ','.*unlisted=.unknown. .* unlisted=.absent."):
        formats.read(path)
    rows, audit = formats.read(path, UNKNOWN)
    assert (list(rows.images), list(rows.classes)) == (["0001.jpg", "0002.jpg", "0003.jpg"], ["dog", "cat"])
    assert rows.training.dense().tolist() == [[1, 1], [1, 0], [0, 0]]
    assert audit.value_counts == [ValueCount("in tags", "present", 3), ValueCount("not listed", "unknown", 3)]
    assert audit.notes == ["tags split at ','", "1 images have no tags"]
    result = formats.read(path, ABSENT)
    assert result.table().dense().tolist() == [[1, 1], [1, -1], [-1, -1]]
    assert result.audit.value_counts == [ValueCount("in tags", "present", 3), ValueCount("not listed", "absent", 3)]


def test_semicolon_byte_order_mark_crlf() -> None:
    path = GOLDEN / "semicolon_bom_crlf.csv"
    result = formats.read(path, UNKNOWN)
    assert listed(result) == {"a.jpg": ["café", "Grün"], "b.jpg": ["Grün"]}
    assert list(formats.read(path, Policy(unlisted="unknown", image_column="id")).rows.images) == ["7", "8"]


def test_hashtags() -> None:
    assert listed(formats.read(GOLDEN / "hashtags.tsv", UNKNOWN)) == {"a.jpg": ["dog", "cat"], "b.jpg": ["cat"]}


def test_a_list_of_what_is_absent() -> None:
    result = formats.read(GOLDEN / "own.csv")
    assert list(result.rows.classes) == ["dog", "cat", "cow"]
    assert result.table().dense().tolist() == [[1, 1, -1], [-1, 0, -1], [0, 0, 0]]
    assert result.audit.value_counts == [
        ValueCount("in tags", "present", 2),
        ValueCount("in absent", "absent", 3),
        ValueCount("not listed", "unknown", 4),
    ]
    assert formats.read(GOLDEN / "own.csv", ABSENT).table().known == 9


def test_what_is_in_both_lists_is_present(file: Path) -> None:
    result = made(file, "image,tags,negatives\na,dog,dog\n")
    assert result.table().dense().tolist() == [[1]]
    assert len(result.rows) == 2
    assert any("in both lists" in note for note in result.audit.notes)


SPLIT = {
    "comma": ('"dog, cat"', "dog", ["dog", "cat"], "tags split at ','"),
    "semicolon": ("dog;cat", "dog", ["dog", "cat"], "tags split at ';'"),
    "bar": ("dog|cat", "dog", ["dog", "cat"], "tags split at '|'"),
    "line ends": ('"dog\ncat"', "dog", ["dog", "cat"], "tags split at line ends"),
    "blanks around and none within": (' traffic light ;; cat; "', "cat", ["traffic light", "cat", '"'], "';'"),
    "hashtags": ("#dog #cat", "#dog", ["dog", "cat"], "tags split at '#'"),
    "hashtags and commas": ('"#dog, #cat"', "#dog", ["dog", "cat"], "tags split at '#'"),
    "hashtags without blanks": ("#dog#cat", " #dog ", ["dog", "cat"], "tags split at '#'"),
    "not all hashtags": ("#dog #cat", "dog", ["#dog #cat"], "one per cell"),
    "one": ("traffic light", "dog", ["traffic light"], "one per cell: there is no separator"),
    "most": ('"dog; cat, black; cow"', "x;y", ["dog", "cat, black", "cow"], "split at ';', and not at ','"),
    "as many": ('"dog, cat"', "x;y", ["dog, cat"], "one per cell: ',' and ';' are equally frequent"),
    "Python": ("\"['dog', 'cat, black']\"", "['dog']", ["dog", "cat, black"], "brackets and quotes"),
    "JSON": ('"[""dog"", ""it\'s a cat""]"', "[]", ["dog", "it's a cat"], "brackets and quotes"),
    "JSON escapes": ('"[""caf\\u00e9"", ""b\\""c""]"', "['x']", ["café", 'b"c'], "brackets and quotes"),
    "NumPy": ("\"['dog' 'cat']\"", "['dog']", ["dog", "cat"], "brackets and quotes"),
    "NumPy on two lines": ("\"['dog'\n 'cat']\"", "['dog']", ["dog", "cat"], "brackets and quotes"),
    "one cell without a list": ("\"['dog', 'cat']\"", "nan", ["dog", "cat"], "brackets and quotes"),
    "a tuple": ("\"('dog', 'cat')\"", "\"('dog',)\"", ["dog", "cat"], "brackets and quotes"),
    "a set": ("\"{'dog', 'cat'}\"", "{'dog'}", ["dog", "cat"], "brackets and quotes"),
    "bars in brackets": ("[dog|cat]", "None", ["dog", "cat"], "split at '|'"),
    "brackets": ('"[dog, cat]"', "[dog]", ["dog", "cat"], "split at ','"),
    "twice": ('"dog,cat, dog"', "dog", ["dog", "cat"], "1 tags are repeated for the same image"),
    "capitals": ("dog;Dog", "dog", ["dog", "Dog"], "classes are nearly the same"),
    "value words among others": ("dog;yes;1", "0", ["dog", "yes", "1"], "split at ';'"),
    "other letters": ("犬;ねこ", "犬", ["犬", "ねこ"], "split at ';'"),
}


@pytest.mark.parametrize(("unlisted", "absent"), [("unknown", 0), ("absent", -1)])
def test_spellings_of_a_tag_are_one_class_if_asked_for(file: Path, tmp_path: Path, unlisted: str, absent: int) -> None:
    file.write_text("image,tags\na.jpg,DOG;dog \nb.jpg,Cat;dog\nc.jpg,Dog\nd.jpg,cat;Cat\n")
    imported = formats.read(file, unlisted=unlisted, merge_names=True)
    assert list(imported.rows.classes) == ["dog", "Cat"]
    assert imported.table().dense().tolist() == [[1, absent], [1, 1], [1, absent], [absent, 1]]
    assert any(note.startswith("3 spellings") for note in imported.audit.notes)
    if unlisted == "unknown":
        rows = imported.rows
        filled = rows.append(Labels.build(rows.images, rows.classes, *np.array([[2], [1], [1]])))
        add_to_table(filled, file, tmp_path / "out.csv")
        assert (tmp_path / "out.csv").read_text().splitlines()[3] == "c.jpg,Dog;Cat"  # as it was written


@pytest.mark.parametrize(
    ("cell", "other"),
    [("['dog']", "cat"), ("\"['dog' ... 'cat']\"", "[]"), ("\"['dog', 'cat\"", "['x']"), ("\"['a', ['b']]\"", "[]")],
)
def test_ambiguous_lists_are_refused(file: Path, cell: str, other: str) -> None:
    with pytest.raises(UserError, match="list"):
        made(file, f"image,tags\na.jpg,{cell}\nb.jpg,{other}\n")


def test_a_column_of_confidences_is_asked_about(file: Path) -> None:
    with pytest.raises(LabelError, match="how probable"):
        made(file, "image,tags,confidence\na.jpg,dog;cat,0.9\nb.jpg,dog,0.2\n")


@pytest.mark.parametrize("case", SPLIT)
def test_cells_are_split(file: Path, case: str) -> None:
    cell, other, expected, note = SPLIT[case]
    result = made(file, f"image,tags\na.jpg,{cell}\nb.jpg,{other}\nc.jpg,\n")
    assert result.audit.format == "tags"
    assert sorted(listed(result)["a.jpg"]) == sorted(expected)
    assert listed(result)["c.jpg"] == []
    assert any(note in text for text in result.audit.notes), result.audit.notes


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        (",", ["a b; c", "d"]),
        (";", ["a b", "c, d"]),
        ("none", ["a b; c, d"]),
        ("space", ["a", "b;", "c,", "d"]),
        ("; c,", ["a b", "d"]),
        (".", ["a b; c, d"]),
    ],
)
def test_the_separator_is_what_is_stated(file: Path, separator: str, expected: list[str]) -> None:
    result = made(file, 'image,tags\nx,"a b; c, d"\n', Policy(unlisted="unknown", separator=separator))
    assert listed(result) == {"x": expected}


def test_a_blank_separator_is_refused(file: Path) -> None:
    with pytest.raises(UserError, match="separator is empty"):
        made(file, "image,tags\nx,a\n", Policy(unlisted="unknown", separator=""))


@pytest.mark.parametrize("name", ["tags", "Labels", "classes", "categories", "KEYWORDS", "hashtags", "keyword"])
@pytest.mark.parametrize("image", ["image", "file_name", "Photo"])
def test_columns_go_by_many_names(file: Path, name: str, image: str) -> None:
    assert listed(made(file, f"{image},{name}\na.jpg,dog;cat\n")) == {"a.jpg": ["dog", "cat"]}
    assert listed(made(file, f"{name},{image}\ndog;cat,a.jpg\n")) == {"a.jpg": ["dog", "cat"]}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("image,tags\na,dog\n", "tags"),
        ("image,tags\na,\nb,dog\n", "tags"),
        ("id,image,tags\n0,a,dog\n1,b,cat\n", "tags"),
        ("image,tags,split,note\na,dog,train,\n", "tags"),
        ("image,tags\na,1\nb,0\nc,\n", "wide"),
        ("image,tags,cat\na,yes,no\n", "wide"),
        ("image,tags,cat\na,dog;cow,1\n", "wide"),
        ("image,tags,labels\na,dog,cat\n", "tags"),
        ("image,label\na,dog\n", "long"),
        ("image,class,value\na,tags,1\n", "long"),
    ],
)
def test_cells_tell_tags_from_other_tables(file: Path, content: str, name: str) -> None:
    file.write_text(content)
    assert formats.detect_format(file) == name


def test_other_columns_are_named_by_the_user(file: Path) -> None:
    both = "image,tags,labels\na,dog,cat\n"
    assert "‹tag_column" in refusal(file, both).fix
    ignoring = Policy(unlisted="unknown", ignore=("tags",))
    assert listed(formats.read(file, ignoring, format="tags")) == {"a": ["cat"]}
    strange = "bild,schlagworte\na,Hund;Katze\n"
    file.write_text(strange)
    assert listed(formats.read(file, UNKNOWN, format="tags")) == {"a": ["Hund", "Katze"]}
    file.write_text("image,tags,split\na,dog;cat,train\nb,dog,val\n")
    result = formats.read(file, Policy(unlisted="unknown", where={"split": "train"}))
    assert listed(result) == {"a": ["dog", "cat"]}
    assert "1 of 2 rows left out by ‹where›" in result.audit.notes


def test_lists_under_a_singular_name_are_asked_about(file: Path) -> None:
    """A class may have a comma in its name."""
    error = refusal(file, 'image,label\na,"dog, cat"\nb,cow\n', format="auto")
    assert "‹separator=,›" in error.fix
    assert listed(formats.read(file, UNKNOWN, tag_column="label", separator=",")) == {"a": ["dog", "cat"], "b": ["cow"]}
    assert listed(formats.read(file, UNKNOWN, format="tags", separator="none")) == {"a": ["dog, cat"], "b": ["cow"]}
    assert "‹format=tags›" in refusal(file, "image,tags,cat\na,dog;cow,1\n", Policy(), "wide").fix


def test_a_column_that_is_named_lists_tags(file: Path) -> None:
    file.write_text("picture,what\na,dog\nb,cow\n")
    for stated in ({}, {"tag_column": "what"}):
        assert listed(formats.read(file, unlisted="unknown", **stated)) == {"a": ["dog"], "b": ["cow"]}
    file.write_text("photo,tag\na,dog\nb,cow\n")
    assert listed(formats.read(file, unlisted="unknown")) == {"a": ["dog"], "b": ["cow"]}


def test_an_image_on_several_lines(file: Path) -> None:
    result = made(file, "image,tags\na,dog\nb,cow\n a ,cat;dog\n")
    assert listed(result) == {"a": ["dog", "cat"], "b": ["cow"]}
    assert "1 lines repeat an image: their tags are merged" in result.audit.notes


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ("image,tags\na,dog;cat\n\n ,dog\n", 4, "image", "no name"),
        ("image,tags\na,\nb, \n", None, "tags", "no classes"),
        ("image,tags\na,;\n", None, "tags", "no classes"),
        ("image,tags\na,1\nb,0\n", None, "tags", "values, such as '1'"),
        ("image,tags\na,dog, cat\n", 2, None, "3 fields"),
        ("image,x,y\na,dog,cat\n", 1, None, "not clear which column"),
        ("tags\ndog\n", 1, None, "not clear which column"),
        ("image,tags\n", None, None, "no rows"),
    ],
)
def test_faults(file: Path, content: str, line: int | None, column: str | None, words: str) -> None:
    error = refusal(file, content)
    assert (error.line, error.column) == (line, column)
    assert words in error.message


def test_metadata_of_an_image_folder(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata.csv"
    assert listed(made(metadata, 'file_name,tags\na.jpg,"dog, cat"\n')) == {"a.jpg": ["dog", "cat"]}
    assert formats.detect_format(tmp_path) == "imagefolder"
    assert formats.read(tmp_path, ABSENT).table().dense().tolist() == [[1, 1]]
    with pytest.raises(UserError, match="zero means nothing"):
        formats.read(tmp_path, Policy(unlisted="absent", zero="absent"))


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0,;|\r\n#[\x1c\x1d\x1e\x1f\x85\u2028\u2029"), min_size=2
)
plain = names.filter(lambda name: name == name.strip() and name.lower() not in tags._VALUE_CELLS)


@given(
    st.lists(plain, min_size=1, max_size=4, unique=True),
    st.lists(plain, min_size=1, max_size=4, unique=True),
    st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_recognised_and_read_back(images: list[str], classes: list[str], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(-1, 2, (len(images), len(classes)))
    labels[0] = 1  # in the order of the classes, and none without a word
    table = Table.from_dense(labels, images, classes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        tags.write(Labels.from_table(table), path)
        result = formats.read(path)
        assert (result.audit.format, result.table()) == ("tags", table)


@pytest.mark.parametrize(
    ("image", "label", "value"),
    [
        ("a", "x, y", 1),
        ("a", " dog", 1),
        ("a", "#dog", 1),
        ("a", "[dog", 1),
        ("a", "yes", 1),
        ("a", "", 1),
        ("", "dog", 1),
        ("a ", "dog", 1),
        ("a", "dog", -1),
        ("a", "dog", 0),
    ],
)
def test_write_refuses_what_it_cannot_hold(file: Path, image: str, label: str, value: int) -> None:
    with pytest.raises(UserError, match="Fix: "):
        tags.write(Labels.from_table(Table.from_dense([[value]], [image], [label])), file)
    assert not file.exists()


@pytest.mark.parametrize("cells", [("dog:0.9;cat:0.1", "dog:0.2"), ("dog;!cat", "cat;-dog"), ('"{""dog"": 1}"', "[]")])
def test_tags_with_numbers_or_marks_are_refused(file: Path, cells: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=r"numbers|absent|not a list"):
        made(file, f"image,tags\na.jpg,{cells[0]}\nb.jpg,{cells[1]}\n")
