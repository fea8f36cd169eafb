"""Labels are added to a copy of a table; all else in it stays, byte by byte."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import packed
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.formats._into import add_to_table
from halflabel.labels.formats._unpack import unpack
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table


def labels(**images: str) -> Labels:
    """Labels from words such as a="dog,-cat"."""
    entries = [
        (name, word.lstrip("-"), -1 if word[0] == "-" else 1) for name, w in images.items() for word in w.split(",")
    ]
    classes = list(dict.fromkeys(label for _, label, _ in entries))
    rows = np.array([[list(images).index(name), classes.index(label), sign] for name, label, sign in entries]).T
    return Labels.build(Names(images), Names(classes), *rows)


CASES = {
    "tags stay that the labels do not know": (
        "image,tags\r\na,holiday;Dog\r\nb,\r\n",
        "image,tags\r\na,holiday;Dog;cat\r\nb,cat\r\n",
    ),
    "other columns, order and quotes": (
        'photo,by,keywords\nb,"Bo, Jr.",sky; dog\na,Ann,dog\n',
        'photo,by,keywords\nb,"Bo, Jr.",sky; dog; cat\na,Ann,dog; cat\n',
    ),
    "Excel's first line and mark": (
        "\ufeffsep=;\na;tags\nx;1\n".replace("a;tags\nx;1", "photo;tags\na;#dog #x\nb;#x"),
        "\ufeffsep=;\nphoto;tags\na;#dog #x #cat\nb;#x #cat\n",
    ),
    "lists of Python": (
        "image,tags\na,['dog']\nb,\"['dog', 'x']\"\n",
        "image,tags\na,\"['dog', 'cat']\"\nb,\"['dog', 'x', 'cat']\"\n",
    ),
    "lists of JSON": ('image,tags\na,"[""dog""]"\nb,[]\n', 'image,tags\na,"[""dog"", ""cat""]"\nb,"[""cat""]"\n'),
    "a column of absent classes": (
        "image,tags,absent\na,dog,\nb,x,dog\n",
        'image,tags,absent\na,"dog, cat",\nb,"x, cat",dog\n',
    ),
    "a column per class": ("id,by,dog,Cat\na,Ann,yes,\nb,Bo,no,\n", "id,by,dog,Cat\na,Ann,yes,yes\nb,Bo,no,yes\n"),
    "a row per label": (
        "image,class,value\nb,dog,-1\na,dog,1\n",
        "image,class,value\nb,dog,-1\na,dog,1\na,cat,1\nb,cat,1\n",
    ),
    "no line end at the end": (
        "image,class,value\nb,dog,-1\na,dog,1",
        "image,class,value\nb,dog,-1\na,dog,1\na,cat,1\nb,cat,1\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_table_lacks_is_added_in_its_own_style(tmp_path: Path, case: str) -> None:
    before, after = CASES[case]
    (tmp_path / "mine.csv").write_bytes(before.encode())
    added = add_to_table(labels(a="dog,cat", b="cat"), tmp_path / "mine.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes().decode() == after
    assert added.labels == 2


@pytest.mark.parametrize("case", CASES)
def test_without_new_labels_every_byte_stays(tmp_path: Path, case: str) -> None:
    (tmp_path / "mine.csv").write_bytes(CASES[case][1].encode())
    added = add_to_table(labels(a="dog,cat", b="cat"), tmp_path / "mine.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == CASES[case][1].encode()
    assert added.labels == 0


def add(tmp_path: Path, table: str, new: Labels) -> tuple[str, list[str]]:
    (tmp_path / "mine.csv").write_bytes(table.encode())
    added = add_to_table(new, tmp_path / "mine.csv", tmp_path / "out.csv")
    return (tmp_path / "out.csv").read_bytes().decode(), added.lines()


def test_two_classes_that_differ_in_capitals_stay_two(tmp_path: Path) -> None:
    assert (
        add(tmp_path, "image,tags\na,Dog\nb,dog\n", labels(a="dog,Dog", b="dog"))[0]
        == 'image,tags\na,"Dog, dog"\nb,dog\n'
    )
    assert add(tmp_path, "image,tags\na,Dog\nb,x\n", labels(a="dog", b="dog"))[0] == 'image,tags\na,Dog\nb,"x, Dog"\n'


def test_a_class_that_a_list_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'big dog'"):
        add(tmp_path, "image,tags\na,#dog #cat\nb,#cow\n", labels(a="dog,big dog", b="cow"))


def test_contradictions_stay_and_are_counted(tmp_path: Path) -> None:
    text, lines = add(tmp_path, "image,dog,cat\na,1,0\nb,0,\n", labels(a="-dog,cat", b="-cat,bird"))
    assert text == "image,dog,cat\na,1,0\nb,0,0\n"
    assert lines[0].startswith("1 label")
    assert any("2 labels of the table contradict" in line for line in lines)
    assert any("column of their class" in line for line in lines)


def test_images_that_the_table_lacks_come_last(tmp_path: Path) -> None:
    assert (
        add(tmp_path, "by,image,tags\nAnn,a,dog\n", labels(a="dog", new="cat"))[0]
        == "by,image,tags\nAnn,a,dog\n,new,cat\n"
    )


def test_other_encodings_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes("image,tags\na,Bär\nb,x\n".encode("latin-1"))
    (tmp_path / "mine.csv.policy.yaml").write_text("encoding: latin-1\n")
    add_to_table(labels(b="Bär"), tmp_path / "mine.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == 'image,tags\na,Bär\nb,"x, Bär"\n'.encode("latin-1")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_table_keeps_what_it_has_and_gets_what_it_lacks(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("into")
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    names, classes = [f"i{n}" for n in range(4)], ["dog", "big cat", "Ö"]
    known, new = (rng.choice([-1, 0, 1], (4, 3), p=p) for p in ([0.2, 0.5, 0.3], [0.2, 0.5, 0.3]))
    known[0] = 1
    form = data.draw(st.sampled_from(["wide", "tags", "long"]))
    formats.write(Table.from_dense(known, names, classes), folder / "mine.csv", format=form)
    add_to_table(Table.from_dense(new, names, classes), folder / "mine.csv", folder / "out.csv")
    policy = Policy(unlisted="unknown" if form == "tags" else None)
    back = formats.read(folder / "out.csv", policy).table()
    expected = np.where(known != 0, known, new)
    columns = [list(back.classes).index(name) for name in classes]
    assert back.dense()[[list(back.images).index(name) for name in names]][:, columns].tolist() == expected.tolist()


def test_the_command_says_what_it_added(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("image,tags\na,dog\n")
    formats.write(labels(a="dog,cat"), tmp_path / "labels.csv")
    words = ["convert", str(tmp_path / "labels.csv"), str(tmp_path / "out.csv"), "--into", str(tmp_path / "mine.csv")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "1 label added" in " ".join(result.output.split())


def test_what_the_table_cannot_hold_is_refused_not_lost(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("image,tags\na,dog\n")
    unsure = Labels.build(Names("a"), Names(["cat"]), *np.array([[0], [0], [2]]))
    with pytest.raises(UserError, match="uncertain"):
        add_to_table(unsure, tmp_path / "mine.csv", tmp_path / "out.csv")
    formats.write(labels(a="cat"), tmp_path / "labels.csv")
    words = ["convert", str(tmp_path / "labels.csv"), str(tmp_path / "out.csv"), "--into", str(tmp_path / "mine.csv")]
    assert CliRunner().invoke(app, [*words, "--to", "wide"]).exit_code == 2
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            ["image,tags,by", "a.jpg,holiday,Ann", "b.jpg,dog,Bo"],
            ["image,tags,by", "a.jpg,holiday; cat,Ann", "b.jpg,dog; cat,Bo"],
        ),
        (["image,dog,cat", "a.jpg,1,", "b.jpg,1,0"], ["image,dog,cat", "a.jpg,1,1", "b.jpg,1,0"]),
        (["image,class,value", "a.jpg,dog,1"], ["image,class,value", "a.jpg,dog,1", "a.jpg,cat,1", "b.jpg,cat,1"]),
    ],
    ids=["tags", "wide", "long"],
)
def test_a_workbook_keeps_all_but_the_cells_that_gain_a_label(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    table, out = tmp_path / "table.xlsx", tmp_path / "out.xlsx"
    table.write_bytes(packed("xlsx", "\n".join(before)))
    with zipfile.ZipFile(table, "a") as archive:
        archive.writestr("xl/charts/chart1.xml", "<chart/>")
    (tmp_path / "table.xlsx.policy.yaml").write_text("unlisted: unknown\nzero: absent\nseparator: ;\n")
    add_to_table(labels(**{"a.jpg": "cat", "b.jpg": "cat"}), table, out)
    with zipfile.ZipFile(table) as old, zipfile.ZipFile(out) as new:
        assert old.namelist() == new.namelist()
        changed = [name for name in old.namelist() if old.read(name) != new.read(name)]
    assert changed == ["xl/worksheets/sheet1.xml"]
    assert unpack(out, None).path.read_text().replace('"', "").splitlines() == after
    with pytest.raises(UserError, match="would be a workbook"):
        add_to_table(labels(**{"a.jpg": "cat"}), table, tmp_path / "out.csv")


def test_the_table_itself_is_never_written(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("image,tags\na,dog;x\n")
    (tmp_path / "link.csv").symlink_to("table.csv")
    with pytest.raises(UserError, match="is the table itself"):
        add_to_table(labels(a="cat"), tmp_path / "table.csv", tmp_path / "link.csv")
    assert (tmp_path / "table.csv").read_text() == "image,tags\na,dog;x\n"
