"""The page of a study: it says what the study found and no more, holds no folders, and opens in a browser."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_checks import HOSTILE, check
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.comparison.study import grow, study
from halflabel.errors import UserError
from halflabel.fitting.config import Config, Settings
from halflabel.labels.table import Table
from halflabel.report.layout import write_page
from halflabel.report.run_facts import experiment_kind
from halflabel.report.study_facts import read_study
from halflabel.report.study_page import build_study
from halflabel.system.format import points

BOTH = pytest.mark.parametrize("kind", ["study", "growth"])


@pytest.fixture(scope="module")
def study_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small study of each kind; read only."""
    place = tmp_path_factory.mktemp("studies")
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(120, 3))
    pictures = np.clip(128 + 25 * labels[:, :, None, None] + rng.normal(0, 60, (120, 3, 32, 32)), 0, 255)
    table = Table.from_dense(labels, [f"{i:03d}" for i in range(120)], ["red", "green", "blue"])
    config = Config(held_out=0.0, backbone="tiny", size=32, settings=Settings(epochs=4, batch_size=16, device="cpu"))
    how: dict[str, Any] = {"seeds": 2, "lr": 0.05, "config": config, "cache": place / "cache"}
    images = torch.from_numpy(pictures.astype(np.uint8))
    words = ["halflabel", "study", "/secret/place/labels.csv", "/secret/place/my photos/", "--out=/secret/place/x"]
    study(table, images, out=place / "study", budgets=(0.25, 0.75, 1), command=words, **how)
    grow(table, images, out=place / "growth", shares=(0.125, 0.25, 0.5, 1), command=[*words, "--grow"], **how)
    return place


@pytest.fixture
def edited(study_folders: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy whose study.json has other things in it."""

    def edit(kind: str, change: Callable[[dict[str, Any]], object] = lambda content: None) -> Path:
        folder = Path(shutil.copytree(study_folders / kind, tmp_path / kind))
        content = json.loads((folder / "study.json").read_text())
        change(content)
        (folder / "study.json").write_text(json.dumps(content))
        return folder

    return edit


def rows_of(text: str, label: str) -> list[str]:
    """The rows of the table of that name, as text."""
    (table,) = re.findall(rf'aria-label="{label}">(.*?)</table>', text, re.S)
    body = table[table.index("<tbody>") :]
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in body.split("</tr>")[:-1]]


def shown(share: float) -> str:
    return f"{100 * share:.3g}\u202f%".replace("\u202f", " ")


def signed(value: float) -> str:
    return points(value, 2, signed=True)


@BOTH
def test_page_shows_the_results_of_the_study(study_folders: Path, kind: str) -> None:
    text = build_study(study_folders / kind)
    page = check(text)
    content = json.loads((study_folders / kind / "study.json").read_text())
    rows = rows_of(text, "Test mAP of each set of labels")
    assert len(rows) == len(content["points"])
    for row, point in zip(rows, content["points"], strict=True):
        words = f"{point['strategy']} {shown(point['share'])} {points(point['mAP'])} {points(point['low'])} – "
        assert row.startswith(f"{words}{points(point['high'])} {point['labels']} 2 ")
        assert row.endswith(" · ".join(points(value) for value in point["per_seed"]))
    (differences,) = re.findall(r'<section id="differences".*?</section>', text.replace("\u202f", " "), re.S)
    for gap in content["gaps"]:
        ends = f"({signed(gap['low'])} to {signed(gap['high'])})"
        assert f"{shown(gap['share'])}: {signed(gap['difference'])} {ends}" in differences
    labels = {(point["strategy"], point["share"]): point["labels"] for point in content["points"]}
    steps = rows_of(text, "Gain of each step to more labels")
    assert len(steps) == len(content["steps"]) > 0
    for row, step in zip(steps, content["steps"], strict=True):
        more = labels[step["strategy"], step["share"]] - labels[step["strategy"], step["other_share"]]
        assert f"{more} more labels {signed(step['difference'])} {signed(step['low'])} to" in row
        assert row.endswith(signed(1000 * step["difference"] / more))
    messages = content["conclusions"] if kind == "study" else [content["advice"], content["control"]]
    for sentence in [*messages, *content["protocol"]]:
        assert " ".join(sentence.split()) in page.text
    for name in ("question", "curves", "points", "differences", "cost", "protocol", "commands"):
        assert f'href="#{name}"' in text
    assert "#missing" not in text
    assert "Based on 2 seeds" in page.text
    assert f"{kind} · {'annotation study' if kind == 'study' else 'learning curve'}" in page.text
    command = "halflabel study labels.csv 'my photos' --out=x" + " --grow" * (kind == "growth")
    assert command in page.text
    assert f"halflabel report {kind}" in page.text
    assert str(study_folders) not in text


def test_what_more_labels_cost_and_bring(study_folders: Path, edited: Callable[..., Path]) -> None:
    gains = [[1.1, 0.005, 0.001, 0.009], [1.5, 0.02, 0.005, 0.03], [2.0, 0.04, 0.01, 0.06]]

    def change(content: dict[str, Any]) -> None:
        content |= {"ahead": gains, "gain": gains[-1][1:], "worth": 1.0}

    folder = edited("growth", change)
    text = build_study(folder)
    now = next(
        point["labels"] for point in json.loads((folder / "study.json").read_text())["points"] if point["share"] == 1
    )
    assert rows_of(text, "Expected gain of more labels") == [
        f"10 % more {round(0.1 * now)} +0.50 +0.10 to +0.90 {signed(5 / round(0.1 * now))} no",
        f"50 % more {round(0.5 * now)} +2.00 +0.50 to +3.00 {signed(20 / round(0.5 * now))} ≈",
        f"100 % more {now} +4.00 +1.00 to +6.00 {signed(40 / now)} yes",
    ]
    check(text)
    assert 'stroke-dasharray="4 3"' in text, "the law"


def test_unfinished_study_lists_what_is_missing(edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        content |= {"law": [None] * 3, "gain": [None] * 3, "curve": [], "ahead": [], "backtest": None, "gaps": []}
        content |= {"left_out": 1200, "failures": ["seed 1: '/secret/place/x.jpg' is gone"], "steps": []}
        content |= {"advice": "Too few runs are finished for a curve: give it more time.", "control": ""}
        content["points"] = [{**content["points"][0], "seeds": 1, "per_seed": [0.5], "low": None, "high": None}]

    page = check(build_study(edited("growth", change)))
    assert "budget ended before 1,200 runs" in page.text
    assert "'x.jpg' is gone" in page.text
    assert "Too few runs are finished for a curve" in page.text
    assert "Too few runs are finished to estimate the gain of more labels" in page.text
    assert "Based on 1 seed:" in page.text


@BOTH
def test_awkward_content_stays_text(edited: Callable[..., Path], kind: str) -> None:
    def change(content: dict[str, Any]) -> None:
        old = content["points"][0]["strategy"]
        for row in (*content["points"], *content["gaps"], *content["steps"]):
            row["strategy"] = HOSTILE if row["strategy"] == old else row["strategy"]
        content["method"] = "sst:vectors=/secret/place/glove.txt"
        content["protocol"] = [f"{content['method']} trains {HOSTILE}", "see /secret/place/notes.txt"]
        content["failures"] = [HOSTILE + "x" * 5000]
        content["commands"] = [[HOSTILE, "--weights", "/secret/place/w.pt", "--method", content["method"]]]

    text = build_study(edited(kind, change))
    page = check(text)
    assert "<script>alert" not in text
    assert HOSTILE[:30] in page.text
    assert "sst:vectors=glove.txt" in page.text
    assert "--weights w.pt" in page.text


@BOTH
@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"curve": []}', '{"method": "x", "points": [{"strategy": 1}], "gaps": []}']
)
def test_damaged_studies_are_refused(edited: Callable[..., Path], kind: str, content: str) -> None:
    folder = edited(kind)
    (folder / "study.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        build_study(folder)
    (folder / "study.json").unlink()
    with pytest.raises(UserError, match="was stopped before its end"):
        build_study(folder)


@pytest.mark.parametrize("value", ["0.5", [], {}, "nan"])
@pytest.mark.parametrize("name", ["share", "labels", "mAP", "low", "seeds", "per_seed"])
def test_points_of_another_kind_are_refused(edited: Callable[..., Path], name: str, value: Any) -> None:
    if (name, value) == ("per_seed", []):
        value = None
    folder = edited("study", lambda content: content["points"][0].update({name: value}))
    with pytest.raises(UserError, match="cannot be read"):
        build_study(folder)


def test_without_points_there_is_no_page(edited: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="no finished run"):
        read_study(edited("study", lambda content: content.update(points=[])))


@BOTH
def test_command_makes_it(study_folders: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(study_folders / kind), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text() == build_study(study_folders / kind)
    assert experiment_kind(study_folders / kind) == "study"
    assert experiment_kind(tmp_path) is None
    result = CliRunner().invoke(app, ["report", str(study_folders / kind), "--images", str(tmp_path)])
    assert (result.exit_code, "the page of a study shows no images" in result.stderr) == (2, True)


def test_a_study_that_has_not_ended_is_named(study_folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(study_folders / "study", tmp_path / "study"))
    (folder / "study.json").unlink()
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert (result.exit_code, "run the same `halflabel study` command again" in result.stderr) == (2, True)
    assert not (folder / "report.html").exists()


def test_half_wrong_labels_do_not_flatten_the_others(edited: Callable[..., Path]) -> None:
    def change(content: dict[str, Any]) -> None:
        for point in content["points"]:
            low = point["strategy"] == "noisy" and point["share"] < 1
            point |= {"mAP": 0.1 if low else 0.8, "low": 0.05 if low else 0.75, "high": 0.15 if low else 0.85}

    text = build_study(edited("study", change))
    assert "below the chart: noisy 75" in check(text).text
    (chart,) = re.findall(r'<section id="curves".*?</section>', text, re.S)
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([\d.]+)</text>', chart)]
    assert min(ticks) > 50
    assert not any(math.isnan(tick) for tick in ticks)


@BOTH
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_in_a_browser(
    browser: Any, study_folders: Path, tmp_path: Path, width: int, scheme: str, kind: str
) -> None:
    path = write_page(tmp_path / "page.html", lambda: build_study(study_folders / kind)).path
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    reports: list[str] = []
    tab.on("console", lambda message: reports.append(message.text))
    tab.on("pageerror", lambda error: reports.append(str(error)))
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    tab.get_by_role("button", name="known to training").first.click()
    cells = tab.locator("table.sortable").first.locator("tbody tr td:nth-child(4)").all_inner_texts()
    assert [int(value) for value in cells] == sorted(map(int, cells), reverse=True)
    assert reports == []
    assert asked == [path.as_uri()]
    tab.close()
