"""The page of a comparison: its numbers, its cautions, and that it opens in a browser."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_scenes import scenes
from page_checks import HOSTILE, check, open_in_browser
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.comparison.compare import compare
from halflabel.comparison.study import grow, study
from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.report.comparison_page import build_comparison, read_comparison
from halflabel.report.layout import write_page
from halflabel.report.run_facts import is_comparison
from halflabel.system.format import points


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison with all it can hold; read only."""
    folder = tmp_path_factory.mktemp("compare") / "first"
    digits = scenes(90, size=32)
    table = Table.from_dense(digits.labels, digits.names, digits.classes)
    config = Config(backbone="tiny", size=32, epochs=2, batch_size=16, device="cpu")
    compare(
        table,
        digits.images,
        ["bn-bce", "em", "role", "em:alpha=0.05"],
        out=folder,
        shares=[0.3, 1.0],
        seeds=2,
        search="none",
        lr=0.3,
        config=config,
    )
    return folder


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small study and a small learning curve; read only."""
    place = tmp_path_factory.mktemp("studies")
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(120, 3))
    pictures = np.clip(128 + 25 * labels[:, :, None, None] + rng.normal(0, 60, (120, 3, 32, 32)), 0, 255)
    table = Table.from_dense(labels, [f"{i:03d}" for i in range(120)], ["red", "green", "blue"])
    config = Config(held_out=0.0, backbone="tiny", size=32, epochs=4, batch_size=16, device="cpu")
    how: dict[str, Any] = {"seeds": 2, "lr": 0.05, "config": config, "cache": place / "cache"}
    images = torch.from_numpy(pictures.astype(np.uint8))
    study(table, images, out=place / "study", budgets=(0.25, 0.75, 1), **how)
    grow(table, images, out=place / "growth", shares=(0.125, 0.25, 0.5, 1), **how)
    return place


@pytest.fixture
def edited(comparison: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy whose comparison.json has other things in it."""

    def edit(change: Callable[[dict[str, Any]], None] = lambda content: None, of: Path = comparison) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(of, folder)
        content = json.loads((folder / "comparison.json").read_text())
        change(content)
        (folder / "comparison.json").write_text(json.dumps(content))
        return folder

    return edit


def test_page_shows_the_numbers_of_the_table(comparison: Path) -> None:
    text = build_comparison(comparison)
    page = check(text)
    content = json.loads((comparison / "comparison.json").read_text())
    tables = re.findall(r'<table class="sortable">(.*?)</table>', text, re.S)
    assert len(tables) == 2
    rows = [row for table in tables for row in re.findall(r"<tbody>(.*?)</tbody>", table, re.S)[0].split("</tr>")[:-1]]
    assert len(rows) == len(content["rows"]) == 8
    for row, shown in zip(content["rows"], rows, strict=True):
        assert f">{row['method']}<" in shown.replace(" <small", "<")
        assert f">{points(row['CF1'])}<" in shown
        assert (">unknown = absent<" in shown) == (row["method"] == "an")
        assert f">{points(row['mAP'])}<" in shown
        assert f"{points(row['mAP_low'])} – {points(row['mAP_high'])}" in shown
        if row["behind"] < -0.001:
            assert f"−{-100 * row['behind']:.2f}" in shown
            assert ("≈" in shown) == (row["behind_high"] >= 0)
        assert f"{row['lr']:.2g}" in shown
        for name, value in row["options"].items():
            assert f"{name} {value}" in shown
    for sentence in (*content["protocol"], *content["conclusions"]):
        assert " ".join(sentence.split()) in page.text
    assert "role (labels all) : the method 'role' cannot learn from full labels" in page.text.replace(" (", " (")
    for name in ("judged", "methods", "missing", "shares"):
        assert f'href="#{name}"' in text
    assert str(comparison.parent) not in text


def test_the_page_begins_with_the_answer(comparison: Path) -> None:
    text = build_comparison(comparison)
    header = check(text).text.partition("Methods")[0]
    facts = read_comparison(comparison)
    assert all(conclusion in header for conclusion in facts.trials.conclusions)
    assert text.index("<summary>The whole protocol") > text.index("<summary>The table")


def test_a_method_from_which_nothing_is_hidden_ends_each_table(edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        hidden = [row for row in content["rows"] if row["labels"] != "all"]
        full = next(row for row in content["rows"] if row["labels"] == "all")
        content["rows"] = [*hidden, {**full, "role": "oracle"}]

    text = build_comparison(edited(change))
    (table,) = re.findall(r'<table class="sortable">(.*?)</table>', text, re.S)
    rows = re.findall(r"<tbody>(.*?)</tbody>", table, re.S)[0].split("</tr>")[:-1]
    assert len(rows) == 6
    assert ">all labels known<" in rows[-1]
    assert ">—<" in rows[-1]
    assert not any("all labels known" in row for row in rows[:-1])
    assert "1 set of labels" in text, "it is not a set of labels of its own"


@pytest.mark.parametrize(("high", "near"), [(-0.02, False), (0.01, True)])
def test_ties_with_the_best_are_marked(edited: Callable[..., Path], high: float, near: bool) -> None:
    def change(content: dict[str, Any]) -> None:
        rows = content["rows"]
        for before, row in itertools.pairwise(rows):
            if row["labels"] == before["labels"]:
                row |= {"behind": -0.1, "behind_low": -0.3, "behind_high": high}

    text = build_comparison(edited(change))
    rows = re.findall(r"−10.00( ≈)?<br>", text)
    assert len(rows) == 6  # all but the two best
    assert all(bool(mark) == near for mark in rows)
    assert "as good as the best" not in text


def test_awkward_content_stays_text(edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        first, *rest = content["rows"]
        first["method"] = HOSTILE
        rest[0] |= {"behind": None, "behind_low": None, "behind_high": None, "seconds": 0.0}
        rest[0] |= {"seed_sd": None, "seeds": 1, "per_seed": [0.2], "validation": None}
        content["failures"].append({"labels": HOSTILE, "method": HOSTILE, "what": "seed 1", "reason": "x" * 5000})
        content["left_out"] = 1200
        content["chosen_by"][HOSTILE] = "because <b>"

    text = build_comparison(edited(change))
    page = check(text)
    assert "<script>alert" not in text
    assert HOSTILE[:40] in page.text
    assert "budget ended before 1,200 runs" in page.text
    assert "Why these methods" in page.text


def test_many_methods_and_labels_stay_bounded(edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        first = content["rows"][0]
        content["rows"] = [
            {
                **first,
                "method": f"method {m}",
                "labels": f"{share} %",
                "share": share / 100,
                "strategy": "partial",
                "mAP": 0.5 - m / 200,
            }
            for share in range(1, 9)
            for m in range(40)
        ]

    page = check(build_comparison(edited(change)))
    assert "6 of 8 sets of labels are drawn" in page.text
    assert "24 of 40 methods are drawn" in page.text
    assert "6 of 40 curves are drawn" in page.text


def test_command_takes_runs_and_comparisons(comparison: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(comparison), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "<h1>first · comparison</h1>" in out.read_text()
    assert is_comparison(comparison)
    for words, messages in (
        ([str(comparison), "--images", str(tmp_path)], "shows no images"),
        ([str(comparison), "--out", str(tmp_path / "x.pdf")], "end it in .html"),
        ([str(tmp_path)], "is not a run"),
    ):
        result = CliRunner().invoke(app, ["report", *words])
        assert (result.exit_code, messages in result.stderr) == (2, True), result.output


@pytest.mark.parametrize("content", ["", "[]", '{"rows": {}}', '{"rows": [{"method": 1}]}'])
def test_damaged_or_unfinished_comparisons_are_refused(edited: Callable[..., Path], content: str) -> None:
    folder = edited()
    (folder / "comparison.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        build_comparison(folder)
    (folder / "comparison.json").unlink()
    with pytest.raises(UserError, match="was stopped before its end"):
        build_comparison(folder)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_page_opens_in_a_browser(browser: Any, comparison: Path, tmp_path: Path, width: int, scheme: str) -> None:
    path = write_page(tmp_path / "page.html", lambda: build_comparison(comparison)).path
    with open_in_browser(browser, path, width, scheme) as tab:
        tab.locator("#methods summary").first.click()
        tab.get_by_role("button", name="s/run").first.click()
        shown = tab.locator("table.sortable").first.locator("tbody tr td:nth-child(7)").all_inner_texts()
        assert [float(value) for value in shown] == sorted(map(float, shown), reverse=True)


def test_no_folder_is_on_the_page(comparison: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(comparison, tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"validation images": "/secret/place", "begin_from": "/secret/place/run"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    given = "sst:vectors=/secret/place/glove.txt:vector_size=50"
    old = content["rows"][0]["method"]
    for row in content["rows"]:
        if row["method"] == old:
            row["method"], row["options"] = given, {"vectors": "/secret/place/glove.txt"}
    failed = {"labels": "all", "method": given, "what": f"{given}, seed 0", "reason": "'/secret/place/g.txt' is gone"}
    content["failures"].append(failed)
    (folder / "comparison.json").write_text(json.dumps(content), encoding="utf-8")
    page = check(build_comparison(folder))
    assert "sst:vectors=glove.txt:vector_size=50" in page.text
    assert "'g.txt' is gone" in page.text
    assert "secret" not in page.text


def section_of(text: str, name: str) -> str:
    (found,) = re.findall(rf'<section id="{name}".*?</section>', text, re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", found).split())


def signed(value: float) -> str:
    return points(value, 2, signed=True)


@pytest.mark.parametrize("kind", ["study", "growth"])
def test_the_page_of_a_study_ranks_sets_of_labels(studies: Path, kind: str) -> None:
    text = build_comparison(studies / kind)
    page, shown = check(text), section_of(text, "methods")
    content = json.loads((studies / kind / "comparison.json").read_text())
    for row in content["rows"]:
        name = f"{row['strategy'] or 'all'} {100 * row['share']:.3g} %"
        assert f"{name} {points(row['mAP'])} {points(row['mAP_low'])} – {points(row['mAP_high'])}" in shown
    for gap in content["gaps"]:
        assert f"{signed(gap['difference'])} ({signed(gap['low'])} to {signed(gap['high'])})" in text
    for sentence in (*content["conclusions"], *content["protocol"]):
        assert " ".join(sentence.split()) in page.text
    assert f"{kind} · {'annotation study' if kind == 'study' else 'learning curve'}" in page.text
    assert "some labels of every image" in page.text
    assert ('stroke-dasharray="4 3"' in text) == (kind == "growth"), "the law"
    assert 'href="#classes"' not in text
    assert str(studies) not in text


def test_the_page_of_an_unfinished_learning_curve(studies: Path, edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        content["growth"] = {"law": [None] * 3, "gain": [None] * 3, "curve": [], "backtest": None}
        content |= {"gaps": [], "rows": content["rows"][:1], "conclusions": ["Too few runs are finished for a curve."]}

    page = check(build_comparison(edited(change, studies / "growth")))
    assert "Too few runs are finished for a curve" in page.text


def test_half_wrong_labels_do_not_flatten_the_others(studies: Path, edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        for row in content["rows"]:
            low = row["strategy"] == "noisy"
            row |= {"mAP": 0.1 if low else 0.8, "mAP_low": 0.05 if low else 0.75, "mAP_high": 0.15 if low else 0.85}

    text = build_comparison(edited(change, studies / "study"))
    (chart,) = re.findall(r'<section id="shares".*?</section>', text, re.S)
    assert "below the chart: noisy 75 %: 10.0" in chart
    assert min(float(tick) for tick in re.findall(r'text-anchor="end">([\d.]+)</text>', chart)) > 50
