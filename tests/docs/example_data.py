"""A small folder with the file names that README and docs use, so that their commands can be run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["write_example_data"]

CLASSES = ("animal", "bird", "cat", "dog", "person")
FINDINGS = ("cardiomegaly", "edema", "fracture")
_COLOURS = ((220, 60, 40), (40, 90, 220), (60, 180, 60), (230, 200, 40), (150, 60, 200))


def write_example_data(folder: Path) -> None:
    """Write photos whose coloured stripes are the classes, and label files of several formats."""
    random = np.random.default_rng(0)
    truth = random.random((48, len(CLASSES))) < 0.4
    truth[:, 0] |= truth[:, 1] | truth[:, 2] | truth[:, 3]  # birds, cats and dogs are animals
    truth[~truth.any(1), 4] = True
    names = [f"{number:05d}.jpg" for number in range(len(truth))]
    for name, row in zip(names, truth, strict=True):
        _save(folder / "photos" / name, _stripes(row, random))
    for name, row in zip(("new.jpg", "holiday/beach.jpg", "holiday/town.jpg"), truth, strict=False):
        _save(folder / name, _stripes(row, random))
    for column in (2, 3):
        for name, row in list(zip(names, truth, strict=True))[:8]:
            _save(folder / "sorted" / CLASSES[column] / name, _stripes(row, random))
    known = random.random(truth.shape) < 0.5
    known[:4] = True
    _write_long(folder / "labels.csv", names[:40], truth, known)
    _write_long(folder / "test.csv", names[40:], truth[40:], np.ones_like(known))
    _write_long(folder / "all.csv", names, truth, np.ones_like(known))
    tags = [[name, ", ".join(_present(row))] for name, row in zip(names, truth, strict=True)]
    _write(folder / "tags.csv", [["image", "tags"], *tags])
    single = [[name, _present(row)[int(random.integers(row.sum()))]] for name, row in zip(names, truth, strict=True)]
    _write(folder / "single.csv", [["image", "tags"], *single])
    _write(folder / "rules.csv", [["class", "rule", "class"], *([name, "implies", "animal"] for name in CLASSES[1:4])])
    _write_wide(folder / "wide.csv", names[:40], truth, known)
    _write_open_images(folder / "train-annotations.csv", names[:40], truth, known)
    _write_xrays(folder, random)


def _stripes(row: Any, random: np.random.Generator) -> Any:
    picture = random.normal(128, 20, (64, 60, 3))
    for number in np.flatnonzero(row):
        picture[:, 12 * number : 12 * number + 12] = _COLOURS[number] + random.normal(0, 15, (64, 12, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def _save(path: Path, picture: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


def _present(row: Any) -> list[str]:
    return [name for name, value in zip(CLASSES, row, strict=True) if value]


def _write(path: Path, lines: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


def _write_long(path: Path, names: list[str], truth: Any, known: Any) -> None:
    lines = [
        [name, CLASSES[column], 1 if truth[row, column] else -1]
        for row, name in enumerate(names)
        for column in np.flatnonzero(known[row])
    ]
    _write(path, [["image", "class", "value"], *lines])


def _write_wide(path: Path, names: list[str], truth: Any, known: Any) -> None:
    """Ones and zeros, and an empty cell where nothing is known; with two columns that are not classes."""
    cells = np.where(known, np.where(truth, "1", "0"), "")
    lines = [[name, "2031-05-04", "Anna", *row] for name, row in zip(names, cells, strict=False)]
    _write(path, [["image", "date", "photographer", *CLASSES], *lines])


def _write_open_images(path: Path, names: list[str], truth: Any, known: Any) -> None:
    lines = [
        [name.removesuffix(".jpg"), "verification", f"/m/0{column}", int(truth[row, column])]
        for row, name in enumerate(names)
        for column in np.flatnonzero(known[row])
    ]
    _write(path, [["ImageID", "Source", "LabelName", "Confidence"], *lines])


def _write_xrays(folder: Path, random: np.random.Generator) -> None:
    """Grey pictures and a table of findings: 1 present, 0 absent, -1 uncertain, blank not mentioned."""
    lines = []
    for number in range(40):
        truth = random.random(len(FINDINGS)) < 0.5
        picture = random.normal(90, 15, (64, 60))
        for place in np.flatnonzero(truth):
            picture[:, 20 * place : 20 * place + 20] += 100
        name = f"patient{number:03d}.png"
        _save(folder / "xrays" / name, np.clip(picture, 0, 255).astype(np.uint8))
        cells = np.where(truth, "1.0", "0.0").astype(object)
        fate = random.random(len(FINDINGS))
        cells[fate < 0.15] = "-1.0"
        cells[fate > 0.7] = ""
        lines.append([name, "Female" if number % 2 else "Male", 30 + number, *cells])
    _write(folder / "findings.csv", [["Path", "Sex", "Age", *FINDINGS], *lines])
