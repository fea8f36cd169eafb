"""Runs in an object store (`train --out s3://…`): trained in a local working folder, uploaded after each checkpoint.

The store holds the files of the run folder, and run.json, which lists them with size and CRC-32 and is written last: an
interrupted upload leaves the run as it was before. training.json says who trains the run now, as stores have no locks.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from halflabel.errors import UserError
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.system import distributed
from halflabel.system.files import file_crc32, remote_url
from halflabel.system.remote import MissingObject, StoreError, cache_folder, check_length, file_system, retry

OCCUPIED_FIX = "choose another ‹out›, continue it with ‹resume›, or start it again with ‹force›"

_MANIFEST = "run.json"
_MARKER = "training.json"
# Rewritten in training, so the store may have a newer one than the manifest says; resumed training writes them again.
_CHANGING = ("log.jsonl", "log.csv", "env.json", "bad_images.csv")

_T = TypeVar("_T")
_Files = dict[str, list[int]]  # path in the run -> size and CRC-32


class RunStore(Callback):
    """A run in a store, and its working folder on this machine. As a callback it uploads after each epoch."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme, _, rest = self.url.partition("://")
        parts = [part for part in rest.split("/") if part]
        if len(parts) < 2 or ".." in parts or scheme not in ("s3", "gs"):
            raise UserError(f"{url} cannot hold a run", "write it as s3://BUCKET/FOLDER")
        self.folder = Path(cache_folder(), "runs", scheme, *parts)
        self._files, self._root = file_system(self.url)
        self._token = ""  # of the marker of this training

    @classmethod
    def of(cls, path: str | Path) -> RunStore | None:
        """The store that a path names; None for a path on this machine."""
        url = remote_url(path)
        return None if url is None else cls(url)

    def create(self, *, force: bool) -> Path:
        if self._read_manifest() is not None and not force:
            raise UserError(f"{self.url} already holds a run", OCCUPIED_FIX)
        return self.folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Take the address for a training; an earlier training that still runs there ends at its next upload."""
        who = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
        marker = json.dumps(who).encode()
        distributed.run_on_main(lambda: self._call(_MARKER, lambda path: self._files.pipe_file(path, marker)))
        self._token = str(who["token"])
        try:
            yield
        finally:
            if distributed.is_main():
                with suppress(UserError):  # the store may have failed, or the address may be another's by now
                    self._check_marker()
                    self._call(_MARKER, self._files.rm_file)
            self._token = ""

    def _check_marker(self) -> None:
        """Raise a UserError if another training took the address."""
        try:
            marker = json.loads(self._call(_MARKER, self._files.cat_file))
            is_other, who = marker["token"] != self._token, f"process {marker['pid']} on {marker['host']}"
        except (MissingObject, ValueError, KeyError, TypeError):
            return
        if self._token and is_other:
            raise UserError(f"{self.url} is now trained by {who}", "let it end, or train again into another ‹out›")

    def clear(self) -> None:
        """Remove an earlier run: its manifest in the store, and the working folder."""
        with suppress(MissingObject):
            self._call(_MANIFEST, self._files.rm_file)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def download(self) -> Path:
        """Return the working folder with exactly the files that the manifest lists."""
        listed = self._read_manifest()
        if listed is None:
            raise UserError(f"{self.url} is not a run: run.json is missing", "name the address of a run")
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_file() and path.relative_to(self.folder).as_posix() not in listed:
                path.unlink()
        for name, entry in listed.items():
            path = self.folder / name
            if path.is_file() and _entry(path) == entry:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.part")
            with suppress(MissingObject):
                self._call(name, partial(self._files.get_file, lpath=str(temporary)))
            if temporary.is_file() and _entry(temporary) == entry:
                os.replace(temporary, path)
                continue
            temporary.unlink(missing_ok=True)
            if name not in _CHANGING:
                raise StoreError(f"{self.url}/{name} is missing or damaged", "train again, into another ‹out›")
        return self.folder

    def upload(self) -> None:
        """Upload what changed, then the manifest; then remove what it no longer lists."""
        try:
            self._check_marker()
            before = self._read_manifest() or {}
            listed: _Files = {}
            for path in sorted(self.folder.rglob("*")):
                name = path.relative_to(self.folder).as_posix()
                if not path.is_file() or any(part.startswith(".") for part in PurePosixPath(name).parts):
                    continue
                listed[name] = _entry(path)
                if before.get(name) != listed[name]:
                    self._put(path, name)
            manifest = json.dumps({"format": "halflabel run", "files": listed}, indent=1).encode()
            self._call(_MANIFEST, lambda path: self._files.pipe_file(path, manifest))
            for name in before.keys() - listed.keys():
                with suppress(MissingObject):
                    self._call(name, self._files.rm_file)
        except StoreError as error:
            fix = f"continue when the store can be written: halflabel train --resume {self.url}"
            raise UserError(f"the run could not be uploaded: {error.message}", fix) from None

    def on_epoch_end(self, log: EpochLog) -> None:
        self.upload()

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        self.upload()

    def _put(self, path: Path, name: str) -> None:
        def put(remote: str) -> None:
            self._files.put_file(str(path), remote)
            self._files.invalidate_cache()
            check_length(int(self._files.info(remote)["size"]), path.stat().st_size)

        self._call(name, put)

    def _read_manifest(self) -> _Files | None:
        """The files of the run in the store; None if there is no run."""
        try:
            content = json.loads(self._call(_MANIFEST, self._files.cat_file))
            listed = {str(name): [int(size), int(crc)] for name, (size, crc) in content["files"].items()}
        except MissingObject:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StoreError(f"{self.url}/{_MANIFEST} is damaged", "train again, into another ‹out›") from None
        if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in listed):
            raise StoreError(f"{self.url}/{_MANIFEST} lists files outside of the run", "train again")
        return listed

    def _call(self, name: str, call: Callable[[str], _T]) -> _T:
        """Call with the path of an object, several times if it fails."""
        return retry(lambda: call(f"{self._root}/{name}"), f"{self.url}/{name}")


def _entry(path: Path) -> list[int]:
    return [path.stat().st_size, file_crc32(path)]
