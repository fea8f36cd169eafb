"""`halflabel reproduce`: published tables run again on small data in the public layouts."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper_examples import figure, run

import halflabel.features.backbones
import halflabel.fitting.loop
from halflabel import metrics
from halflabel.comparison.bench import Bench, Trained
from halflabel.comparison.grid import Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.papers.datasets import open_dataset
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Overrides
from halflabel.papers.spec import Condition, PaperMeasure, PaperTable, PaperTraining, TableRow
from halflabel.papers.tables import TABLES

TINY = Overrides(backbone="tiny", size=32, epochs=2, device="cpu", workers=0)
WORDS = ["--backbone", "tiny", "--set", "size=32", "--set", "epochs=2", "--set", "device=cpu", "--set", "workers=0"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that are trained, in order."""
    tasks: list[Task] = []
    original = Bench.train

    def train(self: Bench, task: Task, **more: Any) -> Trained:
        tasks.append(task)
        return original(self, task, **more)

    monkeypatch.setattr(Bench, "train", train)
    return tasks


def test_s5_on_the_command_line_and_resumed(voc2012: Path, tmp_path: Path, trained: list[Task]) -> None:
    words = ["reproduce", "S5-table", voc2012, "--rows", "AN loss,All P.", "--seeds", "2", "--out", tmp_path / "out"]
    result = run(*words, *WORDS, "--tune", "head")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "85.89±0.38" in text
    assert "not available: COCO:" in text  # no condition was asked for by name, so the others are left out
    assert "backbone tiny instead of resnet50.tv_in1k" in text
    assert "the backbone is frozen" in text
    assert "epochs 2 instead of 10" in text
    assert "left open by the paper: everything" in text
    assert [(task.candidate.name, task.label_mask.name, task.seed) for task in trained] == [
        ("All P. & All N.: BCE loss", "all", 0),
        ("AN loss", "single-positive", 0),
        ("All P. & All N.: BCE loss", "all", 1),
        ("AN loss", "single-positive", 1),
    ]
    with open(tmp_path / "out" / "reproduction.csv", newline="", encoding="utf-8") as file:
        lines = {(line["row"], line["condition"]): line for line in csv.DictReader(file)}
    line = lines["AN loss", "VOC"]
    assert (line["published"], line["published_spread"], line["seeds"]) == ("85.89", "0.38", "2")
    assert float(line["difference"]) == pytest.approx(float(line["ours"]) - 85.89)
    assert float(line["ours"]) == pytest.approx(np.mean([float(value) for value in line["per_seed"].split()]), abs=1e-3)
    content = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert content["figures"][0]["ours"] is not None
    assert "NUS" in content["missing"]
    trained.clear()
    resumed = run(*words, *WORDS, "--tune", "head")
    assert resumed.exit_code == 0
    assert not trained
    refused = run(*words, *(word.replace("epochs=2", "epochs=3") for word in WORDS), "--tune", "head")
    assert refused.exit_code == 2
    assert "epochs was 2, is 3" in " ".join(refused.stderr.split())
    assert "--force" in refused.stderr


def test_s5_measures_as_the_released_code_does(voc2012: Path, tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    """Whole network: flip only, a fifth held out with all labels, batch size, rate and patience as released."""
    result = reproduce("S5-table", voc2012, out=tmp_path, rows=["EM loss"], conditions=["VOC"], overrides=TINY)
    assert [cell.row for cell in result.figures] == ["EM loss"]
    (fit,) = [fit for fit in fits if fit["source"].names is not None][:1]
    full = open_dataset("voc2012", voc2012, difficult="absent")
    settings = fit["settings"]
    assert (settings.optimizer, settings.batch_size, settings.lr, settings.patience) == ("adam", 8, 1e-5, 1)
    assert settings.schedule == "constant"
    weak = fit["source"].whole.whole.views["weak"]
    assert (weak.least, weak.flip, weak.size) == (1.0, 0.5, 32)
    inside, outside = list(fit["table"].images), list(fit["validation"].names)
    assert set(inside) | set(outside) == set(full.train.images) - {"2008_000000"}  # which shows nothing
    assert len(outside) == pytest.approx(0.2 * len(full.train), abs=1)
    single = drop.single_positive(full.train, seed=0)
    assert fit["table"] == single.subset(single.images.index(fit["table"].images.array))
    truth = full.train.subset(full.train.images.index(fit["validation"].names.array)).dense()
    assert fit["judge"].labels.numpy().tolist() == truth.tolist()
    # The figure is the mean over all classes of the AP, a class without positive counting as 0.
    logits = torch.from_numpy(np.load(next(tmp_path.glob("*/tasks/*.npy"))))
    test = full.splits["test"].with_positives().labels
    assert len(test) == len(full.test) - 1
    per_class = metrics.average_precision(logits, torch.from_numpy(test.dense()))
    assert result.figures[0].ours == pytest.approx(100 * float(torch.nan_to_num(per_class).mean()))
    assert result.figures[0].published == 89.09
    assert not any("frozen" in line for line in result.differs)


def test_s2_ablation_without_validation(coco2014: Path, tmp_path: Path, fits: list[dict[str, Any]]) -> None:
    """Last epoch on all images; the first row freezes the backbone; four measures; the paper's relabelling epochs."""
    result = reproduce("S2-table4", coco2014, out=tmp_path, rows=["BCE", "not fine-tuned"], overrides=TINY)
    assert {cell.row for cell in result.figures} == {"BCE", "BCE, not fine-tuned"}
    assert all(fit["validation"] is None and fit["judge"] is None for fit in fits)
    assert all(len(fit["table"]) == 50 for fit in fits)
    assert [any(name.startswith("backbone") for name in fit["weights"]) for fit in fits] == [False, True]
    assert figure(result, "BCE", "MAP").published == 72.15
    assert figure(result, "BCE", "0-1 exact match").published == 22.04
    assert not math.isnan(figure(result, "BCE", "Micro-F1").ours)
    assert "the last epoch; no epoch is selected" in " ".join(result.protocol["10 %"])
    assert "labels that training sees: partial:exact=True:share=0.1" in " ".join(result.protocol["10 %"])
    assert not any("the same experiment" in line for line in result.differs)
    frozen = Overrides(backbone="tiny", size=32, epochs=1, tune="head", device="cpu", workers=0)
    alike = reproduce("S2-table4", coco2014, out=tmp_path / "b", rows=["BCE", "not fine-tuned"], overrides=frozen)
    assert "the rows BCE, not fine-tuned and BCE are the same experiment in this run" in alike.differs
    assert len(fits) == 3  # so it is run once
    assert [fit["settings"].optimizer for fit in fits] == ["sgd", "sgd", "adamw"]


def test_s2_relabelling_is_measured_against_the_truth(
    voc2007: Path, tmp_path: Path, fits: list[dict[str, Any]]
) -> None:
    rows = ["[a] score threshold θ=2", "positive only"]
    overrides = Overrides(backbone="tiny", size=32, epochs=4, tune="head", lr=0.1, device="cpu", workers=0)
    result = reproduce("S2-table2", voc2007, out=tmp_path, rows=rows, overrides=overrides)
    # The row that figures are relative to comes along.
    assert list(dict.fromkeys(scores.row for scores in result.figures)) == [
        "no relabelling",
        "[a] score threshold θ=2",
        "[c] positive only θ=5",
    ]
    assert "[a] score threshold θ=2; [c] positive only θ=5: relabel_at 2,3 instead of 10,15" in result.differs
    base, relabelled = (figure(result, row, "MAP") for row in ("no relabelling", "[a] score threshold θ=2"))
    assert relabelled.relative_to == "no relabelling"
    assert math.isnan(base.published)
    logits = {path.name: torch.from_numpy(np.load(path)) for path in tmp_path.glob("*/tasks/*.npy")}
    test = open_dataset("voc2007", voc2007, train="train", test="val").test.dense()
    maps = sorted(100 * metrics.mean_average_precision(scores, test) for scores in logits.values())
    assert any(base.ours + relabelled.ours == pytest.approx(value) for value in maps)
    share = figure(result, "[a] score threshold θ=2", "label prop.")
    assert share.published == 95.29
    assert 10 <= share.ours <= 100
    assert math.isnan(figure(result, "no relabelling", "label prop.").ours)
    assert all(fit["truth"].known > 5 * fit["table"].known for fit in fits)


def test_s1_validates_on_its_own_split_and_groups_classes(
    open_images: Path, tmp_path: Path, fits: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES["S1-table1"]
    rows = tuple(row.model_copy(update={"method": None} if row.name == "CNN-RNN" else {}) for row in table.rows)
    monkeypatch.setitem(TABLES, "S1-table1", table.model_copy(update={"rows": rows}))
    result = reproduce("S1-table1", open_images, out=tmp_path / "out", rows=["logistic", "CNN-RNN"], overrides=TINY)
    opened = open_dataset("open-images", open_images)
    assert len(fits) == 2  # end to end and with fixed features
    for fit in fits:
        assert len(fit["table"]) == len(opened.train)
        assert list(fit["validation"].names) == list(opened.splits["validation"].labels.images)
        assert fit["judge"].labels.numpy().tolist() == opened.splits["validation"].labels.dense().tolist()
    groups = [figure(result, "Logistic", f"Group {number}", "end to end") for number in range(1, 6)]
    all_classes = figure(result, "Logistic", "All classes", "end to end")
    # Ten classes: five groups of two, so that the mean of the groups is the mean of all.
    assert np.mean([group.ours for group in groups]) == pytest.approx(all_classes.ours)
    assert all_classes.published == 75.85
    assert figure(result, "Logistic", "All classes", "fixed features").difference != all_classes.difference
    assert result.skipped == ("CNN-RNN: only the printed numbers are available",)
    skipped = figure(result, "CNN-RNN", "All classes", "end to end")
    assert (skipped.published, skipped.runs) == (75.16, 0)
    assert math.isnan(skipped.ours)
    assert skipped.note.startswith("skipped")


@pytest.mark.slow
def test_s3_random_weights_trials_and_noise(
    cifar10: Path, tmp_path: Path, fits: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    original = halflabel.features.backbones.build_backbone

    def build(*words: Any, **more: Any) -> Any:
        calls.append(more["pretrained"])
        return original(*words, **more)

    monkeypatch.setattr("halflabel.fitting.assembly.build_backbone", build)
    monkeypatch.setitem(TABLES, "S3-table1", _small_cifar(TABLES["S3-table1"]))
    monkeypatch.setitem(TABLES, "S3-noise", _small_cifar(TABLES["S3-noise"]))
    overrides = Overrides(backbone="tiny", size=32, epochs=1, batch_size=8, device="cpu", workers=0)
    result = reproduce(
        "S3-table1", cifar10, out=tmp_path / "a", rows=["softmax"], conditions=["random init."], overrides=overrides
    )
    (softmax,) = result.figures
    assert calls == [False] * 5  # five batches, each a trial
    assert (softmax.published, softmax.published_spread, softmax.runs, softmax.of_runs) == (51.46, 1.1, 5, 5)
    values = []
    for place in sorted((tmp_path / "a").glob("*/tasks/*.npy")):
        logits, labels = np.load(place), np.arange(12) % 3
        values.append(100 * float((logits.argmax(1) == labels).mean()))
    assert softmax.ours == pytest.approx(np.mean(values))
    fits.clear()
    noise = reproduce(
        "S3-noise",
        cifar10,
        out=tmp_path / "b",
        rows=["RML-CNN"],
        conditions=["CIFAR-10, 50 % corrupted"],
        overrides=overrides,
    )
    assert not math.isnan(figure(noise, "RML-CNN", "Accuracy").ours)
    # The figure of the paper has no numbers, and the other measures are for images of several classes.
    assert all(math.isnan(cell.published) for cell in noise.figures)
    assert math.isnan(figure(noise, "RML-CNN", "mAP").ours)
    tables = [open_dataset("cifar10", cifar10, unlabelled=False, batch=batch).train for batch in range(1, 6)]
    assert any(fit["table"] != clean for fit, clean in zip(fits, tables, strict=True))
    for fit, clean in zip(fits, tables, strict=True):
        assert (fit["table"].dense() > 0).sum(0).tolist() == (clean.dense() > 0).sum(0).tolist()


def _small_cifar(table: PaperTable) -> PaperTable:
    """The same table with masks for a few images per batch instead of 10,000; those of S3-noise hide none."""

    def small(condition: Condition) -> Condition:
        if condition.dataset != "cifar10":
            return condition
        if not condition.dataset_options:
            return condition.model_copy(update={"masks": (LabelMask("semi-supervised", (("number", 6),)),)})
        masks = tuple(LabelMask(mask.protocol, (*mask.options, ("labelled", 1.0))) for mask in condition.masks)
        return condition.model_copy(update={"masks": masks})

    conditions = tuple(map(small, table.conditions))
    return table.model_copy(update={"conditions": conditions})


def test_a_mean_needs_all_its_shares(coco2014: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over shares needs every share; what exceeds the budget is left for the next call."""
    table = TABLES["S4-table1"]
    config = {"backbone": "tiny", "size": 32, "tune": "head", "epochs": 1, "batch_size": 16}
    masks = ("partial:share=0.3", "partial:share=0.6")
    condition = Condition(name="MS-COCO", dataset="coco2014", training=PaperTraining(config=config), masks=masks)
    rows = (TableRow(name="CSL", method="bn-bce"), TableRow(name="Ours", method="bce"))
    small = table.model_copy(
        update={"conditions": (condition,), "measures": (PaperMeasure(name="mAP", metric="mAP"),), "rows": rows}
    )
    monkeypatch.setitem(TABLES, "S4-table1", small)
    overrides = Overrides(device="cpu", workers=0)
    original = Bench.train
    trained: list[Task] = []

    def train(self: Bench, task: Task, **more: Any) -> Trained:
        if len(trained) == 3:
            raise UserError("the roof is leaking", "wait")
        trained.append(task)
        return original(self, task, **more)

    monkeypatch.setattr(Bench, "train", train)
    result = reproduce("S4-table1", coco2014, out=tmp_path, overrides=overrides)
    first, second = result.figures
    assert (first.runs, first.published) == (2, 76.3)
    assert not math.isnan(first.ours)
    assert (second.runs, second.of_runs, second.note) == (1, 2, "failed")
    assert math.isnan(second.ours)
    assert result.failures[0].startswith("Ours, MS-COCO, 60 %, seed 0: ")
    assert "the roof is leaking" in result.failures[0]
    assert "labels that training sees: 30 %, 60 %" in result.protocol["MS-COCO"]
    trained.clear()
    late = reproduce("S4-table1", coco2014, out=tmp_path, overrides=overrides, budget=1e-9)
    assert late.left_out == 1
    assert late.figures[1].note == "1 of 2 runs finished"
    complete = reproduce("S4-table1", coco2014, out=tmp_path, overrides=overrides)
    assert len(trained) == 1  # only what had failed
    assert complete.figures[0] == first
    assert not math.isnan(complete.figures[1].ours)


def test_a_missing_data_set_is_reported_with_its_layout(voc2012: Path, tmp_path: Path) -> None:
    result = run("reproduce", "S5-table", voc2012, "--conditions", "COCO", *WORDS, "--out", tmp_path / "out")
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert "annotations/instances_train2014.json" in text
    assert "https://cocodataset.org" in text
    assert not (tmp_path / "out").exists()
    for words, message in (
        (["S5-table9", voc2012], "use one of: S1-table1"),
        (["S5-table", tmp_path], "VOCdevkit"),
        (["S5-table", voc2012, "--rows", "ANN"], "use one of: All P. & All N.: BCE loss; "),
        (["S5-table", voc2012, "--conditions", "VOC 2007"], "use one of: VOC; COCO"),
    ):
        refused = run("reproduce", *words, *WORDS, "--out", tmp_path / "out")
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.output


def test_location_of_the_feature_cache(voc2012: Path, tmp_path: Path) -> None:
    """Next to --out, shared with other tables, unless --cache names a folder."""
    words = ["reproduce", "S5-table", voc2012, "--rows", "AN loss", "--conditions", "VOC", *WORDS, "--tune", "head"]
    out, cache = tmp_path / "a" / "out", tmp_path / "other"
    first = run(*words, "--out", out).stdout
    assert f"Cached features and starting models, also for other tables: {tmp_path / 'a' / 'cache'}\n" in first
    assert list((tmp_path / "a" / "cache").glob("*/values.npy"))
    assert run(*words, "--out", tmp_path / "c" / "out", "--cache", cache).exit_code == 0
    assert list(cache.glob("*/values.npy"))
    assert not (tmp_path / "c" / "cache").exists()
    (tmp_path / "file").touch()
    refused = run(*words, "--out", out, "--cache", tmp_path / "file")
    assert refused.exit_code == 2
    assert "is a file" in refused.stderr


def test_missing_photos_are_left_out_and_counted(voc2012: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(voc2012, tmp_path / "data" / "voc2012")  # a folder of folders by name
    for path in sorted((tmp_path / "data").rglob("*.jpg"))[:3]:
        path.unlink()
    overrides = Overrides(backbone="tiny", size=32, epochs=1, tune="head", device="cpu", workers=0)
    result = reproduce(
        "S5-table", tmp_path / "data", out=tmp_path / "out", rows=["an"], conditions=["voc"], overrides=overrides
    )
    assert "2 of 49 train images are not in the folder" in result.differs
    assert "50 train images of voc2012 instead of 5717" in result.differs
    assert "47 training images" in " ".join(result.protocol["VOC"])
