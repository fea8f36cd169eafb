from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor

from halflabel import estimator as module
from halflabel.data.datasets.digits import scenes, write_folder
from halflabel.data.estimator_inputs import read_labels
from halflabel.errors import UserError
from halflabel.estimator import HalfLabelClassifier
from halflabel.labels.table import LabelTable
from halflabel.methods import base as registry
from halflabel.methods.auto import Choice
from halflabel.methods.base import Method, recipe, recipes
from halflabel.methods.parts.losses import BCE
from halflabel.metrics.positives_only import expected_f1_threshold
from halflabel.models.backbones import build_backbone
from halflabel.models.heads import Head, Linear, NormalisedLinear, pool
from halflabel.runs.assembly import Assembly
from halflabel.training.config import Settings
from halflabel.types import Output

NAN = np.nan


def make(**parameters: Any) -> HalfLabelClassifier:
    return HalfLabelClassifier(**{"epochs": 4, "lr": 0.3, "device": "cpu", **parameters})


def half_labelled(seed: int = 0, known: float = 0.5) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """X (120, 4); labels of 3 classes in ±1 that X decides; the same with a share of them known and 0 elsewhere."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(120, 4))
    truth = np.where(X[:, :3] + 0.3 * random.normal(size=(120, 3)) > 0, 1, -1)
    return X, truth, np.where(random.random(truth.shape) < known, truth, 0)


# scikit-learn's own checks. They pass multi-label y as an indicator of 0 and 1, which "auto" refuses to guess at.

EXPECTED = {"check_supervised_y_2d": "y of shape (N, 1) is the labels of one class, not a column vector of classes"}


@parametrize_with_checks(
    [make(zero="absent"), HalfLabelClassifier(zero="absent", device="cpu")],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_accepts_it(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = HalfLabelClassifier._assemble

    def assemble_quick(self: HalfLabelClassifier, table: LabelTable) -> Assembly:
        """With one strength and no similar images the solver fits a fifth of the heads."""
        assembly = assemble(self, table)
        return replace(assembly, config=replace(assembly.config, l2_strength=1e-4, similar=False))

    monkeypatch.setattr(HalfLabelClassifier, "_assemble", assemble_quick)
    check(estimator)


# What 0 means


@pytest.mark.parametrize(
    ("y", "zero", "labels", "meaning"),
    [
        ([[1, 0], [-1, 1]], "auto", [[1, 0], [-1, 1]], "unknown"),
        ([[1, 0], [NAN, 1]], "auto", [[1, -1], [0, 1]], "absent"),
        ([[1, NAN], [-1, 1]], "auto", [[1, 0], [-1, 1]], "auto"),
        ([[1, -1], [-1, 1]], "auto", [[1, -1], [-1, 1]], "auto"),
        ([[1, NAN], [NAN, 1]], "auto", [[1, 0], [0, 1]], "auto"),
        ([[1, 0], [0, 1]], "absent", [[1, -1], [-1, 1]], "absent"),
        ([[1, 0], [0, 1]], "unknown", [[1, 0], [0, 1]], "unknown"),
        ([[1, 0], [-1, NAN]], "absent", [[1, -1], [-1, 0]], "absent"),
        ([[True, False], [False, True]], "absent", [[1, -1], [-1, 1]], "absent"),
        ([[1, None], [0, 1]], "auto", [[1, 0], [-1, 1]], "absent"),
    ],
)
def test_what_zero_means(y: Any, zero: str, labels: list[list[int]], meaning: str) -> None:
    actual = read_labels(y, zero)
    assert actual.labels.tolist() == labels
    assert actual.labels.dtype == np.int8
    assert actual.zero == meaning


@pytest.mark.parametrize("y", [[[1, 0], [0, 1]], [[0, 0], [0, 0]], [[1, 0], [-1, NAN]]])
def test_a_zero_of_two_meanings_is_refused(y: Any) -> None:
    with pytest.raises(UserError, match=r'zero="absent".*or zero="unknown"'):
        make().fit(np.eye(2), y)


def test_values_that_are_no_labels_are_refused() -> None:
    with pytest.raises(UserError, match="2 is not a label"):
        make().fit(np.eye(2), [[1, 2], [0, 1]])


def test_nan_zero_and_table_say_the_same() -> None:
    X, _, y = half_labelled()
    fitted = [
        make().fit(X, y),
        make().fit(X, np.where(y == 0, NAN, y)),
        make().fit(X, np.where(y == 0, NAN, np.where(y < 0, 0.0, y))),
        make().fit(X, LabelTable.from_dense(y, classes=["cat", "cow", "dog"])),
    ]
    scores = [model.predict_proba(X) for model in fitted]
    for other in scores[1:]:
        np.testing.assert_array_equal(scores[0], other)
    assert [sorted(set(model.predict(X).flat)) for model in fitted] == [[-1, 1], [-1, 1], [0, 1], [-1, 1]]
    assert fitted[0].classes_.tolist() == [0, 1, 2]
    assert fitted[3].classes_.tolist() == ["cat", "cow", "dog"]


def test_the_columns_of_a_data_frame_are_the_classes() -> None:
    X, _, y = half_labelled()

    class Frame:
        columns = ("a", "b", "c")

        def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
            return np.array(y, dtype=dtype)

    assert make().fit(X, Frame()).classes_.tolist() == ["a", "b", "c"]


# Features


def test_it_learns_from_half_of_the_labels() -> None:
    X, _, y = half_labelled(0)
    other, truth, _ = half_labelled(1)
    model = make(epochs=20).fit(X, y)
    assert model.score(other, truth) > 0.95
    assert np.mean(model.predict(other) == truth) > 0.88
    assert model.log_[-1]["loss"] < model.log_[0]["loss"]
    assert len(model.log_) == 20


def test_probabilities_are_the_sigmoid_of_a_linear_head() -> None:
    X, _, y = half_labelled()
    model = make().fit(X, y)
    head = model.model_.head
    assert isinstance(head, Linear)
    weight, bias = head.linear.weight.detach().double().numpy(), head.linear.bias.detach().double().numpy()
    for row, logits, scores, labels in zip(
        X, model.decision_function(X), model.predict_proba(X), model.predict(X), strict=True
    ):
        for c in range(3):
            x = sum(w * v for w, v in zip(weight[c], row, strict=True)) + bias[c]
            assert logits[c] == pytest.approx(x, rel=1e-4, abs=1e-5)
            assert scores[c] == pytest.approx(1 / (1 + np.exp(-x)), rel=1e-4)
            assert labels[c] == (1 if scores[c] >= 0.5 else -1)


def test_the_score_is_map_over_known_entries() -> None:
    X, truth, y = half_labelled()
    model = make().fit(X, y)
    scores = model.predict_proba(X)
    known = y != 0
    wanted = np.mean([average_precision_score(truth[known[:, c], c] > 0, scores[known[:, c], c]) for c in range(3)])
    assert model.score(X, y) == pytest.approx(wanted)
    assert model.score(X, truth) != pytest.approx(wanted)


def test_a_class_without_negatives_is_left_out_of_the_score() -> None:
    X, truth, y = half_labelled()
    model = make().fit(X, y)
    positives_only = np.where((np.arange(3) == 2) & (truth < 0), 0, truth)
    scores = model.predict_proba(X)
    wanted = np.mean([average_precision_score(truth[:, c] > 0, scores[:, c]) for c in range(2)])
    assert model.score(X, positives_only) == pytest.approx(wanted)


def test_no_score_without_negatives() -> None:
    X, truth, y = half_labelled()
    model = make().fit(X, y)
    with pytest.raises(UserError, match=r"known to be absent \(0 means unknown, as in fit\)"):
        model.score(X, np.where(truth > 0, 1, 0))


def test_a_score_takes_zero_as_fit_did_and_else_decides_anew() -> None:
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
    model = make().fit(X, LabelTable.from_dense(truth, classes=["a", "b", "c"]))
    with pytest.raises(UserError, match="other classes"):
        model.score(X, LabelTable.from_dense(truth, classes=["c", "b", "a"]))


def test_a_threshold_is_kept() -> None:
    X, _, y = half_labelled()
    model = make(threshold=0.9).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), np.where(model.predict_proba(X) >= 0.9, 1, -1))


def test_one_column_is_one_class_with_unknowns() -> None:
    X, _, y = half_labelled()
    model = make().fit(X, y[:, :1])
    assert model.predict_proba(X).shape == model.decision_function(X).shape == (120, 1)


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


def test_column_names_of_x_are_kept() -> None:
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
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "model_")


def test_in_a_pipeline_and_in_cross_validation() -> None:
    X, _, y = half_labelled()
    pipeline = make_pipeline(StandardScaler(), make())
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
from halflabel.models.heads import Linear
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
    """A method that a module of one's own has."""
    recipes()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    (tmp_path / "own_module_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_module_of_a_test").of_a_module
    del sys.modules["own_module_of_a_test"]


def test_the_function_is_the_method(of_a_module: Any) -> None:
    X, _, y = half_labelled()
    by_name = make(method="of-a-module").fit(X, y)
    for given in (of_a_module, recipe("of-a-module")):
        model = make(method=given).fit(X, y)
        assert type(model.model_.head).__name__ == "OwnHead"
        np.testing.assert_array_equal(model.predict_proba(X), by_name.predict_proba(X))
        assert clone(model).get_params() == model.get_params()
        assert clone(model).method is given
        again = pickle.loads(pickle.dumps(model))
        assert again.method == given
        np.testing.assert_array_equal(again.predict_proba(X), by_name.predict_proba(X))
    with pytest.raises(UserError, match="half_labelled is not a method"):
        make(method=half_labelled).fit(X, y)


@pytest.mark.slow
def test_other_processes_fit_a_method_of_ones_own(of_a_module: Any) -> None:
    from joblib.externals.loky import get_reusable_executor

    X, _, y = half_labelled()
    search = GridSearchCV(make(method=of_a_module), {"epochs": [1, 4]}, cv=3, n_jobs=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.8
    assert search.best_estimator_.method is of_a_module
    get_reusable_executor().shutdown()  # they would wait for more to do


def test_verbose_prints_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    X, _, y = half_labelled()
    make(epochs=2).fit(X, y)
    assert capsys.readouterr().out == ""
    make(epochs=2, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]


def test_the_method_and_its_options_are_used() -> None:
    X, _, y = half_labelled(known=0.2)
    positives = np.where(y > 0, 1.0, NAN)
    with pytest.raises(UserError, match="cannot learn from positives-only labels"):
        make().fit(X, positives)
    assert make(method="an").fit(X, positives).score(X, y) > 0.8
    with pytest.raises(UserError, match="cannot learn from empty labels"):
        make().fit(X, np.full((120, 3), NAN))
    with pytest.raises(UserError, match="no option 'weight'"):
        make(options={"weight": 1}).fit(X, y)
    with pytest.raises(UserError, match="no method is called 'bn-bcd'"):
        make(method="bn-bcd").fit(X, y)


def test_rates_are_the_methods_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LabelTable.from_dense(half_labelled()[2].astype(np.int8))

    def settings(**parameters: Any) -> Settings:
        return HalfLabelClassifier(**parameters)._assemble(table).config.settings

    bn_bce, default = recipe("bn-bce"), settings()
    assert (default.lr, default.weight_decay, default.epochs) == (bn_bce.lr, bn_bce.weight_decay, 20)
    monkeypatch.setattr(module, "choose", lambda stats: Choice("bn-bce", settings={"lr": 0.5, "epochs": 80}))
    chosen = settings(method="auto")
    assert (chosen.lr, chosen.epochs) == (0.5, 80)
    given = settings(method="auto", lr=0.0, weight_decay=0.0)
    assert (given.lr, given.weight_decay, given.epochs) == (0.0, 0.0, 80)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": 0}, "epochs cannot be 0"),
        ({"batch_size": 0}, "batch_size cannot be 0"),
        ({"schedule": "plateau"}, "schedule='plateau' cannot be used"),
        ({"optimizer": "lion"}, "optimizer cannot be .lion."),
        ({"zero": "absnt"}, "zero='absnt'"),
        ({"threshold": 1.5}, "is not a threshold"),
        ({"solver": "newton"}, "solver='newton'"),
        ({"device": "gpu"}, "'gpu' is not a device"),
        ({"threshold": "best"}, "is not a threshold"),
    ],
)
def test_faulty_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    X, _, y = half_labelled()
    with pytest.raises(UserError, match=message):
        make(**parameters).fit(X, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_named() -> None:
    X, _, y = half_labelled()
    with pytest.raises(UserError, match="there is no CUDA device here"):
        make(device="cuda").fit(X, y)


def test_positives_alone_give_probabilities_and_a_threshold() -> None:
    X, truth, y = half_labelled()
    model = solved(method="an").fit(X, np.where(y > 0, 1.0, NAN))
    assert model.calibration_.assumption
    called = model.predict(X) > 0
    assert 0.5 * (truth > 0).sum() < called.sum() < 1.5 * (truth > 0).sum()


# The solver lbfgs


def solved(**parameters: Any) -> HalfLabelClassifier:
    return HalfLabelClassifier(device="cpu", **parameters)


def test_the_solver_learns_from_half_of_the_labels() -> None:
    X, _, y = half_labelled(0)
    other, truth, _ = half_labelled(1)
    model = solved().fit(X, y)
    assert isinstance(model.model_.head, NormalisedLinear)
    assert model.score(other, truth) > 0.95
    assert np.mean(model.predict(other) == truth) > 0.85
    assert len({line["strength"] for line in model.log_}) == len(model.log_) > 1
    assert model.oof_logits_ is not None
    assert model.oof_logits_.shape == (120, 3)
    assert not np.isnan(model.oof_logits_).any()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(solved(solver="lbfgs").fit(X, y).predict_proba(X), model.predict_proba(X))


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
    [{"epochs": 2}, {"lr": 0.1}, {"batch_size": 16}, {"optimizer": "adam"}, {"schedule": "step"}, {"solver": "sgd"}],
)
def test_a_parameter_of_sgd_chooses_sgd(parameters: dict[str, Any]) -> None:
    X, _, y = half_labelled()
    model = solved(**parameters).fit(X, y)
    assert isinstance(model.model_.head, Linear)
    assert model.oof_logits_ is None
    assert len(model.log_) == parameters.get("epochs", 20)


def test_the_solver_is_left_out_where_it_cannot_be_used() -> None:
    X, truth, y = half_labelled()
    assert solved().fit(X[:19], y[:19]).oof_logits_ is None
    assert solved().fit(X, truth[:, 0]).score(X, truth[:, 0]) > 0.85
    with pytest.raises(UserError, match="lbfgs cannot be used: 19 images are too few"):
        solved(solver="lbfgs").fit(X[:19], y[:19])
    with pytest.raises(UserError, match="lbfgs cannot be used: role needs"):
        solved(solver="lbfgs", method="role").fit(X, np.where(y > 0, 1.0, NAN))


def test_the_method_may_be_chosen_by_the_labels() -> None:
    X, truth, y = half_labelled()
    for labels, method in ((truth, "asl"), (np.where(truth > 0, 1.0, NAN), "n-ls")):
        wanted = solved(method=method).fit(X, labels).predict_proba(X)
        np.testing.assert_array_equal(solved(method="auto").fit(X, labels).predict_proba(X), wanted)
    assert len(solved(method="auto", solver="sgd").fit(X, y).log_) == 80
    assert len(solved(method="auto", epochs=5).fit(X, y).log_) == 5


def test_the_solver_says_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    X, _, y = half_labelled()
    solved(verbose=True).fit(X, y)
    assert capsys.readouterr().out.startswith("chosen by out-of-fold scores: strength ")


def test_the_solver_fits_images(folder: Path, tmp_path: Path) -> None:
    files, labels = sorted(folder.iterdir()), scenes(120, size=32).labels
    files[7] = tmp_path / "broken.png"
    files[7].write_bytes(b"no image")
    files[9], labels[9] = files[8], labels[8]  # both are in one fold: else one would be scored by the other
    with pytest.warns(UserWarning, match="left out"):
        model = solved(backbone="tiny", size=32).fit(files, labels)
    assert np.flatnonzero(np.isnan(model.oof_logits_).any(1)).tolist() == [7]
    np.testing.assert_allclose(model.oof_logits_[8], model.oof_logits_[9], atol=1e-4)
    assert np.flatnonzero(np.isnan(model.predict_proba(files)).any(1)).tolist() == [7]


# Images


def tiny(**parameters: Any) -> HalfLabelClassifier:
    return make(**{"backbone": "tiny", "size": 32, "epochs": 3, "lr": 0.02, **parameters})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("digits")
    write_folder(place, 120, size=32)
    return place / "images"


def test_files_and_arrays_of_images_give_the_same(folder: Path) -> None:
    samples = scenes(24, size=32)
    files = sorted(folder.iterdir())[:24]
    pixels = samples.images.numpy()
    wanted = tiny().fit(files, samples.labels).predict_proba(files)
    assert wanted.shape == (24, 10)
    assert np.ptp(wanted) > 0.01
    for X in (
        [str(file) for file in files],
        np.array([str(file) for file in files]),
        pixels,
        pixels.transpose(0, 2, 3, 1),
        samples.images,
    ):
        model = tiny().fit(X, samples.labels)
        np.testing.assert_array_equal(model.predict_proba(X), wanted)
        np.testing.assert_array_equal(model.predict_proba(files), wanted)
    assert not hasattr(model, "n_features_in_")


def test_images_go_through_the_backbone() -> None:
    samples = scenes(8, size=32)
    model = tiny().fit(samples.images, samples.labels)
    features = pool(build_backbone("tiny")(samples.images)).half().float()
    head = model.model_.head
    assert isinstance(head, Linear)
    torch.testing.assert_close(
        torch.from_numpy(model.decision_function(samples.images)), head.linear(features).detach()
    )


def test_a_cache_is_used_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, labels = sorted(folder.iterdir())[:10], scenes(10, size=32).labels
    wanted = tiny().fit(files, labels).predict_proba(files)
    model = tiny(cache=tmp_path).fit(files, labels)
    assert len(list(tmp_path.rglob("values.npy"))) == 1
    monkeypatch.setattr("halflabel.models.backbones.Backbone.forward", None)
    np.testing.assert_array_equal(model.predict_proba(files[::-1])[::-1], wanted)
    np.testing.assert_array_equal(tiny(cache=str(tmp_path)).fit(files, labels).predict_proba(files), wanted)
    with pytest.raises(TypeError):
        model.predict(files[:5])


def test_an_image_may_be_there_twice(folder: Path) -> None:
    files, labels = sorted(folder.iterdir())[:6], scenes(6, size=32).labels
    again = [*files, files[0]]
    model = tiny().fit(again, np.concatenate([labels, labels[:1]]))
    scores = model.predict_proba(again)
    np.testing.assert_array_equal(scores[0], scores[-1])
    assert len(np.unique(scores, axis=0)) == 6


def test_a_method_of_two_views_trains_on_both(folder: Path, tmp_path: Path) -> None:
    """On equal views the guesses of "cr" charge the view they come from, as those of "pl" do."""
    files, labels = sorted(folder.iterdir())[:24], scenes(24, size=32).labels.copy()
    labels[::2, ::2] = labels[1::2, 1::2] = 0
    again = [*files, files[0]]
    results = {}
    for kind, views in (("cr", 5), ("pl", 1)):
        options = {"supervise": "weak", "tau": 0.5, "consistency": kind}
        model = tiny(method="srcr", options=options, cache=tmp_path / kind)
        results[kind] = model.fit(again, np.concatenate([labels, labels[:1]])).predict_proba(files)
        assert len(list((tmp_path / kind).rglob("values.npy"))) == views
    assert not np.allclose(results["cr"], results["pl"], atol=1e-3)


def test_cached_rows_are_copied_in_the_order_of_x(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = np.arange(24, dtype=np.float16).reshape(4, 3, 2)
    index = np.array([2, 0, 2, 3])
    for large in (1 << 28, 1):
        monkeypatch.setattr("halflabel.system.memory._SCRATCH_BYTES", large)
        assert module._copy_rows(kept, index).tolist() == kept[index].tolist()


def test_a_few_unreadable_images_are_left_out(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    files, labels = sorted(folder.iterdir()), scenes(120, size=32).labels
    files[7] = broken
    with pytest.warns(UserWarning, match=r"1 of 120 images .* left out .*X\[7\], .*broken.png"):
        model = tiny().fit(files, labels)
    scores = model.predict_proba(files)
    assert np.flatnonzero(np.isnan(scores).any(1)).tolist() == [7]
    assert np.isnan(scores[7]).all()
    for ask in (lambda: model.predict(files), lambda: model.score(files, labels)):
        with pytest.raises(UserError, match=r"1 of 120 images cannot be read \(first: X\[7\]\)"):
            ask()
    with pytest.raises(UserError, match=r"1 of 99 images cannot be read .*broken.png.*Fix: take them out"):
        tiny().fit(files[:99], labels[:99])


def test_a_fitted_image_classifier_is_whole_without_its_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, labels = sorted(folder.iterdir())[:6], scenes(6, size=32).labels
    model = tiny().fit(files, labels)
    wanted, kept = model.predict_proba(files), pickle.dumps(model)
    monkeypatch.setattr("halflabel.runs.assembly.build_backbone", None)
    again = pickle.loads(kept).set_params(size=64)  # of the next fit
    np.testing.assert_array_equal(again.predict_proba(files), wanted)


def test_a_list_of_pil_images_of_any_size_is_read_like_their_files(folder: Path) -> None:
    files, labels = sorted(folder.iterdir())[:24], scenes(24, size=32).labels
    opened = [Image.open(file) for file in files]
    by_file, by_image = tiny().fit(files, labels), tiny().fit(opened, labels)
    np.testing.assert_allclose(by_image.predict_proba(opened), by_file.predict_proba(files), atol=1e-4)
    mixed = [image.resize((40, 24 + 2 * number)).convert("L") for number, image in enumerate(opened)]
    scores = tiny().fit(mixed, labels).predict_proba([*mixed, mixed[0]])
    assert scores.shape == (25, labels.shape[1])
    np.testing.assert_allclose(scores[0], scores[-1], rtol=1e-6)


def test_faulty_x_is_named(folder: Path) -> None:
    samples = scenes(4, size=32)
    model = tiny().fit(samples.images, samples.labels)
    with pytest.raises(UserError, match="fitted on images"):
        model.predict(np.zeros((4, 64)))
    with pytest.raises(UserError, match="X is one path"):
        tiny().fit(str(folder), samples.labels)
    with pytest.raises(UserError, match="no one axis of 3 channels"):
        tiny().fit(np.zeros((4, 3, 32, 3), np.uint8), samples.labels)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        tiny().fit(samples.images, samples.labels[:3])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make().fit(np.eye(4), samples.labels[:3])


class Peak(Head):
    """x = W · the highest feature of any place: needs maps."""

    needs_maps = True

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Output:
        assert features.ndim == 4
        return Output(self.linear(features.amax((2, 3))), pool(features))


def test_heads_that_need_maps_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = SimpleNamespace(
        name="peak", lr=0.01, weight_decay=0.0, make=lambda: Method(BCE(), head=Peak), check_regime=lambda regime: None
    )
    monkeypatch.setattr(module, "recipe", lambda name: peak)
    samples = scenes(4, size=32)
    model = tiny().fit(samples.images, samples.labels)
    maps = build_backbone("tiny")(samples.images).half().float()
    torch.testing.assert_close(
        torch.from_numpy(model.decision_function(samples.images)), model.model_.head(maps).logits.detach()
    )
    with pytest.raises(UserError, match="looks at places of images"):
        make().fit(np.eye(4), samples.labels)
