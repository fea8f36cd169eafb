"""The model card of a run."""

from __future__ import annotations

import torch

from halflabel.evaluation.evaluate import measure
from halflabel.labels.table import Table
from halflabel.runs.model_card import model_card


def test_the_card_states_the_threshold_of_each_class() -> None:
    labels = torch.tensor([[1, 1, -1, 0], [1, -1, -1, 0], [1, -1, -1, 0]], dtype=torch.int8)
    table = Table.from_dense(labels.numpy(), None, ["always", "some", "<b>never</b>", "nothing"])
    evaluation = measure(torch.zeros(3, 4), labels, table.classes)
    config, trained = {"backbone": "tiny", "method": "bce", "size": 32}, "bce: cross-entropy; by L-BFGS"
    card = model_card(config, trained, evaluation, table, "held-out")
    assert "because the held-out images have no known positive: &lt;b&gt;never&lt;/b&gt;, nothing.\n" in card
    assert "because the held-out images have no known negative: always.\n" in card
    assert "for 4 classes, 32 px. Trained: bce: cross-entropy; by L-BFGS." in card
    card = model_card({**config, "size": None}, trained, evaluation, table, "held-out")
    assert "for 4 classes, images in the size that suits the backbone. Trained: bce" in card
