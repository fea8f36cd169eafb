"""The files of a request, stored as temporary files until they are decoded, and the limits on them."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from halflabel.system.format import shorten


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Decoding an image needs 10 to 14 bytes of memory per pixel, 28 for 16-bit grey; `decoders` images are decoded at a
    time.
    """

    file_bytes: int = 20_000_000
    request_bytes: int = 64_000_000
    files: int = 16
    pixels: int = 50_000_000
    seconds: float = 30.0  # to receive a request, and again to answer it
    requests: int = 64  # at a time; more are refused with 503
    decoders: int = 2

    @property
    def description(self) -> str:
        """The limits in words, for the page and the API description."""
        return (
            f"JPEG, PNG, WebP, AVIF, GIF (first frame), BMP, TIFF, HEIC or DICOM; {self.files} files per request, "
            f"{megabytes(self.file_bytes)} per file, {megabytes(self.request_bytes)} per request, "
            f"{self.pixels / 1e6:g} million pixels per image, {self.requests} requests at a time."
        )


class RequestRefused(Exception):
    """A request that is not served, with status (below 500 if the request is at fault) and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def megabytes(number: float) -> str:
    """Format a number of bytes."""
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{int(number)} bytes"


class Body:
    """The body of a request; raises when it exceeds the limit, so that no more is ever stored."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.bytes, self.ended = 0, False

    async def __call__(self) -> Message:
        message = await self._next()
        if self.bytes > self.limit:
            raise RequestRefused(413, f"the request is larger than {megabytes(self.limit)}")
        return message

    async def _next(self) -> Message:
        message = await self._receive()
        self.bytes += len(message.get("body", b""))
        self.ended = not message.get("more_body", False)  # also if the client has disconnected
        return message

    async def drain(self, *, max_bytes: int = 1 << 28, seconds: float = 5.0) -> None:
        """Read and discard the rest for a while: a client that is still sending would not read the refusal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self.bytes < max_bytes:
                    await self._next()


class Upload(NamedTuple):
    """A file of a request with the client's name for it; without a path, the reason why it was refused."""

    name: str
    path: Path | None
    status: int = 200
    reason: str = ""


class Uploads:
    """A temporary folder for uploaded files; each is deleted once its request is answered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.folder = Path()

    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="halflabel-serve-"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    async def store(self, request: Request, body: Body) -> list[Upload]:
        """Store the files of a request; files that are too large have a reason instead of a path."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        length = request.headers.get("content-length", "")
        is_form = kind == "multipart/form-data"
        if kind.startswith("multipart/") and not is_form:
            raise RequestRefused(415, f"{kind} is not supported: send multipart/form-data, or the image itself")
        body.limit = self.limits.request_bytes if is_form else self.limits.file_bytes
        if length.isdecimal() and int(length) > body.limit:
            raise RequestRefused(413, f"the request has {megabytes(int(length))}; the limit is {megabytes(body.limit)}")
        counted = Request(request.scope, body)
        if is_form:
            return await self._store_form(counted)
        path = self._new_path()
        try:
            with open(path, "wb") as file:
                async for chunk in counted.stream():
                    file.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return [Upload("", path)]

    async def _store_form(self, request: Request) -> list[Upload]:
        max_files = self.limits.files
        try:
            form = await request.form(max_files=max_files, max_fields=max_files, max_part_size=1 << 16)
        except HTTPException as error:
            raise RequestRefused(413 if "Too many" in error.detail else 400, error.detail) from None
        except (RequestRefused, ClientDisconnect, TimeoutError, OSError):
            raise
        except Exception as error:  # invalid character sets raise many types
            raise RequestRefused(400, f"the form cannot be read ({type(error).__name__})") from None
        try:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            if not files:
                raise RequestRefused(400, "the form has no file: curl -F files=@photo.jpg")
            loop = asyncio.get_running_loop()
            return [await loop.run_in_executor(None, self._store_file, file) for file in files]
        finally:
            await form.close()

    def _store_file(self, file: UploadFile) -> Upload:
        # The name may hold anything; invalid characters could not be sent as JSON.
        name = shorten((file.filename or "").encode("utf-8", "replace").decode(), 255)
        if (file.size or 0) > self.limits.file_bytes:
            return Upload(name, None, 413, f"larger than {megabytes(self.limits.file_bytes)}")
        path = self._new_path()
        with open(path, "wb") as copy:
            shutil.copyfileobj(file.file, copy)
        return Upload(name, path)

    def _new_path(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.folder)
        os.close(handle)
        return Path(name)
