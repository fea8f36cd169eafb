"""Cross-fitting: out-of-fold scores do not depend on the labels of the image; they choose strength and neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel import metrics
from halflabel.evaluation.ranking import ranking_quality
from halflabel.features.feature_transform import FeatureTransform
from halflabel.features.heads import NormalisedLinear
from halflabel.fitting.crossfit import (
    Basis,
    _choose_similar,
    _guesses_by_fold,
    _projections,
    _Similar,
    _Task,
    crossfit,
)
from halflabel.labels.table import Table
from halflabel.methods.base import recipe


def make_data(images: int = 150, noise: bool = False, seed: int = 0) -> tuple[torch.Tensor, Table]:
    generator = np.random.default_rng(seed)
    labels = np.where(generator.random((images, 3)) < 0.3, 1, -1).astype(np.int8)
    features = generator.normal(size=(images, 12)).astype(np.float32)
    if not noise:
        features[:, :3] += 2 * labels
    known = np.where(generator.random(labels.shape) < 0.6, labels, 0).astype(np.int8)
    return torch.from_numpy(features), Table.from_dense(known)


def test_scores_of_features_without_information_are_near_chance() -> None:
    qualities = []
    for seed in range(3):
        features, table = make_data(noise=True, seed=seed)
        fitted = crossfit(features, table, recipe("bce").make, strength=1e-4)
        labels = table.dense()
        share = (labels > 0).sum() / (labels != 0).sum()
        qualities.append(metrics.mean_average_precision(fitted.logits, labels) - share)
    assert np.mean(qualities) < 0.1  # scores of the training images by the final head would read near 0.6


def test_the_label_of_an_image_has_no_influence_on_its_own_score(monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = make_data()
    fold = (np.arange(len(table)) % 5).astype(np.int8)
    monkeypatch.setattr("halflabel.fitting.crossfit.assign_parts", lambda *args, **options: fold)
    changed = table.dense()
    image = int(np.flatnonzero(changed[:, 0] != 0)[0])
    changed[image, 0] *= -1
    before, after = (
        crossfit(features, labels, recipe("bce").make, strength=1e-3, use_similar=False).logits
        for labels in (table, Table.from_dense(changed))
    )
    same_fold = fold == fold[image]
    np.testing.assert_allclose(before[same_fold], after[same_fold], atol=1e-5)
    assert np.abs(before[~same_fold, 0] - after[~same_fold, 0]).max() > 1e-3


def test_probabilities_passed_to_a_fold_come_from_models_without_it() -> None:
    features, table = make_data()
    fold = torch.arange(len(table)) % 5
    image = int(np.flatnonzero(table.dense()[:, 0] != 0)[0])
    changed = table.dense()
    changed[image, 0] *= -1
    transform = FeatureTransform.fit(features)
    basis = Basis(transform, np.arange(len(table)), features, torch.eye(features.shape[1]), features.var(0))
    before, after = (
        _guesses_by_fold(_Task([recipe("bce").make], basis, labels, fold, 5, labels), 1e-3)
        for labels in (table, Table.from_dense(changed))
    )
    other_folds = fold != fold[image]
    torch.testing.assert_close(before[fold[image]][other_folds], after[fold[image]][other_folds])
    assert not torch.allclose(
        before[(fold[image] + 1) % 5][other_folds], after[(fold[image] + 1) % 5][other_folds], atol=1e-3
    )


def test_informative_features_are_learned_deterministically() -> None:
    features, table = make_data()
    fitted = crossfit(features, table, recipe("bce").make)
    assert fitted.quality > 0.9
    assert fitted.strength in fitted.tried
    with torch.no_grad():
        first, second = (fitted.head(features).logits for _ in range(2))
    assert torch.equal(first, second)
    repeated = crossfit(features, table, recipe("bce").make)
    np.testing.assert_array_equal(fitted.logits, repeated.logits)


def test_unreadable_images_have_no_score() -> None:
    features, table = make_data()
    features[3] = torch.nan
    fitted = crossfit(features, table, recipe("bce").make, strength=1e-3)
    assert np.isnan(fitted.logits[3]).all()
    assert np.isfinite(np.delete(fitted.logits, 3, axis=0)).all()


def test_groups_are_never_divided() -> None:
    features, table = make_data()
    groups = [number // 5 for number in range(len(table))]
    fitted = crossfit(features, table, recipe("bce").make, strength=1e-3, groups=groups)
    assert all(len(set(fitted.fold[first : first + 5])) == 1 for first in range(0, len(table), 5))


def clustered_data() -> tuple[torch.Tensor, Table]:
    generator = np.random.default_rng(1)
    centres = generator.normal(size=(30, 12))
    cluster = generator.integers(0, 30, 400)
    features = torch.from_numpy((centres[cluster] + 0.1 * generator.normal(size=(400, 12))).astype(np.float32))
    truth = np.where(generator.random((30, 2)) < 0.4, 1, -1)[cluster].astype(np.int8)
    return features, Table.from_dense(np.where(generator.random(truth.shape) < 0.5, truth, 0).astype(np.int8))


def test_similar_images_help_where_labels_follow_clusters_and_are_saved_with_the_head() -> None:
    features, table = clustered_data()
    plain = crossfit(features, table, recipe("bce").make, use_similar=False)
    mixed = crossfit(features, table, recipe("bce").make)
    assert mixed.head.similar is not None
    assert mixed.quality > plain.quality
    state = mixed.head.state_dict()
    loaded = NormalisedLinear.from_shapes(state)
    assert loaded is not None
    loaded.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(features).logits, mixed.head(features).logits)


@pytest.mark.parametrize(("informative", "words"), [(0, "the network's own vector"), (1, "the mean over places")])
def test_out_of_fold_scores_choose_the_blocks(informative: int, words: str) -> None:
    features, table = make_data()
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(features.shape, generator=generator)
    blocks = [features, noise] if informative == 0 else [noise, features]
    bases = Basis.of(torch.cat(blocks, 1), blocks=[each.shape[1] for each in blocks])
    fitted = crossfit(bases, table, recipe("bce").make, use_similar=False)
    assert words in fitted.choice
    alone = [crossfit([basis], table, recipe("bce").make, use_similar=False).quality for basis in bases]
    assert fitted.quality == max(alone) > min(alone) + 0.2
    state = fitted.head.state_dict()
    loaded = NormalisedLinear.from_shapes(state)
    assert loaded is not None
    loaded.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.cat(blocks, 1)).logits, fitted.head(torch.cat(blocks, 1)).logits)


def test_few_negatives_among_positives_do_not_measure_a_ranking() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(400, 5, generator=generator) < 0.2
    labels = (truth & (torch.rand(400, 5, generator=generator) < 0.7)).to(torch.int8)
    good = truth + 0.5 * torch.rand(400, 5, generator=generator)
    wrong_on_unknown = torch.where(labels == 0, 2.0, good)
    labels[labels.nonzero()[0][0]] = torch.where(labels[labels.nonzero()[0][0]] == 0, -1, 1).to(torch.int8)
    wrong_on_unknown[labels < 0] = 0.0
    assert ranking_quality(good, labels) > 2 * ranking_quality(wrong_on_unknown, labels)


def test_ranking_quality_is_mean_average_precision_on_known_labels() -> None:
    generator = np.random.default_rng(2)
    labels = generator.integers(-1, 2, (60, 4)).astype(np.int8)
    scores = generator.random((60, 4)).astype(np.float32)
    expected = metrics.mean_average_precision(scores, labels)
    assert ranking_quality(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(
        float(expected), abs=1e-6
    )


def test_labels_made_by_a_model_do_not_choose_the_strength() -> None:
    features, table = make_data()
    random = np.where(np.random.default_rng(3).random(table.shape) < 0.5, 1, -1).astype(np.int8)
    mixed = Table.from_dense(np.where(table.dense() != 0, table.dense(), random))
    fitted = crossfit(features, mixed, recipe("bce").make, evaluation=table, use_similar=False)
    quality = ranking_quality(torch.from_numpy(fitted.logits), torch.from_numpy(table.dense()))
    assert fitted.tried[fitted.strength] == pytest.approx(quality, abs=1e-6)


def test_large_tables_have_three_folds_and_a_sample_chooses_the_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = make_data()
    monkeypatch.setattr("halflabel.fitting.crossfit.LARGE", 100)
    monkeypatch.setattr("halflabel.evaluation.ranking._SORTED_ENTRIES", 300)
    fits: list[tuple[int, int]] = []
    fitted = crossfit(
        features, table, recipe("bce").make, progress=lambda *state: fits.append(state), use_similar=False
    )
    assert set(fitted.fold) == {0, 1, 2}
    assert len(fits) == len(fitted.tried) + 3  # three folds of all classes
    assert np.isfinite(fitted.logits).all()
    assert metrics.mean_average_precision(fitted.logits, table.dense()) > 0.8


def test_keys_without_class_probabilities_compare_the_features_alone() -> None:
    features, _ = make_data()
    classifier = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)), torch.zeros(5)
    basis = Basis.of(features, classifier)[0]
    alone, both = (basis.features @ projection for projection in _projections(basis))
    own = basis.transform(features)[:, :12]
    torch.testing.assert_close(both, basis.features)
    torch.testing.assert_close(alone @ alone.T, own @ own.T, atol=1e-4, rtol=1e-3)
    assert len(_projections(Basis.of(features)[0])) == 1


def test_similar_images_are_found_and_weighted_as_known_labels_show() -> None:
    """Clusters that the second space shows and the first one hides."""
    generator = np.random.default_rng(0)
    cluster = generator.integers(0, 20, 200)
    labels = np.where(generator.random((20, 12)) < 0.3, 1, -1).astype(np.int8)[cluster]
    table = Table.from_dense(labels)
    features = torch.from_numpy(generator.normal(size=(200, 12)).astype(np.float32))
    fold = torch.arange(200) % 5
    task = _Task([recipe("bce").make], Basis.of(features)[0], table, fold, 5, table)
    task.out_of_fold = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    task.guesses = [torch.from_numpy((labels > 0).astype(np.float16))] * 5
    same = [np.flatnonzero((cluster == cluster[i]) & (fold.numpy() != i % 5)) for i in range(200)]
    right = torch.from_numpy(np.stack([np.resize(each, 4) for each in same]))
    spaces = [_Similar(torch.eye(12), torch.ones(200, 4), which) for which in (torch.randint(200, (200, 4)), right)]
    assert torch.equal(_choose_similar(task, spaces).images, right)


@pytest.mark.parametrize("references", [40, 1000])
def test_similar_images_are_searched_among_a_limited_number(references: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = clustered_data()
    monkeypatch.setattr("halflabel.fitting.crossfit.REFERENCES", references)
    plain = crossfit(features, table, recipe("bce").make, strength=1e-3, use_similar=False)
    fitted = crossfit(features, table, recipe("bce").make, strength=1e-3)
    assert fitted.quality > plain.quality
    assert fitted.head.similar is not None
    assert len(fitted.head.similar.keys) == min(references, len(table))
    assert ("chosen at random" in fitted.choice) == (references < len(table))


def test_features_in_scratch_files_give_the_same_head(monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = make_data()
    features = features.half()
    features[7] = torch.nan
    in_memory = crossfit(features.float(), table, recipe("bce").make)
    monkeypatch.setattr("halflabel.system.memory._SCRATCH_BYTES", 1)
    monkeypatch.setattr("halflabel.fitting.crossfit._SCORED", 16)
    scratch = crossfit(features, table, recipe("bce").make)
    np.testing.assert_allclose(scratch.logits, in_memory.logits, atol=1e-5)
    for value, expected in zip(scratch.head.state_dict().values(), in_memory.head.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("largest_loss", [-1.0, 1.0])
def test_similar_images_are_left_out_where_they_lower_the_quality(
    largest_loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, table = make_data()
    plain = crossfit(features, table, recipe("bce").make, strength=1e-3, use_similar=False)
    monkeypatch.setattr("halflabel.fitting.crossfit._LARGEST_LOSS", largest_loss)
    fitted = crossfit(features, table, recipe("bce").make, strength=1e-3)
    assert (fitted.head.similar is not None) == (largest_loss > 0)
    assert np.array_equal(fitted.logits, plain.logits) == (largest_loss < 0)
