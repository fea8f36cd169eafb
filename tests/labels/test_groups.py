"""Groups of images: how they are stated, and that neither folds nor intervals separate them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel import metrics
from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.labels.groups import absolute_group, column_group, image_groups, suggest_groups
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table

NAMES = Names(["p1_a.jpg", "p1_b.jpg", "p2_a.jpg", "other.jpg"])


def test_groups_are_stated_by_a_pattern_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("image,site,patient\np1_a.jpg,x,1\np1_b.jpg,x,1\np2_a.jpg,y,2\n")
    assert image_groups("^(p[0-9]+)_", NAMES) == ["p1", "p1", "p2", None]
    assert image_groups(f"{file}", NAMES) == ["x", "x", "y", None]
    assert image_groups(f"{file}:patient", NAMES) == ["1", "1", "2", None]
    assert image_groups(None, NAMES) is None
    file.write_text("site;photo;patient\nx;p1_a.jpg;1\nx;p1_b.jpg;1\ny;p2_a.jpg;2\n")  # the images in any column
    assert image_groups(f"{file}:patient", NAMES) == ["1", "1", "2", None]


def test_a_column_of_the_label_file_states_groups(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("image,patient,cat\np1_a.jpg,1,1\np1_b.jpg,1,0\np2_a.jpg,2,1\n")
    assert column_group("patient", file) == f"{file}:patient"
    (tmp_path / "sites.csv").write_text("patient,place\n1,x\n2,y\n")
    assert column_group("patient", tmp_path) == f"{tmp_path}:patient"
    assert image_groups(f"{tmp_path}:patient", NAMES) == ["1", "1", "2", None]
    assert column_group("^(p[0-9]+)_", file) == "^(p[0-9]+)_"
    assert column_group(f"{file}:cat", file) == f"{file}:cat"
    assert image_groups(column_group("patient", file), NAMES) == ["1", "1", "2", None]
    assert image_groups(f"{file}:patient", Names(["q.jpg"]), required=False) == [None]


def test_the_path_of_a_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "groups.csv").write_text("image,group\n")
    monkeypatch.chdir(tmp_path)
    assert absolute_group("groups.csv:group") == f"{tmp_path / 'groups.csv'}:group"
    assert Config(group="^(p[0-9]+)").group == "^(p[0-9]+)"


@pytest.mark.parametrize("group", ["^(x[0-9]+)_", "p(", "."])
def test_groups_that_cannot_be_meant_are_refused(group: str) -> None:
    with pytest.raises(UserError, match="group"):
        image_groups(group, Names(["p1.jpg", "p1_b.jpg"]) if group != "." else Names(["p1", "p2"]))


def test_groups_are_suggested_by_names_with_few_images_each() -> None:
    assert suggest_groups([f"patient{i // 3}/view{i % 3}.jpg" for i in range(60)]) is not None
    chexpert = [f"train/patient{i // 4:05d}/study{i // 2 % 2 + 1}/view{i % 2 + 1}_frontal.jpg" for i in range(60)]
    assert len(set(image_groups(suggest_groups(chexpert), Names(chexpert)) or ())) == 15  # patients, not studies
    assert suggest_groups([f"2008_{i:06d}.jpg" for i in range(200)]) is None
    assert suggest_groups([f"cats/{i}.jpg" for i in range(60)] + [f"dogs/{i}.jpg" for i in range(60)]) is None


def test_a_watermark_of_each_patient_is_worth_nothing_with_groups() -> None:
    """Images of a patient share labels and a watermark, which says nothing about other patients."""
    generator = np.random.default_rng(0)
    patients, views = 60, 5
    watermark = generator.normal(size=(patients, 40)).repeat(views, 0)
    labels = np.where(generator.random((patients, 3)) < 0.4, 1, -1).repeat(views, 0).astype(np.int8)
    features = torch.from_numpy((watermark + 0.1 * generator.normal(size=watermark.shape)).astype(np.float32))
    names = [f"p{number // views}_{number % views}" for number in range(patients * views)]
    table = Table.from_dense(labels, images=names)
    share = float((labels > 0).mean())
    quality = {}
    for group in (None, "^(p[0-9]+)_"):
        config = Config(method="bce", fit="linear", l2_strength=1e-3, group=group)
        groups = group_numbers(image_groups(group, table.images), len(names))
        inputs = Inputs(lambda: Features(features, table.images), groups=groups)
        fitted = fit(Labels.of(table), inputs, config).scores
        assert fitted is not None
        quality[group] = metrics.mean_average_precision(fitted.logits, labels)
        if group is not None:
            assert all(len(set(fitted.fold[at : at + views])) == 1 for at in range(0, len(names), views))
    assert quality[None] > 0.95
    assert quality["^(p[0-9]+)_"] < share + 0.15


def test_intervals_of_images_in_groups_are_those_of_the_groups() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(40, 1))
    labels = np.where(scores + generator.normal(size=scores.shape) > 0, 1, -1).astype(np.int8)
    alone = metrics.bootstrap(scores, labels, n=200)
    copied = scores.repeat(4, 0), labels.repeat(4, 0)
    together = metrics.bootstrap(*copied, n=200, groups=np.arange(40).repeat(4))
    apart = metrics.bootstrap(*copied, n=200)
    np.testing.assert_allclose(together.replicates.std(), alone.replicates.std(), rtol=1e-6)
    assert apart.replicates.std() < 0.7 * together.replicates.std()
