"""The folder of a comparison or study, with the files of each finished task, and the code that trained them."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import halflabel
from halflabel.comparison.grid import Outcome, Task
from halflabel.errors import UserError
from halflabel.evaluation.registry import own_functions
from halflabel.methods.base import recipe, recipes
from halflabel.system.files import atomic_write, file_crc32, read_json, to_json_value, write_json

_WHAT = "comparison"  # in config.json
_FILES = [
    "comparison.csv",
    "comparison.json",
    "comparison.tex",
    "trials.parquet",
    "split.csv",
    "bad_images.csv",
    "report.html",
]
_FLOATS = tuple(column.name for column in fields(Outcome) if column.type == "float")  # null in JSON: not a number
_DAMAGED = "its files are damaged"
_READ: dict[str, tuple[object, bytes]] = {}  # the spec of its import and the syntax tree of a module, by name


class Store:
    """The folder of a comparison or study, in which it can be continued.

    config.json        what all results depend on         tasks/KEY.json   the outcome of a finished task; CRC-32 of
    split.csv          which images are for the test      tasks/KEY.npy    its logits of the test images, float32
    comparison.csv     the table                          unfinished/      checkpoints of the running task
    comparison.json    the table and its details          comparison.tex   the table in LaTeX
    trials.parquet     all finished runs behind it        bad_images.csv
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, identity: Mapping[str, Any], *, force: bool = False) -> bool:
        """Create the folder or continue in it; results of other settings are refused, unless `force` removes them."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file", "name a folder for the results with ‹out›")
        wanted = to_json_value(dict(identity))
        path = self.folder / "config.json"
        if (self.folder / "config.yaml").exists():
            raise UserError(f"{self.folder} holds a training run", "choose another ‹out›")
        if path.exists():
            stored = self._read_config()
            if not force:
                _check_same(self.folder, stored, wanted)
                return True
            # The new settings are written last, so that an interruption leaves the old ones.
            for name in ("tasks", "unfinished"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            for name in (*_FILES, "report.html"):
                (self.folder / name).unlink(missing_ok=True)
        write_json(path, {"what": _WHAT, **wanted})
        return False

    def _read_config(self) -> dict[str, Any]:
        content = read_json(self.folder / "config.json", "choose another ‹out›")
        if not isinstance(content, dict) or content.pop("what", None) != _WHAT:
            raise UserError(f"{self.folder} holds something other than a comparison or study", "choose another ‹out›")
        return content

    def read(self, task: Task, shape: tuple[int, int]) -> tuple[Outcome | None, str]:
        """Return the outcome of a finished task; or None, and why a stored one must be run again, if there is one."""
        try:
            content = json.loads(self._json(task).read_text(encoding="utf-8"))
            if content["source"] != method_digest(task.candidate.method):
                return None, f"the code that trains {task.candidate.method} was edited"
            values = content["outcome"]
            numbers = {name: math.nan for name in _FLOATS if values[name] is None}
            outcome = Outcome(**{**values, **numbers, "log": tuple(values["log"])})
            if outcome.error:
                return None, "it failed before"
            if file_crc32(self._npy(task)) != content["crc"] or self.logits(task).shape != shape:
                return None, _DAMAGED
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None, _DAMAGED
        return outcome, ""

    def write(self, task: Task, outcome: Outcome, logits: NDArray[np.float32] | None) -> None:
        """Write the logits, then the JSON file: its presence means that the task is finished."""
        if logits is not None:
            with atomic_write(self._npy(task)) as temporary, open(temporary, "wb") as file:
                np.save(file, logits.astype(np.float32, copy=False))
        about = {
            "method": task.candidate.method,
            "contender": task.candidate.name,
            "labels": task.label_mask.name,
            "seed": task.seed,
            "lr": task.lr,
            "weight_decay": task.candidate.weight_decay,
            "options": dict(task.options),
            "source": method_digest(task.candidate.method),
        }
        crc = {} if logits is None else {"crc": file_crc32(self._npy(task))}
        write_json(self._json(task), {**about, **crc, "outcome": asdict(outcome)})
        shutil.rmtree(self.unfinished(task), ignore_errors=True)

    def logits(self, task: Task) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = np.load(self._npy(task), mmap_mode="c", allow_pickle=False)
        return logits

    def unfinished(self, task: Task) -> Path:
        """Return the folder for the checkpoints of the running task."""
        return self.folder / "unfinished" / task.key

    def _json(self, task: Task) -> Path:
        return self.folder / "tasks" / f"{task.key}.json"

    def _npy(self, task: Task) -> Path:
        return self.folder / "tasks" / f"{task.key}.npy"


def _check_same(folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    changed = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    if changed:
        named = ", ".join(_change(name, stored.get(name), wanted.get(name)) for name in changed)
        raise UserError(
            f"{folder} holds results with other settings: {named}",
            "give the same options, choose another ‹out›, or add ‹force› to start again",
        )


def _change(name: str, before: Any, now: Any) -> str:
    """Describe one setting that differs, without digests."""
    if name.endswith(("images", "labels")):
        return f"the {name} changed"
    return f"{name.replace('_', ' ')} was {before}, is {now}"


def method_digest(method: str) -> str:
    """Return a digest of the version of halflabel and of the file of a method; comments do not change it.

    Of a plugin, the modules beside that file count too, unless they hold only metrics; in a notebook, the cell.
    """
    build = recipe(method).build
    module = sys.modules.get(build.__module__)
    if (path := _file(module)) is None:
        content = [_parse(inspect.getsource(build))]
    elif build.__module__.startswith("halflabel.methods."):
        content = [_read(build.__module__, path)]
    else:
        with_methods = {each.build.__module__ for each in recipes().values()}
        metrics = {function.__module__ for function in own_functions().values()} - with_methods
        loaded = ((name, _file(each)) for name, each in sorted(sys.modules.items()) if name not in metrics)
        content = [_read(name, file) for name, file in loaded if file is not None and file.parent == path.parent]
    return hashlib.sha256(b"\n".join([halflabel.__version__.encode(), *content])).hexdigest()[:16]


def _file(module: ModuleType | None) -> Path | None:
    """Return the source file of a module that was imported; None for built-in modules and for a running script."""
    spec = getattr(module, "__spec__", None)
    return Path(spec.origin) if spec is not None and str(spec.origin).endswith(".py") else None


def _read(name: str, path: Path) -> bytes:
    """Read a module once per import: what is edited later is not what this process runs."""
    spec = sys.modules[name].__spec__
    if name not in _READ or _READ[name][0] is not spec:
        _READ[name] = spec, _parse(path.read_bytes())
    return _READ[name][1]


def _parse(source: str | bytes) -> bytes:
    return ast.dump(ast.parse(source)).encode("utf-8", "surrogateescape")
