"""Groups of images, read from a file."""

from __future__ import annotations

import pytest

from halflabel.errors import LabelError
from halflabel.labels.table import LabelTable
from halflabel.methods.parts.similarity_memory import read_groups

TABLE = LabelTable.from_dense([[1], [-1], [1], [0], [1]], images=["a", "b", "c", "d", "e"])


def test_groups_of_images(tmp_path):
    path = tmp_path / "side.csv"
    path.write_text("image,group\nb,wren\nc, owl\na,\nx,crow\nd,owl\nd,owl\n")
    assert read_groups(path, TABLE).tolist() == [-1, 1, 0, 0, -1]


def test_blank_groups_are_no_group(tmp_path):
    path = tmp_path / "side.csv"
    path.write_text("a,\nb,\nc,owl\n")
    assert read_groups(path, TABLE).tolist() == [-1, -1, 0, -1, -1]
    path.write_text("a,\nb,\n")
    assert read_groups(path, TABLE).tolist() == [-1] * 5


def test_an_image_in_two_groups_is_refused(tmp_path):
    path = tmp_path / "side.csv"
    path.write_text("image,group\na,owl\nb,owl\na,wren\n")
    with pytest.raises(LabelError, match=r"side.csv, line 4: 'a' is in 'wren' here, and in 'owl' above"):
        read_groups(path, TABLE)
