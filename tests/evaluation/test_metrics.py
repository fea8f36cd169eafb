"""Metrics against published numbers, scikit-learn, and slow loops written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from metric_examples import KINDS, close, make

from halflabel import metrics
from halflabel.errors import UserError


def slow_decisions(scores, thresholds, top_k):
    decided = np.zeros(scores.shape, dtype=bool)
    for i, row in enumerate(scores):
        ranked = sorted(range(len(row)), key=lambda c: (-row[c], c))
        for c in range(len(row)):
            decided[i, c] = c in ranked[:top_k] if top_k else row[c] >= thresholds[c]
    return decided


def slow_prf(decided, labels):
    precision, recall, f1 = [], [], []
    all_hits = all_predicted = all_positives = 0
    for c in range(labels.shape[1]):
        hits = predicted = positives = 0
        for i in range(labels.shape[0]):
            if labels[i, c] == 0:
                continue
            hits += decided[i, c] and labels[i, c] > 0
            predicted += decided[i, c]
            positives += labels[i, c] > 0
        all_hits, all_predicted, all_positives = all_hits + hits, all_predicted + predicted, all_positives + positives
        if positives:
            p, r = hits / predicted if predicted else 0.0, hits / positives
            precision.append(p)
            recall.append(r)
            f1.append(2 * p * r / (p + r) if hits else 0.0)
    cp, cr = np.mean(precision), np.mean(recall)
    op, orr = all_hits / all_predicted, all_hits / all_positives
    of1 = 2 * op * orr / (op + orr)
    return [cp, cr, 2 * cp * cr / (cp + cr), op, orr, of1, np.mean(f1), of1, len(f1)]


@pytest.mark.parametrize("top_k", [None, 1, 3, 7])
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("decimals", [None, 1])
def test_precision_recall_f1_and_exact_match(top_k, per_class, decimals, monkeypatch):
    scores, labels = make(21, unknown=0.6, decimals=decimals)
    labels[:, 2] = np.minimum(labels[:, 2], 0)  # no known positive: left out of the class means
    labels[:4] = 0
    scores[:, 4] *= 0.09  # below every threshold here: predicted nowhere, precision 0
    thresholds = np.linspace(0.1, 0.9, 7) if per_class else 0.5
    # A threshold means the nearest number of the scores' type, as 0.7 the score means 0.7 the threshold.
    decided = slow_decisions(scores, np.broadcast_to(np.float32(thresholds), (7,)), top_k)
    monkeypatch.setattr("halflabel.evaluation._inputs._ROW_BLOCK_ENTRIES", 70)
    result = metrics.precision_recall_f1(scores, labels, thresholds, top_k=top_k)
    close(result, slow_prf(decided, labels))
    assert result.classes == 6
    rows = [all(d == (y > 0) for d, y in zip(ds, ys, strict=True) if y) for ds, ys in zip(decided, labels, strict=True)]
    counted = [is_exact for is_exact, ys in zip(rows, labels, strict=True) if ys.any()]
    assert metrics.exact_match(scores, labels, thresholds, top_k=top_k) == pytest.approx(np.mean(counted))
    assert 0 < np.mean(counted) < 1 or top_k


def test_class_means_match_scikit_learn_on_full_labels():
    from sklearn.metrics import precision_recall_fscore_support

    scores, labels = make(22, unknown=0.0)
    scores[:, 3] *= 0.4
    truth, decided = labels > 0, scores >= 0.5
    expected = precision_recall_fscore_support(truth, decided, average=None, zero_division=0)
    counts = metrics.decision_counts(scores, labels)
    for actual, expected_mean in zip((counts.precision, counts.recall, counts.f1), expected[:3], strict=True):
        close(actual, expected_mean)
    result = metrics.precision_recall_f1(scores, labels)
    micro = precision_recall_fscore_support(truth, decided, average="micro")
    close([result.OP, result.OR, result.micro_f1], micro[:3])
    assert result.macro_f1 == pytest.approx(expected[2].mean())


def test_no_prediction_is_zero_and_no_positive_is_nan():
    labels = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    silent = metrics.precision_recall_f1(np.zeros((2, 2)), labels)
    assert silent == (0, 0, 0, 0, 0, 0, 0, 0, 1)
    nothing = metrics.precision_recall_f1(np.ones((2, 2)), np.minimum(labels, 0))
    assert all(math.isnan(value) for value in nothing[:-1])
    assert nothing.classes == 0


def test_a_class_without_known_negatives_is_left_out():
    scores = np.array([[0.9, 0.9, 0.2], [0.2, 0.8, 0.9], [0.8, 0.7, 0.1]])
    labels = np.array([[1, 1, -1], [-1, 1, 1], [1, 0, 1]], dtype=np.int8)
    counts = metrics.decision_counts(scores, labels)
    for share in (counts.precision, counts.recall, counts.f1):
        assert share.isnan().tolist() == [False, True, False]
    scores_by_class = metrics.precision_recall_f1(scores, labels)
    assert scores_by_class.classes == 2
    assert (scores_by_class.CP, scores_by_class.CR) == (1.0, 0.75)
    assert scores_by_class.macro_f1 == pytest.approx((1 + 2 / 3) / 2)
    assert scores_by_class.OR == 5 / 6, "all known entries count in the overall recall"
    nothing = metrics.precision_recall_f1(scores, np.maximum(labels, 0))
    assert all(math.isnan(value) for value in nothing[:-1])


def test_completion_rates():
    rng = np.random.default_rng(4)
    truth, filled, clean = (rng.integers(-1, 2, (40, 6)).astype(np.int8) for _ in range(3))
    filled[clean != 0] = clean[clean != 0]
    pairs = [
        (f, t) for f, t, g in zip(filled.flat, truth.flat, clean.flat, strict=True) if f != 0 and t != 0 and g == 0
    ]
    rates = metrics.completion_rates(filled, truth, clean)
    assert rates.tp_rate == pytest.approx(np.mean([f > 0 for f, t in pairs if t > 0]))
    assert rates.tn_rate == pytest.approx(np.mean([f < 0 for f, t in pairs if t < 0]))
    assert rates.accuracy == pytest.approx(np.mean([f == t for f, t in pairs]))
    assert rates.label_proportion == pytest.approx(np.mean((filled != 0) | (clean != 0)))
    # Only the weak labels handed over: the same rates, the clean ones still count as labelled.
    assert metrics.completion_rates(np.where(clean == 0, filled, 0), truth, clean) == rates
    empty = metrics.completion_rates(np.zeros_like(truth), truth, np.zeros_like(truth))
    assert all(math.isnan(rate) for rate in empty[:3])
    assert empty.label_proportion == 0
    with pytest.raises(UserError, match="shapes"):
        metrics.completion_rates(filled, truth[:3], clean)


def test_calibration_error():
    scores, labels = make(40, images=300)
    scores[0], scores[1] = 0.0, 1.0
    labels[:2] = 1
    known = labels != 0
    p, y = scores[known].astype(float), labels[known] > 0
    expected = 0.0
    for b in range(15):
        inside = (np.floor(p * 15) == b) | ((b == 14) & (p == 1))
        if inside.any():
            expected += inside.mean() * abs(y[inside].mean() - p[inside].mean())
    assert metrics.calibration_error(scores, labels) == pytest.approx(expected)
    assert metrics.calibration_error(np.full((4, 1), 0.25), np.array([[1], [-1], [-1], [-1]])) == 0
    with pytest.raises(UserError, match="sigmoid"):
        metrics.calibration_error(scores * 3 - 1, labels)
    with pytest.raises(UserError, match="bins"):
        metrics.calibration_error(scores, labels, bins=0)


def test_accuracy_of_single_label_data():
    scores = np.array([[0.1, 0.8, 0.2], [0.5, 0.5, 0.1], [0.2, 0.3, 0.4], [0.9, 0.1, 0.1]])
    labels = np.array([[-1, 1, -1], [1, 0, 0], [1, -1, -1], [0, -1, 0]], dtype=np.int8)
    assert metrics.accuracy(scores, labels) == pytest.approx(2 / 3)
    labels[2, 1] = 1
    with pytest.raises(UserError, match="image 2 has 2 positives"):
        metrics.accuracy(scores, labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0), (4, 3), (4, 1)])
def test_nothing_to_measure_is_nan(shape, dtype):
    scores, labels = np.full(shape, 0.5, dtype=dtype), np.zeros(shape, dtype=np.int8)
    for kind in KINDS:
        ap = metrics.average_precision(scores, labels, kind)
        assert ap.shape == (shape[1],)
        assert ap.isnan().all()
    values = metrics.summary(scores, labels)
    assert values.pop("classes") == 0
    assert all(math.isnan(value) for value in values.values())
    assert math.isnan(metrics.accuracy(scores, labels))
    assert math.isnan(metrics.precision_recall_f1(scores, labels, top_k=3).OF1)
    result = metrics.bootstrap(scores, labels, n=4)
    assert math.isnan(result.mean)
    assert math.isnan(result.mean_low)
    assert result.ap_low.isnan().all()


def test_read_only_strided_and_fortran_arrays():
    scores, labels = make(61)
    expected = metrics.average_precision(scores, labels)
    frozen = scores.copy()
    frozen.flags.writeable = False
    before = frozen.copy()
    assert torch.equal(metrics.average_precision(frozen, labels), expected)
    assert torch.equal(metrics.average_precision(scores[::-1], labels[::-1]), expected)
    assert torch.equal(metrics.average_precision(np.asfortranarray(scores), labels.astype(np.int64)), expected)
    assert torch.equal(metrics.average_precision(torch.from_numpy(scores).requires_grad_(), labels), expected)
    assert np.array_equal(frozen, before)


def test_bad_input_is_refused_with_a_fix():
    scores, labels = make(62)
    broken = scores.copy()
    broken[5, 2] = np.nan
    for function in (metrics.average_precision, metrics.summary, metrics.bootstrap):
        with pytest.raises(UserError, match=r"image 5 for class 2 is NaN.*Fix: "):
            function(broken, labels)
    with pytest.raises(UserError, match="images by classes"):
        metrics.average_precision(scores, labels[:3])
    with pytest.raises(UserError, match="shape"):
        metrics.average_precision(scores[0], labels[0])
    with pytest.raises(UserError, match="True/False"):
        metrics.average_precision(scores, labels > 0)
    with pytest.raises(UserError, match="the value 2"):
        metrics.average_precision(scores, labels * np.int8(2) + (labels < 0).astype(np.int8))
    with pytest.raises(UserError, match="of the kind"):
        metrics.average_precision(scores, labels, "coco")
    with pytest.raises(UserError, match="one per class"):
        metrics.exact_match(scores, labels, np.zeros(3))
    with pytest.raises(UserError, match="threshold is NaN"):
        metrics.exact_match(scores, labels, np.full(7, np.nan))
    with pytest.raises(UserError, match="top_k"):
        metrics.precision_recall_f1(scores, labels, top_k=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_the_cpu():
    scores, labels = make(63, images=500, decimals=2)
    on_gpu = torch.from_numpy(scores).cuda(), torch.from_numpy(labels).cuda()
    for kind in KINDS:
        close(metrics.average_precision(*on_gpu, kind).cpu(), metrics.average_precision(scores, labels, kind))
    assert metrics.summary(*on_gpu) == pytest.approx(metrics.summary(scores, labels))
    gpu_intervals, cpu_intervals = metrics.bootstrap(*on_gpu, n=50), metrics.bootstrap(scores, labels, n=50)
    close(gpu_intervals.ap_low.cpu(), cpu_intervals.ap_low)
    single = torch.nn.functional.one_hot(on_gpu[0].argmax(1), 7) * 2 - 1
    assert metrics.accuracy(on_gpu[0], single) == 1
    assert metrics.completion_rates(on_gpu[1], on_gpu[1], torch.zeros_like(on_gpu[1])).accuracy == 1
