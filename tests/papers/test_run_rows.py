"""Rows with other training images or other initial weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_scenes import scenes
from PIL import Image

from halflabel.labels.drop import semi_supervised
from halflabel.papers.datasets import open_dataset
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Overrides, set_up_cell
from halflabel.papers.tables import TABLES

SMALL = Overrides(backbone="tiny", size=32, device="cpu", workers=0)


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of 12 images, of which the mask leaves 5 labelled, instead of 4,000 of each of five batches."""
    table = TABLES["S3-table1"]
    conditions = tuple(each.model_copy(update={"trials": ({"batch": 1},)}) for each in table.conditions)
    monkeypatch.setitem(TABLES, "S3-table1", table.model_copy(update={"conditions": conditions}))


@pytest.mark.usefixtures("small_cifar")
def test_s3_supervised_rows_use_only_labelled_images(cifar10: Path, tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    rows, overrides = ["RML-CNN", "WARP", "Softmax"], replace(SMALL, epochs=1, batch_size=8)
    result = reproduce("S3-table1", cifar10, out=tmp_path, rows=rows, conditions=["random init."], overrides=overrides)
    assert not result.failures
    train = semi_supervised(open_dataset("cifar10", cifar10, batch=1).train, share=0.6, seed=0)
    labelled = np.flatnonzero(np.diff(train.start))
    assert len(labelled) == 5 < len(train) == 60
    assert [list(fit["table"].images) for fit in fits] == [list(train.subset(labelled).images)] * 3
    assert not any("unlabelled" in line for line in result.differs)
    assert "images without a known label are not used for training" in " ".join(result.protocol["random init."])


@pytest.mark.parametrize("tune", [None, "head"])
@pytest.mark.usefixtures("small_cifar")
def test_s3_ss_rml_starts_from_a_model_of_the_labelled_images(
    tune: Any, cifar10: Path, tmp_path: Path, fits: list[dict[str, Any]]
) -> None:
    overrides = replace(SMALL, epochs=1, batch_size=8, tune=tune)
    words = {"out": tmp_path / "out", "rows": ["SS-RML-CNN", "RML-CNN"], "conditions": ["random init."]}
    result = reproduce("S3-table1", cifar10, **words, overrides=overrides)  # type: ignore[arg-type]
    assert not result.failures
    # What the row RML-CNN is, is what SS-RML begins with; all images are in its own epochs.
    first, start, then = sorted(fits, key=lambda fit: len(fit["table"]))
    assert [len(fit["table"]) for fit in (first, start, then)] == [5, 5, 60]
    assert all(torch.equal(value, start["fitted"][name]) for name, value in first["fitted"].items())
    assert all(torch.equal(value, start["fitted"][name]) for name, value in then["weights"].items())
    # Labels were passed on before its only epoch.
    assert int((then["method"].relabel.neighbour >= 0).sum()) == 55
    text = " ".join(result.protocol["random init."])
    assert "SS-RML-CNN: from the weights of rml after 1 epoch on the labelled images" in text
    assert "the initial model rml has 1 instead of 40 epochs" in result.differs


def test_s5_linear_init_has_its_own_learning_rate_and_epochs(
    voc2012: Path, tmp_path: Path, fits: list[dict[str, Any]]
) -> None:
    overrides = replace(SMALL, epochs=2)
    result = reproduce("S5-table", voc2012, out=tmp_path, rows=["ROLE+LI"], conditions=["VOC"], overrides=overrides)
    assert not result.failures
    head, network = fits
    assert not any(name.startswith("backbone") for name in head["weights"])
    settings = [(fit["settings"].epochs, fit["settings"].lr, fit["settings"].patience) for fit in fits]
    assert settings == [(5, 1e-3, 0), (2, 1e-5, 1)]
    assert torch.equal(network["weights"]["head.linear.weight"], head["fitted"]["head.linear.weight"])
    # Others of the table are trained as before.
    table = TABLES["S5-table"]
    role = next(row for row in table.rows if row.name == "ROLE")
    config = set_up_cell(table.cell(role, table.conditions[0]), Overrides()).config
    assert (config.linear_init, config.linear_lr) == (0, None)


def test_species_are_side_information_of_s1_figure3(tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    base, samples = tmp_path / "CUB_200_2011", scenes(40, size=32)
    names = [f"00{1 + number % 2}.Bird/{number}.png" for number in range(40)]
    lists = {
        "images.txt": [f"{number} {name}" for number, name in enumerate(names, 1)],
        "train_test_split.txt": [f"{number} {int(number <= 25)}" for number in range(1, 41)],
        "attributes/attributes.txt": [f"{column} digit::{column}" for column in range(1, 11)],
        "attributes/image_attribute_labels.txt": [
            f"{number + 1} {column + 1} {int(samples.labels[number, column] > 0)} 4 1.0"
            for number in range(40)
            for column in range(10)
        ],
    }
    for file, lines in lists.items():
        (base / file).parent.mkdir(parents=True, exist_ok=True)
        (base / file).write_text("\n".join(lines) + "\n")
    for number, name in enumerate(names):
        (base / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(samples.images[number].permute(1, 2, 0).numpy()).save(base / "images" / name)
    overrides, rows = replace(SMALL, epochs=1, tune="head"), ["Logistic", "IMCL, a = 10"]
    result = reproduce(
        "S1-figure3", tmp_path, out=tmp_path / "out", rows=rows, conditions=["50 %"], overrides=overrides
    )
    assert not result.failures
    assert result.finished == 2
    species = fits[-1]["method"].groups
    assert (len(species), set(species.tolist())) == (22, {0, 1})  # the others are held out
