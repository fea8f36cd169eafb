"""Whole comparisons on small images: complete, resumable, with a correct protocol."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_scenes import scenes, write_folder

from halflabel import metrics
from halflabel.comparison.bench import Bench, Trained
from halflabel.comparison.grid import Candidate, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.result import Trials
from halflabel.comparison.store import Store
from halflabel.errors import UserError
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.methods import base as methods
from halflabel.methods.base import Method, Recipe
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system.reporter import Reporter
from halflabel.types import Batch, Targets

PAINTED = ["red", "green", "blue"]


def paint(count: int = 90) -> tuple[torch.Tensor, Table]:
    """Pictures whose red, green and blue are bright or not: labels that a head on any network can learn."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(count, 3))
    pictures = np.clip(128 + 60 * labels[:, :, None, None] + rng.normal(0, 40, (count, 3, 32, 32)), 0, 255)
    table = Table.from_dense(labels, [f"{i:03d}" for i in range(count)], PAINTED)
    return torch.from_numpy(pictures.astype(np.uint8)), table


class Swapped(Relabeler):
    """Charges for the opposite of what is known."""

    def forward(self, batch: Batch, logits: torch.Tensor, epoch: int) -> Targets:
        return Targets((batch.labels < 0).float(), (batch.labels > 0).float())


class Breaks(Method):
    def step(self, model: Any, batch: Batch, epoch: int) -> torch.Tensor:
        raise RuntimeError("the roof is leaking")


class NotFinite(Method):
    def step(self, model: Any, batch: Batch, epoch: int) -> torch.Tensor:
        return model(batch.views[0]).logits.sum() * math.nan


@pytest.fixture(autouse=True)
def odd_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register three broken methods for the duration of a test."""
    methods.recipes()
    built = {
        "swapped": lambda: Method(BCE(), Swapped()),
        "breaks": lambda: Breaks(BCE()),
        "not-finite": lambda: NotFinite(BCE()),
    }
    for name, build in built.items():
        recipe = Recipe(name, build, {}, methods.REGIMES, "none", lr=1e-2, weight_decay=0.0)
        monkeypatch.setitem(methods._REGISTRY, name, recipe)


def parts_of(out: Path) -> dict[str, str]:
    with open(out / "split.csv", newline="", encoding="utf-8") as file:
        return {row["image"]: row["part"] for row in csv.DictReader(file)}


def same(first: Trials, second: Trials) -> bool:
    """Equal in all but time and memory."""

    def comparable(comparison: Trials) -> Any:
        content = comparison.to_json()
        return [{k: v for k, v in row.items() if k != "seconds"} for row in content["rows"]], {
            k: v for k, v in content.items() if k not in ("rows", "memory_is")
        }

    return bool(comparable(first) == comparable(second))


def test_the_grid_is_complete_and_written(go: Any, tmp_path: Path, trained: list[Task]) -> None:
    fitted = go(shares=[0.5, 1])
    cells = Counter((task.candidate.name, task.label_mask.name, task.seed) for task in trained)
    assert cells == Counter((m, h, s) for m in ("bn-bce", "em") for h in ("50 %", "all") for s in (0, 1))
    assert {(row.labels, row.method, row.seeds) for row in fitted.rows} == {
        (labels, name, 2) for labels in ("50 %", "all") for name in ("bn-bce", "em")
    }
    out = tmp_path / "out"
    with open(out / "comparison.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    content = json.loads((out / "comparison.json").read_text())
    assert len(lines) == len(content["rows"]) == 4
    for line, row, stored in zip(lines, fitted.rows, content["rows"], strict=True):
        assert float(line["mAP"]) == stored["mAP"] == row.mAP == pytest.approx(np.mean(row.per_seed))
        assert float(line["mAP_low"]) <= row.mAP <= float(line["mAP_high"])
        assert line["selected_on"] == "known labels"
        assert float(line["seconds"]) > 0
        assert line["method"] == row.method
    assert content["protocol"] == list(fitted.protocol)
    assert [row.known for row in fitted.rows] == pytest.approx([0.5, 0.5, 1, 1], abs=0.01)


def test_the_table_matches_the_stored_scores(go: Any, digits: Any, tmp_path: Path) -> None:
    fitted = go(names=["em"], seeds=2)
    store = Store(tmp_path / "out")
    part = parts_of(tmp_path / "out")
    test = digits.table.subset(np.flatnonzero([part[name] == "test" for name in digits.table.images]))
    assert 0.15 * len(digits.table) < len(test) < 0.25 * len(digits.table)
    candidate = Candidate.parse("em")
    for seed, value in enumerate(fitted.rows[0].per_seed):
        logits = store.logits(Task(candidate, LabelMask(), seed, candidate.lr, ()))
        assert logits.dtype == np.float32
        assert metrics.mean_average_precision(logits, test.dense()) == pytest.approx(value, abs=1e-12)


def test_test_images_are_never_learned_from_and_keep_all_labels(
    go: Any, digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halflabel.fitting import fit as fitting

    fits: list[tuple[list[str], list[str], Table]] = []
    original = fitting.fit_epochs

    def fit(model: Any, method: Any, source: Any, table: Table, settings: Any, **more: Any) -> Any:
        assert list(source.names) == list(table.images)
        fits.append((list(source.names), list(more["validation"].names), table))
        labels = more["judge"].labels
        # Only labels that the mask keeps are used for selection.
        assert int((labels != 0).sum()) <= 0.35 * labels.numel()
        return original(model, method, source, table, settings, **more)

    monkeypatch.setattr(fitting, "fit_epochs", fit)
    fitted = go(shares=[0.3], lr=0.01)
    assert len(fits) == 4
    parts = parts_of(tmp_path / "out")
    rest, test = ({name for name, part in parts.items() if part == kind} for kind in ("train", "test"))
    for training, validation, table in fits:
        assert not set(training) & set(validation)
        assert set(training) | set(validation) == rest
        assert table.known == pytest.approx(0.3 * len(table) * 10, rel=0.02)
    # The same seed gives all methods the same labels, another seed others.
    assert fits[0][2] == fits[1][2] != fits[2][2] == fits[3][2]
    assert rest | test == set(digits.table.images)
    assert f"{10 * len(test)} of {10 * len(test)} entries known" in fitted.protocol[0]


def test_the_search_is_stored_and_its_choice_is_used(go: Any, tmp_path: Path, trained: list[Task]) -> None:
    fitted = go(names=["em"], search="small", shares=[0.5])
    (row,) = fitted.rows
    assert (row.tried, row.to_try) == (6, 6)
    assert len(trained) == 7
    stored = [json.loads(path.read_text()) for path in (tmp_path / "out" / "tasks").glob("*.json")]
    first = [task for task in stored if task["seed"] == 0]
    best = max(task["outcome"]["select"] for task in first)
    chosen = {(task["lr"], task["options"].get("alpha", 0.2)) for task in first if task["outcome"]["select"] == best}
    assert (row.lr, row.options["alpha"]) in chosen
    (second,) = [task for task in stored if task["seed"] == 1]
    assert (second["lr"], second["options"].get("alpha", 0.2)) == (row.lr, row.options["alpha"])


def test_a_resumed_comparison_equals_an_uninterrupted_one(
    go: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uninterrupted = go("uninterrupted", shares=[0.5, 1])
    original = Bench.train
    calls: list[str] = []

    def train(self: Bench, task: Task, **more: Any) -> Trained:
        calls.append(task.key)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, task, **more)

    monkeypatch.setattr(Bench, "train", train)
    with pytest.raises(KeyboardInterrupt):
        go(shares=[0.5, 1])
    assert len(list((tmp_path / "out" / "tasks").glob("*.json"))) == 3
    assert same(go(shares=[0.5, 1]), uninterrupted)
    assert len(calls) == 4 + 5
    assert Counter(calls).most_common(1) == [(calls[3], 2)]
    assert same(go(shares=[0.5, 1]), uninterrupted)
    assert len(calls) == 9, "a finished comparison trains nothing"


def test_a_damaged_task_is_run_again(go: Any, tmp_path: Path, trained: list[Task]) -> None:
    expected = go()
    scores, records = (sorted((tmp_path / "out" / "tasks").glob(pattern)) for pattern in ("*.npy", "*.json"))
    content = scores[0].read_bytes()
    scores[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    records[-1].write_text("{")
    trained.clear()
    assert same(go(), expected)
    assert len(trained) == 2


def test_another_configuration_is_refused_and_force_starts_again(
    go: Any, digits: Any, config: Config, trained: list[Task]
) -> None:
    go()
    longer = dataclasses.replace(config, epochs=3)
    with pytest.raises(UserError, match="epochs was 2, is 3") as caught:
        go(config=longer)
    assert "‹force" in caught.value.fix
    fewer = digits.table.subset(np.arange(50))
    with pytest.raises(UserError, match="the labels changed"):
        go(table=fewer, images=digits.images[:50])
    trained.clear()
    go(config=longer, force=True)
    assert len(trained) == 4


def test_a_folder_with_other_files_is_refused(go: Any, tmp_path: Path) -> None:
    for name, content in (("config.json", '{"mine": 1}'), ("config.yaml", "method: an")):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(content)
        (tmp_path / name / "tasks").mkdir()
        with pytest.raises(UserError, match="holds"):
            go(name, force=True)
        assert (tmp_path / name / "tasks").is_dir()
        assert (tmp_path / name / name).read_text() == content
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        go("file")


def test_failed_runs_are_reported_and_the_others_continue(go: Any, trained: list[Task]) -> None:
    fitted = go(names=["breaks", "em", "not-finite", "bce"], shares=[1], protocols=["single-positive"], seeds=1)
    assert {(row.labels, row.method) for row in fitted.rows} == {
        ("single-positive", "em"), ("all", "em"), ("all", "bce"),
    }  # fmt: skip
    reasons = {(failure.labels, failure.method): failure.reason for failure in fitted.failures}
    assert len(fitted.failures) == 5
    assert "RuntimeError: the roof is leaking (test_compare.py" in reasons["all", "breaks"]
    assert "the loss is not finite" in reasons["all", "not-finite"]
    assert "cannot learn from single-positive labels" in reasons["single-positive", "bce"]
    # What failed is tried again next time, what cannot work is not tried at all.
    trained.clear()
    repeated = go(names=["breaks", "em", "not-finite", "bce"], shares=[1], protocols=["single-positive"], seeds=1)
    assert {task.candidate.name for task in trained} == {"breaks", "not-finite"}
    assert same(fitted, repeated)


def test_a_test_set_without_negatives_is_refused(go: Any, digits: Any, tmp_path: Path) -> None:
    positives = Table.from_dense(np.maximum(digits.table.dense(), 0), digits.table.images, digits.table.classes)
    with pytest.raises(UserError, match=r"no label is known to be absent among the \d+ test images") as caught:
        go(table=positives)
    assert "‹test" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_missing_or_unreadable_images_are_refused(go: Any, tmp_path: Path, trained: list[Task]) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        go(images=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()
    broken = tmp_path / "broken"
    write_folder(broken, 60, size=32)
    for path in list((broken / "images").iterdir())[:30]:
        path.write_bytes(b"no picture")
    with pytest.raises(UserError, match="cannot be read, over the limit"):
        go(images=broken / "images", cache=tmp_path / "cache")
    assert len(trained) == 1, "the others would fail for the same reason"
    with open(tmp_path / "out" / "bad_images.csv", newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["reason"]


def test_unreadable_test_images_are_left_out_and_reported(go: Any, tmp_path: Path, config: Config) -> None:
    go("first")
    test = [name for name, part in parts_of(tmp_path / "first").items() if part == "test"]
    write_folder(tmp_path / "some", 60, size=32)
    (tmp_path / "some" / "images" / f"{test[0]}.png").write_bytes(b"no picture")
    patient = dataclasses.replace(config, max_bad=0.5)
    fitted = go(images=tmp_path / "some" / "images", cache=tmp_path / "cache", config=patient)
    assert "1 test images could not be read and are left out." in fitted.protocol
    assert len(fitted.rows) == 2


def test_labels_of_other_images_can_be_the_test_set(go: Any, digits: Any) -> None:
    samples = scenes(20, size=32, split="test")
    test = Table.from_dense(samples.labels, samples.names, samples.classes).subset(classes=np.arange(10)[::-1])
    fitted = go(test=test, test_images=samples.images)
    assert fitted.protocol[0].startswith("Test: 20 images, with separate labels")
    with pytest.raises(UserError, match="come without images"):
        go("b", test=test)
    with pytest.raises(UserError, match="no class '0'"):
        go("b", test=test.subset(classes=np.arange(9)), test_images=samples.images)
    with pytest.raises(UserError, match="3 test images are also training images"):
        go("b", test=digits.table.subset(np.arange(3)), test_images=digits.images[:3])


def test_classes_without_known_negatives_are_left_out(go: Any, digits: Any) -> None:
    labels = digits.table.dense().copy()
    labels[:, 3] = np.maximum(labels[:, 3], 0)  # never known to be absent: its average precision would always be 1
    fitted = go(table=Table.from_dense(labels, digits.table.images, digits.table.classes), names=["bn-bce"], seeds=1)
    assert "mAP over the 9 of 10 classes" in fitted.protocol[0]
    assert fitted.rows[0].mAP < 0.9


def test_equal_methods_do_not_differ_and_a_worse_one_does(go: Any, config: Config) -> None:
    pictures, table = paint()
    longer = dataclasses.replace(config, epochs=8, keep="last")
    fitted = go(table=table, images=pictures, names=["swapped", "em", "em:alpha=0.2"], lr=1.0, config=longer, seeds=3)
    first, second, last = fitted.rows
    assert {first.method, second.method} == {"em", "em:alpha=0.2"}
    assert first.per_seed == second.per_seed
    for row in (first, second):
        assert (row.behind, row.behind_low, row.behind_high) == (0, 0, 0)
    assert last.method == "swapped"
    assert last.behind_low <= last.behind <= last.behind_high < 0
    assert last.behind == pytest.approx(last.mAP - first.mAP)
    assert first.mAP > 0.8
    assert last.seed_sd == pytest.approx(np.std(last.per_seed, ddof=1))


@pytest.mark.filterwarnings("ignore:learning from unknown entries never starts")  # in so few epochs
def test_auto_reports_its_reasons(go: Any) -> None:
    messages: list[str] = []
    fitted = go(names="auto", shares=[0.3], seeds=1, reporter=Reporter(message=messages.append))
    assert 4 <= len(fitted.rows) <= 6
    assert set(fitted.chosen_by) == {row.method for row in fitted.rows}
    assert all(any(line == f"auto: {name}: {why}" for line in messages) for name, why in fitted.chosen_by.items())
    assert not fitted.failures


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "0 seeds"),
        ({"search": "large"}, "no search"),
        ({"test_share": 1.0}, "test share"),
        ({"names": []}, "no method is named"),
        ({"config": Config(held_out=0.0)}, "without validation"),
        ({"budget": "soon"}, "not a duration"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    go: Any, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        go(**options)
    assert not (tmp_path / "out").exists()


def test_the_head_of_a_tuned_network_is_fitted_again_as_by_train(go: Any, config: Config) -> None:
    # With the rate below the tuned head learns next to nothing.
    pictures, table = paint()
    scores = {}
    for fit in ("auto", "batches"):
        tuned = dataclasses.replace(config, tune="all", fit=fit, epochs=1)
        comparison = go(fit, names=["bn-bce"], lr=1e-7, seeds=1, config=tuned, table=table, images=pictures)
        scores[fit] = comparison.rows[0].mAP
    assert scores["auto"] > 0.95
    assert scores["auto"] > scores["batches"] + 0.1


def test_a_tuned_network_is_resumed_within_a_run(go: Any, config: Config, tmp_path: Path) -> None:
    config = dataclasses.replace(config, tune="all")
    uninterrupted = go("uninterrupted", names=["em"], seeds=1, config=config)
    ended: list[int] = []

    class Stops(Callback):
        def on_epoch_end(self, log: EpochLog) -> None:
            ended.append(log["epoch"])
            if len(ended) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(names=["em"], seeds=1, config=config, reporter=Reporter(callback=Stops()))
    assert any((tmp_path / "out" / "unfinished").iterdir())
    assert same(go(names=["em"], seeds=1, config=config, reporter=Reporter(callback=Stops())), uninterrupted)
    assert ended == [1, 2], "the first epoch is not trained again"
    assert not any((tmp_path / "out" / "unfinished").iterdir())
