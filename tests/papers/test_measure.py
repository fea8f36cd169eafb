"""The papers' measures, against scikit-learn and slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from halflabel.papers.measure import compute_metric


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.rand(60, 10, generator=generator) < 0.3, 1, -1).to(torch.int8)
    return torch.randn(60, 10, generator=generator) + labels, labels


def test_against_scikit_learn(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data
    true = (labels > 0).numpy().astype(int)
    assert compute_metric("mAP", logits, labels) == pytest.approx(100 * average_precision_score(true, logits.numpy()))
    decided = (logits >= 0).numpy().astype(int)
    for name, average in (("macro_f1", "macro"), ("micro_f1", "micro"), ("OF1", "micro")):
        assert compute_metric(name, logits, labels) == pytest.approx(100 * f1_score(true, decided, average=average))
    assert compute_metric("exact_match", logits, labels) == pytest.approx(100 * (true == decided).all(1).mean())


def test_top_3_per_class(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data
    precision, recall = [], []
    for c in range(10):
        chosen = [c in sorted(range(10), key=lambda k, row=row: -row[k])[:3] for row in logits.tolist()]
        hits = sum(hit and label > 0 for hit, label in zip(chosen, labels[:, c].tolist(), strict=True))
        precision.append(hits / max(sum(chosen), 1))
        recall.append(hits / int((labels[:, c] > 0).sum()))
    assert compute_metric("CP", logits, labels, top_k=3) == pytest.approx(100 * np.mean(precision))
    assert compute_metric("CR", logits, labels, top_k=3) == pytest.approx(100 * np.mean(recall))


def test_groups_and_classes_without_positives(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data
    labels = labels.clone()
    labels[:, 7] = -1
    counts = torch.arange(10, 0, -1)  # classes 9 and 8 have the fewest annotations, 7 and 6 come next
    per_class = [
        float("nan") if c == 7 else compute_metric("mAP", logits[:, c : c + 1], labels[:, c : c + 1]) for c in range(10)
    ]
    assert compute_metric("mAP", logits, labels) == pytest.approx(np.nanmean(per_class))
    assert compute_metric("mAP", logits, labels, empty="zero") == pytest.approx(np.nansum(per_class) / 10)
    assert compute_metric("mAP", logits, labels, counts=counts, group=1) == pytest.approx(
        (per_class[9] + per_class[8]) / 2
    )
    assert compute_metric("mAP", logits, labels, counts=counts, group=2, empty="zero") == pytest.approx(
        per_class[6] / 2
    )
    assert compute_metric("mAP", logits, labels, kind="interpolated") >= compute_metric("mAP", logits, labels)


def test_classes_without_negatives(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data
    labels = labels.clone()
    labels[:, 7] = labels[:, 7].clamp(min=0)  # only positives are known
    labels[:, 8] = labels[:, 8].clamp(max=0)  # only negatives are known
    per_class = [compute_metric("mAP", logits[:, c : c + 1], labels[:, c : c + 1]) for c in (*range(7), 9)]
    assert compute_metric("mAP", logits, labels) == pytest.approx(np.mean(per_class))
    as_released = compute_metric("mAP", logits, labels, empty="zero", no_negative="one")
    assert as_released == pytest.approx((sum(per_class) + 100) / 10)


def test_large_logits_are_not_tied_at_one(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data
    assert compute_metric("CP", logits + 25, labels, top_k=3) == compute_metric("CP", logits, labels, top_k=3)
