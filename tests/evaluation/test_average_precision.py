"""Average precision against golden files, scikit-learn and a slow loop."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_examples import KINDS, close, make
from sklearn.metrics import average_precision_score

from halflabel import metrics

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text(encoding="utf-8"))["cases"]


def slow_cuts(scores, labels):
    """(hits, rank, positives) at every distinct score of one column's known entries, from the highest down."""
    known = [(s, y) for s, y in zip(scores.tolist(), labels.tolist(), strict=True) if y != 0]
    positives = sum(y > 0 for _, y in known)
    cuts = []
    for cut in sorted({s for s, _ in known}, reverse=True):
        above = [y for s, y in known if s >= cut]
        cuts.append((sum(y > 0 for y in above), len(above)))
    return cuts, positives


def slow_ap(scores, labels, kind):
    """Average precision of one column in fractions."""
    cuts, positives = slow_cuts(scores, labels)
    if positives == 0 or not (labels < 0).any():
        return math.nan
    area, before = Fraction(0), 0
    if kind == "voc07":
        for level in range(11):
            reached = [Fraction(h, r) for h, r in cuts if Fraction(h, positives) >= Fraction(level, 10)]
            area += max(reached) / 11
        return float(area)
    for k, (hits, rank) in enumerate(cuts):
        height = Fraction(hits, rank)
        if kind == "interpolated":
            height = max(Fraction(h, r) for h, r in cuts[k:])
        area += Fraction(hits - before, positives) * height
        before = hits
    return float(area)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden(case):
    scores, labels = np.array(case["scores"]), np.array(case["labels"], dtype=np.int8)
    for kind, name in (("sklearn", "average_precision"), ("voc07", "ap11_distinct_thresholds")):
        # In these files a class without a known negative has AP 1; here it is left out.
        expected = np.where((labels < 0).any(0), np.array(case[name], dtype=float), np.nan)
        close(metrics.average_precision(scores, labels, kind), expected, 1e-14)
        if (labels < 0).any(0).all():
            close(metrics.mean_average_precision(scores, labels, kind), case[f"mean_{name}"], 1e-14)


@pytest.mark.parametrize("decimals", [None, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, -0.5])
def test_equals_scikit_learn(decimals, dtype, shift):
    scores, labels = make(3, images=400, classes=12, positive=0.1, decimals=decimals, dtype=dtype)
    scores += dtype(shift)
    expected = []
    for column, truth in zip(scores.T, labels.T, strict=True):
        expected.append(average_precision_score(truth[truth != 0] > 0, column[truth != 0]))
    close(metrics.average_precision(scores, labels), expected, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [None, 1])
def test_equals_slow_loop(kind, dtype, decimals):
    scores, labels = make(5, decimals=decimals, dtype=dtype)
    labels[:, 0] = np.minimum(labels[:, 0], 0)
    expected = [slow_ap(s, y, kind) for s, y in zip(scores.T, labels.T, strict=True)]
    assert math.isnan(expected[0])
    close(metrics.average_precision(scores, labels, kind), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_a_known_negative_is_left_out(kind):
    # Of half of the classes only positives are known. Any ranking of these would have AP 1.
    scores, labels = make(6, images=400, classes=40, positive=0.5, unknown=0.0)
    labels[:, 1::2] = np.maximum(labels[:, 1::2], 0)
    expected = metrics.mean_average_precision(scores[:, ::2], labels[:, ::2], kind)
    assert expected < 0.6  # random scores
    assert metrics.mean_average_precision(scores, labels, kind) == pytest.approx(expected)
    if kind == "sklearn":
        assert metrics.summary(scores, labels)["mAP"] == pytest.approx(expected)
        interval = metrics.bootstrap(scores, labels, n=20)
        assert interval.mean == pytest.approx(expected)
        assert float(interval.replicates.max()) < 0.65
        assert interval.mean_high < 0.75


def test_eleven_points_are_compared_in_integers():
    # 3 of 10 positives lie at the top: recall 0.3 is reached there, though 3 / 10 < 0.1 + 0.1 + 0.1 in floats.
    labels = np.array([[1]] * 3 + [[-1]] * 90 + [[1]] * 7, dtype=np.int8)
    scores = np.linspace(1, 0, 100)[:, None]
    close(metrics.average_precision(scores, labels, "voc07"), [(4 * 1.0 + 7 * 0.1) / 11])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    scores, labels = make(9, images=300, unknown=0.2)
    half = torch.from_numpy(scores).to(dtype)
    assert len(half.unique()) < 0.8 * half.numel()  # rounding has made ties
    for kind in KINDS:
        close(
            metrics.average_precision(half, labels, kind), metrics.average_precision(half.double(), labels, kind), 1e-15
        )
    assert metrics.precision_recall_f1(half, labels) == metrics.precision_recall_f1(half.double(), labels)
    assert metrics.exact_match(half, labels, top_k=2) == metrics.exact_match(half.double(), labels, top_k=2)


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, decimals=st.sampled_from([None, 1]), dtype=st.sampled_from([np.float32, np.float64]))
def test_unknown_entries_change_nothing(seed, decimals, dtype):
    scores, labels = make(seed, images=15, classes=4, decimals=decimals, dtype=dtype)
    changed = np.where(labels == 0, np.random.default_rng(seed + 1).random(scores.shape), scores).astype(dtype)
    assert metrics.summary(scores, labels) == pytest.approx(metrics.summary(changed, labels), abs=1e-15, nan_ok=True)
    for kind in KINDS:
        ap = metrics.average_precision(scores, labels, kind)
        np.testing.assert_array_equal(metrics.average_precision(changed, labels, kind), ap)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, decimals=st.sampled_from([None, 1]), kind=st.sampled_from(KINDS))
def test_order_of_images_and_monotone_maps_change_nothing(seed, decimals, kind):
    scores, labels = make(seed, images=20, classes=3, decimals=decimals, dtype=np.float64)
    ap = metrics.average_precision(scores, labels, kind)
    order = np.random.default_rng(seed).permutation(len(scores))
    np.testing.assert_array_equal(metrics.average_precision(scores[order], labels[order], kind), ap)
    np.testing.assert_array_equal(metrics.average_precision(8 * scores - 4, labels, kind), ap)
    # Distinct scores stay distinct as float32.
    ranks = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    np.testing.assert_array_equal(metrics.average_precision(ranks.astype(np.float32), labels, kind), ap)


def test_all_tied_scores_give_the_share_of_positives():
    scores, labels = make(2, unknown=0.4)
    share = [(y > 0).sum() / (y != 0).sum() for y in labels.T]
    for kind in KINDS:
        close(metrics.average_precision(np.zeros_like(scores), labels, kind), share)
