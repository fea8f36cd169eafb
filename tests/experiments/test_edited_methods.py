"""Stored runs are reused only while the code that trains them and its options are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halflabel.data.datasets.digits import write_folder
from halflabel.experiments.source_digest import method_digest

METHOD = '''
"""Binary cross-entropy whose positives count more."""

from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import over_known
from weighting import Weighted


@method(serves=("full", "partial"), paper="none")
def mine(weight: float = {weight}) -> Method:
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
def project(tmp_path: Path) -> Path:
    write_folder(tmp_path / "digits", 40, size=32)
    (tmp_path / "mine.py").write_text(METHOD.format(weight=2.0))
    (tmp_path / "weighting.py").write_text(PART.format(factor=1))
    return tmp_path


def compare(project: Path, *more: str) -> tuple[str, dict[str, float]]:
    """Run the command in a new process; return what it prints, and the mAP of each method."""
    words = [sys.executable, "-m", "halflabel", "compare", "digits/train.csv", "digits/images", "--out", "out"]
    words += ["--methods", "mine,bn-bce", "--seeds", "1", "--backbone", "tiny", "--size", "32", "--workers", "0"]
    words += ["--device", "cpu", "--search", "none", "--no-references", *more]
    paths = [str(project), *sys.path]
    env = {**os.environ, "HALFLABEL_METHODS": str(project / "mine.py"), "PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads((project / "out" / "comparison.json").read_text())["rows"]
    return " ".join(result.stdout.split()), {row["method"]: row["mAP"] for row in rows}


def test_an_edited_method_is_trained_again_and_others_are_not(project: Path) -> None:
    first, before = compare(project)
    assert "reused" not in first
    same, _ = compare(project)
    assert "2 finished runs reused" in same
    assert "trained again" not in same

    source = (project / "mine.py").read_text()
    (project / "mine.py").write_text("# A comment changes nothing.\n" + source)
    assert "2 finished runs reused" in compare(project)[0]

    (project / "mine.py").write_text(source.replace("over_known)", "over_known)  # the same", 1).replace("2.0", "30.0"))
    edited, after = compare(project)
    assert "1 finished run reused; trained again: 1 because an option of mine has another default now" in edited
    assert after["mine"] != before["mine"]
    assert after["bn-bce"] == before["bn-bce"]

    (project / "weighting.py").write_text(PART.format(factor=0.01))
    edited, last = compare(project)
    assert "1 finished run reused; trained again: 1 because the code that trains mine was edited" in edited
    assert last["mine"] != after["mine"]


def test_methods_of_one_solver_have_digests_of_their_own() -> None:
    assert method_digest("em", "sgd") == method_digest("em", "sgd")
    assert len({method_digest("em", "sgd"), method_digest("em", "lbfgs"), method_digest("asl", "sgd")}) == 3
