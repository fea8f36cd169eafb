"""Calibration and thresholds of fills, tested for their precision on hidden labels."""

from __future__ import annotations

import fill_worlds as worlds
import numpy as np
import pytest

from halflabel.evaluation.calibration import fit_class_platt, sigmoid
from halflabel.filling.thresholds import BINS, BinCounts, _weights, bin_of, choose_thresholds, random_answers_needed


def entries(rng: np.random.Generator, count: int, slope: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(0, 2, count)
    return x, rng.random(count) < sigmoid(slope * x + offset)


def test_classes_with_many_labels_have_a_curve_and_others_share_one() -> None:
    rng = np.random.default_rng(0)
    sizes = [3000] * 8 + [8, 0]
    offsets = [-2.0, -1.0, 0.0, 1.0] * 2 + [3.0, 0.0]
    columns, xs, signs = [], [], []
    for c, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        x, present = entries(rng, size, 1.5, offset)
        columns.append(np.full(size, c))
        xs.append(x)
        signs.append(present)
    calibration = fit_class_platt(np.concatenate(columns), np.concatenate(xs), np.concatenate(signs), 10)
    grid = np.linspace(-3, 3, 13)
    for c in range(8):
        p = calibration.scores(grid, np.full(13, c))
        assert np.abs(p - sigmoid(1.5 * grid + offsets[c])).max() < 0.06
    nothing = calibration.scores(grid, np.full(13, 9))
    shared = sigmoid(1.5 * grid - 0.5)
    assert np.abs(nothing - shared).max() < 0.15
    # Eight labels move the class some way from the others, but not all the way to where it belongs.
    few = calibration.scores(np.zeros(1), np.array([8]))[0]
    assert nothing[6] < few < sigmoid(3.0)


def test_sure_positives_have_a_slope_of_their_own() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(-2, 2, 20_000)
    present = rng.random(len(x)) < sigmoid(np.where(x > 0, 3 * x, x))
    calibration = fit_class_platt(np.zeros(len(x), int), x, present, 1)
    grid = np.array([-3.0, -1.0, 0.7, 1.5])
    assert np.abs(calibration.scores(grid, np.zeros(4, int)) - sigmoid(np.where(grid > 0, 3 * grid, grid))).max() < 0.05


def test_entries_of_like_logits_fitted_as_one_make_the_same_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    column = np.minimum(rng.geometric(0.2, 50_000), 12) - 1
    x = rng.normal(0, 3, len(column))
    x[0] = -1e4  # a logit that is far out does not make the others one
    present = rng.random(len(x)) < sigmoid(0.7 * x + np.linspace(-3, 0, 12)[column])
    grid = np.repeat(np.linspace(-8, 8, 33)[:, None], 12, 1)
    each = fit_class_platt(column, x, present, 12).scores(grid)
    monkeypatch.setattr("halflabel.evaluation.calibration._MAX_ENTRIES", 7_000)
    grouped = fit_class_platt(column, x, present, 12).scores(grid)
    assert 0 < np.abs(grouped - each).max() < 1e-3


def test_one_sign_only_leaves_the_scores_as_they_are() -> None:
    x = np.array([-1.0, 2.0])
    for present in (np.ones(2, bool), np.zeros(2, bool)):
        assert np.allclose(fit_class_platt(np.zeros(2, int), x, present, 1).scores(x, np.zeros(2, int)), sigmoid(x))
    backwards = fit_class_platt(np.zeros(400, int), np.linspace(-3, 3, 400), np.arange(400) < 200, 1)
    assert np.diff(backwards.scores(np.linspace(-3, 3, 9), np.zeros(9, int))).min() > 0


def test_bins_are_ordered_and_symmetric() -> None:
    p = np.array([0.0, 1e-9, 0.2, 0.5, 0.8, 1 - 1e-9, 1.0, np.nan])
    place = bin_of(p)
    assert place[-1] == -1
    assert np.all(np.diff(place[:-1]) >= 0)
    assert (place[0], place[6]) == (0, BINS - 1)
    q = np.linspace(0.01, 0.99, 50) + 1e-4
    assert np.array_equal(bin_of(1 - q), BINS - 1 - bin_of(q))


def test_counts_are_those_of_a_slow_loop() -> None:
    rng = np.random.default_rng(2)
    p = rng.random((30, 3)).astype(np.float32)
    p[4] = np.nan
    labels = rng.choice([-1, 0, 1], (30, 3)).astype(np.int8)
    free = (labels == 0) & (rng.random((30, 3)) < 0.7)
    counts = BinCounts.zeros(3)
    every = rng.random(30) < 0.5
    counts.add(p[:10], free[:10], labels[:10], every[:10])
    counts.add(p[10:], free[10:], labels[10:], every[10:])
    slow = BinCounts.zeros(3)
    for i in range(30):
        for c in range(3):
            if i == 4:
                continue
            b = bin_of(p[i : i + 1, c])[0]
            slow.unknown[c, b] += free[i, c]
            slow.summed[c, b] += p[i, c] * free[i, c]
            slow.present[c, b] += labels[i, c] > 0
            slow.absent[c, b] += labels[i, c] < 0
            slow.whole[c, b] += every[i] or labels[i, c] != 0
    for mine, theirs in zip(counts, slow, strict=True):
        assert np.allclose(mine, theirs)


def test_weighted_known_entries_represent_the_unknown_ones() -> None:
    unknown, known = np.zeros((2, BINS)), np.zeros((2, BINS))
    unknown[0, 300:] = 10
    unknown[1, 300:] = 1000
    known[0, 300:] = 10  # a class that was looked at far more closely than the other
    known[1, 300:] = 10
    weight = _weights(unknown, known)
    share = (weight * known).sum(1) / (weight * known).sum()
    assert share[1] == pytest.approx(1000 / 1010, abs=0.01)


def decide(world, target: float = 0.95):  # type: ignore[no-untyped-def]
    from halflabel.filling.plan import FillOptions, plan_fill

    return plan_fill(world.scores, world.table, FillOptions(precision=target))


@pytest.mark.parametrize("target", [0.9, 0.95])
def test_fills_are_as_precise_as_asked_in_most_worlds(target: float) -> None:
    worse = {1: 0, -1: 0}
    for seed in range(20):
        world = worlds.make_world(seed)
        value = decide(world, target).rows().training.dense()
        for sign in (1, -1):
            mine = value == sign
            assert mine.sum() > 500
            worse[sign] += (world.truth[mine] == sign).mean() < target
    # Nine of ten are promised: of 20 at most 2 may fail on average, and 5 or more are a chance of 1 in 25.
    assert worse[1] <= 4
    assert worse[-1] == 0


def test_a_useful_share_is_filled_and_more_for_a_lower_precision() -> None:
    world = worlds.make_world(3)
    unknown = world.table.dense() == 0
    shares = []
    for target in (0.98, 0.95, 0.9):
        value = decide(world, target).rows().training.dense()
        shares.append((value[unknown & (world.truth > 0)] > 0).mean())
        assert (value[unknown & (world.truth < 0)] < 0).mean() > 0.35
    assert shares[0] < shares[1] < shares[2]
    assert shares[1] > 0.25


def test_positives_of_a_rare_class_are_not_filled_as_absent() -> None:
    """Of a class that 2 % have, all entries as absent would be 98 % right. Its likely positives still stay out."""
    rng = np.random.default_rng(5)
    z = rng.normal(-6, 2.5, (20_000, 1))
    counts = BinCounts.zeros(1)
    p = sigmoid(z).astype(np.float32)
    truth = np.where(rng.random(z.shape) < p, 1, -1).astype(np.int8)
    known = truth * (rng.random(z.shape) < 0.2)
    assert (truth < 0).mean() > 0.96
    counts.add(p, known == 0, known.astype(np.int8), np.ones(len(p), bool))
    side = choose_thresholds(counts, positive=False, target=0.95)
    filled = (known == 0) & (BINS - 1 - bin_of(p) >= side.cut)
    assert filled.mean() > 0.6
    assert p[filled].max() < 0.06


def test_a_class_whose_labels_contradict_the_target_is_tightened() -> None:
    """One class's probabilities are far too high, which the pooled precision would hide among nine good ones."""
    counts = BinCounts.zeros(10)
    high = int(bin_of(np.array([0.97]))[0])
    counts.unknown[:, high] = 1000
    counts.summed[:, high] = 970
    counts.present[:9, high] = 98
    counts.absent[:9, high] = 1
    counts.present[9, high], counts.absent[9, high] = 24, 12
    side = choose_thresholds(counts, positive=True, target=0.95)
    assert (side.filled[:9] == 1000).all()
    assert side.filled[9] == 0
    assert (side.low[:9] > 0.9).all()
    assert (side.estimate[:9] >= 0.95).all()
    assert side.known_labels == 9 * 99 + 36  # the overall numbers are those before the class was taken out
    assert side.precision < 0.98


def test_too_few_labels_fill_nothing() -> None:
    counts = BinCounts.zeros(1)
    high = int(bin_of(np.array([0.99]))[0])
    counts.unknown[0, high], counts.summed[0, high], counts.present[0, high] = 500, 495, 20
    side = choose_thresholds(counts, positive=True, target=0.95)
    assert side.filled.tolist() == [0]
    assert np.isnan(side.bound)
    # One unknown entry in two is in this range: log(0.08) / log(0.95) = 50 labels there are enough, if all are right.
    counts.unknown[0, 0] = 500
    asked = random_answers_needed(counts, positive=True, target=0.95, confidence=0.9)
    assert asked == 2 * (50 - 20)
    counts.absent[0, high] = 2
    assert random_answers_needed(counts, positive=True, target=0.95, confidence=0.9) is None
    counts.unknown[0, 0] = counts.absent[0, high] = 0
    counts.present[0, high] = 80
    assert choose_thresholds(counts, positive=True, target=0.95).filled.tolist() == [500]
