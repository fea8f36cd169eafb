"""The feature cache: what a frozen backbone says of every image, computed once, so that a head trains in seconds.

Float16, memory-mapped: 2·D bytes per image for pooled features (2·D·h·w for maps).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.backbones import Backbone, fingerprint
from halflabel.data.sources import Arrays, Features, Images, sequential
from halflabel.files import write_json
from halflabel.heads import pool

__all__ = ["cache_features"]

_BLOCK = 1 << 24
_KEEP = 512  # images between two notes of how far the building has come


def cache_features(
    backbone: Backbone,
    source: Images | Arrays,
    folder: Path,
    *,
    maps: bool = False,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Features:
    """The plain-view features of every image of the source, from the cache where it is still true.

    A cache belongs to a list of image names. It is stale, and built again, when the weights, the view or the files
    changed, or when its bytes do not match their checksum. A build that was interrupted goes on where it stopped.
    `progress` is told (images done, of how many), `say` why a cache is built anew.
    """
    place = folder / _name(backbone, source, maps)
    made_of = {
        "weights": fingerprint(backbone),
        "view": source.views["plain"].describe(),
        "images": _stamp(source),
    }
    found = _read_json(place / "cache.json")
    if found.get("made_of") == made_of:
        if _checksum(place / "values.npy") == found.get("crc32"):
            if isinstance(source, Images):
                for number, (_, path, why) in found["bad"].items():
                    source.put_aside(int(number), path, why)
            return Features(_open(place / "values.npy"), source.names, [int(n) for n in found["bad"]])
        reason = "its bytes do not match their checksum"
    else:
        changed = [what for what, key in made_of.items() if found.get("made_of", made_of).get(what) != key]
        reason = f"the {' and the '.join(changed)} changed" if changed else ""
    if reason and say is not None:
        say(f"the feature cache is stale ({reason}): computing it again")
    place.mkdir(parents=True, exist_ok=True)
    (place / "cache.json").unlink(missing_ok=True)
    _build(place, made_of, backbone, source, maps, device, batch_size, progress)
    return cache_features(backbone, source, folder, maps=maps, device=device, batch_size=batch_size)


def _build(
    place: Path,
    made_of: dict[str, str],
    backbone: Backbone,
    source: Images | Arrays,
    maps: bool,
    device: torch.device | str,
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    so_far = _read_json(place / "building.json")
    partial = place / "values.partial.npy"
    fresh = so_far.get("made_of") != made_of or not partial.exists()
    done: int = 0 if fresh else so_far["done"]
    bad: dict[str, list[str]] = {} if fresh else so_far["bad"]
    values: Any = None if fresh else np.lib.format.open_memmap(partial, mode="r+")
    noted = done
    backbone = backbone.to(device).to(memory_format=torch.channels_last).eval()
    with torch.inference_mode():
        for planned, (images, views) in zip(
            rest := sequential(len(source), batch_size)[done // batch_size :],
            source.fetch(rest, ("plain",)),
            strict=True,
        ):
            if len(images):
                features = backbone(views[0].to(device))
                out = (features if maps else pool(features)).to(torch.float16).cpu().numpy()
                if values is None:
                    shape = (len(source), *out.shape[1:])
                    values = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=shape)
                values[images] = out
            done = int(planned[-1]) + 1
            if isinstance(source, Images):
                bad |= {str(number): list(source.bad[number]) for number in np.setdiff1d(planned, images).tolist()}
            if values is not None and done - noted >= _KEEP:
                values.flush()
                write_json(place / "building.json", {"made_of": made_of, "done": done, "bad": bad})
                noted = done
            if progress is not None:
                progress(done, len(source))
    if values is None:
        from halflabel.errors import UserError

        raise UserError("not one image could be read", "check the image folder")
    values.flush()
    del values
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, place / "values.npy")
    crc = _checksum(place / "values.npy")
    write_json(place / "cache.json", {"made_of": made_of, "crc32": crc, "bad": bad, "backbone": backbone.name})
    (place / "building.json").unlink(missing_ok=True)


def _name(backbone: Backbone, source: Images | Arrays, maps: bool) -> str:
    names = hashlib.sha256(source.hashes.tobytes()).hexdigest()[:12]
    size = source.views["plain"].size
    return f"{backbone.name.replace('/', '_')}-{size}px-{'maps' if maps else 'pooled'}-{names}"


def _stamp(source: Images | Arrays) -> str:
    """Changes when any image does: by content in memory, by size and time of change for files."""
    sha = hashlib.sha256()
    if isinstance(source, Arrays):
        sha.update(source.images.contiguous().numpy().data)
    else:
        for path in source.paths:
            try:
                found = os.stat(path)
                sha.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
            except OSError:
                sha.update(b"missing\n")
    return sha.hexdigest()[:16]


def _checksum(path: Path) -> int:
    crc = 0
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                crc = zlib.crc32(block, crc)
    except OSError:
        return -1
    return crc


def _open(path: Path) -> NDArray[Any]:
    values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return values


def _read_json(path: Path) -> dict[str, Any]:
    """The file's content, or nothing where it is missing or damaged: both mean that there is no cache."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
