"""Hill and SPLC against the slow loop, the published numbers, and half precision, order and state."""

from __future__ import annotations

import step_checks as checks
import torch

from halflabel.methods.base import recipe


def test_splc_differs_from_the_released_code_where_it_says_so():
    sure = torch.tensor([[3.0, 3.0]], dtype=torch.float64)
    labels = [[-1, 0]]
    targets = recipe("splc").make().relabel(checks.batch(sure, labels), sure, 2)
    released_targets = recipe("splc").make(released=True).relabel(checks.batch(sure, labels), sure, 2)
    assert targets.pos.tolist() == [[0, 1]]
    assert released_targets.pos.tolist() == [[1, 1]]
    _, grad = checks.step(recipe("splc").make(), sure, labels, 2)
    _, plain = checks.step(recipe("splc").make(released=True), sure, labels, 2)
    assert abs(grad[0, 1]) > abs(plain[0, 1])  # the margin asks for more
