"""No file can run code: nothing is ever unpickled, and no module calls a function that could."""

from __future__ import annotations

import ast
import io
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import halflabel
from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.fitting.checkpoint import load_newest
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.papers.datasets import open_dataset
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model

SOURCE = Path(halflabel.__file__).parent


class Evil:
    """Unpickled, it makes a file; called from nowhere else."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A path that is there once code from a file has run."""
    yield tmp_path / "code has run"
    assert not (tmp_path / "code has run").exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Evil(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


def pickles(mark: Path) -> dict[str, bytes]:
    """The same trap as a bare pickle, in torch's archive, in torch's old form, and as an array of objects."""
    evil = {"state_dict": {"layers.0.0.weight": Evil(mark)}}
    archive, old, array = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(evil, archive)
    torch.save(evil, old, _use_new_zipfile_serialization=False)
    np.save(array, np.array([Evil(mark)], dtype=object), allow_pickle=True)
    return {"bare": pickle.dumps(evil), "archive": archive.getvalue(), "old": old.getvalue(), "array": array.getvalue()}


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".safetensors", ".npy", ".pkl"])
@pytest.mark.parametrize("form", ["bare", "archive", "old", "array"])
def test_weights_that_are_pickles(tmp_path: Path, mark: Path, form: str, ending: str) -> None:
    path = tmp_path / f"weights{ending}"
    path.write_bytes(pickles(mark)[form])
    with pytest.raises(UserError):
        build_backbone("tiny", weights=path)


def test_an_archive_with_another_pickle_inside(tmp_path: Path, mark: Path) -> None:
    torch.save(build_backbone("tiny").model.state_dict(), tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "bad.pt", "w") as bad:
        for item in good.infolist():
            evil = item.filename.endswith("data.pkl")
            bad.writestr(item.filename, pickle.dumps(Evil(mark)) if evil else good.read(item))
    with pytest.raises(UserError, match="could run code"):
        build_backbone("tiny", weights=tmp_path / "bad.pt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["bare", "archive", "old", "array"])
def test_runs_checkpoints_and_exports_that_are_pickles(tmp_path: Path, mark: Path, form: str) -> None:
    data = pickles(mark)[form]
    run = RunFolder(tmp_path / "run")
    run.folder.mkdir()
    for name in ("best.safetensors", "labels.parquet", "calibration.json", "thresholds.json", "config.yaml"):
        (run / name).write_bytes(data)
    with pytest.raises(UserError):
        Model.open(run.folder)
    for read in (run.read_labels, lambda: run.split_of(Names(["x"])), run.read_config):
        with pytest.raises(UserError):
            read()
    last, hub = tmp_path / "last", tmp_path / "hub"
    for folder in (last, hub):
        folder.mkdir()
    (last / "0000000001.pt").write_bytes(data + zlib.crc32(data).to_bytes(4))
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(UserError, match="all checkpoints in"):
        load_newest(last)
    (hub / "config.json").write_bytes(data)
    (hub / "model.safetensors").write_bytes(data)
    (tmp_path / "model.onnx").write_bytes(data)
    for path in (hub, tmp_path / "model.onnx"):
        with pytest.raises(UserError):
            Model.open(path)


def test_label_files_that_are_pickles(tmp_path: Path, mark: Path) -> None:
    for number, (form, data) in enumerate(pickles(mark).items()):
        for name in formats.FORMATS:
            folder = tmp_path / f"{number} {name}"
            folder.mkdir()
            for file in ("formatted_train_images.npy", "formatted_train_labels.npy", "metadata.parquet", "labels.json"):
                (folder / file).write_bytes(data)
            for path in (folder, *folder.iterdir()):
                with pytest.raises(UserError):
                    formats.read(path, format=name)
        (tmp_path / form).mkdir()
        (tmp_path / form / "data_batch_1").write_bytes(data)
        with pytest.raises(UserError, match="run code"):
            open_dataset("cifar10", tmp_path / form)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir ['{mark}']",
        "method: !!python/object/new:os.mkdir ['{mark}']",
        "? !!python/name:os.system\n: 1",
        "a: !!python/module:os",
    ],
)
def test_settings_that_name_code(tmp_path: Path, mark: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text.format(mark=mark))
    with pytest.raises(UserError, match="cannot be read"):
        RunFolder.open(tmp_path).read_config()


@cache
def calls(module: Path) -> list[tuple[str, ast.Call]]:
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def faults(module: Path) -> list[str]:
    """Calls that read a file in a way that can run code, or reach for a shell."""
    wrong = []
    never = ("pickle.load", "pickle.loads", "pickle.Unpickler", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
             "joblib.load", "marshal.loads", "shelve.open", "dill.load", "os.system", "os.popen", "eval", "exec",
             "torch.jit.load", "torch.hub.load", "pandas.read_pickle", "numpy.fromregex")  # fmt: skip
    must = {"torch.load": ("weights_only", "True"), "np.load": ("allow_pickle", "False"),
            "numpy.load": ("allow_pickle", "False")}  # fmt: skip
    for name, node in calls(module):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in never or given.get("shell") == "True" or given.get("trust_remote_code") == "True":
            wrong.append(f"{module.name}:{node.lineno} {name}")
        if name in must and given.get(must[name][0]) != must[name][1]:
            wrong.append(f"{module.name}:{node.lineno} {name} without {'='.join(must[name])}")
        if given.get("allow_pickle", "False") != "False":
            wrong.append(f"{module.name}:{node.lineno} {name} with pickles")
    return wrong


def test_no_module_calls_what_runs_code() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    assert [fault for module in modules for fault in faults(module)] == []
    loads = [name for module in modules for name, _ in calls(module) if name in ("torch.load", "np.load")]
    assert len(loads) >= 4


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "pickle.load(f)",
        "yaml.load(t, Loader=yaml.Loader)",
        "np.lib.format.read_array(f, allow_pickle=True)",
        "subprocess.run(w, shell=True)",
        "eval(t)",
    ],
)
def test_the_search_finds_such_calls(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(f"x = {line}\n")
    assert len(faults(tmp_path / "x.py")) >= 1
