"""HalfLabelClassifier passes the checks of scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from halflabel.estimator import HalfLabelClassifier
from halflabel.fitting.assembly import Assembly
from halflabel.labels.table import Table

# scikit-learn's own checks. They pass multi-label y as an indicator of 0 and 1, which "auto" refuses to guess at.

EXPECTED = {"check_supervised_y_2d": "y of shape (N, 1) is the labels of one class, not a column vector of classes"}


@parametrize_with_checks(
    [HalfLabelClassifier(zero="absent", device="cpu")],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_accepts_it(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = HalfLabelClassifier._assemble

    def assemble_quick(self: HalfLabelClassifier, table: Table) -> Assembly:
        """With one strength and no similar images the solver fits a fifth of the heads."""
        assembly = assemble(self, table)
        return replace(assembly, config=replace(assembly.config, l2_strength=1e-4, similar=False))

    monkeypatch.setattr(HalfLabelClassifier, "_assemble", assemble_quick)
    check(estimator)
