"""HalfLabelClassifier on features: fit, predict, score, parameters and methods."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from estimator_examples import NAN, half_labelled, make, solved
from sklearn.base import clone
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from halflabel import estimator as module
from halflabel.errors import UserError
from halflabel.estimator import HalfLabelClassifier
from halflabel.features.combined import trained_part
from halflabel.fitting.auto import Choice
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.methods import base as registry
from halflabel.methods.base import recipe, recipes

# Features


def test_it_learns_from_half_of_the_labels() -> None:
    X, _, y = half_labelled(0)
    X_test, truth, _ = half_labelled(1)
    model = make(epochs=20).fit(X, y)
    assert model.score(X_test, truth) > 0.95
    assert np.mean(model.predict(X_test) == truth) > 0.85
    assert model.log_[-1]["loss"] < model.log_[0]["loss"]
    assert len(model.log_) == 20


def test_probabilities_are_logits_calibrated_on_held_out_rows() -> None:
    X, _, y = half_labelled()
    model = make().fit(X, y)
    expected = model.calibration_.scores(torch.from_numpy(model.decision_function(X))).numpy()
    np.testing.assert_allclose(model.predict_proba(X), expected)
    assert not np.allclose(expected, 1 / (1 + np.exp(-model.decision_function(X))), atol=1e-3)
    np.testing.assert_array_equal(model.predict(X), np.where(expected >= model.thresholds_, 1, -1))


def test_the_score_is_map_over_known_entries() -> None:
    X, truth, y = half_labelled()
    model = make().fit(X, y)
    scores = model.predict_proba(X)
    known = y != 0
    expected = np.mean([average_precision_score(truth[known[:, c], c] > 0, scores[known[:, c], c]) for c in range(3)])
    assert model.score(X, y) == pytest.approx(expected)
    assert model.score(X, truth) != pytest.approx(expected)


def test_no_score_without_negatives() -> None:
    X, truth, y = half_labelled()
    model = make().fit(X, y)
    with pytest.raises(UserError, match=r"known to be absent \(0 means unknown, as in fit\)"):
        model.score(X, np.where(truth > 0, 1, 0))


def test_score_reads_zero_like_fit() -> None:
    X, truth, y = half_labelled()
    indicator = np.where(truth > 0, 1, 0)
    full = make().fit(X, truth)
    assert full.zero_ == "auto"
    with pytest.raises(UserError, match="y has 0 and neither -1 nor NaN"):
        full.score(X, indicator)
    assert full.score(X, y) == full.score(X, np.where(y == 0, NAN, y)) != full.score(X, truth)
    stated = make(zero="absent").fit(X, indicator)
    assert stated.score(X, indicator) == full.score(X, truth)


def test_a_score_needs_the_fitted_classes() -> None:
    X, truth, _ = half_labelled()
    model = make().fit(X, Table.from_dense(truth, classes=["a", "b", "c"]))
    with pytest.raises(UserError, match="other classes"):
        model.score(X, Table.from_dense(truth, classes=["c", "b", "a"]))


def test_given_threshold_is_used() -> None:
    X, _, y = half_labelled()
    model = make(threshold=0.9).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), np.where(model.predict_proba(X) >= 0.9, 1, -1))


def test_one_dimension_is_single_label() -> None:
    X, _, _ = half_labelled()
    names = np.array(["cow", "ant", "bee"])[X[:, :3].argmax(1)]
    model = make(epochs=20).fit(X, names)
    assert model.classes_.tolist() == ["ant", "bee", "cow"]
    assert model.score(X, names) > 0.9
    logits = model.decision_function(X)
    sigma = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(model.predict_proba(X), sigma / sigma.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(model.predict(X), model.classes_[logits.argmax(1)])


@pytest.mark.parametrize("method", ["bn-bce", "softmax"])
def test_two_classes_compete(method: str) -> None:
    X, truth, _ = half_labelled()
    model = make(method=method, epochs=20).fit(X, truth[:, 0])
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(X, truth[:, 0]) > 0.88
    scores = model.predict_proba(X)
    np.testing.assert_allclose(model.decision_function(X), np.log(scores[:, 1] / scores[:, 0]), rtol=1e-2, atol=1e-3)
    np.testing.assert_array_equal(model.predict(X) > 0, model.decision_function(X) > 0)


def test_probabilities_stay_finite_far_from_all_classes() -> None:
    X, _, _ = half_labelled()
    model = make().fit(X, X[:, :3].argmax(1))
    np.testing.assert_allclose(model.predict_proba(1e6 * X).sum(1), 1, rtol=1e-5)


def test_column_names_of_x_are_stored() -> None:
    X, _, y = half_labelled()
    table = pa.table({f"x{d}": X[:, d] for d in range(4)})
    model = make().fit(table, y)
    assert model.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename_columns(["x0", "x1", "x2", "y"]))


def test_the_seed_alone_decides() -> None:
    X, _, y = half_labelled()
    before = torch.random.get_rng_state()
    first = make().fit(X, y).predict_proba(X)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, make().fit(X, y).predict_proba(X))
    assert not np.array_equal(first, make(seed=1).fit(X, y).predict_proba(X))
    torch.random.set_rng_state(before)


def test_pickle_and_clone() -> None:
    X, _, y = half_labelled()
    model = make().fit(X, y)
    unpickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), unpickled.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), unpickled.predict(X))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "model_")


def test_in_a_pipeline_and_in_cross_validation() -> None:
    X, _, y = half_labelled()
    pipeline = make_pipeline(StandardScaler(), make(epochs=12))
    assert cross_val_score(pipeline, 100 + 30 * X, y, cv=3).min() > 0.8
    assert cross_val_score(pipeline, 100 + 30 * X, np.where(y == 0, NAN, y), cv=KFold(3)).min() > 0.8


def test_probabilities_out_of_fold_of_a_y_with_unknowns() -> None:
    X, truth, y = half_labelled()
    for labels in (y, np.where(y == 0, NAN, y)):
        probabilities = cross_val_predict(make(), X, params={"y": labels}, cv=3, method="predict_proba")
        assert probabilities.shape == y.shape
        train, test = next(iter(KFold(3).split(X)))
        np.testing.assert_array_equal(probabilities[test], make().fit(X[train], labels[train]).predict_proba(X[test]))
        assert average_precision_score(truth > 0, probabilities) > 0.8
    scaled = make_pipeline(StandardScaler(), make())
    assert cross_val_predict(scaled, X, params={"y": y}, cv=3, method="predict_proba").shape == y.shape


OWN = '''
from halflabel.features.heads import Linear
from halflabel.methods.parts.losses import BCE
from halflabel.methods.base import Method, method

class OwnHead(Linear):
    pass

@method(serves=("full", "partial"), paper="none")
def of_a_module(weight: float = 0.5) -> Method:
    """A head of its own."""
    return Method(BCE(), head=OwnHead)
'''


@pytest.fixture
def of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A method defined in a module of the user."""
    recipes()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    (tmp_path / "own_module_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_module_of_a_test").of_a_module
    del sys.modules["own_module_of_a_test"]


def test_the_method_may_be_a_function_or_a_recipe(of_a_module: Any) -> None:
    X, _, y = half_labelled()
    by_name = make(method="of-a-module").fit(X, y)
    for own_method in (of_a_module, recipe("of-a-module")):
        model = make(method=own_method).fit(X, y)
        assert type(trained_part(model.model_).head).__name__ == "OwnHead"
        np.testing.assert_array_equal(model.predict_proba(X), by_name.predict_proba(X))
        assert clone(model).get_params() == model.get_params()
        assert clone(model).method is own_method
        unpickled = pickle.loads(pickle.dumps(model))
        assert unpickled.method == own_method
        np.testing.assert_array_equal(unpickled.predict_proba(X), by_name.predict_proba(X))
    with pytest.raises(UserError, match="half_labelled is not a method"):
        make(method=half_labelled).fit(X, y)


@pytest.mark.slow
def test_other_processes_fit_a_users_method(of_a_module: Any) -> None:
    from joblib.externals.loky import get_reusable_executor

    X, _, y = half_labelled()
    search = GridSearchCV(make(method=of_a_module), {"epochs": [1, 4]}, cv=3, n_jobs=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.8
    assert search.best_estimator_.method is of_a_module
    get_reusable_executor().shutdown()  # the workers would wait for more tasks


def test_the_method_and_its_options_are_used() -> None:
    X, _, y = half_labelled(known=0.2)
    positives = np.where(y > 0, 1.0, NAN)
    with pytest.raises(UserError, match="cannot learn from positives-only labels"):
        make().fit(X, positives)
    assert make(method="an", epochs=12).fit(X, positives).score(X, y) > 0.7
    with pytest.raises(UserError, match="cannot learn from empty labels"):
        make().fit(X, np.full((120, 3), NAN))
    with pytest.raises(UserError, match="no option 'weight'"):
        make(options={"weight": 1}).fit(X, y)
    with pytest.raises(UserError, match="no method is called 'bn-bcd'"):
        make(method="bn-bcd").fit(X, y)


def test_learning_rates_are_the_methods_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.from_dense(half_labelled()[2].astype(np.int8))

    def settings(**parameters: Any) -> Config:
        return HalfLabelClassifier(**parameters)._assemble(table).config

    bn_bce, default = recipe("bn-bce"), settings()
    assert (default.lr, default.weight_decay, default.epochs) == (bn_bce.lr, bn_bce.weight_decay, 20)
    monkeypatch.setattr(module, "choose", lambda stats: Choice("bn-bce", config={"lr": 0.5, "epochs": 80}))
    chosen = settings(method="auto")
    assert (chosen.lr, chosen.epochs) == (0.5, 80)
    explicit = settings(method="auto", fit_by="batches", lr=0.0, weight_decay=0.0)
    assert (explicit.lr, explicit.weight_decay, explicit.epochs) == (0.0, 0.0, 80)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": 0}, "epochs cannot be 0"),
        ({"batch_size": 0}, "batch_size cannot be 0"),
        ({"zero": "absnt"}, "zero='absnt'"),
        ({"threshold": 1.5}, "is not a threshold"),
        ({"fit_by": "newton"}, "fit_by='newton'"),
        ({"device": "gpu"}, "'gpu' is not a device"),
        ({"threshold": "best"}, "is not a threshold"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    X, _, y = half_labelled()
    with pytest.raises(UserError, match=message):
        make(**parameters).fit(X, y)


def test_positives_only_give_probabilities_and_a_threshold() -> None:
    X, truth, y = half_labelled()
    model = solved(method="an").fit(X, np.where(y > 0, 1.0, NAN))
    assert model.calibration_.assumption
    predicted = model.predict(X) > 0
    assert 0.5 * (truth > 0).sum() < predicted.sum() < 1.5 * (truth > 0).sum()
