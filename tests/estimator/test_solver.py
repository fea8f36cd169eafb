"""HalfLabelClassifier with a linear fit."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from estimator_examples import NAN, half_labelled, solved

from halflabel.errors import UserError
from halflabel.evaluation.positives_only import expected_f1_threshold
from halflabel.features.heads import NormalisedHead, NormalisedLinear
from halflabel.fitting.auto import choose
from halflabel.labels.table import Table


def test_the_solver_learns_from_half_of_the_labels() -> None:
    X, _, y = half_labelled(0)
    X_test, truth, _ = half_labelled(1)
    model = solved().fit(X, y)
    assert isinstance(model.model_.head, NormalisedLinear)
    assert model.score(X_test, truth) > 0.95
    assert np.mean(model.predict(X_test) == truth) > 0.85
    assert len({line["strength"] for line in model.log_}) == len(model.log_) > 1
    assert model.oof_logits_ is not None
    assert model.oof_logits_.shape == (120, 3)
    assert not np.isnan(model.oof_logits_).any()
    unpickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), unpickled.predict_proba(X))
    np.testing.assert_array_equal(solved(fit_by="linear").fit(X, y).predict_proba(X), model.predict_proba(X))


def test_the_solver_uses_the_size_of_features() -> None:
    """The only column is positive: its sign and direction hold no information."""
    X = np.random.default_rng(0).uniform(1, 3, size=(80, 1))
    assert solved().fit(X, np.where(X > 2, 1, -1)).score(X, np.where(X > 2, 1, -1)) > 0.99


def test_thresholds_of_the_solver_are_fitted_on_out_of_fold_scores() -> None:
    X, _, y = half_labelled()
    model = solved().fit(X, y)
    expected = expected_f1_threshold(model.calibration_.scores(torch.from_numpy(model.oof_logits_)).numpy())
    np.testing.assert_allclose(model.thresholds_, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "parameters",
    [{"epochs": 2}, {"lr": 0.1}, {"batch_size": 16}],
)
def test_a_parameter_of_batches_needs_them(parameters: dict[str, Any]) -> None:
    X, _, y = half_labelled()
    with pytest.raises(UserError, match=f"{next(iter(parameters))} counts in batches, not in a linear fit.*fit_by="):
        solved(**parameters).fit(X, y)
    model = solved(fit_by="batches", **parameters).fit(X, y)
    assert isinstance(model.model_.head, NormalisedHead)
    assert model.oof_logits_ is None
    assert len(model.log_) == parameters.get("epochs", 20)


def test_the_solver_is_left_out_where_it_cannot_be_used() -> None:
    X, truth, y = half_labelled()
    assert solved().fit(X[:19], y[:19]).oof_logits_ is None
    assert solved().fit(X, truth[:, 0]).score(X, truth[:, 0]) > 0.85
    with pytest.raises(UserError, match="a linear fit is not possible: 19 images are too few"):
        solved(fit_by="linear").fit(X[:19], y[:19])
    with pytest.raises(UserError, match="a linear fit is not possible: role needs"):
        solved(fit_by="linear", method="role").fit(X, np.where(y > 0, 1.0, NAN))


def test_the_method_may_be_chosen_by_the_labels() -> None:
    X, truth, y = half_labelled()
    for labels in (truth, np.where(truth > 0, 1.0, NAN)):
        candidates = choose(Table.from_dense(np.nan_to_num(labels).astype(np.int8)).stats).candidates
        alone = [solved(method=each.method, options=dict(each.options)).fit(X, labels) for each in candidates]
        weights = [each.model_.head.linear.weight for each in alone]
        sizes = range(1, len(weights) + 1)
        averages = [sum(some) / len(some) for size in sizes for some in itertools.combinations(weights, size)]
        taken = solved(method="auto").fit(X, labels).model_.head.linear.weight
        assert any(torch.allclose(taken, average, atol=1e-5) for average in averages)
    assert len(solved(method="auto", fit_by="batches").fit(X, y).log_) == 80
    assert len(solved(method="auto", fit_by="batches", epochs=5).fit(X, y).log_) == 5
