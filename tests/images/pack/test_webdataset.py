"""Packs are WebDataset tars: the package webdataset reads them, and its tars are read here."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from pack_examples import UNCHANGED, VIEWS, N, encoded, image_of, pixels, pixels_of, write_photos
from PIL import Image

from halflabel.errors import LabelError, UserError
from halflabel.images.decode import find_images, read_image
from halflabel.images.pack.read import is_pack, open_pack
from halflabel.images.pack.source import open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

# The package webdataset leaves the tars open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def samples(folder: Path, **options: Any) -> list[dict[str, Any]]:
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    return list(webdataset.WebDataset(urls, shardshuffle=False, **options))


def some_rows(images: list[str]) -> Labels:
    image, column = np.array([0, 0, 1, 2, 3]), np.array([0, 1, 0, 2, 1])
    value, source = np.array([1, -1, 1, 1, -1]), np.array([0, 0, 1, 0, 0])
    score = np.array([np.nan, np.nan, 0.75, np.nan, np.nan])
    return Labels.build(
        Names(images), Names(["dog", "cat", "bär"]), image, column, value, source, score, ["", "model:x:y"]
    )


def test_the_package_webdataset_reads_a_pack(tmp_path: Path) -> None:
    write_photos(tmp_path / "a" / "deep.er")
    pack_images(tmp_path / "a", tmp_path / "p", UNCHANGED, shard_bytes=4000)
    dataset = webdataset.WebDataset([str(path) for path in sorted((tmp_path / "p").glob("*.tar"))], shardshuffle=False)
    decoded = list(dataset.decode("rgb8"))
    keys = [sample["__key__"] for sample in decoded]
    assert sorted(keys) == [f"deep.er/{number:02d}" for number in range(N)] != keys
    assert len({sample["__url__"] for sample in decoded}) > 1
    for sample in decoded:
        assert np.array_equal(sample["jpg"], pixels(int(sample["__key__"][-2:])))


def test_every_image_is_one_sample(tmp_path: Path) -> None:
    names = ["a.b.png", "a.png", "a.c.png", "a%2Ec.png", "two.jpg", "two.png", "two.png.jpg", "x.y/1.png", "é.png"]
    names += ["long" * 40 + ".png", "z/z.v2.tar.png"]
    for number, name in enumerate(names):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_bytes(encoded(number))
    pack_images(tmp_path / "a", tmp_path / "p", UNCHANGED)
    pack = open_pack(tmp_path / "p")
    assert sorted(pack.names.to_pylist()) == sorted(names)
    stored = samples(tmp_path / "p")
    assert len({sample["__key__"] for sample in stored}) == len(names)
    for number, sample in enumerate(stored):
        assert sample["jpg"] == pack.read(number)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["jpg"]))), pixels(names.index(pack.name(number))))


def test_labels_and_their_sources_are_stored_in_the_tars(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", 4)
    rows = some_rows([f"{number:02d}.jpg" for number in range(4)])
    pack_images(tmp_path / "a", tmp_path / "p", UNCHANGED, labels=rows)
    stored = {sample["__key__"]: json.loads(sample["json"]) for sample in samples(tmp_path / "p")}
    first = stored["00"]
    assert (first["file_name"], first["labels"], first["absent"]) == ("00.jpg", ["dog"], ["cat"])
    actual = formats.read(tmp_path / "p")
    assert actual.audit.format == "webdataset"
    assert sorted(actual.rows.classes) == sorted(rows.classes)
    expected, table = rows.training, actual.rows.training
    assert sorted(table.images) == sorted(expected.images)
    rows_of = [list(table.images).index(name) for name in expected.images]
    order = [list(table.classes).index(name) for name in expected.classes]
    assert np.array_equal(table.dense()[rows_of][:, order], expected.dense())
    assert actual.rows.is_model_made().sum() == rows.is_model_made().sum() == 1
    # Other labels are another pack.
    manifest = json.loads((tmp_path / "p" / "pack.json").read_text())
    (tmp_path / "p" / "pack.json").write_text(json.dumps({**manifest, "complete": False}))
    with pytest.raises(UserError, match="another labels"):
        pack_images(tmp_path / "a", tmp_path / "p", UNCHANGED, labels=some_rows(["00", "01", "02", "03.jpg"]))


def write_tars(folder: Path, labels: dict[str, list[Any]], per_tar: int = 5, key: str = "{:04d}") -> Path:
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "s-%03d.tar"), maxcount=per_tar, verbose=0) as out:
        for number in range(N):
            fields = {kind: values[number] for kind, values in labels.items() if values[number] is not None}
            out.write({"__key__": key.format(number), "jpg": encoded(number), **fields})
    return folder


TAGS = [["dog"], ["dog", "cat"], [], ["cat"]] * 3


@pytest.mark.parametrize(
    "labels",
    [
        {"json": [{"tags": tags, "width": 3} for tags in TAGS]},
        {"json": TAGS},
        {"txt": [", ".join(tags) for tags in TAGS]},
        {"txt": ["\n".join(tags) for tags in TAGS]},
        {"json": [{"labels": tags} for tags in TAGS], "txt": ["a photo of something"] * N},
    ],
)
def test_foreign_tars_are_read_as_images_and_labels(tmp_path: Path, labels: dict[str, list[Any]]) -> None:
    folder = write_tars(tmp_path / "t", labels)
    assert is_pack(folder)
    assert [path.name for path in find_images(folder)] == [f"{number:04d}.jpg" for number in range(N)]
    for number, path in enumerate(find_images(folder)):
        assert np.array_equal(read_image(path).permute(1, 2, 0).numpy(), pixels(number))
    with pytest.raises(LabelError, match="unlisted="):
        formats.read(folder)
    table = formats.read(folder, Policy(unlisted="absent")).rows.training
    assert len(table) == N
    assert table.dense()[1].tolist() == [1, 1]
    assert table.dense()[2].tolist() == [-1, -1]
    source = open_packed_images(table.images, folder, VIEWS)
    ((numbers, (views,)),) = source.fetch([np.arange(N)], ("plain",))
    assert numbers.tolist() == list(range(N))
    assert views.shape[0] == N
    # Packed, they have an index, and can be resized.
    pack_images(folder, tmp_path / "p", UNCHANGED)
    pack = open_pack(tmp_path / "p")
    assert all(np.array_equal(image_of(pack, n).permute(1, 2, 0).numpy(), pixels_of(pack, n)) for n in range(N))


def test_repeated_keys_get_the_name_of_the_tar(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for part in ("a", "b"):
        with webdataset.TarWriter(str(tmp_path / "t" / f"{part}.tar")) as out:
            out.write({"__key__": "1", "jpg": encoded(0), "cls": 5})
    assert open_pack(tmp_path / "t").names.to_pylist() == ["a/1.jpg", "b/1.jpg"]
    assert list(formats.read(tmp_path / "t", Policy(unlisted="unknown")).rows.images) == ["a/1.jpg", "b/1.jpg"]
    # Copies stay together, as in a folder.
    source = open_packed_images(Names(["a/1.jpg", "b/1.jpg"]), tmp_path / "t", VIEWS)
    assert len(set(source.group_copies().tolist())) == 1


def test_damaged_tars_are_refused(tmp_path: Path) -> None:
    folder = write_tars(tmp_path / "t", {"json": [{"labels": tags} for tags in TAGS]}, per_tar=100)
    tar = next(folder.iterdir())
    data = tar.read_bytes()
    with tarfile.open(tar) as file:
        ends = [member.offset_data + -(-member.size // 512) * 512 for member in file]
    for cut in (len(data) // 2, ends[3]):
        tar.write_bytes(data[:cut])
        with pytest.raises(UserError, match=r"t/s-000.tar is not a complete tar.*copy it again"):
            open_pack(folder)
    tar.write_bytes(data.replace(b'"labels"', b'"labelsx'))
    with pytest.raises(LabelError, match=r"s-000.tar: 0000.json: this is not JSON"):
        formats.read(folder)
    tar.write_bytes(data)
    (folder / "photo.jpg").write_bytes(encoded(1))
    assert not is_pack(folder)  # a folder of photos that also holds a tar


def test_names_outside_the_folder_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with tarfile.open(tmp_path / "t" / "a.tar", "w") as out:
        for name in ("../secret.png", "/etc/x.png", "a/../../y.png", ".hidden.png", "./good.png"):
            info = tarfile.TarInfo(name)
            info.size = len(encoded(1))
            out.addfile(info, io.BytesIO(encoded(1)))
    assert open_pack(tmp_path / "t").names.to_pylist() == ["good.png"]
