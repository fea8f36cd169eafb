"""Advice follows from the label regime, and oddities are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halflabel.fitting.advice import Advice, advise
from halflabel.fitting.auto import choose
from halflabel.labels import drop
from halflabel.labels.table import Table


def full(images: int = 200, classes: int = 12) -> Table:
    present = np.random.default_rng(0).random((images, classes)) < 0.3
    return Table.from_dense(np.where(present, 1, -1), classes=[f"class {c}" for c in range(classes)])


def of(table: Table) -> Advice:
    return advise(table.stats)


def names(advice: Advice) -> list[str]:
    return [suggestion.method for suggestion in advice.methods]


def kinds(advice: Advice) -> list[str]:
    return [caution.kind for caution in advice.cautions]


@pytest.mark.parametrize(
    ("table", "begins", "methods"),
    [
        (full(), "Full labels", ["an-ls", "asl", "csl", "bce", "focal", "rml"]),
        (drop.single_positive(full()), "Single positive", ["n-ls", "ll-r", "em", "splc", "wan", "an", "rml"]),
        (drop.positives(full(), number=2), "Positives only", ["n-ls", "ll-r", "em", "splc", "wan", "an", "rml"]),
        (drop.partial(full(), 0.25), "Partial labels", ["curriculum", "csl", "bn-bce", "bce", "an", "rml"]),
        (drop.partial(full(), 0.95), "Partial labels", ["bce", "csl", "bn-bce", "curriculum", "rml"]),
        (Table.from_dense(np.zeros((3, 2))), "No labels", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_methods_follow_from_the_regime(table: Table, begins: str, methods: list[str]) -> None:
    labelled = table.subset(np.flatnonzero(np.diff(table.start))) if table.known else table
    advice = of(labelled)
    assert advice.regime.startswith(begins)
    assert advice.regime.endswith(".")
    assert names(advice) == methods
    assert len(set(names(advice))) == len(advice.methods)
    assert all(suggestion.why for suggestion in advice.methods)


def test_images_without_labels_bring_in_propagation() -> None:
    quarter_unlabelled, mostly_unlabelled = (of(drop.semi_supervised(full(), share=share)) for share in (0.25, 0.9))
    assert names(quarter_unlabelled) == ["bce", "csl", "curriculum", "rml", "ss-rml"]
    assert names(mostly_unlabelled) == ["curriculum", "csl", "bce", "ss-rml", "rml"]
    message = next(caution.message for caution in quarter_unlabelled.cautions if caution.kind == "unlabelled images")
    assert message == "50 images (25 %) have no label at all."


def test_ordinary_labels_cause_no_caution() -> None:
    assert kinds(of(full())) == []
    assert kinds(of(Table.from_dense(np.zeros((3, 2))))) == ["no labels"]


def test_odd_classes_are_named() -> None:
    labels = full().dense()
    labels[:, 2] = 0
    labels[:, 5] = np.where(np.arange(200) < 4, 1, -1)
    labels[:, 7] = np.maximum(labels[:, 7], 0)
    labels[:, 8] = np.where(np.arange(200) < 5, 1, -1)
    advice = of(Table.from_dense(labels, classes=[f"class {c}" for c in range(12)]))
    odd = {caution.kind: caution for caution in advice.cautions if caution.classes}
    assert {kind: caution.classes for kind, caution in odd.items()} == {
        "never known": (2,),
        "few positives": (5,),
        "no negatives": (7,),
    }
    assert odd["few positives"].message == "1 class with fewer than 5 known positives: class 5."


def test_long_lists_of_classes_are_cut() -> None:
    labels = np.zeros((20, 9))
    labels[:, 0] = np.where(np.arange(20) < 10, 1, -1)
    caution = of(Table.from_dense(labels)).cautions[-1]
    assert caution.classes == tuple(range(1, 9))
    assert caution.message.startswith("8 classes ")
    assert caution.message.endswith(": 1, 2, 3, 4, 5, ….")


def test_positives_only_classes_are_not_odd() -> None:
    assert "no negatives" not in kinds(of(drop.positives(full(), number=2)))


def test_unlisted_read_as_absent_looks_odd() -> None:
    one_each = Table.from_dense(np.where(np.eye(6)[np.arange(60) % 6] > 0, 1, -1))
    assert "assumed absent" in kinds(of(one_each))
    assert "assumed absent" in kinds(of(full(200, 100)))
    assert "assumed absent" not in kinds(of(drop.partial(full(200, 100), 0.5)))
    two_classes = Table.from_dense(np.where(np.eye(2)[np.arange(60) % 2] > 0, 1, -1))
    assert "assumed absent" not in kinds(of(two_classes))


@pytest.mark.parametrize("hide", [drop.single_positive, lambda t: drop.partial(t, 0.25), lambda t: t])
def test_inspect_advises_first_what_auto_trains(hide: Any) -> None:
    stats = hide(full()).stats
    assert advise(stats).methods[0].method == choose(stats).method
