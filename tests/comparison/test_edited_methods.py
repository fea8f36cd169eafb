"""Stored runs are reused only while the code that trains them and its options are the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digit_scenes import write_folder

from halflabel.comparison.grid import Task
from halflabel.comparison.store import method_digest
from halflabel.errors import UserError
from halflabel.evaluation import registry
from halflabel.methods import base
from halflabel.methods.base import recipe
from halflabel.system.plugins import load_file
from halflabel.system.reporter import Reporter

METHOD = '''
"""Binary cross-entropy whose positives count more."""

from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import over_known
from weighting import Weighted


@method(serves=("full", "partial"), paper="none")
def mine(weight: float = 2.0) -> Method:
    """Weighted cross-entropy."""
    return Method(Weighted(weight), reduce=over_known)
'''
PART = """
from torch.nn.functional import softplus
from halflabel.methods.parts.losses import Loss


class Weighted(Loss):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def pair(self, logits):
        return {factor} * self.weight * softplus(-logits), softplus(logits)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A method of one's own and a part that it imports, listed in HALFLABEL_PLUGINS."""
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "weighting.py").write_text(PART.format(factor=1))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HALFLABEL_PLUGINS", "")
    load_file(tmp_path / "mine.py")
    yield tmp_path
    del base._REGISTRY["mine"], sys.modules["weighting"]


def import_again(project: Path) -> None:
    """Import the edited files, as a new process does."""
    importlib.invalidate_caches()
    del sys.modules["weighting"], sys.modules[recipe("mine").build.__module__], base._REGISTRY["mine"]
    load_file(project / "mine.py")


def test_an_edited_method_is_trained_again_and_others_are_not(
    go: Any, project: Path, tmp_path: Path, trained: list[Task]
) -> None:
    messages: list[str] = []

    def compare() -> tuple[list[str], dict[str, Any]]:
        trained.clear()
        messages.clear()
        go(names=["mine", "bn-bce"], seeds=1, reporter=Reporter(message=messages.append))
        logits = {path.name.partition("-seed")[0]: np.load(path) for path in (tmp_path / "out" / "tasks").glob("*.npy")}
        return [task.candidate.name for task in trained], logits

    names, before = compare()
    assert names == ["mine", "bn-bce"]
    assert not messages
    source = (project / "mine.py").read_text()
    (project / "mine.py").write_text("# A comment changes nothing.\n" + source)
    import_again(project)
    assert compare()[0] == []
    assert messages == ["2 finished runs reused"]
    (project / "weighting.py").write_text(PART.format(factor=100))
    import_again(project)
    names, after = compare()
    assert names == ["mine"]
    assert messages[-1] == "1 finished run reused; trained again: 1 because the code that trains mine was edited"
    assert not np.allclose(after["mine-all"], before["mine-all"])
    assert np.array_equal(after["bn-bce-all"], before["bn-bce-all"])


def test_methods_have_digests_of_their_own() -> None:
    assert method_digest("em") == method_digest("em") != method_digest("asl")


def test_a_metric_is_computed_from_stored_scores(
    go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[Task]
) -> None:
    """A metric file that is added, edited or forgotten trains nothing again."""
    monkeypatch.setenv("HALFLABEL_PLUGINS", "")
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    assert go(names=["bce"], seeds=1).rows[0].own_metrics == {}
    trained.clear()
    source = (
        'from halflabel.evaluation.registry import metric\n\n\n@metric("Mine")\ndef mine(scores, labels, thresholds):\n'
    )
    for body, value in (("return 1.0", 1.0), ("return 20.0", 20.0)):
        (tmp_path / "metric.py").write_text(f"{source}    {body}\n")
        if (earlier := registry._TABLE.pop("mine", None)) is not None:
            del sys.modules[earlier.compute.__module__]
        importlib.invalidate_caches()
        load_file(tmp_path / "metric.py")
        assert go(names=["bce"], seeds=1).rows[0].own_metrics == {"mine": value}
    del registry._TABLE["mine"]
    assert go(names=["bce"], seeds=1).rows[0].own_metrics == {}
    assert not trained


def test_results_of_other_photos_under_the_same_names_are_refused(go: Any, tmp_path: Path, trained: list[Task]) -> None:
    write_folder(tmp_path / "a", 60, size=32)
    photos = sorted((tmp_path / "a" / "images").iterdir())
    go(images=photos[0].parent, names=["bce"], seeds=1)
    trained.clear()
    moved = photos[0].parent.rename(tmp_path / "elsewhere")
    go(images=moved, names=["bce"], seeds=1)
    assert not trained, "the same photos in another folder"
    first, second = moved / photos[0].name, moved / photos[1].name
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(UserError, match="the images changed"):
        go(images=moved, names=["bce"], seeds=1)
