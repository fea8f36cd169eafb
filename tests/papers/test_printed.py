"""The printed numbers agree with the papers' texts and with numbers repeated in other tables."""

from __future__ import annotations

import pytest
from paper_examples import columns

from halflabel.papers.spec import Column, read_printed
from halflabel.papers.tables import PAPERS, PRINTED, paper_of


def value(id: str, row: str, condition: str, measure: str) -> float:
    number = PRINTED[id].number(row, condition, measure)
    assert number is not None, (id, row, condition, measure)
    return number.value


def test_all_tables_of_the_five_papers() -> None:
    counts = {paper: sum(id.startswith(paper) for id in PRINTED) for paper in PAPERS}
    assert counts == {"S1": 4, "S2": 8, "S3": 4, "S4": 4, "S5": 1}
    assert all(paper_of(id) in PAPERS.values() for id in PRINTED)


def test_numbers_are_percent_and_rows_fit_their_columns() -> None:
    for actual in PRINTED.values():
        for row, cells in actual.rows.items():
            assert cells, (actual.id, row)
            for column, number in cells.items():
                low = -35 if actual.id in ("S2-table2", "S2-table8") and column.measure != "TP" else 0
                assert low <= number.value <= 100, (actual.id, row, column)
                assert number.spread is None or 0 < number.spread < 6


def test_the_mean_over_groups_is_the_number_for_all_classes() -> None:
    for id in ("S1-table1", "S1-table3", "S4-table4"):
        actual = PRINTED[id]
        *groups, everything = dict.fromkeys(column.measure for column in columns(actual))
        for row, cells in actual.rows.items():
            for condition in dict.fromkeys(column.condition for column in cells):
                mean = sum(value(id, row, condition, group) for group in groups) / len(groups)
                # Groups have equally many classes; one printed row is off by a little more than rounding.
                assert value(id, row, condition, everything) == pytest.approx(mean, abs=0.08), (row, condition)


def test_wang_2023_table_agrees_with_text() -> None:
    shares = ("10 %", "30 %", "50 %", "70 %", "90 %")

    def gains(row: str, over: str, measure: str = "mAP") -> list[float]:
        return [
            round(value("S4-table2", row, share, measure) - value("S4-table2", over, share, measure), 1)
            for share in shares
        ]

    assert gains("BN-BCE + SR", "BN-BCE") == [5.1, 3.7, 4.0, 4.0, 4.5]
    assert gains("BN-BCE + CR (w/o SR)", "BN-BCE") == [1.7, 1.3, 1.3, 1.3, 1.1]
    assert gains("BN-BCE + CR (w/o SR)", "BN-BCE", "OF1")[0] == 2.5
    assert gains("BN-BCE + CR (w/o SR)", "BN-BCE", "CF1")[0] == 2.1
    # "The addition of CR (w/o SR) degrades performance under the majority of known proportions."
    assert sum(gain < 0 for gain in gains("BN-BCE + SR + CR (w/o SR)", "BN-BCE + SR")) > len(shares) / 2
    assert all(gain > 0 for gain in gains("BN-BCE + SR + CR (w/ SR)", "BN-BCE + SR"))
    for column, gain in (("mAP", 2.6), ("OF1", 2.2), ("CF1", 3.0)):
        ours, sarb = (value("S4-table1", row, "MS-COCO", column) for row in ("Ours", "SARB*"))
        assert round(ours - sarb, 1) == gain
    plcl = [value("S4-table1", "Ours", "VG-200", m) - value("S4-table1", "PLCL", "VG-200", m) for m in ("mAP", "OF1")]
    assert [round(gain, 1) for gain in plcl] == [5.1, 5.6]


def test_durand_2019_repeats_itself() -> None:
    for row, cells in PRINTED["S2-table2"].rows.items():
        assert PRINTED["S2-table8"].rows[row] == cells
    for first, second in (
        (("S2-table1", "clean", "MS COCO", "MAP"), ("S2-table6", "ResNet-101 WELDON, partial", "100 %", "MAP")),
        (("S2-table1", "noisy+", "MS COCO", "MAP"), ("S2-table7", "noisy+", "MS COCO", "MAP")),
        (("S2-table4", "BCE", "10 %", "MAP"), ("S2-table6", "ResNet-101 WELDON, partial", "10 %", "MAP")),
        (("S2-table4", "BCE", "10 %", "0-1 exact match"), ("S2-table7", "partial 10%", "MS COCO", "0-1")),
        (("S2-table4", "BCE", "10 %", "Macro-F1"), ("S2-table7", "partial 10%", "MS COCO", "M-F1")),
        (("S2-table4", "BCE", "10 %", "Micro-F1"), ("S2-table7", "partial 10%", "MS COCO", "m-F1")),
    ):
        assert value(*first) == value(*second)


def test_huynh_2020_table_agrees_with_text() -> None:
    gain = value("S1-table1", "IMCL", "end to end", "All classes") - value(
        "S1-table1", "Curriculum Labeling", "end to end", "All classes"
    )
    assert round(gain, 2) == 1.02
    assert PRINTED["S1-table1"].number("Logistic", "fixed features", "All classes") is None
    assert value("S1-table4", "image not used, label not used", "group 5", "mAP") == value(
        "S1-table1", "Logistic", "end to end", "Group 5"
    )


def test_overall_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    for id, condition in (("S3-table3", "NUS-WIDE"), ("S3-table4", "MS-COCO")):
        for row in PRINTED[id].rows:
            precision, recall, f1 = (value(id, row, condition, name) for name in ("P-O", "R-O", "F1-O"))
            # Figures quoted from other papers are rounded there; one is off by 0.1.
            assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=0.16), (id, row)


def test_read_printed() -> None:
    actual = read_printed("S0-table1", "", ("p", "q"), {"x": "a | 1.0 –\nb | 2.50±0.10 3"}, ["a note"])
    assert columns(actual) == (Column("x", "p"), Column("x", "q"))
    assert actual.number("b", "x", "p") == (2.5, 0.1)
    assert actual.number("a", "x", "q") is None
    assert actual.number("nobody", "x", "q") is None
    with pytest.raises(ValueError, match="argument"):
        read_printed("S0-table1", "", ("p", "q"), {"x": "a | 1.0"})
    with pytest.raises(ValueError, match="two numbers"):
        read_printed("S0-table1", "", ("p",), {"x": "a | 1.0\na | 2.0"})
