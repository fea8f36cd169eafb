"""Every command and every Python example of README and docs: run on a small folder, or at least parsed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import command_pages
import pytest
import torch
import typer
from doc_blocks import PAGES, ROOT, blocks_of, commands_in
from example_data import write_example_data
from typer.testing import CliRunner

from halflabel.cli import app, import_commands
from halflabel.fitting.config import declared_options
from halflabel.methods.base import recipe

# Added to trainings, to make them short; everything else runs as written.
QUICK = {"backbone": "tiny", "size": 32, "workers": 0, "device": "cpu"}
NO_TRAINING_OPTIONS = {"--continue", "--resume"}
PREPARED = ["halflabel", "train", "labels.csv", "photos/", "--out", "runs/first"]
OTHER_TOOLS = {"--help", "--standalone", "--nproc-per-node"}
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages name, and the run that most of them begin with."""
    folder = tmp_path_factory.mktemp("docs")
    write_example_data(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        run(PREPARED, "the prepared run")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared folder, in which one page is run; a method that the page registers is gone afterwards."""
    from halflabel.methods import base
    from halflabel.runs import new_run

    monkeypatch.setattr(base, "_REGISTRY", dict(base.recipes()))
    monkeypatch.setattr(new_run, "train_run", partial(new_run.train_run, **QUICK))
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "work"))
    return tmp_path / "work"


def run(words: list[str], place: str) -> None:
    words, target = (words[:-2], Path(words[-1])) if words[-2:-1] == [">"] else (words, None)
    command = words[1] if len(words) > 1 else ""
    is_new = command == "train" and not NO_TRAINING_OPTIONS & set(words)
    extra = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")] if is_new else []
    result = CliRunner().invoke(app, [*words[1:], *extra])
    assert result.exit_code == 0, f"{place}: {' '.join(words)}\n{result.output}\n{result.exception!r}"
    if target is not None:
        target.write_text(result.stdout)


def halflabel_words(words: list[str]) -> list[str]:
    """Return the halflabel command in a line, also behind torchrun; empty if there is none."""
    if words[:1] == ["halflabel"]:
        return words
    if "halflabel" in words and "-m" in words:
        return words[words.index("halflabel") :]
    return []


def check_syntax(words: list[str], place: str) -> None:
    """Fail unless command, arguments and options exist."""
    commands, command, rest = import_commands(), typer.main.get_command(app), words[1:]
    while rest and rest[0] in commands:
        command, rest = commands[rest[0]], rest[1:]
        commands = getattr(command, "commands", {})
    assert not commands or not rest, f"{place}: no command {rest[:1]}"
    try:
        context = command.make_context("halflabel", list(rest))
    except Exception as error:
        pytest.fail(f"{place}: {' '.join(words)}: {error!r} {getattr(error, 'message', '')}")
    method = context.params.get("method") or "auto"
    known = {*declared_options(), *(() if method == "auto" else recipe(method).options)}
    unknown = {text.partition("=")[0] for text in context.params.get("set") or ()} - known
    assert not unknown, f"{place}: no option {unknown}"


@pages
def test_commands_exist(page: Path) -> None:
    for block in blocks_of(page, "bash", "console", "sh"):
        for words in commands_in(block):
            if command := halflabel_words(words):
                check_syntax(command, block.place)
            elif words[0] == "make":
                makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
                assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:]), block.place
            elif words[:2] == ["pip", "install"]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
                named = re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", " ".join(words))))
                assert set(named) <= set(extras["optional-dependencies"]), block.place


@pages
def test_commands_and_options_in_sentences_exist(page: Path) -> None:
    commands = command_pages.commands()
    known_flags = OTHER_TOOLS.union(*map(flags, (typer.main.get_group(app), *commands.values())))
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        words = code.split()
        if words[0] == "halflabel" and len(words) > 1 and words[1] != "COMMAND" and not words[1].startswith("-"):
            name = next((name for name in (" ".join(words[1:3]), words[1]) if name in commands), None)
            is_group = any(name.startswith(f"{words[1]} ") for name in commands)
            assert name or is_group, f"{page.name}: {code}"
            allowed = flags(commands[name]) if name else set()
            assert {word for word in words if word.startswith("--")} <= allowed | {"--help"}, f"{page.name}: {code}"
        for word in words:
            if re.fullmatch(r"--[a-z][a-z-]*", word):
                assert word in known_flags, f"{page.name}: {code}"


def flags(command: Any) -> set[str]:
    parameters = [*command.params, *getattr(command, "shared", ())]
    return {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}


def test_examples_of_the_help_exist(tmp_path: Path) -> None:
    page = tmp_path / "commands.md"
    page.write_text(command_pages.command_page(), encoding="utf-8")
    examples = [words for block in blocks_of(page, "bash") for words in commands_in(block)]
    assert len(examples) > 20
    for words in filter(halflabel_words, examples):
        check_syntax(words, "the help of a command")


def test_unknown_commands_and_options_are_found() -> None:
    check_syntax(["halflabel", "export", "onnx", "runs/first", "--out", "model.onnx"], "here")
    for line in (
        "train labels.csv photos/ --epoks 3",
        "trian labels.csv",
        "fill runs/first --preciosion 0.9",
        "evaluate",
    ):
        with pytest.raises((pytest.fail.Exception, AssertionError)):
            check_syntax(["halflabel", *line.split()], "here")


@pages
@pytest.mark.usefixtures("folder")
def test_commands_and_examples_run(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "docs_example"}
    for block in blocks_of(page, "bash", "console", "sh", "python"):
        if block.reason or page.name == "CONTRIBUTING.md":  # its code is a method in several files
            continue
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), names)
            continue
        for words in commands_in(block):
            if words[0] == "halflabel" and words != PREPARED:  # that training is in the folder already
                run(words, block.place)


def test_readme_is_short_and_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert {"make demo", "make test"} <= {
        " ".join(words) for block in blocks_of(PAGES[0], "bash") for words in commands_in(block)
    }


def test_readme_counts_methods_losses_and_formats() -> None:
    from halflabel.errors import UserError
    from halflabel.labels.formats import FORMATS
    from halflabel.methods.base import recipes
    from halflabel.methods.loss import loss

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    labels = torch.tensor([[1, 0], [0, 1]])
    losses = 0
    for name, each in recipes().items():
        table = labels if "partial" not in each.serves else torch.tensor([[1, -1], [0, 1]])
        with contextlib.suppress(UserError):
            loss(name, table=table, epochs=20)(torch.zeros(2, 2), table, index=torch.arange(2), epoch=1)
            losses += 1
    assert f"{len(recipes())} methods" in readme
    assert f"{losses} such losses" in readme
    assert f"{len(FORMATS)} label formats" in readme


def test_all_label_formats_are_listed() -> None:
    from halflabel.labels.formats import FORMATS, written_formats

    text = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    written = text.partition("`convert --to NAME` writes ")[2].partition(";")[0]
    assert set(re.findall(r"`([\w-]+)`", written)) == set(written_formats())
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(FORMATS)
