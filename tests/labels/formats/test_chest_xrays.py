"""The presets for chest X-ray tables: chexpert and nih-chestxray."""

from __future__ import annotations

from pathlib import Path

import pytest
from label_files import GOLDEN_FILES

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.policy import Policy
from halflabel.labels.rules import read_rules

CHEXPERT = GOLDEN_FILES / "chexpert" / "train.csv"
NIH = GOLDEN_FILES / "nih_chestxray" / "entries.csv"


def test_uncertain_findings_are_kept_and_patient_columns_no_classes() -> None:
    result = formats.read(CHEXPERT)
    table = result.table()
    assert list(table.classes) == ["No Finding", "Cardiomegaly", "Lung Opacity", "Edema", "Support Devices"]
    assert table.dense().tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, -1, 0], [0, 0, 1, 0, -1]]
    meanings = {(count.raw, count.meaning): count.entries for count in result.audit.value_counts}
    assert meanings["-1.0", "uncertain"] == table.uncertain.nnz == 2


@pytest.mark.parametrize(("reading", "label"), [("present", 1), ("absent", -1)])
def test_uncertain_findings_can_be_read_otherwise(reading: str, label: int) -> None:
    policy = Policy(minus_one=reading, zero="absent")  # type: ignore[arg-type]
    assert formats.read(CHEXPERT, policy).table().dense()[1:, 1].tolist() == [label, label]


def test_rows_can_be_chosen_by_a_column_about_the_patient() -> None:
    assert len(formats.read(CHEXPERT, Policy(where={"Frontal/Lateral": "Frontal"})).table()) == 2


def test_findings_that_nih_does_not_list_are_absent() -> None:
    table = formats.read(NIH).table()
    assert list(table.classes) == ["Cardiomegaly", "Emphysema", "No Finding"]
    assert table.dense().tolist() == [[1, -1, -1], [1, 1, -1], [-1, -1, 1]]
    assert formats.read(NIH, Policy(unlisted="unknown")).table().dense().min() == 0


@pytest.mark.parametrize("name", ["chexpert", "nih-chestxray"])
def test_writing_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        formats.write(formats.read(CHEXPERT).rows, tmp_path / "out.csv", format=name)


def test_a_class_can_exclude_all_others(tmp_path: Path) -> None:
    table = formats.read(NIH, Policy(unlisted="unknown")).table()
    path = tmp_path / "rules.csv"
    path.write_text("No Finding,excludes,*\n")
    consequences = read_rules(path, table.classes).consequences(table.dense())
    assert consequences.absent.tolist() == [[False, False, True], [False, False, True], [True, True, False]]


def test_any_column_can_hold_the_tags(tmp_path: Path) -> None:
    path = tmp_path / "photos.csv"
    path.write_text("file,stuff,note\na.jpg,dog;cat,nice\nb.jpg,cat,dull\n")
    table = formats.read(path, Policy(tag_column="stuff", unlisted="unknown"), format="tags").table()
    assert table.dense().tolist() == [[1, 1], [0, 1]]
    with pytest.raises(UserError):
        formats.read(path, Policy(tag_column="missing", unlisted="unknown"), format="tags")


def test_a_delimiter_at_the_end_of_each_line_is_not_a_column(tmp_path: Path) -> None:
    path = tmp_path / "photos.csv"
    path.write_text("image,dog,\na.jpg,1,\nb.jpg,0,\n")
    assert formats.read(path).table().dense().tolist() == [[1], [-1]]
    path.write_text("image,dog,\na.jpg,1,1\nb.jpg,0,\n")
    with pytest.raises(LabelError):
        formats.read(path)
