"""The counts behind gates.toml; `python tests/gates/counts.py` prints them all, with a name the places of one.

A counter returns a number, or the places that it counts. Nothing is imported from the package, except for the options
of the commands and for the training whose calls are counted.
"""

from __future__ import annotations

import ast
import cProfile
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import unwrap
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
TABLE = Path(__file__).with_name("gates.toml")

MANY_PARAMETERS = 8
SENTENCES = {"basis", "message", "note", "protocol", "reason", "sentence", "why"}  # names of texts for people
TEXT_METHODS = {"endswith", "partition", "removeprefix", "removesuffix", "rpartition", "rsplit", "split", "startswith"}
PATTERN_METHODS = {"findall", "finditer", "fullmatch", "match", "search"}
PATH_FUNCTIONS = {"Path", "join", "joinpath"}
LABELS = "halflabel.labels.labels:Labels."
TABLES_OF_LABELS = ("training", "people", "_evaluation_and_control", "choosing")

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Gate(NamedTuple):
    """One entry of gates.toml."""

    recorded: int
    goal: int
    slack: int = 0


def read_gates() -> dict[str, Gate]:
    return {name: Gate(**values) for name, values in tomllib.loads(TABLE.read_text()).items()}


@cache
def trees() -> dict[str, ast.Module]:
    """The parsed modules of the package, by path."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_bytes()) for path in sorted(SOURCE.rglob("*.py"))}


def places(is_counted: Callable[[Any], bool]) -> list[str]:
    """PATH:LINE of the lines of the package with a node that is counted."""
    nodes = ((path, node) for path, tree in trees().items() for node in ast.walk(tree) if is_counted(node))
    return [f"{path}:{line}" for path, line in sorted({(path, node.lineno) for path, node in nodes})]


def called_name(node: ast.AST) -> str | None:
    """The name of the called function or method; None if the node is not a call."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
    return None


def calls_of(function: str) -> list[str]:
    """The calls of a function or method by this name; an error if the package does not define it."""
    if not places(lambda node: isinstance(node, FUNCTION) and node.name == function):
        raise LookupError(f"{function} is not defined in src: name the function that replaced it in {Path(__file__)}")
    return places(lambda node: called_name(node) == function)


def spells_cache(node: ast.AST) -> bool:
    """Whether a path is joined with the text "cache", or with one that has it as a part."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            texts = [left, right]
        case ast.Call(args=args) if called_name(node) in PATH_FUNCTIONS:
            texts = args
        case _:
            return False
    return any(isinstance(text, ast.Constant) and "cache" in str(text.value).split("/") for text in texts)


def modules_that_spell_the_cache() -> list[str]:
    return sorted({place.partition(":")[0] for place in places(spells_cache)})


def is_sentence(node: ast.AST) -> bool:
    """Whether an expression has the name of a text for people: `why`, `item.why`, `note["why"]`, `str(why)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return name in SENTENCES
        case ast.Subscript(value=value, slice=key):
            return is_sentence(value) or is_sentence(key)
        case ast.Call(func=ast.Attribute(value=value), args=args):
            return is_sentence(value) or any(map(is_sentence, args[:1]))
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return is_sentence(value)
    return False


def reads_sentence(node: ast.AST) -> bool:
    """Whether a sentence is taken apart or searched: by a method of texts, by a pattern or by `in`."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method, value=value), args=args):
            by_pattern = method in PATTERN_METHODS and any(map(is_sentence, args))
            return by_pattern or (method in TEXT_METHODS and is_sentence(value))
        case ast.Compare(left=ast.Constant(value=str()), ops=[ast.In() | ast.NotIn()], comparators=[text]):
            return is_sentence(text)
    return False


def imports_in_functions() -> list[str]:
    """The imports inside functions, but for those of the standard library."""
    functions = {id(node) for tree in trees().values() for node in imports_below_functions(tree)}
    return places(lambda node: id(node) in functions and not is_standard(node))


def imports_below_functions(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    for function in ast.walk(tree):
        if isinstance(function, FUNCTION):
            yield from (node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def is_standard(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def has_many_parameters(node: ast.AST) -> bool:
    if not isinstance(node, FUNCTION):
        return False
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) >= MANY_PARAMETERS


def options() -> list[str]:
    """COMMAND OPTION of all options of all commands; those on reading a label file, which are shared, count once."""
    from halflabel.cli import import_commands
    from halflabel.cli.options import label_parameters

    of_labels = {parameter.name for parameter in label_parameters()}

    def below(commands: dict[str, Any]) -> Iterator[str]:
        for name, command in commands.items():
            reads_labels = {"minus_one", "unlisted"} <= {each.name for each in command.params}
            shared = of_labels if reads_labels else ()
            options = [each for each in command.params if each.param_type_name == "option"]
            yield from (f"{name} {each.opts[0]}" for each in options if each.name not in shared)
            yield from (f"{name} {option}" for option in below(getattr(command, "commands", {})))

    return [*below(import_commands()), *(f"LABELS --{name}" for name in sorted(of_labels))]


def exceptions_to_the_layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [exception for contract in contracts for exception in contract.get("ignore_imports", ())]


def lines(folder: Path, *endings: str) -> int:
    files = [path for ending in endings for path in folder.rglob(f"*.{ending}")]
    return sum(path.read_bytes().count(b"\n") for path in files)


def called_in_training(*functions: str) -> int:
    """How often `halflabel train` calls these functions, each written MODULE:NAME."""
    objects = [resolve_name(function) for function in functions]
    codes = {unwrap(getattr(each, "func", each)).__code__ for each in objects}  # `func` of a cached property
    return sum(count for code, count in calls_in_training().items() if code in codes)


@cache
def calls_in_training() -> dict[Any, int]:
    """How often each function is called while the default method is trained on 30 tiny photos, by its code."""
    from typer.testing import CliRunner

    from halflabel.cli import app

    with tempfile.TemporaryDirectory() as folder:
        words = [*write_example(Path(folder)), "--backbone", "tiny", "--size", "32", "--workers", "0"]
        profile = cProfile.Profile()
        with profile:
            result = CliRunner().invoke(app, ["train", *words, "--set", "device=cpu", "--out", f"{folder}/runs/first"])
    if result.exit_code:
        raise RuntimeError(result.output) from result.exception
    return {entry.code: entry.callcount for entry in profile.getstats()}


def write_example(folder: Path) -> list[str]:
    """Write photos and labels of which two thirds are known, more absent than present; the paths of both."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    photos, labels = folder / "photos", folder / "labels.csv"
    photos.mkdir()
    rows = ["image,class,value"]
    for number in range(30):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(photos / f"{number}.png")
        known = [name for place, name in enumerate("abc") if (number + place) % 3]
        rows += [f"{number}.png,{name},{1 if (number + ord(name)) % 5 < 2 else -1}" for name in known]
    labels.write_text("\n".join(rows) + "\n")
    return [str(labels), str(photos)]


COUNTERS: dict[str, Callable[[], int | list[str]]] = {
    "rows resolved per training": partial(called_in_training, LABELS + "training"),
    "tables built from rows per training": partial(called_in_training, "halflabel.labels.table:Table.from_entries"),
    "statistics computed per training": partial(called_in_training, "halflabel.labels.table:Table.stats"),
    "tables of labels made per training": partial(called_in_training, *(LABELS + name for name in TABLES_OF_LABELS)),
    "calls of make_backbone": partial(calls_of, "make_backbone"),
    "calls of score_source": partial(calls_of, "score_source"),
    "calls of fit_decisions": partial(calls_of, "fit_decisions"),
    "calls of open_images": partial(calls_of, "open_images"),
    "modules that spell the cache": modules_that_spell_the_cache,
    "state read from a sentence": partial(places, reads_sentence),
    "modules": lambda: list(trees()),
    "imports in functions": imports_in_functions,
    "functions with 8 or more parameters": partial(places, has_many_parameters),
    "options of all commands": options,
    "exceptions to the layers": exceptions_to_the_layers,
    "source lines": partial(lines, SOURCE, "py", "toml", "j2"),
    "test lines": partial(lines, TESTS, "py"),
}


def main() -> None:
    if names := sys.argv[1:]:
        counted = COUNTERS[names[0]]()
        print(counted if isinstance(counted, int) else "\n".join(counted))
        return
    print(f"{'':40}{'count':>8}{'record':>8}{'goal':>8}")
    for name, gate in read_gates().items():
        counted = COUNTERS[name]()
        count = counted if isinstance(counted, int) else len(counted)
        print(f"{name:40}{count:8,}{gate.recorded:8,}{gate.goal:8,}")


if __name__ == "__main__":
    main()
