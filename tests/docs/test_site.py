"""The documentation site: it builds without warnings, and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from halflabel.methods.base import recipes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\" >]+)", text)
        loaded += re.findall(r"<link(?![^>]*rel=\"?canonical)[^>]*\shref=\"?(https?:[^\" >]+)", text)
        assert not loaded, page.name


def test_every_method_has_a_page_with_its_options(site: Path) -> None:
    for name, recipe in recipes().items():
        text = (site / "methods" / f"{name.replace('*', '-star')}.html").read_text(encoding="utf-8")
        for option in recipe.options:
            assert f"--{option.replace('_', '-')}" in text, (name, option)
    em = (site / "methods" / "em.html").read_text(encoding="utf-8")
    assert "alpha ≥ 0" in em
    assert "VOC 2012, frozen backbone" in em  # a measurement of benchmarks/RESULTS.md
    assert "Zhou 2022" in em


def test_generated_pages_are_those_of_the_code() -> None:
    script = "import sys; sys.path.insert(0, 'docs/hooks'); import generate, json; print(json.dumps(generate.pages()))"
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {ROOT / "docs" / path: text for path, text in json.loads(output).items()}
    changed = [path.name for path, text in expected.items() if path.read_text(encoding="utf-8") != text]
    assert not changed, "run: make docs"
    assert set((ROOT / "docs" / "methods").glob("*.md")) <= set(expected)
