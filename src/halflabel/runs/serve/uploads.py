"""The files of a request: counted as they come in, and kept as files of our own until they are decoded."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from halflabel.runs.serve.limits import Limits, Refused, megabytes
from halflabel.system.format import shorten

__all__ = ["Body", "Upload", "Uploads"]


class Body:
    """The body of a request as it comes in: counted, so that no more than the limit is ever kept."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.bytes, self.ended = 0, False

    async def __call__(self) -> Message:
        message = await self._next()
        if self.bytes > self.limit:
            raise Refused(413, f"the request is larger than {megabytes(self.limit)}")
        return message

    async def _next(self) -> Message:
        message = await self._receive()
        self.bytes += len(message.get("body", b""))
        self.ended = not message.get("more_body", False)  # also where the client is gone
        return message

    async def drain(self, *, most: int = 1 << 28, seconds: float = 5.0) -> None:
        """Read on for a while and throw away: a client that is still sending would not read why it was refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self.bytes < most:
                    await self._next()


class Upload(NamedTuple):
    """A file of a request, by the name the client gave it; without a path, why it was not kept."""

    name: str
    path: Path | None
    status: int = 200
    reason: str = ""


class Uploads:
    """A folder for what comes in; every file in it is deleted as soon as it has been read, or refused."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.folder = Path()

    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="halflabel-serve-"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    async def keep(self, request: Request, body: Body) -> list[Upload]:
        """The files of a request; those that are too large are only named."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        told = request.headers.get("content-length", "")
        is_form = kind == "multipart/form-data"
        if kind.startswith("multipart/") and not is_form:
            raise Refused(415, f"{kind} is not understood: send multipart/form-data, or the image itself")
        body.limit = self.limits.request_bytes if is_form else self.limits.file_bytes
        if told.isdecimal() and int(told) > body.limit:
            raise Refused(413, f"the request has {megabytes(int(told))}, and {megabytes(body.limit)} is the most")
        counted = Request(request.scope, body)
        if is_form:
            return await self._keep_form(counted)
        path = self._place()
        try:
            with open(path, "wb") as file:
                async for chunk in counted.stream():
                    file.write(chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return [Upload("", path)]

    async def _keep_form(self, request: Request) -> list[Upload]:
        most = self.limits.files
        try:
            form = await request.form(max_files=most, max_fields=most, max_part_size=1 << 16)
        except HTTPException as error:
            raise Refused(413 if "Too many" in error.detail else 400, error.detail) from None
        except (Refused, ClientDisconnect, TimeoutError, OSError):
            raise
        except Exception as error:  # names in odd character sets end in errors of many types
            raise Refused(400, f"the form cannot be read ({type(error).__name__})") from None
        try:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            if not files:
                raise Refused(400, "the form holds no file: curl -F files=@photo.jpg")
            loop = asyncio.get_running_loop()
            return [await loop.run_in_executor(None, self._keep_file, file) for file in files]
        finally:
            await form.close()

    def _keep_file(self, file: UploadFile) -> Upload:
        # Any text may come as a name; what is no text would not go out as JSON.
        name = shorten((file.filename or "").encode("utf-8", "replace").decode(), 255)
        if (file.size or 0) > self.limits.file_bytes:
            return Upload(name, None, 413, f"larger than {megabytes(self.limits.file_bytes)}")
        path = self._place()
        with open(path, "wb") as copy:
            shutil.copyfileobj(file.file, copy)
        return Upload(name, path)

    def _place(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.folder)
        os.close(handle)
        return Path(name)
