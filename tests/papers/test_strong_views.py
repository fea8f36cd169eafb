"""Published tables on a frozen backbone: rows of weak and strong views train on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.experiments import bench
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Changes


def test_a_row_of_two_views_trains_on_both(coco2014: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = bench.fit

    def fit(model: Any, method: Any, source: Any, *rest: Any, **more: Any) -> Any:
        ((_, (weak, strong)),) = source.fetch([np.arange(8)], ("weak", "strong"))
        seen.append(bool((weak != strong).flatten(1).any(1).all()))
        return original(model, method, source, *rest, **more)

    monkeypatch.setattr(bench, "fit", fit)
    changes = Changes(backbone="tiny", size=32, tune="head", epochs=1, device="cpu", workers=0)
    rows, conditions = ["BN-BCE + SR + CR (w/ SR)"], ["50 %"]
    reproduce("S4-table2", coco2014, out=tmp_path, rows=rows, conditions=conditions, changes=changes)
    assert seen == [True]
