"""The tables of Wang 2023 agree with its text, and the two that repeat other tables run."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_examples import columns

from halflabel.methods.base import recipe
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Overrides
from halflabel.papers.tables import PRINTED, TABLES

TINY = Overrides(backbone="tiny", size=32, epochs=2, batch_size=16, device="cpu", workers=0)


def test_every_table_has_a_protocol() -> None:
    printed = {f"S4-table{number}" for number in (1, 2, 3, 4)}
    drawn = {f"S4-figure{number}" for number in ("3a", "3b", "3c", "4a", "4b")}
    assert {id for id in TABLES if id.startswith("S4-")} == printed | drawn


def test_ours_has_the_hyperparameters_of_the_text() -> None:
    table = TABLES["S4-table1"]
    (ours,) = (row for row in table.rows if row.name == "Ours")
    defaults = {name: option.default for name, option in recipe("srcr").options.items()}
    results = {**defaults, **table.cell(ours, table.conditions[0]).options}
    assert (results["alpha"], results["k"], results["tau"]) == (0.5, 5, 0.6)
    settings = table.conditions[0].training.config
    assert (settings["optimizer"], settings["momentum"], settings["weight_decay"]) == ("sgd", 0.9, 1e-4)
    assert settings["batch_size"] == 32
    assert {"lr", "epochs", "weak", "strong"} <= set(table.conditions[0].training.unsaid)


def test_heads_of_other_papers_have_no_dropout() -> None:
    for row in TABLES["S4-table1"].rows:
        if row.method in ("ssgrl", "sst", "hst", "sarb", "sarb*"):
            assert row.options["dropout"] == 0, row.name


def test_k_belongs_to_saliency_only() -> None:
    """The number of the default equals that of SR in table 2, rounded, not that of SR + CR."""
    at_5 = PRINTED["S4-table3"].number("k=5", "50 %", "mAP")
    alone = PRINTED["S4-table2"].number("BN-BCE + SR", "50 %", "mAP")
    with_cr = PRINTED["S4-table2"].number("BN-BCE + SR + CR (w/ SR)", "50 %", "mAP")
    assert at_5 is not None
    assert alone is not None
    assert with_cr is not None
    assert abs(at_5.value - alone.value) < 0.051 < abs(at_5.value - with_cr.value)
    for k, row in enumerate(TABLES["S4-table3"].rows, 1):
        assert dict(row.options) == {"consistency": "none", "k": k}


def test_rows_of_huynh_2020_are_repeated() -> None:
    names = {"Latent Noise": "Latent Noise (visual)", "Curriculum": "Curriculum Labeling"}
    wang, huynh = PRINTED["S4-table4"], PRINTED["S1-table1"]
    groups = [column.measure for column in columns(huynh) if column.condition == "end to end"]
    for row in ("Latent Noise", "CNN-RNN", "Curriculum", "IMCL"):
        for column, group in zip(columns(wang), groups, strict=True):
            number = wang.number(row, "OpenImages V3", column.measure)
            original = huynh.number(names.get(row, row), "end to end", group)
            assert number is not None
            assert original is not None
            assert number.value == pytest.approx(original.value, abs=0.051)
    table = TABLES["S4-table4"]
    assert [measure.options for measure in table.measures] == [
        measure.options for measure in TABLES["S1-table1"].measures
    ]


def test_saliency_by_k_runs(coco2014: Path, tmp_path: Path) -> None:
    result = reproduce("S4-table3", coco2014, out=tmp_path, rows=["k=1", "k=5"], conditions=["20 %"], overrides=TINY)
    assert [figure.row for figure in result.figures] == ["k=1", "k=5"]
    assert len({figure.ours for figure in result.figures}) == 2


def test_open_images_runs(open_images: Path, tmp_path: Path) -> None:
    result = reproduce("S4-table4", open_images, out=tmp_path, rows=["Latent Noise", "CSL", "Ours"], overrides=TINY)
    assert not result.failures
    assert len(result.figures) == 3 * 6
    assert all(figure.ours is not None and 0 <= figure.ours <= 100 for figure in result.figures)
