"""Evaluation: known entries only, without unreadable images, NaN where nothing is measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from halflabel.evaluation.decisions import fit_decisions
from halflabel.evaluation.evaluate import ValidationMetric, evaluate, measure
from halflabel.evaluation.registry import has_too_few
from halflabel.evaluation.scores import Scores
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

N, C = 60, 4
CLASSES = Names(["ant", "bee", "cat", "dog"])


def case() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 0, 1], size=(N, C)).astype(np.int8)
    logits = rng.normal(size=(N, C)) + labels
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


def by_scikit_learn(logits: Tensor, labels: Tensor) -> list[float]:
    results = []
    for c in range(labels.shape[1]):
        known = labels[:, c] != 0
        results.append(float(average_precision_score(labels[known, c] > 0, logits[known, c])))
    return results


def test_per_class_and_overall_are_those_of_the_known_entries() -> None:
    logits, labels = case()
    evaluation = measure(logits, labels, CLASSES)
    expected = by_scikit_learn(logits, labels)
    assert [row["AP"] for row in evaluation.per_class] == pytest.approx(expected)
    assert evaluation.overall["mAP"] == pytest.approx(np.mean(expected))
    assert evaluation.overall["images"] == N
    for c, row in enumerate(evaluation.per_class):
        assert row["class"] == CLASSES[c]
        assert row["present"] == int((labels[:, c] > 0).sum())
        assert row["absent"] == int((labels[:, c] < 0).sum())
        assert row["AP_low"] <= row["AP"] <= row["AP_high"]
        decided, known = logits[:, c] >= 0, labels[:, c] != 0
        hits = int((decided & (labels[:, c] > 0)).sum())
        assert row["precision"] == pytest.approx(hits / int((decided & known).sum()))
        assert row["recall"] == pytest.approx(hits / row["present"])
    assert evaluation.overall["mAP_low"] < evaluation.overall["mAP"] < evaluation.overall["mAP_high"]
    assert f"{int((labels != 0).sum())} of {N * C} entries known" in evaluation.protocol
    assert "4 of 4 classes have a known positive" in evaluation.protocol


def test_unreadable_images_are_left_out_and_counted() -> None:
    logits, labels = case()
    more = torch.cat([logits[:5], torch.full((2, C), math.nan), logits[5:]])
    more_labels = torch.cat([labels[:5], torch.ones(2, C, dtype=torch.int8), labels[5:]])
    actual, plain = measure(more, more_labels, CLASSES), measure(logits, labels, CLASSES)
    assert actual.overall == plain.overall
    assert actual.per_class == plain.per_class
    assert actual.protocol == plain.protocol + f"; 2 of these {N + 2} images could not be read and are left out"


def has_no_ap(row: dict[str, Any]) -> bool:
    return math.isnan(row["AP"]) and math.isnan(row["AP_low"]) and math.isnan(row["AP_high"])


def test_a_class_without_known_positives_has_no_ap() -> None:
    logits, labels = case()
    labels[:, 1] = torch.where(labels[:, 1] > 0, 0, labels[:, 1])
    labels[:, 2] = 0
    evaluation = measure(logits, labels, CLASSES)
    assert [has_no_ap(row) for row in evaluation.per_class] == [False, True, True, False]
    expected = by_scikit_learn(logits[:, [0, 3]], labels[:, [0, 3]])
    assert evaluation.overall["mAP"] == pytest.approx(np.mean(expected))
    assert "2 of 4 classes have a known positive" in evaluation.protocol


def test_validation_metric_uses_known_entries() -> None:
    logits, labels = case()
    actual = ValidationMetric(labels)(logits)
    assert actual.keys() == {"mAP", "select"}
    assert actual["mAP"] == actual["select"] == pytest.approx(np.mean(by_scikit_learn(logits, labels)))
    logits[3] = math.nan
    rest = [i for i in range(N) if i != 3]
    assert ValidationMetric(labels)(logits)["select"] == pytest.approx(
        np.mean(by_scikit_learn(logits[rest], labels[rest]))
    )


def test_validation_metric_with_positives_only_assumes_absent() -> None:
    logits, labels = case()
    labels = labels.clamp(min=0)
    actual = ValidationMetric(labels)(logits)
    assert actual.keys() == {"assumed_mAP", "select"}
    assumed = torch.where(labels > 0, 1, -1)
    assert actual["select"] == pytest.approx(np.mean(by_scikit_learn(logits, assumed)))


def test_positives_only_give_no_measured_precision() -> None:
    logits, labels = case()
    evaluation = measure(logits, labels.clamp(min=0), CLASSES)
    assert all(math.isnan(evaluation.overall[name]) for name in ("mAP", "mAP_low", "mAP_high", "CP", "micro_f1", "ECE"))
    assert evaluation.overall["OR"] > 0
    assert all(
        math.isnan(row["AP"]) and math.isnan(row["precision"]) and row["recall"] > 0 for row in evaluation.per_class
    )
    assert 0 < evaluation.overall["estimated_precision"] < 1


def test_a_class_without_a_known_negative_has_no_ap_and_is_left_out_of_the_mean() -> None:
    logits = torch.tensor([[0.1, 0.9], [0.8, 0.3], [0.5, 0.2]])
    labels = torch.tensor([[1, 1], [-1, 0], [1, 1]], dtype=torch.int8)
    evaluation = measure(logits, labels, Names(["ranked", "only present"]))
    expected = average_precision_score([1, 0, 1], logits[:, 0])
    assert evaluation.overall["mAP"] == pytest.approx(expected)
    assert evaluation.per_class[0]["AP"] == pytest.approx(expected)
    assert all(math.isnan(evaluation.per_class[1][name]) for name in ("AP", "precision", "recall"))
    assert evaluation.overall["classes"] == 1
    assert evaluation.overall["macro_f1"] == pytest.approx(2 * 2 / 5)
    assert "1 of 2 classes" in evaluation.protocol
    assert ValidationMetric(labels)(logits)["select"] == pytest.approx(expected)


def test_probabilities_that_round_to_1_are_not_tied() -> None:
    logits, labels = case()
    high = measure(logits + 30, labels, CLASSES)
    aps = [row["AP"] for row in high.per_class]
    assert aps == pytest.approx(by_scikit_learn(logits + 30, labels))
    assert high.overall["mAP"] == pytest.approx(np.mean(aps))
    assert high.overall["mAP_low"] < high.overall["mAP"] < high.overall["mAP_high"]


def test_scores_meet_labels_by_name_and_models_do_not_evaluate() -> None:
    logits, labels = case()
    images, backwards = Names.numbered(len(labels)), np.arange(len(labels))[::-1].copy()
    source = np.zeros(int((labels != 0).sum()), np.int16)
    source[:7] = 1  # made by a model
    table = Table.from_dense(labels.numpy(), images, CLASSES)
    rows = Labels.from_table(table, source, sources=("", "model:bce:run"))
    scores = Scores.held_out(images.take(backwards), CLASSES, logits.numpy()[backwards])
    decisions, evaluation = evaluate(scores, rows)
    people = torch.from_numpy(rows.people.dense())
    expected = fit_decisions(logits, people)
    assert decisions.calibration.slope == pytest.approx(expected.calibration.slope)
    overall = measure(logits, people, CLASSES, expected).overall
    assert all(evaluation.overall[name] == pytest.approx(overall[name]) for name in ("mAP", "OF1", "ECE"))
    assert "7 labels made by a model" in evaluation.protocol
    without_intervals = evaluate(scores, rows.people, decisions=decisions, resamples=0)[1].overall
    assert without_intervals["mAP"] == evaluation.overall["mAP"]
    assert np.isnan(without_intervals["mAP_low"])


def draw_decisions(rng: np.random.Generator, images: int) -> tuple[Tensor, Tensor]:
    """Images with a common part of the noise; classes in 10 to 30 % of them."""
    present = rng.random((images, 4)) < np.linspace(0.1, 0.3, 4)
    noise = rng.normal(size=(images, 1)) + rng.normal(size=(images, 4))
    return torch.from_numpy(3.0 * present - 1.5 + 0.7 * noise), torch.from_numpy(
        np.where(present, 1, -1).astype(np.int8)
    )


def test_the_intervals_of_precision_recall_and_f1_contain_the_truth() -> None:
    rng, names = np.random.default_rng(0), ("OP", "OR", "micro_f1", "macro_f1")
    truth = measure(*draw_decisions(rng, 200_000), CLASSES, resamples=0).overall
    holds = np.zeros(len(names))
    for _ in range(200):
        stated = measure(*draw_decisions(rng, 60), CLASSES, resamples=2).overall
        holds += [stated[f"{name}_low"] <= truth[name] <= stated[f"{name}_high"] for name in names]
    assert (holds >= 180).all()


def test_a_training_states_nothing_of_classes_with_few_positives_and_nothing_by_few_labels() -> None:
    rng = np.random.default_rng(0)
    logits, labels = draw_decisions(rng, 200)
    labels[2:, 3] = -1
    labels[:2, 3] = 1
    table = Table.from_dense(labels.numpy(), classes=CLASSES)
    images = table.images
    fold = (np.arange(200) % 5).astype(np.int8)
    own = Scores(images, CLASSES, logits.float().numpy(), fold, "out-of-fold")
    decisions, stated = evaluate(own, table)
    first_three = measure(logits[:, :3].float(), labels[:, :3], CLASSES.take(np.arange(3)), None)
    assert stated.overall["mAP"] == pytest.approx(first_three.overall["mAP"])
    assert math.isnan(stated.per_class[3]["AP"])
    assert stated.overall["classes"] == 3
    assert evaluate(own, table, decisions=decisions)[1].overall["OP"] == stated.overall["OP"]
    held_out = Scores.held_out(images, CLASSES, own.logits)
    assert evaluate(held_out, table)[1].overall["classes"] == 4
    assert all(line.value[0].isdigit() for line in stated.lines())
    few = table.subset(np.arange(20))
    assert not any(
        character.isdigit() for line in evaluate(own.of(few.images), few)[1].lines() for character in line.value
    )


def test_lines_show_every_number_once() -> None:
    logits, labels = case()
    titles = [line.title for line in measure(logits, labels, CLASSES).lines()]
    assert titles == ["mAP", "micro F1", "precision", "recall", "macro F1", "calibration error"]
    first, second = measure(logits, labels.clamp(min=0), CLASSES).lines()[:2]
    assert first.title == "recall of known positives"
    assert first.with_interval == f"{first.value} ({first.interval})"
    assert second.with_interval == f"{second.value} ({second.interval})"


def test_answers_alone_count_by_the_entries_that_they_stand_for() -> None:
    """Half of the random questions are about the few entries called present: read as a plain sample, F1 is far off."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-3, 2, size=(3000, 8)).astype(np.float32)
    truth = np.where(generator.random(logits.shape) < 1 / (1 + np.exp(-logits)), 1, -1)
    strata = [np.argwhere(called) for called in (logits > 0, logits <= 0)]
    names = Names.numbered(3000), Names.numbered(8)
    scores = Scores(*names, logits, (np.arange(3000) % 5).astype(np.int8), "out-of-fold")

    def answered(number: int) -> Labels:
        drawn = [part[generator.choice(len(part), number, replace=False)] for part in strata]
        weight = np.repeat([len(part) / number for part in strata], number)
        entries = tuple(np.concatenate(drawn).T)
        return Labels.build(*names, *entries, truth[entries], "person:ann", weight=weight)

    errors, inside = [], []
    for _ in range(20):
        decisions, evaluation = evaluate(scores, answered(60), resamples=0)
        overall = evaluation.overall
        right = measure(torch.from_numpy(logits), torch.from_numpy(truth), names[1], decisions, resamples=0).overall
        errors.append(overall["estimated_f1"] - right["micro_f1"])
        for estimate, metric in (("precision", "OP"), ("recall", "OR"), ("f1", "micro_f1")):
            inside.append(
                overall[f"estimated_{estimate}_low"] <= right[metric] <= overall[f"estimated_{estimate}_high"]
            )
    assert abs(np.mean(errors)) < 0.03
    assert np.mean(inside) > 0.85
    assert math.isnan(overall["micro_f1"])
    assert math.isnan(overall["mAP"])
    assert not has_too_few(overall)
    _, few = evaluate(scores, answered(15))
    assert has_too_few(few.overall)
