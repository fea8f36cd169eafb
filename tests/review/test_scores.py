"""Scores that are kept: computed once, read without torch, and computed again when something changed."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from digit_scenes import CLASSES, scenes
from PIL import Image

from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Model as Network
from halflabel.fitting.checkpoint import save_tensors
from halflabel.fitting.config import Config
from halflabel.images.sources import open_images
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.questions.choose import choose_questions
from halflabel.questions.next import next_questions
from halflabel.review.thumbnails import ClassMaps, ImageUnavailable, Thumbnails
from halflabel.runs import crossfit
from halflabel.runs import scores as score_cache
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.scores import scored_images

SIZE = 64


def untrained(folder, config, table):
    """A run whose head was never trained: weights, settings and labels are all that scores need."""
    run = RunFolder(folder / "runs" / "first")
    run.start(Labels.of(table), config.as_dict())
    backbone = build_backbone(config.backbone, size=config.size)
    make = recipe(config.method).make(**config.options).head
    head = seeded(0, lambda: make(backbone.channels, len(table.classes)))
    about = {"halflabel": json.dumps({"classes": list(table.classes)})}
    save_tensors(Network(backbone, head).state_dict(), run.weights, about)
    run.write_checksums(run.weights.name)
    held_out = table.images.take(np.arange(6))
    logits = np.ones((6, len(table.classes)), np.float32)
    run.write_scores(Scores(held_out, table.classes, logits, np.zeros(6, np.int8), "held-out"))
    return run


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    samples = scenes(24)
    (folder / "images").mkdir()
    names = [f"{name}.png" for name in samples.names]
    for name, picture in zip(names, samples.images, strict=True):
        pixels = picture.permute(1, 2, 0).numpy()
        Image.fromarray(pixels[:32] if name == names[0] else pixels).save(folder / "images" / name)
    table = Table.from_dense(samples.labels, names, CLASSES)
    config = Config(method="bce", size=SIZE, epochs=1, images=str(folder / "images"))
    return untrained(folder, config, table), folder / "images"


def test_class_maps_have_the_shape_of_the_photo_and_empty_ones_are_reported(small, monkeypatch) -> None:
    from halflabel.features import class_maps

    run, images = small
    thumbnails = Thumbnails(images, [f"train-{k:06}.png" for k in range(24)])
    cells = np.full((1, 1, 2, 2), -1.0, np.float32)
    monkeypatch.setattr(class_maps, "compute_class_maps", lambda *_: cells)
    assert ClassMaps(run.folder, thumbnails).png(0, 3) is None
    cells[0, 0, 0, 1] = 2.0  # hot on the right, above
    png = ClassMaps(run.folder, thumbnails).png(0, 3)
    alpha = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA").getchannel("A"))
    assert alpha.shape == (128, 256)
    assert alpha.argmax() % 256 > 128
    assert alpha.max() == 180
    assert alpha[127, 0] == 0
    with pytest.raises(ImageUnavailable):
        ClassMaps(run.folder, thumbnails).png(99, 3)


def test_maps_come_from_the_model(small) -> None:
    run, images = small
    maps = ClassMaps(run.folder, Thumbnails(images, [f"train-{k:06}.png" for k in range(24)]))
    shown = [png for column in range(10) if (png := maps.png(1, column))]
    assert shown
    assert all(Image.open(io.BytesIO(png)).size == (256, 256) for png in shown)


def test_scores_are_those_of_the_predictor_and_are_cached(small, monkeypatch) -> None:
    run, images = small
    first = scored_images(run, images)
    predictor = Model.open(run)
    source = open_images(first.table.images, images, predictor.views, max_bad=1.0)
    final = predictor.scores(source).numpy()
    assert np.allclose(first.scores[6:], final[6:], atol=2e-3)  # features are cached in half precision
    assert np.allclose(first.scores[:6], 1 / (1 + np.exp(-1)))  # those that the run has stored
    assert first.held_out.tolist() == [True] * 6 + [False] * 18
    assert first.features.shape == (24, 64)

    def never(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(score_cache, "_compute", never)
    again = scored_images(run, images)
    assert np.array_equal(first.scores, again.scores)
    assert np.array_equal(first.features, again.features)
    assert again.paths == list(first.table.images)
    path = images / "train-000003.png"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(AssertionError, match="computed again"):
        scored_images(run, images)


def test_the_cache_is_read_without_torch(project) -> None:
    code = (
        "import sys; from pathlib import Path; from halflabel.runs.folder import RunFolder\n"
        "from halflabel.runs.scores import scored_images; from halflabel.review import server, session, thumbnails\n"
        "from halflabel.questions.choose import choose_questions\n"
        "s = scored_images(RunFolder.open(sys.argv[1]), Path(sys.argv[2]))\n"
        "assert choose_questions(s.scores, s.table, s.thresholds, 20, features=s.features)\n"
        "assert thumbnails.Thumbnails(s.folder, s.paths).jpeg(0, 'small')\n"
        "assert 'torch' not in sys.modules, 'torch takes seconds'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(project.run.folder), str(project.images)], check=True)


def test_damaged_scores_are_computed_again(small) -> None:
    run, images = small
    first = scored_images(run, images)
    stored = list(run.cache.glob("first-scores-*/values.npy"))
    assert stored
    for values in stored:
        values.write_bytes(values.read_bytes()[:-9] + b"\0" * 9)
    assert np.allclose(scored_images(run, images).scores, first.scores)


def test_missing_files_are_errors(small, tmp_path) -> None:
    run, images = small
    with pytest.raises(UserError, match="is not a folder"):
        scored_images(run, tmp_path / "none")
    bare = RunFolder(tmp_path / "bare")
    bare.start(run.read_rows(), run.read_config())
    with pytest.raises(UserError, match="has no weights yet"):
        scored_images(bare, images)


def test_labels_made_by_a_model_are_no_evidence(project) -> None:
    """After fill and training, the labels that the model filled in count as unknown when questions are chosen."""
    run, images, _ = project
    before = project.scored()
    rows = run.read_rows()
    image, column = np.nonzero(before.table.dense() == 0)
    value = np.where(before.scores[image, column] >= 0.5, 1, -1).astype(np.int8)
    filled = Labels.build(rows.images, rows.classes, image, column, value, "model:bce:first")
    run.write_labels(rows.append(filled))
    assert (run.read_labels().dense() != 0).all()
    scored = project.scored()
    assert scored.table == before.table
    for wrong in (False, True):
        questions = next_questions(run, images, 30, wrong=wrong, folds=0)
        assert questions.table == before.table
        known = before.table.dense()
        assert all((known[q.image, q.column] != 0) == wrong for q in questions.questions)
    expected = choose_questions(before.scores, before.table, before.thresholds, 30, features=before.features)
    assert next_questions(run, images, 30).questions == expected


@pytest.fixture
def solved(solver_run, tmp_path):
    """A copy of a run with out-of-fold scores, where nothing may be trained."""
    shutil.copytree(solver_run.run.folder, tmp_path / "runs" / "solved")
    shutil.copytree(solver_run.run.folder.parent / "cache", tmp_path / "runs" / "cache")
    return RunFolder.open(tmp_path / "runs" / "solved"), solver_run.images


def test_stored_out_of_fold_scores_are_used(solved, monkeypatch) -> None:
    run, images = solved
    monkeypatch.setattr(crossfit, "fit", None)  # nothing is trained
    table = run.read_labels()
    stored = run.read_scores()
    assert stored.kind == "out-of-fold"
    assert stored.fold.min() == 0
    predictor = Model.open(run)
    expected = predictor.calibration.scores(torch.from_numpy(stored.logits)).numpy()
    scored = scored_images(run, images)
    assert np.allclose(scored.scores, expected, atol=1e-6)
    final = predictor.scores(open_images(table.images, images, predictor.views, max_bad=1.0)).numpy()
    assert not np.allclose(scored.scores, final, atol=1e-2)
    assert scored.held_out.all()
    assert scored.features.shape == (60, 64)
    filled = run.scores(table.images, images)
    assert np.array_equal(filled.logits, stored.logits)
    assert np.array_equal(filled.fold, stored.fold)
    for wrong in (False, True):
        asked = next_questions(run, images, 20, wrong=wrong)
        assert asked.held_out == 60


def test_other_out_of_fold_scores_make_the_cache_stale(solved) -> None:
    run, images = solved
    stored = run.read_scores()
    before = scored_images(run, images).scores
    run.write_scores(dataclasses.replace(stored, logits=stored.logits + 1))
    assert (scored_images(run, images).scores > before).all()


def test_an_image_that_became_unreadable_has_no_out_of_fold_score(solved, tmp_path) -> None:
    run, images = solved
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    name = run.read_labels().images[4]
    (folder / name).write_bytes(b"not an image")
    assert np.flatnonzero(np.isnan(scored_images(run, folder).scores).any(1)).tolist() == [4]
