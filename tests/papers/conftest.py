"""Small data sets in the layouts of the public ones: digit scenes as photos."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digit_scenes import Scenes, scenes
from PIL import Image

import halflabel.fitting.loop

SIZE = 32
BOXABLE = 8  # of the classes of Open Images


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each training run, with the weights before ("weights") and after it ("fitted")."""
    runs: list[dict[str, Any]] = []
    original = halflabel.fitting.loop.fit

    def fit(model: Any, method: Any, source: Any, table: Any, settings: Any, **more: Any) -> Any:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        arguments = {"method": method, "source": source, "table": table, "settings": settings, "weights": weights}
        runs.append({**arguments, **more})
        fitted = original(model, method, source, table, settings, **more)
        runs[-1]["fitted"] = fitted.weights
        return fitted

    monkeypatch.setattr("halflabel.fitting.fit.fit_epochs", fit)
    return runs


def save(samples: Scenes, numbers: range, place: Callable[[int], Path]) -> None:
    for number in numbers:
        path = place(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(samples.images[number].permute(1, 2, 0).numpy()).save(path, quality=95)


def write_voc(folder: Path, year: int, train: int, test: int) -> None:
    """The first scenes are `train`, the others `val`; `trainval` and `test` are the same lists for 2007."""
    samples = scenes(train + test, size=SIZE)
    samples.labels[[0, train]] = -1  # one image of each part shows nothing
    base = folder / "VOCdevkit" / f"VOC{year}"
    (base / "ImageSets" / "Main").mkdir(parents=True)
    for split, numbers in (("train", range(train)), ("val", range(train, train + test))):
        for column, name in enumerate(samples.classes):
            lines = [f"2008_{number:06d} {samples.labels[number, column]:>2}\n" for number in numbers]
            (base / "ImageSets" / "Main" / f"{name}_{split}.txt").write_text("".join(lines))
    save(samples, range(train + test), lambda number: base / "JPEGImages" / f"2008_{number:06d}.jpg")


def write_coco(folder: Path, train: int, test: int) -> None:
    samples = scenes(train + test, size=SIZE)
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(samples.classes)]
    for part, numbers in (("train2014", range(train)), ("val2014", range(train, train + test))):
        images = [{"id": number, "file_name": f"{part}_{number:06d}.jpg"} for number in numbers]
        marks: list[dict[str, Any]] = [
            {"id": len(samples.classes) * number + int(column), "image_id": number, "category_id": int(column) + 1}
            for number in numbers
            for column in np.flatnonzero(samples.labels[number] > 0)
        ]
        content = {"images": images, "annotations": marks, "categories": categories}
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
        save(samples, numbers, lambda number, part=part: folder / part / f"{part}_{number:06d}.jpg")


def write_open_images(folder: Path, images_per_split: int) -> None:
    samples = scenes(3 * images_per_split, size=SIZE)
    for number, split in enumerate(("train", "validation", "test")):
        numbers = range(number * images_per_split, (number + 1) * images_per_split)
        rows = [
            f"{image:016x},verification,/m/{column},{int(samples.labels[image, column] > 0)}\n"
            for image in numbers
            for column in range(len(samples.classes))
            if (image + column) % 3
        ]
        (folder / split).mkdir(parents=True)
        (folder / split / "annotations-human.csv").write_text("ImageID,Source,LabelName,Confidence\n" + "".join(rows))
        save(samples, numbers, lambda image, split=split: folder / split / f"{image:016x}.jpg")
    (folder / "classes-trainable.txt").write_text("".join(f"/m/{column}\n" for column in range(len(samples.classes))))
    boxable = "".join(f"/m/{column},digit {column}\n" for column in range(BOXABLE))
    (folder / "class-descriptions-boxable.csv").write_text(boxable)


def write_nus(folder: Path, train: int, test: int) -> None:
    samples = scenes(train + test, size=SIZE)
    (folder / "Groundtruth" / "TrainTestLabels").mkdir(parents=True)
    (folder / "ImageList").mkdir()
    for part, numbers in (("Train", range(train)), ("Test", range(train, train + test))):
        (folder / "ImageList" / f"{part}Imagelist.txt").write_text("".join(f"zoo\\{n:04d}.jpg\n" for n in numbers))
        for column, name in enumerate(samples.classes):
            lines = "".join(f"{int(samples.labels[number, column] > 0)}\n" for number in numbers)
            (folder / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_{part}.txt").write_text(lines)
    save(samples, range(train + test), lambda number: folder / "Flickr" / "zoo" / f"{number:04d}.jpg")


def write_cifar(folder: Path, images_per_batch: int, classes: int = 3) -> None:
    rng = np.random.default_rng(0)
    base = folder / "cifar-10-batches-bin"
    base.mkdir(parents=True)
    (base / "batches.meta.txt").write_text("".join(f"class{number}\n" for number in range(classes)))
    for stem in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        column = np.arange(images_per_batch) % classes
        pixels = rng.integers(0, 120, (images_per_batch, 3, 32 * 32))
        pixels[np.arange(images_per_batch), column] += 120  # one colour per class
        (base / f"{stem}.bin").write_bytes(
            np.concatenate([column[:, None], pixels.reshape(images_per_batch, -1)], 1).astype(np.uint8).tobytes()
        )


@pytest.fixture(scope="session")
def voc2012(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc2012")
    write_voc(folder, 2012, 50, 30)
    return folder


@pytest.fixture(scope="session")
def voc2007(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc2007")
    write_voc(folder, 2007, 50, 30)
    return folder


@pytest.fixture(scope="session")
def coco2014(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    write_coco(folder, 50, 30)
    return folder


@pytest.fixture(scope="session")
def nus_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nus")
    write_nus(folder, 50, 30)
    return folder


@pytest.fixture(scope="session")
def open_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open-images")
    write_open_images(folder, 30)
    return folder


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar10")
    write_cifar(folder, 12)
    return folder
