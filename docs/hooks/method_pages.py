"""Pages of the method gallery: one page per registered recipe, and an index by the labels that a method learns from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from result_tables import Row, rows_of

from halflabel.errors import UserError
from halflabel.fitting.auto import RULES
from halflabel.labels.table import Table
from halflabel.methods.base import Recipe, recipes
from halflabel.methods.loss import loss

# Values outside the bounds of any option: the error that a method raises for them states its bounds.
_OUTSIDE: dict[type, tuple[Any, ...]] = {
    int: (-(10**9), 10**9),
    float: (-1e30, 1e30),
    str: ("\0",),
    bool: (),
}
_RULES = (
    "The first rule that fits the labels decides. `compare --methods auto` measures its methods; `train` measures two "
    "or three, and takes [their average or the best](../concepts/regimes.md)."
)
_GROUPS = (
    (
        "Positives only",
        "For labels of which only positives are known: tags, hashtags, one label per photo. These methods also learn "
        "from labels with negatives.",
        lambda recipe: {"positives-only", "single-positive"} <= set(recipe.serves),
    ),
    (
        "Positives and negatives",
        "For labels with known positives and known negatives. These methods refuse positives-only labels.",
        lambda recipe: "partial" in recipe.serves and "positives-only" not in recipe.serves,
    ),
    (
        "One class per image",
        "For images that show exactly one class.",
        lambda recipe: "partial" not in recipe.serves,
    ),
)


def method_pages(results: str) -> dict[str, str]:
    """Return the pages by path; `results` is the text of benchmarks/RESULTS.md."""
    methods = recipes()
    pages = {f"methods/{file_name(name)}": _page(recipe, methods, results) for name, recipe in methods.items()}
    pages["methods/index.md"] = _index(methods)
    return pages


def file_name(method: str) -> str:
    """Return the file name of a method's page.

    >>> file_name("sarb*")
    'sarb-star.md'
    """
    return f"{method.replace('*', '-star')}.md"


def _index(methods: dict[str, Recipe] | Any) -> str:
    text = [
        "# Methods",
        "",
        f"halflabel has {len(methods)} training methods. Each page is generated from the code: formula, paper, options "
        "with their defaults and bounds, and our own measurements where there are some. `halflabel methods NAME` shows "
        "the same text in the terminal.",
        "",
        "You do not need to choose one: `--method auto`, the default, [chooses by the labels](../concepts/regimes.md). "
        "`halflabel compare` measures several on your data.",
        "",
        "**Solver**: on a frozen backbone the method is fitted by L-BFGS, without learning rate or epochs. **Loss**: "
        "`halflabel.loss(NAME)` gives its loss for a PyTorch loop of your own.",
    ]
    text += ["", *_recommended()]
    for title, meaning, belongs in _GROUPS:
        text += ["", f"## {title}", "", meaning, "", "| method | what it does | linear | loss |", "|---|---|---|---|"]
        for name, recipe in methods.items():
            if belongs(recipe):
                solver, module = (_yes(value) for value in (_is_solved(recipe), not _loss_refusal(recipe)))
                summary = recipe.summary.replace("|", "\\|")
                text.append(f"| [`{name}`]({file_name(name)}) | {summary} | {solver} | {module} |")
    return "\n".join(text) + "\n"


def _recommended() -> Iterator[str]:
    """Yield a table of the rules by which `auto` chooses, in their order."""
    yield from ("## Recommended", "", _RULES, "")
    yield from ("| labels | methods, best first |", "|---|---|")
    for rule in RULES:
        conditions = [" or ".join(f"`{regime}`" for regime in rule.regimes), *rule.conditions()]
        methods = [f"[`{choice.method}`]({file_name(choice.method)})" for choice in rule.choices]
        yield f"| {', '.join(conditions)} | **{methods[0]}**, {', '.join(methods[1:])} |"


def _page(recipe: Recipe, methods: Any, results: str) -> str:
    refusal = _loss_refusal(recipe)
    facts = [
        ("Paper", recipe.paper),
        ("Learns from", ", ".join(recipe.serves) + " labels"),
        ("Fit on a frozen backbone", "linear (L-BFGS)" if _is_solved(recipe) else "in batches"),
        ("Defaults in batches", f"`lr={recipe.lr:g} weight_decay={recipe.weight_decay:g}`"),
        ("`halflabel.loss`", f"no: it {refusal}" if refusal else f'`halflabel.loss("{recipe.name}")`'),
    ]
    header, *others = (f"| {name} | {value} |" for name, value in facts)
    text = [f"# {recipe.name}", "", header, "|---|---|", *others, ""]
    text += [_linked(recipe.page, recipe.name, methods), "", "## Options", ""]
    if recipe.options:
        text += ["| option | default | allowed |", "|---|---|---|"]
        for name, option in recipe.options.items():
            default = str(option.default).lower() if isinstance(option.default, bool) else option.default
            flag = f"--{name.replace('_', '-')}"
            shown = f"`{default}`" if default != "" else "none"
            text.append(f"| `{flag}` | {shown} | {_bounds(recipe, name)} |")
    else:
        text.append("None.")
    text += ["", "## Our measurements", "", *_measurements(recipe.name, results)]
    return "\n".join(text) + "\n"


def _bounds(recipe: Recipe, name: str) -> str:
    """Return the values that an option allows, as the error for a value outside of them states."""
    default = recipe.options[name].default
    if isinstance(default, bool):
        return "true, false"
    stated = []
    for value in _OUTSIDE[type(default)]:
        try:
            recipe.make(**{name: value})
        except UserError as error:
            stated.append(error.fix.removeprefix("use ").removeprefix("one of: "))
        except OverflowError:
            continue
    return "; ".join(dict.fromkeys(stated)) or ("any text" if isinstance(default, str) else "any number")


def _is_solved(recipe: Recipe) -> bool:
    return recipe.make().is_linear_loss


def _loss_refusal(recipe: Recipe) -> str:
    """Return why `halflabel.loss` refuses the method, or an empty string."""
    labels = torch.tensor([[1, 0], [0, 1]] if "partial" not in recipe.serves else [[1, -1], [0, 1]])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = loss(recipe, table=Table.from_dense(labels.numpy()), epochs=20)
            module(torch.zeros(2, 2), labels, index=torch.arange(2), epoch=1)
    except UserError as error:
        return str(error).partition(". Fix")[0].partition(": it ")[2] or str(error)
    return ""


def _linked(text: str, own: str, methods: Any) -> str:
    """Return Markdown in which `name` links to the page of that method."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`]({file_name(name)})" if name in methods and name != own else match[0]

    lines = text.split("\n")
    return "\n".join(line if line.startswith("    ") else re.sub(r"`([^`]+)`", link, line) for line in lines)


def _measurements(name: str, results: str) -> Iterator[str]:
    sections: dict[str, list[Row]] = {}
    for row in rows_of(name, results):
        sections.setdefault(row.section, []).append(row)
    if not sections:
        yield "None yet."
        return
    yield "From [the measurements](../../benchmarks/RESULTS.md), which state data, settings and seeds."
    for section, rows in sections.items():
        yield from ("", f"**[{section}](../../benchmarks/RESULTS.md#{rows[0].anchor})**")
        header: tuple[str, ...] = ()
        for row in rows:
            if row.header != header:
                header = row.header
                yield from ("", f"| {' | '.join(header)} |", "|" + "---|" * len(header))
            yield f"| {' | '.join(row.cells)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "–"
