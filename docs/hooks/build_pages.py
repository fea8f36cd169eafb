"""Hook of MkDocs: adds the pages that lie outside docs/ to the site, and the pages of methods to its navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Pages of the site that are files elsewhere in the repository.
PAGES = {"results.md": "benchmarks/RESULTS.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
# Links that hold in the repository, and the same page in the site.
LINKS = {
    "../../CONTRIBUTING.md": "../contributing.md",
    "../CONTRIBUTING.md": "contributing.md",
    "CONTRIBUTING.md": "contributing.md",
    "../benchmarks/RESULTS.md": "results.md",
    "../../benchmarks/RESULTS.md": "../results.md",
    "docs/": "",
}


def on_config(config: Any) -> Any:
    """Put the pages of all methods into the navigation."""
    pages = [{path.stem: f"methods/{path.name}"} for path in sorted((ROOT / "docs" / "methods").glob("*.md"))]
    pages = [page for page in pages if "index" not in page]
    config.nav = [{"Methods": ["methods/index.md", *pages]} if "Methods" in entry else entry for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of `PAGES`."""
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links that `LINKS` names."""

    def rewrite(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        for repository, site in LINKS.items():
            if target.startswith(repository):
                return f"[{text}]({site}{target.removeprefix(repository)})"
        return match[0]

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", rewrite, markdown)
