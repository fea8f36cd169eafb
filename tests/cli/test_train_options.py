"""`train --dry-run`, `--config`, and `--help` in groups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import BATCHES, TINY, done, flat, refused

from halflabel.runs.folder import RunFolder


def test_a_dry_run_shows_the_plan_and_writes_nothing(data: Path, tmp_path: Path) -> None:
    words = ["train", "--dry-run", data / "train.csv", data / "images", "--out", tmp_path / "runs" / "new", *TINY]
    text = flat(done(*words, "--method", "em", "--set", "alpha=0.3"))
    for part in ("48 images found", "by L-BFGS on vectors, backbone frozen", "tiny, on cpu", "alpha=0.3", "runs/new"):
        assert part in text
    refusal = refused(*words, "--epochs", "2")
    assert "--epochs counts in batches, not in a linear fit fix: add --fit batches, or leave --epochs out" in refusal
    assert "2 epochs of batches" in flat(done(*words, *BATCHES, "2"))
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_images_that_are_not_there(tmp_path: Path, data: Path) -> None:
    text = (data / "train.csv").read_text()
    first = text.splitlines()[1].partition(",")[0]
    (tmp_path / "labels.csv").write_text(text.replace(first, "gone.png"))
    output = flat(done("train", tmp_path / "labels.csv", data / "images", "--dry-run", *TINY))
    assert "47 images found; 1 image not found" in output


def test_the_config_of_a_run_is_read_back(data: Path, tmp_path: Path) -> None:
    place = ["train", data / "train.csv", data / "images", "--out"]
    done(*place, tmp_path / "a", "--method", "em", "--set", "alpha=0.3", *BATCHES, "2", "--seed", "5", *TINY)
    first = RunFolder(tmp_path / "a").read_config()
    done(*place, tmp_path / "b", "--config", tmp_path / "a" / "config.yaml")
    assert RunFolder(tmp_path / "b").read_config() == first
    assert (tmp_path / "a" / "best.safetensors").read_bytes() == (tmp_path / "b" / "best.safetensors").read_bytes()
    done(*place, tmp_path / "c", "--config", tmp_path / "a" / "config.yaml", "--set", "alpha=0.2", "--lr", "0.02")
    changed = RunFolder(tmp_path / "c").read_config()
    assert changed["options"]["alpha"] == 0.2
    assert changed == {**first, "options": changed["options"], "lr": 0.02}
    done(*place, tmp_path / "d", "--config", tmp_path / "a" / "config.yaml", "--method", "an")
    assert RunFolder(tmp_path / "d").read_config()["method"] == "an"


def options_in(text: str) -> set[str]:
    return set(re.findall(r"^│ (--[a-z0-9-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", ["train", "compare", "study", "reproduce"])
def test_help_shows_the_common_options_and_help_all_the_rest(command: str) -> None:
    common, every = options_in(done(command, "--help")), options_in(done(command, "--help-all"))
    assert common < every
    assert "--help-all shows all options" in flat(done(command, "--help").replace("│", ""))
    assert {"--backbone", "--tune", "--help"} <= common
    assert {"--set"} <= common
    assert len(common) <= 16
