"""Methods with weak and strong views get both from cached features, in memory or mapped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.comparison import sources
from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import Candidate, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.sources import split_data
from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.fitting.checkpoint import save_tensors
from halflabel.fitting.config import Config

# On equal views the two teach the same: the guesses of "cr" charge the very view they come from.
CONSISTENT, PSEUDO = "srcr:supervise=weak:tau=0.5", "srcr:tau=0.5:consistency=pl"


def logits(bench: Bench, name: str) -> np.ndarray[Any, Any]:
    candidate = Candidate.parse(name, lr=0.01)
    return bench.train(Task(candidate, LabelMask.share(0.3), 0, candidate.lr, candidate.options)).logits


def views_differ(source: Any) -> bool:
    ((_, (weak, strong)),) = source.fetch([np.arange(8)], ("weak", "strong"))
    return bool((weak != strong).flatten(1).any(1).all())


@pytest.mark.parametrize("room", [0, 1 << 30], ids=["mapped", "in memory"])
def test_strong_views_change_the_result(
    digits: Any, config: Config, cache: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(sources, "_MAX_BYTES_IN_MEMORY", room)
    bench = Bench(split_data(digits.table, digits.images), config, cache=cache)
    assert not np.allclose(logits(bench, CONSISTENT), logits(bench, PSEUDO), atol=1e-3)


def test_separate_test_images_get_no_strong_views(digits: Any, config: Config, cache: Path) -> None:
    first, second = (digits.table.subset(np.arange(start, start + 30)) for start in (0, 30))
    data = split_data(first, digits.images[:30], test=second, test_images=digits.images[30:])
    bench = Bench(data, config, cache=cache)
    candidate = Candidate.parse(CONSISTENT, lr=0.01)
    task = Task(candidate, LabelMask.share(0.3), 0, candidate.lr, candidate.options)
    parts = bench.features(bench.assembly(task))
    assert parts.rest.whole.strong
    assert not parts.test.whole.strong
    assert np.isfinite(bench.train(task).logits).all()


def test_other_weights_in_the_same_file_are_another_comparison(
    go: Any, config: Config, tmp_path: Path, trained: list[Task]
) -> None:
    path = tmp_path / "weights.safetensors"
    state = build_backbone("tiny", size=32).model.state_dict()
    save_tensors(state, path)
    with_weights = dataclasses.replace(config, weights=str(path))
    go(config=with_weights, seeds=1)
    path = path.rename(tmp_path / "moved.safetensors")
    trained.clear()
    go(config=dataclasses.replace(config, weights=str(path)), seeds=1)
    assert trained == []  # the same weights in another place
    save_tensors({name: value + 1 if value.is_floating_point() else value for name, value in state.items()}, path)
    with pytest.raises(UserError, match="weights was"):
        go(config=dataclasses.replace(config, weights=str(path)), seeds=1)
