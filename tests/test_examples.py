"""What users write: the public names, and the examples."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import halflabel
from halflabel.methods import base as method_module
from halflabel.papers.datasets import birds

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "new_method": {"images": 200},
    "read_and_drop": {},
    "train_on_features": {"images": 300, "epochs": 8},
    "train_on_images": {"images": 60, "backbone": "tiny"},
}


@pytest.fixture
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example prints. A method it registers is gone afterwards."""
    registry = dict(method_module.recipes())
    monkeypatch.setattr(method_module, "_REGISTRY", registry)
    monkeypatch.setattr(method_module, "recipes", lambda: registry)
    runpy.run_path(str(EXAMPLES / f"{request.param}.py"))["main"](**SMALL[request.param])
    return capsys.readouterr().out


def numbers(text: str) -> list[float]:
    return [float(actual) for actual in re.findall(r": (\d\.\d{3})", text)]


def test_every_example_is_run_and_short() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SMALL, "new_format"}
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 65, path.name


def test_new_format() -> None:  # in a process of its own: a format cannot be removed again
    output = subprocess.run([sys.executable, EXAMPLES / "new_format.py"], capture_output=True, text=True, check=True)
    assert "Table(2 images × 2 classes, 3 known)" in output.stdout


@pytest.mark.parametrize("shown", ["read_and_drop"], indirect=True)
def test_read_and_drop(shown: str) -> None:
    assert "line 3, column 'grass': value 'maybe' is not a label" in shown
    assert re.search(r"maybe +-> unknown +1 entries", shown)
    assert re.search(r"as read: .* partial, 75 % known\n  1.jpg \+1 -1 \+1\n  2.jpg  \? \+1  \?\n", shown)
    assert "one positive per image: Table(4 images × 3 classes, 4 known), single-positive, 33 % known" in shown


@pytest.mark.parametrize("shown", ["train_on_features"], indirect=True)
def test_train_on_features(shown: str) -> None:
    everything, third, tenth = numbers(shown)
    assert 1 > everything > tenth > 0.4
    assert 1 > third > 0.4


@pytest.mark.parametrize("shown", ["new_method"], indirect=True)
def test_new_method(shown: str) -> None:
    assert "single-positive" in shown
    printed = numbers(shown)
    assert len(printed) == 3
    assert all(0.6 < value < 1 for value in printed)
    # The bounded charge is another loss than the one it is compared with, and q is passed on.
    assert len(set(printed)) == 3


def test_the_method_of_an_example_is_gone() -> None:
    assert "bounded-an" not in method_module.recipes()


@pytest.mark.skipif(birds.photo_folder() is None, reason="the photos are not installed")
@pytest.mark.parametrize("shown", ["train_on_images"], indirect=True)
def test_train_on_images(shown: str) -> None:
    assert "45 images to train on, 15 to test on" in shown
    assert len(printed := numbers(shown)) == 2
    assert all(0.1 < value < 1 for value in printed)


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_file_of_ones_own_stands_in_for_the_command_line(tmp_path: Path) -> None:
    code = """from halflabel.cli import main
from halflabel.methods.parts.losses import BCE
from halflabel.methods.base import Method, method

@method(serves=("full",), paper="none")
def my_own(margin: float = 1) -> Method:
    "Does it."
    return Method(BCE())

if __name__ == "__main__":
    main()
"""
    (tmp_path / "mine.py").write_text(code)
    words = [sys.executable, str(tmp_path / "mine.py"), "methods", "my-own"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Does it." in shown
    assert "margin=1" in shown


def test_importing_is_quick() -> None:
    heavy = ("torch", "numpy", "pyarrow", "sklearn", "timm")
    code = f"import sys, halflabel; dir(halflabel); print([name for name in {heavy} if name in sys.modules])"
    assert fresh(code) == "[]"


def test_labels_need_no_torch() -> None:
    code = "import sys; from halflabel import Table, Policy, UserError, drop, read_labels, write_labels"
    assert fresh(f"{code}; print('torch' in sys.modules)") == "False"


def test_every_public_name_is_there() -> None:
    for name in halflabel.__all__:
        assert getattr(halflabel, name) is not None
        assert name in dir(halflabel)
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(halflabel))
    assert set(halflabel._HOMES) == set(halflabel.__all__) - {"__version__"}
    assert halflabel.read_labels.__module__ == "halflabel.labels.formats"
    assert isinstance(halflabel.evaluation, ModuleType)
    # The module and the decorator in it share a name, and the module was there first.
    assert isinstance(halflabel.methods.base, ModuleType)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'halflabel' has no attribute 'trian'"):
        halflabel.trian  # noqa: B018
