"""`halflabel study`: strategies for spending labels, and the extrapolated learning curve."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from digit_scenes import write_folder
from typer.testing import CliRunner, Result

import halflabel.fitting.loop
from halflabel import metrics
from halflabel.cli import app
from halflabel.comparison.bench import Bench, Trained
from halflabel.comparison.conclusions import conclude, conclude_growth
from halflabel.comparison.grid import Task
from halflabel.comparison.result import Backtest, Gap, Growth, Interval, TaskScore
from halflabel.comparison.sources import OutOfTime
from halflabel.comparison.study import _normal, extrapolate, fit_law, grow, study
from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.labels import drop
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.system.rng import uniform

SETTINGS = ("size=32", "workers=0", "device=cpu", "fit=batches", "epochs=1")
TINY = ["--backbone", "tiny", "--seeds", "1", *(f"--set={each}" for each in SETTINGS)]


@pytest.fixture(scope="module")
def painted() -> tuple[torch.Tensor, Table]:
    """Pictures whose red, green and blue are bright or not: labels that a head on any network can learn."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(120, 3))
    pictures = np.clip(128 + 25 * labels[:, :, None, None] + rng.normal(0, 60, (120, 3, 32, 32)), 0, 255)
    table = Table.from_dense(labels, [f"{i:03d}" for i in range(120)], ["red", "green", "blue"])
    return torch.from_numpy(pictures.astype(np.uint8)), table


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


SMALL: dict[str, Any] = {"backbone": "tiny", "size": 32, "epochs": 6, "batch_size": 16, "device": "cpu"}
CONFIG = Config(held_out=0.0, **SMALL)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_four_strategies_spend_the_same_budget(
    painted: Any, cache: Path, tmp_path: Path, trained: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, table = painted
    tables: list[Table] = []
    original = halflabel.fitting.loop.fit

    def fit(model: Any, method: Any, source: Any, known: Table, settings: Any, **more: Any) -> Any:
        assert more["validation"] is None  # the whole budget is learned from
        tables.append(known)
        return original(model, method, source, known, settings, **more)

    monkeypatch.setattr("halflabel.fitting.fit.fit_epochs", fit)
    options: dict[str, Any] = {"budgets": (0.25, 0.75, 1), "seeds": 2, "lr": 0.05, "config": CONFIG, "cache": cache}
    result = study(table, images, out=tmp_path, **options)
    assert [(row.strategy, row.share) for row in result.rows if row.strategy != "noisy+"] == [
        *(("partial", share) for share in (0.25, 0.75)),
        ("", 1.0),
        *(("dense", share) for share in (0.25, 0.75)),
        ("noisy", 0.75),  # below one half labels say the opposite
    ]
    assert len(trained) == 2 * 7  # all labels are one run for all strategies
    # The labels are those of the protocols, on the images that are not for the test, and as many are clean.
    rest = table.subset(np.flatnonzero(assign_parts(table, (0.8, 0.2)) == 0))
    truth = rest.dense()
    by_task = dict(zip(((task.label_mask.name, task.seed) for task in trained), tables, strict=True))
    assert by_task["25 %", 1] == drop.partial(rest, 0.25, seed=1)
    assert by_task["dense:share=0.25", 1] == drop.dense(rest, 0.25, seed=1)
    assert by_task["noisy:share=0.25", 0] == drop.noisy(rest, 0.25, seed=0)
    for name, share in (("25 %", 0.25), ("dense:share=0.25", 0.25), ("noisy:share=0.25", 0.75)):
        clean = (by_task[name, 0].dense() == truth).mean()
        assert clean == pytest.approx(share, abs=0.03)
    plus = result.rows[-1]
    assert plus.share == pytest.approx((by_task["noisy+", 0].dense() == truth).mean())
    # A row is the mean over seeds of the mAP of the scores that are kept.
    test = table.subset(np.flatnonzero(assign_parts(table, (0.8, 0.2)) == 1)).dense()
    stored_logits = [np.load(path) for path in sorted((tmp_path / "tasks").glob("bn-bce-25_-seed*.npy"))]
    values = [metrics.mean_average_precision(scores, test) for scores in stored_logits]
    row = result.rows[0]
    assert row.per_seed == pytest.approx(values)
    assert row.mAP == pytest.approx(np.mean(values))
    assert row.mAP_low <= row.mAP <= row.mAP_high
    assert row.known_labels == by_task["25 %", 0].known
    assert sum(row.is_best for row in result.rows) == 1
    with open(tmp_path / "comparison.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(result.rows)
    stored = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert len(stored) == 2 * len(result.rows)
    assert [run["mAP"] for run in stored[:2]] == pytest.approx(values)
    steps = [gap for gap in result.gaps if gap.is_step]
    mAP = {(row.strategy, row.share): row.per_seed for row in result.rows}
    for step in steps:
        more, less = (mAP.get((step.strategy, share), mAP["", 1.0]) for share in (step.share, step.other_share))
        assert step.difference == pytest.approx(np.mean(more) - np.mean(less))
        assert step.low <= step.difference <= step.high
    assert {(step.strategy, step.other_share, step.share) for step in steps} == {
        (name, *pair) for name in ("partial", "dense") for pair in ((0.25, 0.75), (0.75, 1.0))
    }
    gaps = {(gap.share, gap.other, gap.other_share) for gap in result.gaps if not gap.is_step and gap.other != "noisy+"}
    assert gaps == {(0.25, "dense", 0.25), (0.75, "dense", 0.75), (0.25, "noisy", 0.75), (0.75, "noisy", 0.75)}
    trained.clear()
    repeated = study(table, images, out=tmp_path, **options)
    assert not trained
    assert repeated.to_json() == result.to_json()


def test_only_fully_labelled_images_are_studied(painted: Any, cache: Path, tmp_path: Path) -> None:
    images, table = painted
    partly, fully = (Labels.of(hide(table, 0.5, seed=3)) for hide in (drop.partial, drop.dense))
    half_labelled = partly.append(fully).training
    result = study(
        half_labelled, images, out=tmp_path, budgets=(0.5,), strategies=["partial"], seeds=1, config=CONFIG, cache=cache
    )
    assert result.protocol[0].startswith("60 of 120 images have all labels known and are used")
    tenth_labelled = drop.dense(table, 0.1, seed=3)
    with pytest.raises(UserError, match="12 of 120 images") as caught:
        study(tenth_labelled, images, out=tmp_path / "b", config=CONFIG)
    assert "‹grow" in caught.value.fix
    assert not (tmp_path / "b").exists()


def gap(share: float, other: str, at: float, difference: float, half: float) -> Gap:
    return Gap("partial", share, other, at, difference, difference - half, difference + half)


def test_conclusions_follow_the_intervals() -> None:
    dense, noisy = conclude(
        [
            gap(0.1, "dense", 0.1, 0.04, 0.01),
            gap(0.5, "dense", 0.5, 0.01, 0.02),
            gap(0.1, "noisy", 0.8, -0.02, 0.01),
            gap(0.2, "noisy", 0.8, 0.03, 0.01),
        ]
    )
    assert dense == (
        "Some labels of every image, against all labels of some images: a higher mAP with 10 % (+4.00 points, +3.00 to "
        "+5.00); no significant difference with 50 %."
    )
    assert noisy == (
        "Some labels of every image, against all labels, some wrong (20 % wrong): a higher mAP with 20 % (+3.00 "
        "points, +2.00 to +4.00); a lower mAP with 10 % (−2.00 points, −3.00 to −1.00)."
    )
    assert conclude([]) == (), "nothing was compared"


def test_the_parameters_of_the_law_are_recovered() -> None:
    share = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
    true = [(0.9, 0.1, 0.5), (0.7, 0.02, 1.0), (0.8, 0.0, 1.0)]
    value = np.stack([a - b * share**-c for a, b, c in true])
    law = fit_law(share, value)
    for number, (a, b, c) in enumerate(true):
        assert law.at(2.0)[number] == pytest.approx(a - b * 2.0**-c, abs=5e-4)
        if b:
            assert law.c[number] == pytest.approx(c, rel=0.06)
    # Never above 1, never falling.
    odd = fit_law(share, np.stack([0.5 + 0.1 * np.arange(5), np.linspace(0.8, 0.6, 5)]))
    assert (odd.a <= 1).all()
    assert (odd.b >= 0).all()
    assert odd.at(2.0)[1] == pytest.approx(0.7)


def curve(spread: float, images: float, seeds: int, number: int, a: float = 0.9) -> dict[float, dict[int, TaskScore]]:
    """Scores that scatter about a = 0.9, b = 0.1, c = 0.5, over seeds and over test images, shared by all shares."""
    rng = np.random.default_rng(number)
    shift, scores = rng.normal(0, images), {}
    for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0):
        values = a - 0.1 * share**-0.5 + shift + rng.normal(0, spread, seeds)
        scores[share] = {
            s: TaskScore(float(v), v + np.linspace(-2, 2, 400) * images, 500) for s, v in enumerate(values)
        }
    return scores


def test_the_interval_of_the_gain_covers_the_truth() -> None:
    true = 0.1 * (1 - 2**-0.5)
    extrapolations = [extrapolate(curve(0.005, 0.01, 3, number)) for number in range(40)]
    covered = sum(extrapolation.gain.low <= true <= extrapolation.gain.high for extrapolation in extrapolations)
    assert covered >= 34  # 95 % of 40 are 38
    assert np.mean([extrapolation.gain.mean for extrapolation in extrapolations]) == pytest.approx(true, abs=0.004)
    tight = extrapolate(curve(0.001, 0.01, 3, 1)).gain
    wide = extrapolate(curve(0.01, 0.01, 3, 1)).gain
    assert tight.high - tight.low < 0.5 * (wide.high - wide.low)
    backtest = extrapolate(curve(0.0, 0.0, 1, 1)).backtest
    assert backtest is not None
    assert backtest.foretold.mean == pytest.approx(backtest.measured, abs=1e-3)


def test_noise_is_normal_and_a_function_of_row_and_column() -> None:
    noise = _normal(400, 50)
    for row, column in ((0, 0), (3, 7), (399, 49)):
        u, v = (float(uniform(0, row, column, part)[0]) for part in (0, 1))
        assert noise[row, column] == pytest.approx(math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v))
    np.testing.assert_array_equal(_normal(5, 3), noise[:5, :3])
    moments = [float((noise**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.1)


def test_intervals_do_not_change_with_numpy() -> None:
    """The noise uses no generator of numpy, whose streams may change."""
    scores = {
        share: {seed: TaskScore(0.9 - 0.1 * share**-0.5 + 0.002 * seed, np.full(50, 0.8), 500) for seed in range(3)}
        for share in (1 / 8, 1 / 4, 1 / 2, 1.0)
    }
    gain = extrapolate(scores).gain
    assert (gain.low, gain.high) == pytest.approx((0.026638300, 0.031665082), abs=1e-7)


def test_advice_follows_the_interval() -> None:
    def advice(low: float, high: float, backtest: Backtest | None = None) -> str:
        gain = Interval((low + high) / 2, low, high)
        return conclude_growth(Growth((1.0, 0.1, 0.5), (), gain, backtest))

    assert "expected to give +0.50 (+0.20 to +0.80) points of mAP" in advice(0.002, 0.008)
    assert "Stop" in advice(0.002, 0.008)
    assert "Continue" in advice(0.012, 0.03)
    unsure = advice(0.002, 0.03)
    assert "is uncertain" in unsure
    assert "Stop" not in unsure
    assert "is uncertain" in advice(0.002, 0.014)
    missed = Backtest(Interval(0.02, 0.01, 0.03), 0.05)
    assert "Caution" in advice(0.012, 0.03, missed)
    assert "Backtest:" in advice(0.012, 0.03, missed._replace(measured=0.02))


def test_growth_is_measured_on_nested_shares_with_a_control(
    painted: Any, cache: Path, tmp_path: Path, trained: list[Task]
) -> None:
    images, table = painted
    known = drop.partial(table, 0.67, seed=9)
    shares = (0.125, 0.25, 0.5, 1)
    result = grow(known, images, out=tmp_path, shares=shares, seeds=2, lr=0.05, config=CONFIG, cache=cache)
    assert len(trained) == 2 * 7
    assert {task.label_mask.name for task in trained} >= {"all", "12.5 %", "dense:share=0.125"}
    growth = result.growth
    assert growth is not None
    assert growth.gain.low <= growth.gain.mean <= growth.gain.high
    a, b, c = growth.law
    assert growth.gain.mean == pytest.approx(b * (1 - 2.0**-c))
    assert {(step.strategy, step.other_share, step.share) for step in result.gaps if step.is_step} == {
        (name, *pair) for name in ("dense", "partial") for pair in itertools.pairwise(shares)
    }
    assert a <= 1
    assert growth.curve[-1][0] == pytest.approx(2.0)
    assert growth.backtest is not None
    advice, control = result.conclusions
    assert advice.startswith("Doubling the labels is expected to give")
    assert control.startswith("All labels of some images, against some labels of every image: ")
    late = grow(known, images, out=tmp_path / "b", shares=shares, seeds=1, config=CONFIG, cache=cache, budget=1e-9)
    assert late.left_out == 7
    assert late.growth is not None
    assert math.isnan(late.growth.gain.mean)
    assert late.conclusions == ("Too few runs are finished for a curve: give it more time.",)
    with pytest.raises(UserError, match="three shares"):
        grow(known, images, out=tmp_path / "c", shares=(0.5, 1), config=CONFIG)


def test_the_curve_is_fitted_to_the_same_seeds_at_all_shares(
    painted: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget may end within a round of seeds; some seeds are easier than others."""
    images, table = painted
    options: dict[str, Any] = {"shares": (0.25, 0.5, 1), "lr": 0.05, "config": CONFIG, "cache": cache}
    single_seed = grow(table, images, out=tmp_path / "single_seed", seeds=1, **options)
    original, started = Bench.train, []

    def train(self: Bench, task: Task, **more: Any) -> Trained:
        started.append(task)
        if len(started) > 7:  # five of seed 0, two of seed 1
            raise OutOfTime
        return original(self, task, **more)

    monkeypatch.setattr(Bench, "train", train)
    cut = grow(table, images, out=tmp_path / "cut", seeds=2, **options)
    assert sorted(len(row.per_seed) for row in cut.rows) == [1, 1, 1, 2, 2]
    assert {row.seeds for row in cut.rows} == {1}
    assert cut.growth == single_seed.growth
    assert [row.mAP for row in cut.rows] == [row.mAP for row in single_seed.rows]
    assert any("further finished seeds are listed and not used" in line for line in cut.protocol)
    assert any("too narrow" in line for line in cut.protocol), "only one seed counts"


def test_no_conclusion_without_a_finished_run(tmp_path: Path) -> None:
    write_folder(tmp_path, 40, size=32)
    for words in (["--grow"], []):
        out = tmp_path / f"out{len(words)}"
        result = run(
            "study", tmp_path / "train.csv", tmp_path / "images", *TINY, *words, "--out", out, "--budget", "0.001s"
        )
        assert result.exit_code == 2, result.output
        assert "the time limit was reached before the first run was finished" in result.stderr
        assert "To resume:" in result.stdout
        for word in ("cannot be told", "Control", "Wrote"):
            assert word not in result.stdout


@pytest.mark.filterwarnings("ignore:learning from unknown entries never starts")  # in one epoch
def test_the_command_study(tmp_path: Path) -> None:
    write_folder(tmp_path, 40, size=32)
    data = [tmp_path / "train.csv", tmp_path / "images"]
    result = run("study", *data, *TINY, "--budgets", "0.5,1", "--out", tmp_path / "out", "--method", "auto")
    assert result.exit_code == 0, result.output
    assert f"halflabel report {tmp_path / 'out'}" in result.stdout
    text = " ".join(result.stdout.split())
    for part in ("partial", "dense", "noisy+", "mAP", "to the best", "against all labels of some images", "auto:"):
        assert part in text
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["conclusions"]
    grown = run("study", *data, *TINY, "--grow", "--budgets", "0.25,0.5,1", "--out", tmp_path / "grow")
    assert grown.exit_code == 0, grown.output
    assert "Doubling the labels is expected to give" in grown.stdout
    assert "too narrow" in grown.stdout  # one seed
    for words, message in (
        (["--budgets", "half"], "--budgets 0.1,0.3,1"),
        (["--budgets", "2"], "not in (0, 1]"),
        (["--method", "bcee"], "did you mean"),
        (["--set", "lr=0"], "cannot be used"),
        (["--set", "batch_size=2"], "batch size was 32, is 2"),
    ):
        refused = run("study", *data, *TINY, "--out", tmp_path / "out", *words)
        assert refused.exit_code == 2, refused.output
        assert message in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.output
