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


def test_the_config_of_a_solved_run_is_solved_again(data: Path, tmp_path: Path) -> None:
    place = ["train", data / "train.csv", data / "images", "--out"]
    done(*place, tmp_path / "a", *TINY)
    done(*place, tmp_path / "b", "--config", tmp_path / "a" / "config.yaml")
    assert RunFolder(tmp_path / "b").score_kind == "out-of-fold"
    assert RunFolder(tmp_path / "b").read_config() == RunFolder(tmp_path / "a").read_config()


@pytest.mark.parametrize(("content", "says"), [("- 1", "does not hold settings"), ("method: em", "does not fit")])
def test_a_file_that_is_no_config_is_refused(data: Path, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    words = ["train", data / "train.csv", data / "images", "--out", tmp_path / "x", "--config", tmp_path / "c.yaml"]
    assert says in refused(*words)
    assert not (tmp_path / "x").exists()


def test_an_unknown_method_of_a_config_is_refused_before_the_labels_are_read(data: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("method: nosuch")
    words = ["train", tmp_path / "missing.csv", data / "images", "--config", tmp_path / "c.yaml"]
    assert "no method is called 'nosuch'" in refused(*words)


def test_options_of_methods_may_have_underscores(data: Path) -> None:
    words = ["train", "--dry-run", data / "train.csv", data / "images", "--method", "em", *TINY]
    assert all("few_absent=0.3" in flat(done(*words, "--set", f"{name}=0.3")) for name in ("few_absent", "few-absent"))


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


def test_train_has_few_common_options() -> None:
    assert options_in(done("train", "--help")) - {"--help"} == {
        "--backbone", "--classes", "--config", "--dry-run", "--force", "--method", "--out", "--positives-per-image",
        "--seed", "--set", "--tune",
    }  # fmt: skip


def test_help_groups_the_commands() -> None:
    text = done("--help")
    assert text.index("From labels to a model") < text.index(" train ") < text.index("From a model to more labels")
    assert text.index("From a model to more labels") < text.index(" fill ") < text.index("Compare methods")


def test_an_unknown_option_before_the_arguments_is_named(data: Path) -> None:
    error = refused("train", "--dry-rn", data / "train.csv", data / "images")
    assert "has no option --dry-rn" in error
    assert "did you mean --dry-run?" in error
