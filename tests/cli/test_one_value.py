"""Tables whose labels are all present, all absent, or all but one: every command ends with an answer or a fix."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run

N, CLASSES = 50, "abc"


def label(case: str, number: int, name: str) -> int:
    if case == "each class":
        return {"a": 1, "b": -1, "c": 1 if number % 3 else -1}[name]
    other = (number, name) == (3, "a")
    return {"present": 1, "absent": -1, "present but one": -1 if other else 1}[case]


@pytest.mark.parametrize(
    ("case", "kind"), [("present", "half"), ("absent", "full"), ("present but one", "full"), ("each class", "half")]
)
def test_every_command_ends_with_an_answer_or_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # `fill` writes its questions there
    vectors = np.random.default_rng(0).standard_normal((N + 10, 8)).astype(np.float32)
    features, labels, out = tmp_path / "features", tmp_path / "labels.csv", tmp_path / "run"
    features.mkdir()
    names = [f"{number:02}.jpg" for number in range(N + 10)]
    pq.write_table(pa.table({"image": names, "features": list(vectors)}), features / "f.parquet")
    entries = [(number, name) for number in range(N) for name in CLASSES if kind == "full" or (number + ord(name)) % 2]
    rows = [f"{names[number]},{name},{label(case, number, name)}" for number, name in entries]
    labels.write_text("\n".join(["image,class,value", *rows]) + "\n")
    for words in (
        ["inspect", labels],
        ["train", labels, features, "--out", out],
        ["evaluate", out, labels, features],
        ["report", out],
        ["fill", out, features],
        ["fill", out, features, "--all-photos", "--force"],
        ["fill", out, features, "--all-photos", "--assume-random", "--force"],
        ["next", out, features],
        ["next", out, features, "--wrong"],
        ["predict", out, features, "--out", tmp_path / "predicted.csv"],
        ["compare", labels, features, "--methods", "bce", "--seeds", "1", "--out", tmp_path / "comparison"],
    ):
        result = run(*words)
        assert result.exit_code in (0, 2), (words, result.exception)
        if result.exit_code:
            assert words[0] in ("fill", "compare"), (words, result.output)
            assert "fix: " in result.stderr
            assert "assume_random" not in result.stderr, "the command line asks questions instead"
        assert not re.search(r"\bnan\b", result.output), (words, result.output)
