"""The rows to compare with, and the sentences at the end."""

from __future__ import annotations

from typing import Any

import pytest

from halflabel.comparison.conclusions import conclude_comparison
from halflabel.comparison.grid import Task
from halflabel.comparison.result import Row


def test_naive_reading_and_full_labels_are_trained_as_references(go: Any, trained: list[Task]) -> None:
    fitted = go(names=["em"], shares=[0.3], references=True, search="small", seeds=2)
    rows = {row.role: row for row in fitted.rows}
    assert {role: (row.labels, row.method, row.seeds) for role, row in rows.items()} == {
        "": ("30 %", "em", 2),
        "naive": ("30 %", "an", 2),
        "oracle": ("all", "an-ls", 2),
    }
    assert [task.candidate.role for task in trained].count("oracle") == 2, "no search"
    assert fitted.rows[-1].role == "oracle"
    assert rows["oracle"].known == 1
    (sentence,) = fitted.conclusions
    assert sentence.startswith("Labels 30 %: ")
    assert "With all labels known, an-ls has" in sentence


def test_references_are_not_trained_twice(go: Any, trained: list[Task]) -> None:
    fitted = go(names=["an", "bce"], shares=[0.3, 1], references=True, seeds=1)
    assert len(trained) == 4
    assert {(row.labels, row.method): row.role for row in fitted.rows} == {
        ("30 %", "an"): "naive",
        ("30 %", "bce"): "",
        ("all", "an"): "naive",
        ("all", "bce"): "",
    }


def row(method: str, behind: float = 0.0, half: float = 0.01, labels: str = "10 %", role: str = "") -> Row:
    ends = (behind - half, behind + half) if behind else (0.0, 0.0)
    numbers = {"mAP_low": 0.6, "mAP_high": 0.8, "behind": behind, "behind_low": ends[0], "behind_high": ends[1]}
    zeros = dict.fromkeys(["seed_sd", "validation", "seconds", "CF1", "CF1_sd", "OF1", "OF1_sd"], 0.0)
    zeros |= dict.fromkeys(["lr", "tried", "to_try"], 0.0) | {"known": 1.0}
    return Row(
        labels,
        method,
        mAP=0.7 + behind,
        seeds=3,
        selected_on="known labels",
        fit="linear",
        options={},
        photos_to_see=4100,
        role=role,
        **numbers,
        **zeros,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([row("em")], ["Labels 10 %: em has mAP 70.0; no other method was compared."]),
        ([row("em"), row("bce")], ["Labels 10 %: em and bce give every test image the same scores, mAP 70.0."]),
        (
            [row("em"), row("bce", -0.03), row("asl", -0.05)],
            ["em is best, mAP 70.0, 3.00 points of mAP ahead of bce (95 %: +2.00 to +4.00): hardly chance."],
        ),
        (
            [row("em"), row("bce", -0.003), row("asl", -0.004), row("wan", -0.1)],
            ["be that over asl; to see a difference of 1 point, you need about 4,100 test photos and"],
        ),
        (
            [row("em"), row("bce", -0.001, 0.005), row("wan", -0.1)],
            ["alike within 1 point are em, bce; em has mAP 70.0, 0.10 points of mAP ahead of bce (95 %: −0.40 to"],
        ),
        ([row("em"), row("bce", -0.003, 0.002)], ["hardly chance, but less than 1 point."]),
        (
            [row("em"), row("bce", -0.03), row("an", -0.1, role="naive"), row("an-ls", labels="all", role="oracle")],
            [
                "The naive reading, unknown = absent, has 60.0: 10.00 points less (95 %: +9.00 to +11.00).",
                "With all labels known, an-ls has 70.0.",
            ],
        ),
    ],
)
def test_the_conclusion_names_the_best_method_its_lead_and_interval(rows: list[Row], parts: list[str]) -> None:
    (sentence,) = conclude_comparison(rows)
    for part in parts:
        assert part in sentence
