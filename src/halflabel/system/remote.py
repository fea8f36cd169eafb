"""Label files, image folders and packs in object stores and on the web: s3://, gs://, hf://, https://, through fsspec.

A file or a folder of images is copied to a local cache; each command fetches only what changed, by sizes and ETags. The
tars of a pack are read in blocks, which stay in the cache. HALFLABEL_CACHE_GB limits it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from zlib import crc32

from filelock import FileLock

from halflabel.errors import UserError, hide_secrets
from halflabel.system.files import DISK_FULL, read_json, remote_url, write_json

fcntl = import_module("fcntl") if os.name == "posix" else None  # on Windows, copies of files and folders stay

_PACKAGES = {"s3": "halflabel[cloud]", "gs": "gcsfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
_NOTE = ".halflabel-remote.json"  # where a folder in the cache comes from, with size and ETag of each file
_USED = ".used"  # beside a copy; its modification time is the time of last use
_BLOCKS = ".blocks"  # in the copy of a pack
_STAMPS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "updated", "mtime")
TIMEOUT = "HALFLABEL_TIMEOUT"  # of the environment: seconds for which a request that fails is repeated
_TIMEOUT = 60.0
_TRIES = 3  # of requests that the store does not answer
_FIRST_WAIT = 0.5  # seconds; doubled after each attempt
_LONGEST_WAIT = 15.0
_NOTE_EVERY = 1.0  # seconds between two messages that a request is repeated: many may fail at once
_THREADS = 16
_BLOCK = 1 << 22  # bytes of a pack that are fetched at a time
_AHEAD_THREADS = 8  # that fetch blocks before they are needed
_LOCKS = 64

_T = TypeVar("_T")
_Files = dict[str, tuple[int, str]]  # path below the folder -> size (−1 if unknown) and ETag


class StoreError(UserError):
    """An object store that cannot be reached, or an object that is not as expected."""


class MissingObject(StoreError):
    """An object that does not exist."""


def _no_progress(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
    return nullcontext(lambda done, total: None)


_progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _no_progress
_message: Callable[[str], None] = lambda line: None  # noqa: E731
_last_message = -math.inf  # when a repeated request was reported


def show_progress(
    bar: Callable[[str], AbstractContextManager[Callable[[int, int], None]]], message: Callable[[str], None]
) -> None:
    """Set the progress bar for copying, a context `bar(title)`, and what reports that a request is repeated."""
    global _progress, _message
    _progress, _message = bar, message


def cache_folder() -> Path:
    """Return the folder for copies: HALFLABEL_CACHE, or halflabel/remote in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HALFLABEL_CACHE") or Path(base) / "halflabel" / "remote")


def local_folder(path: str | Path) -> Path:
    """Return a folder of images or a pack as a local folder; UserError if it is not a folder."""
    folder = local_path(path)
    if not folder.is_dir():
        raise UserError(f"{remote_url(path) or path} is not a folder", "name the folder with the images")
    return folder


def local_path(path: str | Path) -> Path:
    """Return a path on this machine: an address is copied to the cache or brought up to date, once per process."""
    url = remote_url(path)
    return Path(path) if url is None else _copy(url)


@lru_cache(maxsize=64)
def _copy(url: str) -> Path:
    place = _place(url)
    files, root = file_system(url)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / f".{place.name}.lock"):
        used = place.parent / f".{place.name}{_USED}"
        used.touch()
        if fcntl is not None and used not in _in_use:  # no process removes the copy while this one runs
            _in_use[used] = os.open(used, os.O_RDONLY)
            fcntl.flock(_in_use[used], fcntl.LOCK_SH)
        info = _describe(files, url, root)
        if info["type"] == "file":
            _update(files, lambda name: root, place.parent, f".{place.name}{_NOTE}", url, {place.name: _state(info)})
        else:
            pack = _pack_files(files, root)
            tars = {name: state for name, state in (pack or {}).items() if name.endswith(".tar")}
            wanted = _list(files, url, root) if pack is None else {n: pack[n] for n in pack.keys() - tars.keys()}
            _update(files, lambda name: f"{root}/{name}", place, _NOTE, url, wanted, tars)
        _make_room(math.inf)
    return place


def _describe(files: Any, url: str, root: str) -> dict[str, Any]:
    """Size, ETag and type of a file; the type of a folder. The web has no folders, but packs."""
    try:
        return dict(retry(lambda: files.info(root), url))
    except MissingObject:
        if url.startswith("http") and _pack_files(files, root) is not None:
            return {"type": "directory"}
        raise


def _list(files: Any, url: str, root: str) -> _Files:
    """The files of a folder and all folders in it."""
    listing = retry(lambda: files.find(root, detail=True), url)
    names = {path.removeprefix(root).lstrip("/"): info for path, info in listing.items() if info["type"] == "file"}
    wanted = {name: _state(info) for name, info in names.items() if name and not name.endswith("/")}
    if any(".." in PurePosixPath(name).parts for name in wanted):
        raise StoreError(f"{url} holds names with '..'", "rename these objects")
    if not wanted:
        raise StoreError(f"{url} is empty", "check the address")
    return wanted


def _place(url: str) -> Path:
    """The path in the cache: the address, so that names of images may repeat the end of it."""
    address, _, query = hide_secrets(url).partition("?")
    scheme, _, rest = address.partition("://")
    parts = [part for part in rest.split("/") if part]
    if not parts or ".." in parts:
        raise UserError(f"{url} is not an address", "write it as s3://BUCKET/FOLDER")
    return Path(cache_folder(), scheme + (sha256(query.encode()).hexdigest()[:8] if query else ""), *parts)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(url, **_options_of_store(scheme))
    except ImportError as error:
        raise UserError(f"{scheme}:// cannot be read ({error})", f"pip install '{_PACKAGES[scheme]}'") from None
    # Listings must not be remembered: changes would not be noticed.
    files.invalidate_cache()
    files.retries = 1  # of S3: `retry` repeats and reports
    return files, str(root).rstrip("/")


def _options_of_store(scheme: str) -> dict[str, Any]:
    """Options by which a store that does not answer is noticed in time; the user's own (FSSPEC_S3) win."""
    from fsspec.config import conf

    seconds = max(_number_from(TIMEOUT, _TIMEOUT) / _TRIES, 1.0)
    own: dict[str, Any]
    if scheme == "s3":
        key = "config_kwargs"
        own = {"connect_timeout": seconds, "read_timeout": seconds, "retries": {"max_attempts": 0}}
    elif scheme.startswith("http"):
        from aiohttp import ClientTimeout

        key, own = "client_kwargs", {"timeout": ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)}
    else:  # the libraries of other stores have limits of their own
        return {}
    return {key: own | conf.get(scheme, {}).get(key, {})}


def _state(info: dict[str, Any]) -> tuple[int, str]:
    size = info.get("size")
    stamp = next((str(info[key]) for key in _STAMPS if info.get(key)), "")
    return (-1 if size is None else int(size)), stamp


def _pack_files(files: Any, root: str) -> _Files | None:
    """The files of a finished pack, by its pack.json; None for anything else."""
    try:
        manifest = json.loads(retry(lambda: files.cat_file(f"{root}/pack.json"), _url(files, f"{root}/pack.json")))
        names = [f"{number:05d}.tar" for number in range(int(manifest["shards"]))]
    except (MissingObject, ValueError, KeyError, TypeError):
        return None

    def state(name: str) -> tuple[str, tuple[int, str]]:
        return name, _state(retry(lambda: files.info(f"{root}/{name}"), _url(files, f"{root}/{name}")))

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(pool.map(state, ["pack.json", "index.arrow", "bad_images.csv", *names]))


def _url(files: Any, path: str) -> str:
    return str(files.unstrip_protocol(path))


def _update(
    files: Any,
    remote: Callable[[str], str],
    place: Path,
    note_name: str,
    url: str,
    wanted: _Files,
    in_place: _Files | None = None,
) -> None:
    """Bring the copy of some files up to date: fetch what is new or changed, and remove what is gone."""
    note = place / note_name
    before: _Files = {}
    with suppress(UserError, KeyError, TypeError, ValueError):
        before = {name: (state[0], state[1]) for name, state in read_json(note, "")["files"].items()}

    def is_current(name: str) -> bool:
        path = place / name
        return before.get(name) == wanted[name] and path.is_file() and wanted[name][0] in (-1, path.stat().st_size)

    def fetch(name: str) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")

        def get() -> None:
            files.get_file(remote(name), str(temporary))
            check_length(temporary.stat().st_size, wanted[name][0])
            os.replace(temporary, path)

        retry(get, _url(files, remote(name)))

    missing = [name for name in wanted if not is_current(name)]
    copied = {name: before[name] for name in wanted.keys() - set(missing)}
    try:
        with _progress(f"copying {hide_secrets(url)}") as progress, ThreadPoolExecutor(_THREADS) as pool:
            for done, (name, _) in enumerate(zip(missing, pool.map(fetch, missing), strict=True), 1):
                copied[name] = wanted[name]
                progress(done, len(missing))
    finally:  # an interrupted copy is continued
        place.mkdir(parents=True, exist_ok=True)
        write_json(note, {"url": url, "files": copied, "in_place": in_place or {}})
        note.chmod(0o600)  # the address may hold a password
    for name in before.keys() - wanted.keys():
        (place / name).unlink(missing_ok=True)


def check_length(actual: int, wanted: int) -> None:
    """Raise EOFError if bytes are missing; −1 is an unknown length."""
    if wanted not in (-1, actual):
        raise EOFError(f"{actual} of {wanted} bytes arrived")


def _number_from(variable: str, default: float) -> float:
    """Return a number that the environment sets."""
    text = os.environ.get(variable) or default
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{variable}={text} is not a number", f"set {variable} to a number, or unset it") from None


def retry(call: Callable[[], _T], url: str) -> _T:
    """Call, and again after pauses for HALFLABEL_TIMEOUT seconds where the failure may be a passing one."""
    global _last_message
    seconds, start = _number_from(TIMEOUT, _TIMEOUT), time.monotonic()
    for attempts in count(1):
        try:
            return call()
        except FileNotFoundError:
            raise MissingObject(f"{url} does not exist", "check the address, and what you may read") from None
        except Exception as error:
            if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
                raise StoreError(f"{url} may not be read ({error})", "check your credentials for this store") from None
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise UserError(
                    f"cannot copy {url}: {error.strerror}", "free disk space, or set HALFLABEL_CACHE"
                ) from None
            if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"):
                fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or FSSPEC_S3='{\"anon\": true}' for public data"
                raise StoreError(f"{url} needs credentials ({error})", fix) from None
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            passed = time.monotonic() - start
            if passed >= seconds:
                fix = "run the same command again when the store can be reached: what was copied is kept"
                message = f"{url} could not be read in {passed:.0f} s and {attempts} attempts ({reason})"
                raise StoreError(message, fix) from None
        pause = min(_FIRST_WAIT * 2 ** (attempts - 1), _LONGEST_WAIT) * random.uniform(0.8, 1.2)
        pause = min(pause, seconds - passed)
        if time.monotonic() - _last_message >= _NOTE_EVERY:
            _last_message = time.monotonic()
            line = f"{url}: {reason}; trying again in {pause:.0f} s, for {seconds - passed:.0f} s more"
            _message(hide_secrets(line))
        time.sleep(pause)
    raise AssertionError


_in_use: dict[Path, int] = {}  # open files, locked while this process runs
_unchecked = math.inf  # bytes that were written since the size of the cache was looked at


def _make_room(written: float) -> None:
    """Remove blocks and copies that were used longest ago, if the cache is larger than HALFLABEL_CACHE_GB.

    The size is looked at after each 64th part of the limit that is `written`, and then brought to 7/8 of the limit, so
    that several processes together stay below it.
    """
    global _unchecked
    limit = 1e9 * _number_from("HALFLABEL_CACHE_GB", math.inf)
    _unchecked += written
    if limit == math.inf or _unchecked < limit / 64:
        return
    _unchecked = 0
    parts = sorted(_parts_of_cache())
    size = sum(part_size for _, part_size, _, _ in parts)
    for _, part_size, path, used in parts:
        if size <= limit * 7 / 8:
            break
        with suppress(OSError, UserError):  # in use, or removed by another process
            if used is None:
                path.unlink()
            else:
                _remove_copy(path, used)
            size -= part_size


def _parts_of_cache() -> Iterator[tuple[float, int, Path, Path | None]]:
    """Yield time of last use, size and path of each block; for a copy its note and its file of use instead."""
    for folder, _, files in os.walk(cache_folder()):
        for path in (Path(folder, name) for name in files):
            with suppress(OSError, UserError, KeyError, TypeError, ValueError):
                if path.parent.parent.name == _BLOCKS and path.name.isdigit():
                    yield path.stat().st_mtime, path.stat().st_size, path, None
                elif path.name.endswith(_NOTE) and fcntl is not None:
                    of = path.parent if path.name == _NOTE else path.with_name(path.name[1 : -len(_NOTE)])
                    used = of.parent / f".{of.name}{_USED}"
                    sizes = (int(state[0]) for state in read_json(path, "")["files"].values())
                    yield used.stat().st_mtime, sum(max(size, 0) for size in sizes), path, used


def _remove_copy(note: Path, used: Path) -> None:
    """Remove a copy; OSError if a process uses it."""
    assert fcntl is not None
    with open(used, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in read_json(note, "")["files"]:
            (note.parent / name).unlink(missing_ok=True)
        note.unlink()


class RemoteFolder:
    """The tars of a pack in a store, read in blocks that stay in the cache; for any number of threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        note = read_json(folder / _NOTE, "remove the folder: it is copied again")
        self.url: str = note["url"]
        self.files: _Files = {name: (state[0], state[1]) for name, state in note["in_place"].items()}
        self._checked: set[str] = set()  # tars that this process has compared with the store
        self._asked: set[tuple[str, int]] = set()  # blocks that were read ahead
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, folder: Path) -> RemoteFolder | None:
        """The remote folder of a copy in the cache; None for a folder on this machine."""
        return cls(folder) if (folder / _NOTE).exists() else None

    @staticmethod
    def version(folder: Path) -> int:
        """A number that changes when a copy is brought up to date; 0 for a folder on this machine."""
        try:
            return os.stat(folder / _NOTE).st_mtime_ns
        except OSError:
            return 0

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read bytes of a tar; StoreError if they cannot be fetched, or the tar has changed."""
        parts = []
        for number in _blocks(offset, length):
            first, last = max(offset - number * _BLOCK, 0), min(offset + length - number * _BLOCK, _BLOCK)
            parts.append(self._read_block(name, number, first, last - first))
        return b"".join(parts)

    def read_ahead(self, parts: Iterable[tuple[str, int, int]]) -> None:
        """Fetch the blocks of parts (name, offset, length) in the background; what fails is reported by `read`."""
        for name, offset, length in parts:
            for number in _blocks(offset, length):
                if (name, number) not in self._asked and not self._path(name, number).exists():
                    self._threads = self._threads or ThreadPoolExecutor(_AHEAD_THREADS)
                    self._threads.submit(self._read_block, name, number, 0, 0)
                self._asked.add((name, number))

    def discard(self, name: str, offset: int, length: int) -> None:
        """Remove the copies of blocks whose bytes are not as expected."""
        self._checked.discard(name)
        for number in _blocks(offset, length):
            with suppress(OSError):
                self._path(name, number).unlink()

    def _path(self, name: str, number: int) -> Path:
        stamp = sha256(repr(self.files[name]).encode()).hexdigest()[:8]  # a changed tar has other blocks
        return self.folder / _BLOCKS / f"{name}.{stamp}" / f"{number:06d}"

    def _read_block(self, name: str, number: int, first: int, length: int) -> bytes:
        path = self._path(name, number)
        with suppress(FileNotFoundError):
            return _read_part(path, first, length)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / _BLOCKS / f"{crc32(path.as_posix().encode()) % _LOCKS}.lock"):
            with suppress(FileNotFoundError):
                return _read_part(path, first, length)
            block = self._fetch(name, number)
            temporary = path.with_name(f"{path.name}.part")
            try:
                temporary.write_bytes(block)
                os.replace(temporary, path)
                _make_room(len(block))
            except OSError as error:  # without room for copies, blocks are fetched each time
                if error.errno not in (*DISK_FULL, errno.EROFS):
                    raise
                temporary.unlink(missing_ok=True)
        return block[first : first + length]

    def _fetch(self, name: str, number: int) -> bytes:
        url = f"{self.url}/{name}"
        files, path = file_system(url)
        size, _ = self.files[name]
        start, end = number * _BLOCK, min((number + 1) * _BLOCK, size)
        # Once per process, and again if the bytes of an image do not match their checksum.
        if name not in self._checked and _state(retry(lambda: files.info(path), url)) != self.files[name]:
            raise StoreError(f"{url} has changed since it was opened", "run the same command again")
        self._checked.add(name)

        def get() -> bytes:
            data: bytes = files.cat_file(path, start=start, end=end)
            check_length(len(data), end - start)
            return data

        return retry(get, url)


def _blocks(offset: int, length: int) -> range:
    """Return the numbers of the blocks that hold some bytes of a tar."""
    return range(offset // _BLOCK, (offset + length - 1) // _BLOCK + 1)


def _read_part(path: Path, first: int, length: int) -> bytes:
    with open(path, "rb") as file:
        with suppress(OSError):
            os.utime(file.fileno())  # the time of last use
        return os.pread(file.fileno(), length, first)
