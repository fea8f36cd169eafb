"""Damaged bytes in the files of a run: refused, or of no effect on what is predicted, evaluated and filled."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz_models import small_run

from halflabel.errors import UserError
from halflabel.images.sources import Arrays
from halflabel.labels.names import Names
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model

# A change of any byte of these is noticed.
COVERED = ("best.safetensors", "calibration.json", "thresholds.json", "config.yaml", "labels.parquet", "scores.parquet")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = small_run(tmp_path_factory.mktemp("runs") / "run").folder
    return folder


def load(folder: Path) -> list[Any]:
    """All that commands take from a run."""
    run = RunFolder.open(folder)
    predictor = Model.open(folder)
    images = torch.arange(3 * 32 * 32, dtype=torch.uint8).view(1, 3, 32, 32)
    rows = run.read_rows()
    scores = run.read_scores()
    assert scores is not None
    return [
        predictor.scores(Arrays(images, Names(["x"]), predictor.views)).tolist(),
        (list(predictor.classes), predictor.thresholds.tolist()),
        (list(rows.images), rows.training.digest(), [rows.sources[k] for k in rows.source], str(rows.score)),
        (list(scores.images), list(scores.classes), str(scores.logits), scores.fold.tolist(), scores.kind),
        (run.score_kind, run.split_of(rows.images).tolist()),
    ]


def damage(path: Path, rng: random.Random) -> str:
    """Change a bit, blank a block, cut the end off, or add a byte."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(("bit", "bit", "bit", "block", "cut", "longer"))
    place = rng.randrange(len(content))
    if kind == "bit":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "block":
        content[place : place + 64] = bytes(byte ^ 0x55 for byte in content[place : place + 64])
    elif kind == "cut":
        del content[place:]
    else:
        content.append(rng.randrange(256))
    path.write_bytes(content)
    return f"{path.name}: {kind} at {place}"


def check(good: Path, place: Path, per_file: int) -> None:
    expected, wrong, ends = load(good), [], Counter[str]()
    files = sorted(path.name for path in good.iterdir() if path.is_file())
    assert set(COVERED) <= set(files)
    for name in files:
        for number in range(per_file):
            shutil.copytree(good, place / "run")
            done = damage(place / "run" / name, random.Random(f"{name} {number}"))
            try:
                end = "same" if load(place / "run") == expected else "other"
            except UserError:
                end = "refused"
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
            if end not in ("same", "refused") or (end == "same" and name in COVERED):
                wrong.append(f"{done}: {end}")
            ends[end] += 1
            shutil.rmtree(place / "run")
    assert not wrong, "\n".join(wrong[:10])
    assert ends["refused"] >= len(COVERED) * per_file


def test_damaged_files_of_a_run_are_never_used(good: Path, tmp_path: Path) -> None:
    check(good, tmp_path, 2)


@pytest.mark.slow
def test_many_damaged_files_of_a_run_are_never_used(good: Path, tmp_path: Path) -> None:
    check(good, tmp_path, 60)
