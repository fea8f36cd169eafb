"""Undo of fills: exactly their rows, and no later answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import LabelError, UserError
from halflabel.filling.undo import undo
from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names

BEFORE = "image,class,value,source,score\na.jpg,cat,1,anna,\nb.jpg,dog,-1,anna,\n"
FILLED = "a.jpg,dog,-1,model:em:runs/one,0.97\nb.jpg,cat,1,model:em:runs/one,0.96\n"
OTHER = "c.jpg,cat,1,model:em:runs/two,0.99\n"
SINCE = "b.jpg,cat,-1,ben,\n"


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def value(path: Path, image: str, name: str) -> int:
    table = formats.read(path, format="long").table()
    return int(table.dense()[list(table.images).index(image), list(table.classes).index(name)])


def test_undo_restores_the_file_before_the_fill(tmp_path: Path) -> None:
    path = file(tmp_path, BEFORE + FILLED)
    done = undo(path, source="model:em:runs/one")
    assert (done.rows, done.answered_since) == (2, 0)
    assert path.read_text() == BEFORE


@pytest.mark.parametrize(
    "before",
    [
        "\ufeff" + BEFORE.replace("\n", "\r\n"),
        BEFORE.replace("anna", '"anna"').replace("a.jpg", "'a'.jpg"),
        BEFORE + "\n\n",
        BEFORE.replace("b.jpg", '"b\nb.jpg"'),
        BEFORE + "c.jpg,cat,1,anna,0.10000\n",
    ],
)
def test_undo_restores_every_byte_also_through_a_link(tmp_path: Path, before: str) -> None:
    path, link = tmp_path / "labels.csv", tmp_path / "link.csv"
    path.write_bytes((before + FILLED).encode())
    link.symlink_to(path)
    undo(link, source="model:em:runs/one")
    assert path.read_bytes().decode() == before
    assert link.is_symlink()


def test_undo_adds_no_line_for_classes_and_images_that_only_the_fill_named(tmp_path: Path) -> None:
    declared = ",bird,,,\nz.jpg,,,,\n"
    for before in (BEFORE, BEFORE + declared):
        path = file(tmp_path, before + "new.jpg,fox,1,model:em:runs/one,0.97\n" + FILLED)
        undo(path, run="runs/one")
        assert path.read_text() == before


def test_undo_keeps_later_answers_and_other_models(tmp_path: Path) -> None:
    path = file(tmp_path, BEFORE + FILLED + OTHER + SINCE)
    done = undo(path, run="runs/one")
    assert (done.sources, done.rows, done.answered_since) == (("model:em:runs/one",), 2, 1)
    assert path.read_text() == BEFORE + OTHER + SINCE


def test_retracting_adds_rows_only_where_the_fill_still_holds(tmp_path: Path) -> None:
    path = file(tmp_path, BEFORE + FILLED + OTHER + SINCE)
    done = undo(path, source="model:em:runs/one", retract=True)
    assert (done.rows, done.answered_since) == (1, 1)
    assert path.read_text() == BEFORE + FILLED + OTHER + SINCE + "a.jpg,dog,0,model:em:runs/one,\n"
    assert value(path, "a.jpg", "dog") == 0
    assert value(path, "b.jpg", "cat") == -1
    assert value(path, "c.jpg", "cat") == 1
    # What a model never decided any more is not retracted a second time.
    assert undo(path, source="model:em:runs/one", retract=True).rows == 0


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    formats.write(formats.read(file(tmp_path, BEFORE + FILLED), format="long").rows, path)
    undo(path, source="model:em:runs/one")
    assert formats.read(path).table().known == 2


def test_faults_say_what_to_do(tmp_path: Path) -> None:
    path = file(tmp_path, BEFORE + FILLED)
    with pytest.raises(UserError, match="use one of: model:em:runs/one"):
        undo(path, source="model:em:runs/two")
    with pytest.raises(UserError, match="not clear"):
        undo(path)
    assert path.read_text() == BEFORE + FILLED
    with pytest.raises(UserError, match="no row was filled"):
        undo(file(tmp_path, BEFORE), run="runs/one")
    with pytest.raises(LabelError, match="halflabel import"):
        undo(file(tmp_path, "image,class,value\na,cat,1\n"), run="runs/one")


def test_undo_of_a_fill_gives_the_labels_before_whatever_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for case in range(5):
        size = 200
        images, classes = Names.numbered(20), Names.numbered(8)
        source = rng.integers(0, 3, size)
        rows = Labels.build(
            images,
            classes,
            rng.integers(0, 20, size),
            rng.integers(0, 8, size),
            rng.choice([-1, 0, 1], size),
            source,
            None,
            ("anna", "model:m:r", "model:m:s"),
        )
        path = tmp_path / f"{case}.csv"
        formats.write(rows, path)
        undo(path, source="model:m:r")
        is_left = source != 1
        expected = rows.select(is_left).training
        table = formats.read(path, format="long").table()
        order = table.images.index(images.array)
        assert np.array_equal(table.dense()[order], expected.dense())
