"""Hook of MkDocs: adds the generated pages, and the pages that lie outside docs/, to the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from command_pages import command_page
from method_pages import file_name, method_pages

from halflabel.methods.base import recipes

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
    pages = [{name: f"methods/{file_name(name)}"} for name in recipes()]
    config.nav = [{"Methods": ["methods/index.md", *pages]} if "Methods" in entry else entry for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of `PAGES`, of the command line and of the methods."""
    texts = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in PAGES.items()}
    texts |= {"reference/commands.md": command_page(), **method_pages(texts["results.md"])}
    for path, text in texts.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links that `LINKS` names, and links to the source of a method or of the commands."""

    def rewrite(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        up, _, source = target.partition("src/halflabel/")
        if source.startswith(("methods/", "cli/")) and up:
            name = text.strip("`")
            page = f"methods/{file_name(name) if name in recipes() else 'index.md'}"
            page = page if source.startswith("methods/") else "reference/commands.md"
            return f"[{text}]({up.removeprefix('../')}{page})"
        for repository, site in LINKS.items():
            if target.startswith(repository):
                return f"[{text}]({site}{target.removeprefix(repository)})"
        return match[0]

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", rewrite, markdown)
