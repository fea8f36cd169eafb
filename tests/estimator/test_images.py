"""HalfLabelClassifier on images and image files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_scenes import scenes, write_folder
from estimator_examples import make, solved
from PIL import Image
from torch import Tensor

from halflabel.errors import UserError
from halflabel.estimator import HalfLabelClassifier
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Head, Linear, pool
from halflabel.methods import REGIMES
from halflabel.methods.base import Method, Recipe
from halflabel.methods.parts.losses import BCE
from halflabel.types import Output


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
    expected = tiny().fit(files, samples.labels).predict_proba(files)
    assert expected.shape == (24, 10)
    assert np.ptp(expected) > 0.01
    for X in (
        [str(file) for file in files],
        np.array([str(file) for file in files]),
        pixels,
        pixels.transpose(0, 2, 3, 1),
        samples.images,
    ):
        model = tiny().fit(X, samples.labels)
        np.testing.assert_array_equal(model.predict_proba(X), expected)
        np.testing.assert_array_equal(model.predict_proba(files), expected)
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


def test_a_cache_is_reused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, labels = sorted(folder.iterdir())[:10], scenes(10, size=32).labels
    expected = tiny().fit(files, labels).predict_proba(files)
    model = tiny(cache=tmp_path).fit(files, labels)
    assert len(list(tmp_path.rglob("values.npy"))) == 1
    monkeypatch.setattr("halflabel.features.backbones.Backbone.pooled", None)
    np.testing.assert_array_equal(model.predict_proba(files[::-1])[::-1], expected)
    np.testing.assert_array_equal(tiny(cache=str(tmp_path)).fit(files, labels).predict_proba(files), expected)
    with pytest.raises(TypeError):
        model.predict(files[:5])


def test_an_image_may_occur_twice(folder: Path) -> None:
    files, labels = sorted(folder.iterdir())[:6], scenes(6, size=32).labels
    with_repeat = [*files, files[0]]
    model = tiny().fit(with_repeat, np.concatenate([labels, labels[:1]]))
    scores = model.predict_proba(with_repeat)
    np.testing.assert_array_equal(scores[0], scores[-1])
    assert len(np.unique(scores, axis=0)) == 6


def test_a_method_of_two_views_trains_on_both(folder: Path, tmp_path: Path) -> None:
    """On equal views the guesses of "cr" charge the view they come from, as those of "pl" do."""
    files, labels = sorted(folder.iterdir())[:24], scenes(24, size=32).labels.copy()
    labels[::2, ::2] = labels[1::2, 1::2] = 0
    with_repeat = [*files, files[0]]
    results = {}
    for kind, views, supervise in (("cr", 5, {"supervise": "weak"}), ("pl", 1, {})):
        options = {"tau": 0.5, "consistency": kind, **supervise}
        model = tiny(method="srcr", options=options, cache=tmp_path / kind)
        results[kind] = model.fit(with_repeat, np.concatenate([labels, labels[:1]])).predict_proba(files)
        assert len(list((tmp_path / kind).rglob("values.npy"))) == views
    assert not np.allclose(results["cr"], results["pl"], atol=1e-3)


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


def test_a_fitted_image_classifier_can_be_pickled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, labels = sorted(folder.iterdir())[:6], scenes(6, size=32).labels
    model = tiny().fit(files, labels)
    expected, pickled = model.predict_proba(files), pickle.dumps(model)
    monkeypatch.setattr("halflabel.fitting.assembly.build_backbone", None)
    unpickled = pickle.loads(pickled).set_params(size=64)  # of the next fit
    np.testing.assert_array_equal(unpickled.predict_proba(files), expected)


def test_a_list_of_pil_images_of_any_size_is_read_like_their_files(folder: Path) -> None:
    files, labels = sorted(folder.iterdir())[:24], scenes(24, size=32).labels
    opened = [Image.open(file) for file in files]
    by_file, by_image = tiny().fit(files, labels), tiny().fit(opened, labels)
    np.testing.assert_allclose(by_image.predict_proba(opened), by_file.predict_proba(files), atol=1e-4)
    mixed = [image.resize((40, 24 + 2 * number)).convert("L") for number, image in enumerate(opened)]
    scores = tiny().fit(mixed, labels).predict_proba([*mixed, mixed[0]])
    assert scores.shape == (25, labels.shape[1])
    np.testing.assert_allclose(scores[0], scores[-1], rtol=1e-6)


def test_bad_x_is_refused(folder: Path) -> None:
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


def test_heads_that_need_maps_get_them() -> None:
    peak = Recipe("peak", lambda: Method(BCE(), head=Peak), {}, REGIMES, "none", lr=0.01, weight_decay=0.0)
    samples = scenes(4, size=32)
    model = tiny(method=peak).fit(samples.images, samples.labels)
    maps = build_backbone("tiny")(samples.images).half().float()
    torch.testing.assert_close(
        torch.from_numpy(model.decision_function(samples.images)), model.model_.head(maps).logits.detach()
    )
    with pytest.raises(UserError, match="looks at places of images"):
        make(method=peak).fit(np.eye(4), samples.labels)
