"""Ranking by common seeds, and the table."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halflabel.cli import compare as command
from halflabel.cli import show as show_module
from halflabel.cli.show import SafeConsole
from halflabel.comparison.conclusions import describe_trials
from halflabel.comparison.grid import Candidate, Grid, Outcome, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.result import Row, TaskScorer, Trials, summarise
from halflabel.comparison.store import Store
from halflabel.labels.table import Table

LABELS = np.random.default_rng(5).choice([-1, 1], (60, 4), p=[0.7, 0.3])


def summed_up(folder: Path, strengths: dict[str, dict[int, float]]) -> Trials:
    """The table of runs whose scores follow the labels by some strength, per method and seed."""
    candidates = tuple(map(Candidate.parse, strengths))
    grid = Grid(candidates, (LabelMask.share(0.5), LabelMask()), 3, "none")
    test = Table.from_dense(LABELS)
    config = SimpleNamespace(held_out=0.2, group=None, tune="head", fit="auto")
    data = SimpleNamespace(has_own_test=False, test_groups=None)
    bench: Any = SimpleNamespace(test=test, rest=test, data=data, config=config, describe=str)
    store, outcomes = Store(folder), {}
    for candidate in candidates:
        for seed, strength in strengths[candidate.name].items():
            task = Task(candidate, LabelMask(), seed, candidate.lr, candidate.options)
            noise = np.random.default_rng(seed).normal(size=LABELS.shape)
            outcomes[task] = Outcome(select=0.5, measure="mAP", best_epoch=seed + 1)
            store.write(task, outcomes[task], (strength * LABELS + noise).astype(np.float32))
    scorer = TaskScorer(bench, store)
    result = summarise(grid, outcomes, scorer, bench)
    return dataclasses.replace(result, protocol=tuple(describe_trials(grid, bench, scorer, result)))


def test_methods_are_ranked_by_common_seeds(tmp_path: Path) -> None:
    """Only the better method was trained with the seed that is hard for all."""
    summary = summed_up(tmp_path, {"bn-bce": {0: 0.8, 1: 0.8}, "em": {0: 2.0, 1: 2.0, 2: -1.0}})
    best, second = summary.rows
    assert np.mean(best.per_seed) < second.mAP < best.mAP, "the mean over all its seeds would put it last"
    assert (best.method, best.seeds, best.unused_seeds, best.judged_by) == ("em", 2, 1, (0, 1))
    assert (second.method, second.seeds, second.unused_seeds) == ("bn-bce", 2, 0)
    assert best.mAP == pytest.approx(np.mean(best.per_seed[:2]))
    assert len(best.per_seed) == 3
    runs = [run for run in summary.table.to_pylist() if run["method"] == "em"]
    assert [(run["seed"], run["best_epoch"]) for run in runs] == [(0, 1), (1, 2), (2, 3)]
    assert [run["mAP"] for run in runs] == list(best.per_seed)
    gaps = [b - a for a, b in zip(best.per_seed, second.per_seed, strict=False)]
    assert second.behind == pytest.approx(np.mean(gaps))
    assert second.behind < 0
    assert [run.rpartition("-seed")[2][0] for run in best.runs] == ["0", "1"]
    assert any("further finished seeds" in line and "em at all: 1" in line for line in summary.protocol)
    table_row = summary.csv_lines()[0]
    assert (table_row["judged_by"], table_row["runs"]) == ("0 1", " ".join(best.runs))


def test_a_method_without_a_common_seed_is_not_ranked(tmp_path: Path) -> None:
    summary = summed_up(tmp_path, {"bn-bce": {0: 0.8, 1: 0.8}, "em": {0: 0.5, 1: 0.5}, "an": {2: 3.0}})
    assert [row.method for row in summary.rows] == ["bn-bce", "em", "an"]
    assert math.isnan(summary.rows[-1].behind)
    assert any("Not ranked" in line and "an at all" in line for line in summary.protocol)


def row(labels: str, method: str, **more: Any) -> Row:
    values: dict[str, Any] = {
        "mAP": 0.8123,
        "mAP_low": 0.5057,
        "mAP_high": 0.9211,
        "behind": -0.1507,
        "behind_low": -0.2014,
        "behind_high": 0.1001,
        "seeds": 2,
        "seed_sd": 0.01,
        "validation": 0.5,
        "selected_on": "known labels",
        "seconds": 12.5,
        "lr": 3e-4,
        "options": {"alpha": 0.05, "another_option": 12345},
        "tried": 3,
        "to_try": 5,
        "known": 0.5,
        "photos_to_see": 4000,
        "share": 0.5,
        "CF1": 0.61,
        "CF1_sd": 0.02,
        "OF1": 0.63,
        "OF1_sd": 0.01,
        "fit": "batches",
        "per_seed": (0.8, 0.82, 0.7),
    }
    return Row(labels, method, **{**values, **more})


RESULT = Trials(
    (
        row("single-positive", "em", behind=0.0, behind_low=0.0, behind_high=0.0),
        row("single-positive", "em:alpha=0.05"),
    ),
)


def test_the_table_in_latex_has_no_signs_that_latex_does_not_read() -> None:
    text = RESULT.latex()
    assert text.isascii()
    assert r"em:alpha=0.05 & 81.2 (50.6 -- 92.1) & $-$15.07 $\approx$ ($-$20.14 to +10.01)" in text
    named = dataclasses.replace(RESULT, rows=(row("10 %", "a_b&c"),)).latex()
    assert r"10 \%" in named
    assert r"a\_b\&c" in named


@pytest.mark.parametrize(("terminal", "width"), [(True, 80), (True, 60), (True, 250), (False, 80)])
def test_numbers_are_never_truncated(monkeypatch: pytest.MonkeyPatch, terminal: bool, width: int) -> None:
    screen = SafeConsole(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, color_system=None)
    for module in (command, show_module):
        monkeypatch.setattr(module, "console", screen)
    command.show_trials(RESULT)
    text = re.sub(r"\x1b\[\d*m", "", screen.file.getvalue())  # type: ignore[attr-defined]
    assert "…" not in text
    for part in ("81.2 (50.6 – 92.1)", "−15.07 ≈ (−20.14 to +10.01)", "best"):
        assert part in text
    if not terminal:
        for part in ("2 + 1", "alpha 0.05, another_option 12345", "3 of 5"):
            assert part in text
    assert ("In a wider terminal" in text) == (terminal and width < 250)
    messages = re.sub(r"\s+", " ", text)
    assert "not significantly different from the best; more than 2 seeds narrow the interval" in messages
    if terminal and width == 80:
        assert max(map(len, text.splitlines())) <= 80
