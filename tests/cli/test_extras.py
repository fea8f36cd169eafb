"""The core needs no optional package: web servers and matplotlib are extras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from command_line import BATCHES, TINY, flat
from digit_scenes import write_folder

WEB = ("fastapi", "uvicorn", "python_multipart")
CASES = [  # the package that cannot be imported, its extra, and the command
    ("fastapi", "web", ["review", "run", "images"]),
    ("uvicorn", "web", ["review", "run", "images"]),
    *((package, "web", ["serve", "run", "--port", "0"]) for package in WEB),
    ("matplotlib", "figures", ["figures", "run", "--out", "out"]),
]

# Runs commands in one process, so that torch is imported once. Before each command halflabel and the extras are removed
# from the imported modules.
SCRIPT = """
import contextlib, io, json, sys
from importlib import import_module

class Block:
    packages = ()
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ImportError(f"No module named {name!r}")

block = Block()
sys.meta_path.insert(0, block)
results = []
for block.packages, words in json.load(sys.stdin):
    for name in list(sys.modules):
        if name.partition(".")[0] in {"halflabel", "matplotlib", "fastapi", "uvicorn", "python_multipart"}:
            del sys.modules[name]
    sys.argv = ["halflabel", *words]
    errors, code = io.TextIOWrapper(io.BytesIO()), 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        try:
            import_module("halflabel.cli").main()
        except SystemExit as end:
            code = end.code or 0
    errors.flush()
    results.append([code, errors.buffer.getvalue().decode()])
print(json.dumps(results))
"""


def test_training_needs_no_extra_and_other_commands_name_theirs(tmp_path: Path) -> None:
    write_folder(tmp_path, 40, size=32)
    train = ["train", "train.csv", "images", "--out", "run", *BATCHES, "1", "--zero", "absent", "--method", "bce"]
    commands = [((*WEB, "matplotlib"), [*train, *TINY]), *(((package,), words) for package, _, words in CASES)]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    (code, errors), *refusals = json.loads(process.stdout)
    assert code == 0, errors
    assert (tmp_path / "run" / "best.safetensors").exists()
    for (package, extra, words), (code, errors) in zip(CASES, refusals, strict=True):
        assert code == 2, (words, errors)
        assert package in errors
        assert f"pip install 'halflabel[{extra}]'" in flat(errors)
