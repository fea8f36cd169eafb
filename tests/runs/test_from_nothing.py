"""Runs that start from class names: no label at all, then answers; saved, exported and continued with the names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from digit_scenes import scenes
from PIL import Image

import halflabel
from halflabel.errors import UserError
from halflabel.features import names
from halflabel.features.heads import NormalisedHead, NormalisedLinear
from halflabel.images.sources import open_images
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.review.live_run import open_live_review
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.from_nothing import read_class_names
from halflabel.runs.model import Model

CLASSES = ["goldfish", "sofa", "dog"]
OPTIONS = {"backbone": "fast", "size": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, pixels in enumerate(scenes(40, size=64).images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare names by their letters."""

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])

    monkeypatch.setattr(names, "_PACKAGES", ())
    monkeypatch.setattr(names, "sentence_encoder", lambda: encode)
    monkeypatch.setattr(names, "_encoded", {})


def probabilities(model: Model, photos: Path) -> torch.Tensor:
    images = [path.name for path in sorted(photos.iterdir())]
    return model.scores(open_images(Names(images), photos, model.views))


@pytest.fixture
def run(photos: Path, tmp_path: Path) -> halflabel.Run:
    return halflabel.train(CLASSES, photos, tmp_path / "runs" / "a", **OPTIONS)


def test_class_names_alone_make_a_model(run, photos: Path, tmp_path: Path) -> None:
    assert np.isnan(run.metrics["mAP"])  # nothing is known that could measure it
    assert "nothing was measured" in repr(run)
    assert "nothing was measured" in run.model.calibration.assumption
    head = run.model.network.head
    assert isinstance(head, NormalisedLinear)
    assert head.names is not None
    assert not head.linear.weight.any()
    assert head.trust.tolist() == [1, 1, 1]
    rows = (run.folder / "names.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["class", *CLASSES]
    features = torch.randn(5, head.transform.blocks[0])
    expected = head.names(features) + head.linear.bias
    torch.testing.assert_close(head(features).logits, expected)
    scores = probabilities(run.model, photos)
    assert 0.2 < float(scores.mean()) < 0.7  # half of three classes
    export_onnx(run.model, tmp_path / "model.onnx")
    export_hub(RunFolder(run.folder), tmp_path / "hub")
    for model in (Model.open(tmp_path / "model.onnx"), Model.open(tmp_path / "hub")):
        torch.testing.assert_close(probabilities(model, photos), scores, atol=1e-3, rtol=0)


def test_names_stay_in_the_model_when_it_learns(run, photos: Path) -> None:
    images = RunFolder(run.folder).read_labels().images
    draw = np.random.default_rng(0)
    entries = draw.permutation(np.argwhere(np.ones((40, 3))))[:90]
    value = np.where(draw.random(90) < 0.4, 1, -1)
    answers = Labels.build(images, Names(CLASSES), *entries.T, value, "person", weight=np.ones(90))
    again = halflabel.continue_training(run.folder, run.folder.with_name("b"), answers=answers)
    assert again.metrics
    assert (again.folder / "names.csv").read_text().count("goldfish") >= 1


def test_a_live_review_begins_with_the_names(run, photos: Path) -> None:
    review = open_live_review(RunFolder(run.folder), photos, 0.95)
    update = review.update([])
    named = review.inputs.logits_of_names().sigmoid().numpy()
    np.testing.assert_allclose(update.probabilities, named, atol=1e-5)
    first = update.queue[:20]
    assert sum(question.is_control for question in first) == 10
    for question in first:
        if not question.is_control:
            assert question.weight == 0
            assert named[question.image, question.column] >= np.quantile(named[:, question.column], 0.5)


def test_a_class_without_a_positive_keeps_the_order_of_its_name(run, photos: Path) -> None:
    review = open_live_review(RunFolder(run.folder), photos, 0.95)
    assert review.explorer is not None
    named = review.explorer.named
    assert named is not None
    labels = np.zeros((40, 3), np.int8)
    labels[1, 0] = 1
    p = np.full((40, 3), 0.01, np.float32)
    scores = review.explorer.probabilities(p, labels)
    assert (scores[:, 0] == p[:, 0]).all()
    np.testing.assert_allclose(scores[:, 1:], named[:, 1:], rtol=1e-5)
    labels[np.argsort(-named[:, 1])[:20], 1] = -1  # the name finds nothing: other photos become likely
    scores = review.explorer.probabilities(p, labels)[:, 1]
    assert scores.max() == pytest.approx(0.3, abs=0.05)
    assert np.corrcoef(scores, named[:, 1])[0, 1] < 0.5


def test_without_names_nothing_can_be_learned_from_no_label(photos: Path, tmp_path: Path) -> None:
    for options in ({"names": "off"}, {"backbone": "tiny", "names": "auto"}):
        with pytest.raises(UserError, match="no label is known"):
            halflabel.train(CLASSES, photos, tmp_path / "run", **{**OPTIONS, **options})
    with pytest.raises(UserError, match="tiny gives no probabilities of ImageNet classes"):
        halflabel.train(CLASSES, photos, tmp_path / "run", **{**OPTIONS, "backbone": "tiny"})
    with pytest.raises(UserError, match="by a frozen backbone"):
        halflabel.train(CLASSES, photos, tmp_path / "run", **OPTIONS, tune="all")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_class_names_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("dog\n\ntraffic light\n")
    assert read_class_names(str(tmp_path / "classes.txt")) == ["dog", "traffic light"]
    assert read_class_names("dog, traffic light,") == ["dog", "traffic light"]
    with pytest.raises(UserError, match="'dog' is named twice"):
        read_class_names("dog,dog")
    with pytest.raises(UserError, match="names no class"):
        read_class_names(" , ")


@pytest.fixture
def named_labels(run, photos: Path) -> Labels:
    """A third of the labels that agree with the names."""
    scores = probabilities(run.model, photos).numpy()
    hidden = np.random.default_rng(0).random(scores.shape) < 0.67
    labels = np.where(hidden, 0, np.where(scores > np.median(scores, 0), 1, -1)).astype(np.int8)
    return Labels.of(Table.from_dense(labels, RunFolder(run.folder).read_labels().images, Names(CLASSES)))


@pytest.mark.parametrize("method", ["boostlu", "wsabie"])  # on maps, on pooled features
def test_systems_in_batches_start_from_names(named_labels, photos: Path, tmp_path: Path, method: str) -> None:
    options = {**OPTIONS, "method": method, "epochs": 2, "lr": 1e-5}
    run = halflabel.train(named_labels, photos, tmp_path / "runs" / "named", **options)
    head = run.model.network.head
    assert isinstance(head, NormalisedHead)
    assert head.base.trust is not None
    assert bool(head.base.trust.any())
    scores = probabilities(run.model, photos)
    export_onnx(run.model, tmp_path / "model.onnx")
    export_hub(RunFolder(run.folder), tmp_path / "hub")
    for model in (Model.open(tmp_path / "model.onnx"), Model.open(tmp_path / "hub")):
        torch.testing.assert_close(probabilities(model, photos), scores, atol=1e-3, rtol=0)
    again = halflabel.continue_training(run.folder, tmp_path / "runs" / "b")
    assert isinstance(again.model.network.head, NormalisedHead)


def test_a_tuned_network_keeps_the_names_of_the_frozen_recipe(named_labels, photos: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "tune": "all", "epochs": 1, "lr": 3.0, "method": "an"}
    run = halflabel.train(named_labels, photos, tmp_path / "runs" / "named", **options)
    head = run.model.network.head  # of the frozen recipe: such a rate destroys the network
    assert isinstance(head, NormalisedLinear)
    assert head.names is not None
    scores = probabilities(run.model, photos)
    export_onnx(run.model, tmp_path / "model.onnx")
    torch.testing.assert_close(probabilities(Model.open(tmp_path / "model.onnx"), photos), scores, atol=1e-3, rtol=0)
