"""Tables with an initial model, masks by condition, another test split, or measures of the labels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper_examples import figure, run

from halflabel.labels import drop
from halflabel.papers.datasets import open_dataset
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Overrides, set_up_cell
from halflabel.papers.tables import TABLES

BOXABLE = 8  # classes in the list of the small Open Images
SMALL = Overrides(backbone="tiny", size=32, device="cpu", workers=0)
WORDS = ["--backbone", "tiny", "--set", "size=32", "--set", "device=cpu", "--set", "workers=0"]


@pytest.mark.slow
def test_s1_rows_start_from_the_logistic_model(open_images: Path, tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    """A start of two epochs per seed, from which each row continues for one; the row Logistic is trained like it."""
    rows = ["LSEP", "Wsabie", "Latent Noise (visual)", "Logistic"]
    result = reproduce("S1-table1", open_images, out=tmp_path / "out", rows=rows, seeds=2, overrides=SMALL)
    assert not result.failures
    epochs = [fit["settings"].epochs for fit in fits]
    assert sorted(epochs) == sorted([2, 2, 1, 1, 1] * 2 * 2)  # two columns, two seeds
    for tuned in (True, False):
        for seed in (0, 1):
            same_seed = [
                fit
                for fit in fits
                if fit["settings"].seed == seed and tuned == any(name.startswith("backbone") for name in fit["weights"])
            ]
            start = same_seed[0]["fitted"]
            for fit in same_seed[1:]:
                if fit["settings"].epochs == 2:  # the row Logistic
                    assert all(torch.equal(value, start[name]) for name, value in fit["fitted"].items())
                    continue
                weights = fit["weights"]
                for name in weights:
                    if name.startswith("backbone"):
                        assert torch.equal(weights[name], start[name]), name
                for name in ("head.linear", "head.visual"):
                    if f"{name}.weight" in weights:
                        assert torch.equal(weights[f"{name}.weight"], start["head.linear.weight"])
                        assert torch.equal(weights[f"{name}.bias"], start["head.linear.bias"])
                if "head.images" in weights:
                    product = weights["head.labels"] @ weights["head.images"]
                    assert torch.allclose(product, start["head.linear.weight"], atol=1e-5)
    words = " ".join(result.protocol["fixed features"])
    assert "from the weights of logistic after 2 epochs" in words
    # The same start for another table, and for the same one again in another folder.
    fits.clear()
    reused = reproduce("S1-table4", open_images, out=tmp_path / "four", rows=["not used"], seeds=2, overrides=SMALL)
    assert [fit["settings"].epochs for fit in fits] == [2, 2]  # the row; the start is found
    logistic = figure(result, "Logistic", "Group 5", "fixed features")
    assert reused.figures[0].per_seed == logistic.per_seed
    # Where training is longer, so is that of the start.
    row = next(row for row in TABLES["S1-table1"].rows if row.name == "LSEP")
    cell = TABLES["S1-table1"].cell(row, TABLES["S1-table1"].conditions[0])
    setup = set_up_cell(cell, replace(SMALL, epochs=3, lr=0.1))
    assert setup.start is not None
    assert (setup.start.epochs, setup.start.lr, setup.start.method) == (6, 0.1, "logistic")
    assert "the initial model logistic has 6 instead of 2 epochs" in setup.differs


def test_s2_strategies_by_share(coco2014: Path, tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    overrides = replace(SMALL, epochs=1, backbone=None)
    table = TABLES["S2-table6"]
    cells = [table.cell(row, table.conditions[0]) for row in table.rows if "ResNet-50" in row.name]
    assert {set_up_cell(cell, overrides).config.backbone for cell in cells} == {"resnet50.tv_in1k"}
    rows = ["ResNet-50, partial", "ResNet-50, dense", "ResNet-50, noisy"]
    result = run(
        *("reproduce", "S2-table6", coco2014, "--out", tmp_path / "out", *WORDS, "--set", "epochs=1"),
        *(word for row in rows for word in ("--rows", row)),
        *("--conditions", "10 %,50 %,100 %"),
    )
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "ResNet-50, dense: dense:share=0.1" in text
    content = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    figures = {(entry["row"], entry["condition"]): entry for entry in content["figures"]}
    assert ("ResNet-50, noisy", "10 %") not in figures  # the paper has none
    assert figures["ResNet-50, noisy", "50 %"]["published"] == 3.75
    assert figures["ResNet-50, dense", "10 %"]["published"] == 54.29
    assert len({figures[row, "100 %"]["ours"] for row in rows}) == 1
    assert any(
        "are the same experiment in this run" in line and line.startswith("100 %") for line in content["differs"]
    )
    full = open_dataset("coco2014", coco2014).train
    by_share = {(fit["table"].known, len(fit["table"])): fit["table"] for fit in fits}
    expected = [
        drop.partial(full, 0.1),
        drop.dense(full, 0.1),
        drop.partial(full, 0.5),
        drop.dense(full, 0.5),
        drop.noisy(full, 0.5),
        full,
    ]
    assert len(fits) == 6  # all labels only once
    for fit, expected_table in zip(
        sorted(fits, key=_order), sorted(map(_with_labels, expected), key=_size), strict=True
    ):
        assert _size(fit["table"]) == _size(expected_table)
    dense = by_share[full.shape[1] * 5, 5]
    assert dense == _with_labels(drop.dense(full, 0.1))


def _with_labels(table: Any) -> Any:
    return table.subset(np.flatnonzero(np.diff(table.start)))


def _size(table: Any) -> tuple[int, int, int]:
    return len(table), table.known, int((table.value > 0).sum())


def _order(fit: dict[str, Any]) -> tuple[int, int, int]:
    return _size(fit["table"])


def test_s2_shares_of_clean_and_noisy_labels(nus_wide: Path, coco2014: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "nus-wide").symlink_to(nus_wide)
    (data / "coco2014").symlink_to(coco2014)
    result = reproduce("S2-table7", data, out=tmp_path / "out", overrides=replace(SMALL, epochs=1))
    assert set(result.missing) == {"VOC 2007"}
    for condition, name in (("NUS-WIDE", "nus-wide"), ("MS COCO", "coco2014")):
        truth = open_dataset(name, data / name).train.dense()
        positives = (truth > 0).sum(1)
        wrong_share = 100 * np.maximum(positives - 1, 0).sum() / truth.size
        for row, clean, noisy in (
            ("clean", 100, 0),
            ("noisy+", 100 - wrong_share, wrong_share),
            ("partial 10%", 10, 0),
        ):
            assert figure(result, row, "clean label", condition).ours == pytest.approx(clean)
            assert figure(result, row, "noisy label", condition).ours == pytest.approx(noisy)
    assert figure(result, "noisy+", "noisy label", "NUS-WIDE").published == 1.4
    assert figure(result, "noisy+", "OV-R", "NUS-WIDE").published == 17.19
    assert not math.isnan(figure(result, "noisy+", "OV-R", "NUS-WIDE").ours)
    assert any(line.startswith("NUS-WIDE: the paper draws 150,000") for line in result.differs)
