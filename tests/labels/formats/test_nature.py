"""The readers of camera traps (camtrap-dp) and of satellite patches (bigearthnet)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from label_files import GOLDEN_FILES

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.groups import column_group, image_groups
from halflabel.labels.policy import Policy

CAMTRAP = GOLDEN_FILES / "camtrap_dp"
BIGEARTHNET = GOLDEN_FILES / "bigearthnet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CAMTRAP, tmp_path / "camtrap"))


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_blank_media_lack_every_species_and_open_ones_say_nothing() -> None:
    result = formats.read(CAMTRAP)
    table = result.table()
    assert list(table.classes) == ["Vulpes vulpes", "Meles meles", "human"]
    assert list(table.images)[:3] == [f"media/d1/IMG_000{n}.JPG" for n in (1, 2, 3)]
    # An event of two images, a blank one, two classes, an animal that nobody identified, and one that nobody saw.
    expected = [[1, -1, -1], [1, -1, -1], [-1, -1, -1], [-1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert table.dense().tolist() == expected
    assert "model:speciesnet" in result.rows.sources
    assert result.rows.people.dense()[3].tolist() == [-1, 0, 1]
    assert formats.read(CAMTRAP / "observations.csv").table() == table
    assert formats.read(CAMTRAP, Policy(unlisted="unknown")).table().dense().min() == 0


def test_what_is_said_of_a_photo_goes_before_what_is_said_of_its_event(tmp_path: Path) -> None:
    (tmp_path / "media.csv").write_text(
        "mediaID,deploymentID,timestamp,filePath\n"
        + "".join(f"m{n},d1,2031-05-04T10:00:0{n}Z,{n}.jpg\n" for n in range(3))
    )
    (tmp_path / "observations.csv").write_text(
        "mediaID,deploymentID,eventStart,eventEnd,observationType,scientificName\n"
        ",d1,2031-05-04T10:00:00Z,2031-05-04T10:00:09Z,animal,Lynx lynx\n"
        "m0,d1,,,blank,\n"
        "m1,d1,,,animal,Sus scrofa\n"
    )
    table = formats.read(tmp_path).table()
    assert list(table.classes) == ["Lynx lynx", "Sus scrofa"]
    assert table.dense().tolist() == [[-1, -1], [-1, 1], [1, -1]]


def test_the_deployment_is_a_group() -> None:
    images = formats.read(CAMTRAP).rows.images
    assert image_groups(column_group("deploymentID", CAMTRAP), images) == ["d1"] * 3 + ["d2"] * 3


def test_media_at_a_url_are_named_by_their_files(folder: Path) -> None:
    edit(folder / "media.csv", "media/d", "https://x.org/media/d")
    assert list(formats.read(folder).rows.images) == ["m1", "m2", "m3", "m4", "m5", "m6"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("o2,d1,m3", "o2,d1,m9"), ("media,blank", "media,plant"), ("Vulpes vulpes", "")],
)
def test_observations_that_say_nothing_definite_are_refused(folder: Path, before: str, after: str) -> None:
    edit(folder / "observations.csv", before, after)
    if after:
        with pytest.raises(LabelError):
            formats.read(folder)
    else:
        assert list(formats.read(folder).rows.classes) == ["Meles meles", "human"]


def test_patches_have_complete_lists() -> None:
    table = formats.read(BIGEARTHNET / "metadata.parquet").table()
    assert list(table.classes) == ["Arable land", "Coniferous forest", "Inland waters", "Pastures"]
    assert table.dense().tolist() == [[1, -1, -1, 1], [1, -1, -1, -1], [-1, 1, 1, -1]]
    assert len(formats.read(BIGEARTHNET / "metadata.parquet", Policy(split="test")).rows.images) == 1
    with pytest.raises(LabelError, match="split"):
        formats.read(BIGEARTHNET / "metadata.parquet", Policy(split="dev"))


def test_the_country_or_the_tile_of_a_patch_is_a_group() -> None:
    path = BIGEARTHNET / "metadata.parquet"
    images = formats.read(path).rows.images
    assert image_groups(column_group("country", path), images) == ["Austria", "Austria", "Finland"]
    tiles = image_groups(column_group("^(.*)_[0-9]+_[0-9]+$", path), images)
    assert len(set(tiles or ())) == 2


def test_patches_of_the_first_version_are_read_from_their_folders(tmp_path: Path) -> None:
    table = formats.read(BIGEARTHNET / "patches").table()
    assert list(table.images) == [f"S2A_MSIL2A_20170613T101031_0_{n}" for n in (48, 49)]
    assert table.dense().tolist() == [[1, 1], [-1, 1]]
    copy = Path(shutil.copytree(BIGEARTHNET / "patches", tmp_path / "patches"))
    file = next(copy.glob("*/*.json"))
    for content in ('{"labels": "Pastures"}', "{", "[]"):
        file.write_text(content)
        with pytest.raises(LabelError):
            formats.read(copy)


@pytest.mark.parametrize("name", ["camtrap-dp", "bigearthnet"])
def test_writing_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        formats.write(formats.read(CAMTRAP).rows, tmp_path / "out", format=name, without_sources=True)
