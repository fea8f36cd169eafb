"""Errors name options as data: flags on the command line, parameters in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import halflabel
from halflabel.cli.show import in_shell
from halflabel.errors import UserError


def test_errors_in_python_name_no_flags(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image,age,dog\na,30,1\nb,41,-1\nc,52,0\n")
    with pytest.raises(UserError) as caught:
        halflabel.train(tmp_path / "labels.csv", tmp_path, tmp_path / "run")
    assert "--minus-one absent" in in_shell(caught.value.fix)
    assert "--" not in str(caught.value)
    assert 'minus_one="absent"' in str(caught.value)
    stated = {"minus_one": "absent", "zero": "unknown", "ignore": ("age",)}
    assert halflabel.read_labels(tmp_path / "labels.csv", **stated).table().known == 2
    with pytest.raises(UserError, match="none of the 3 images"):  # the labels are read
        halflabel.train(tmp_path / "labels.csv", tmp_path, tmp_path / "run", **stated)
    (tmp_path / "taken" / "config.yaml").parent.mkdir()
    (tmp_path / "taken" / "config.yaml").write_text("a: 1")
    with pytest.raises(UserError, match="already holds a run") as caught:
        halflabel.continue_training(tmp_path / "taken", tmp_path / "taken")
    assert "--" not in str(caught.value)
