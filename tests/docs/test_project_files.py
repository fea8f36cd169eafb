"""Project files agree with the package: version, workflow, pre-commit hooks."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from halflabel import __version__

ROOT = Path(__file__).parents[2]


def test_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d\S+)\] - (\S+)$", changelog, re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (__version__, citation["date-released"])


def test_architecture_names_files_and_functions_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "halflabel"
    named = re.findall(r"`((?:\w+/)+\w+\.py)`(?:[,:]\s+`(\w+)(?:\.(\w+))?)?", text)
    assert len(named) > 20
    for path, *names in named:
        source = (package / path.removeprefix("halflabel/")).read_text(encoding="utf-8")
        for name in filter(None, names):
            assert re.search(rf"(?:def|class) {name}\b|^{name}\b", source, re.MULTILINE), f"{path}: {name}"
    for folder, modules in re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", text, re.MULTILINE):
        for module in re.findall(r"`(\w+)/?`", re.sub(r"\(.*?\)", "", modules)):
            place = package / folder / module
            assert place.is_dir() or place.with_suffix(".py").exists(), f"{folder}/{module}"


def test_figures_of_fill_and_of_the_frozen_recipe_are_those_of_the_measurements() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    fill = results.partition("\n## Filling in\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d \| ([\d.]+) \| (\d+) % \| ([\d.]+) \| (\d+) % \|$", fill, re.MULTILINE)
    present, filled, _, _ = zip(*rows, strict=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in (readme, (ROOT / "docs" / "howto" / "fill.md").read_text(encoding="utf-8")):
        assert f"{min(present)} to {max(present)}" in text
        assert f"{min(filled)} to {max(filled)} %" in text
    frozen = results.partition("\n## VOC 2012, frozen backbone, L-BFGS")[2].partition("\n## ")[0]
    for method, mean, fast in re.findall(
        r"^\| .*\| `([\w-]+)`.*\| ([\d.]+) \| ([\d.]+) \| [\d.]+ / ", readme, re.MULTILINE
    ):
        rows = [line for line in frozen.splitlines() if re.search(rf"\| `{method}`[^|]* \| {re.escape(fast)} ", line)]
        assert any(mean in row for row in rows), method


def test_links_are_valid_in_a_clone() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path = link.partition("#")[0]
            assert link.startswith("https://") or (page.parent / path).exists(), f"{page}: {link}"
