"""Listing and removing feature caches; nothing else is ever removed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.onnx_features import FEWEST_IMAGES
from halflabel.features.vector_store import VectorStore, find_stores, select_stores, stores_in
from halflabel.images.sources import Arrays
from halflabel.images.views import Plain, Strong
from halflabel.labels.names import Names
from halflabel.system.files import JobLock

N = 6


def make(folder: Path, *, weights: int = 0, number: int = N, copies: int = 0, **more: Any) -> None:
    """Cache the features of some images by a backbone whose weights differ by `weights`."""
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (number, 3, 40, 40), dtype=np.uint8))
    backbone = build_backbone("tiny", size=32)
    with torch.no_grad():
        next(backbone.parameters()).add_(weights)
    views: dict[str, Any] = {"plain": Plain(32)} | ({"strong": Strong(32)} if copies else {})
    cache_features(backbone, Arrays(pictures, Names.numbered(number), views), folder, copies=copies, **more)


def use(cache: VectorStore, hours_ago: float) -> None:
    at = time.time() - 3600 * hours_ago
    os.utime(cache.folder / "about.json", (at, at))


def run(*words: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["cache", *map(str, words)], input=answer, env={"COLUMNS": "200"})


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_caches_are_listed_with_their_origin(tmp_path: Path) -> None:
    make(tmp_path / "cache", copies=2)
    make(tmp_path / "cache", weights=1)
    make(tmp_path / "cache", maps=True)
    make(tmp_path / "cache", number=4)
    caches = find_stores(tmp_path)
    assert len(caches) == 4
    assert [cache.last_used for cache in caches] == sorted((cache.last_used for cache in caches), reverse=True)
    plain = next(cache for cache in caches if stores_in(cache.folder))
    assert [plain.about[name] for name in ("backbone", "size", "kind")] == ["tiny", 32, "pooled"]
    assert (len(stores_in(plain.folder)), plain.rows, plain.noted_rows) == (2, N, N)
    assert plain.disk_bytes == sum(path.stat().st_size for path in plain.folder.rglob("*") if path.is_file())
    assert {cache.rows for cache in caches} == {4, N}
    # Of the same images and kind the one that was used last is the latest, the others are older.
    (older,) = select_stores(caches, "older")
    assert older.name == plain.name
    for cache in caches:
        use(cache, 5)
    newer = next(cache for cache in caches if cache.name == plain.name and cache.folder != plain.folder)
    use(newer, 9)
    make(tmp_path / "cache", weights=1)  # it exists: the time of its use is stored
    (older,) = select_stores(find_stores(tmp_path), "older")
    assert older.folder == plain.folder


def test_caches_are_found_from_runs_a_run_or_the_cache_folder(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "cache")
    first = tmp_path / "runs" / "first"
    first.mkdir()
    assert find_stores(first) == []
    (first / "config.yaml").touch()
    names = [
        [cache.folder.name for cache in find_stores(place)]
        for place in (tmp_path / "runs", first, first.parent / "cache")
    ]
    assert names[0] == names[1] == names[2] != []
    with pytest.raises(UserError, match="is not a folder"):
        find_stores(tmp_path / "nowhere")


def test_a_name_must_match_one_cache(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, weights=1)
    caches = find_stores(tmp_path)
    assert select_stores(caches, caches[1].folder.name) == [caches[1]]
    assert select_stores(caches, caches[1].folder.name[-8:]) == [caches[1]]
    with pytest.raises(UserError, match="2 caches have 'tiny' in their names"):
        select_stores(caches, "tiny")
    for name in ("unheard-of", ""):
        with pytest.raises(UserError, match="no cache is called"):
            select_stores(caches, name)


@pytest.mark.parametrize("kind", ["renamed", "no note", "link", "file"])
def test_other_folders_and_files_are_never_removed(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "real")
    (real,) = find_stores(tmp_path / "real")
    place = tmp_path / "place"
    place.mkdir()
    target = place / real.folder.name
    if kind == "renamed":
        real.folder.rename(place / "my-features")
    elif kind == "link":
        target.symlink_to(real.folder)
    elif kind == "file":
        target.write_text("mine")
    else:  # a folder that happens to have such a name
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    before = everything(tmp_path)
    assert find_stores(place) == []
    result = run(place, "--remove", "all", "--yes")
    assert result.exit_code == 0
    assert "No caches" in result.output
    assert everything(tmp_path) == before


def test_a_cache_with_other_files_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, copies=1)
    (cache,) = find_stores(tmp_path)
    (next(cache.folder.glob("strong-*")) / "notes.txt").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(UserError, match="holds other files too"):
        cache.remove()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("pattern", ["about.json", "strong-*/about.json"])
def test_a_cache_that_is_being_built_is_not_removed(tmp_path: Path, pattern: str) -> None:
    pytest.importorskip("fcntl")
    make(tmp_path, copies=1)
    make(tmp_path, number=4)
    cache = next(cache for cache in find_stores(tmp_path) if stores_in(cache.folder))
    lock = JobLock(next(cache.folder.glob(pattern)).parent / "building.lock")
    assert lock.try_acquire()
    assert lock.is_held
    before = everything(cache.folder)
    result = run(tmp_path, "--remove", cache.folder.name, "--yes")
    assert result.exit_code == 2
    assert f"{cache.folder.name} is being built" in result.stderr
    assert everything(cache.folder) == before
    lock.release()
    assert run(tmp_path, "--remove", "all", "--yes").exit_code == 0
    assert everything(tmp_path) == []


def test_the_command_lists_asks_and_removes(tmp_path: Path) -> None:
    make(tmp_path / "cache", copies=1)
    make(tmp_path / "cache", weights=1)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    for part in (
        "tiny, weights ",
        f"{N} images",
        "32 px, pooled",
        "1 strong view",
        "last used 20",
        "2 caches, ",
    ):
        assert part in result.output
    assert "1 older than another" in result.output
    names = {cache.folder.name for cache in find_stores(tmp_path)}
    result = run(tmp_path, "--remove", "older", answer="n\n")
    assert (result.exit_code, "Nothing was removed" in result.output) == (0, True)
    assert run(tmp_path, "--remove", "older").exit_code != 0  # without an answer to the prompt
    assert {cache.folder.name for cache in find_stores(tmp_path)} == names
    result = run(tmp_path, "--remove", "older", answer="y\n")
    assert result.exit_code == 0, result.output
    assert "Removed 1 cache, " in result.output
    assert len(find_stores(tmp_path)) == 1
    result = run(tmp_path, "--remove", "older", "--yes")
    assert (result.exit_code, "No older caches" in result.output) == (0, True)
    assert run(tmp_path, "--remove", "all", "--yes").exit_code == 0
    assert "No caches" in run(tmp_path).output
    assert run(tmp_path / "nowhere").exit_code == 2


def test_the_exported_network_is_removed_with_its_cache(tmp_path: Path) -> None:
    make(tmp_path, number=FEWEST_IMAGES)
    make(tmp_path, number=FEWEST_IMAGES, weights=1)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert len(list(tmp_path.glob("tiny-32px-*.onnx"))) == 2
    (older,) = select_stores(find_stores(tmp_path), "older")
    older.remove()
    (network,) = tmp_path.glob("tiny-32px-*.onnx")
    (newer,) = find_stores(tmp_path)
    assert newer.key["weights"] in network.name
    newer.remove()
    assert everything(tmp_path) == ["model.onnx"]
