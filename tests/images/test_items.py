"""Items of several images: one set of labels, features that are the mean of those of the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.images.decode import first_files
from halflabel.images.items import Items, pool_items
from halflabel.images.sources import Features, Images, open_images
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

LABELS = np.random.default_rng(1).choice([-1, 1], (40, 1))
NAMES = [f"item{number}" for number in range(40)]
CONFIG = Config(method="bce", backbone="tiny", size=32, fit="auto", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One to three photos per item; of a bright item one photo is bright. The last item is a single file."""
    place, rng = tmp_path_factory.mktemp("items"), np.random.default_rng(0)
    for number, (name, label) in enumerate(zip(NAMES, LABELS[:, 0], strict=True)):
        count = 1 if number == 39 else 2 + number % 2
        for view in range(count):
            pixels = rng.integers(0, 60, (32, 32, 3)) + (150 if label > 0 and view == count - 1 else 0)
            path = place / f"{name}.png" if number == 39 else place / name / f"{view}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    (place / "item0" / "damaged.png").write_bytes(b"no image")
    return place


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = RunFolder(tmp_path_factory.mktemp("run") / "a")
    evaluation = train(Table.from_dense(LABELS, NAMES, ["bright"]), folder, CONFIG, run)
    assert evaluation is not None
    assert evaluation.overall["mAP"] > 0.9
    return run


def test_an_id_that_names_a_folder_is_an_item(folder: Path) -> None:
    source = open_images(Names(NAMES), folder, {})
    assert isinstance(source, Items)
    assert len(source) == 40
    assert len(source.images) == sum(2 + number % 2 for number in range(39)) + 1 + 1
    assert first_files(["item1", "item39", "none", "../x"], folder) == [
        folder / "item1" / "0.png",
        folder / "item39.png",
        None,
        None,
    ]
    assert not isinstance(open_images(Names(["item39"]), folder, {}), Items)


def test_features_are_the_mean_of_readable_images() -> None:
    files = [[Path("a"), Path("b")], [], [Path("c")], [Path("d"), Path("e"), Path("f")]]
    items = Items(files, Names("wxyz"), {}, max_bad=1.0)
    values = torch.arange(12.0).view(6, 2)
    pooled = pool_items(items, Features(values, items.images.names, [1, 2]))
    expected = [[0, 1], [0, 0], [0, 0], [8, 9]]
    np.testing.assert_allclose(pooled.values, expected)
    assert pooled.bad.tolist() == [1, 2]
    with pytest.raises(UserError, match="pooled"):
        pool_items(items, Features(torch.zeros(6, 2, 3, 3), items.images.names))


def test_prediction_evaluation_and_fill_score_items(run: RunFolder, folder: Path) -> None:
    predictor = Model.open(run)
    predictions = predictor.predict([folder / name for name in NAMES[:6]], items=True)
    probabilities = [item.labels[0]["probability"] for item in predictions]
    source = open_images(Names(NAMES[:6]), folder, predictor.views, max_bad=1.0)
    np.testing.assert_allclose(predictor.scores(source)[:, 0], probabilities, atol=1e-4)
    table = Table.from_dense(LABELS, NAMES, ["bright"])
    assert predictor.evaluate(table, folder).overall["mAP"] > 0.9
    assert np.isfinite(run.scores(table.images, folder).logits).all()


def test_tuning_the_network_is_refused(folder: Path) -> None:
    source = open_images(Names(NAMES), folder, {})
    with pytest.raises(UserError, match="frozen"):
        next(iter(source.fetch([np.arange(2)], ("weak",))))
    assert isinstance(source, Images)
