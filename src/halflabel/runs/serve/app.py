"""The application: what is answered to whom; and the server that runs it until it is asked to stop."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import io
import logging
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect
from torch import Tensor

from halflabel import __version__
from halflabel.data.decode import BadImage, read_image
from halflabel.data.sources import Arrays
from halflabel.data.views import View
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.runs.predictor import Predictor
from halflabel.runs.serve.batches import Batcher
from halflabel.runs.serve.limits import Limits, Refused
from halflabel.runs.serve.page import docs_page
from halflabel.runs.serve.uploads import Body, Upload, Uploads

__all__ = ["make_app", "serve"]

_LOG = logging.getLogger(__name__)
_LARGE = 3 * 8_000_000  # bytes of a decoded image
_SIDE = 480  # pixels of the longer side of a photo on the page
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_FILE = {"type": "string", "format": "binary"}
_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {"files": {"type": "array", "items": _FILE}}}
        },
        "image/*": {"schema": _FILE},
        "application/octet-stream": {"schema": _FILE},
    },
}


class Label(BaseModel):
    """A class of one image."""

    name: str = Field(alias="class")
    probability: float
    present: bool


class Answer(BaseModel):
    """One image: its labels, most likely first, or why it could not be read."""

    image: str
    labels: list[Label]
    error: str = ""


class Answers(BaseModel):
    """One answer per file, in their order."""

    images: list[Answer]


class Fault(BaseModel):
    """Why a request was refused."""

    detail: str


class _Refusal(NamedTuple):
    """Why a request is not answered, as it is to be said."""

    status: int
    reason: str
    headers: dict[str, str]


@dataclass(frozen=True)
class _Ready:
    """The view of images that have been through the model's own view already."""

    size: int

    def __call__(self, image: Tensor, key: int = 0) -> Tensor:
        return image

    def describe(self) -> str:
        return f"_Ready(size={self.size})"


@dataclass
class _Service:
    """What all requests share."""

    predictor: Predictor
    name: str
    limits: Limits
    started: float = field(default_factory=time.monotonic)
    requests: int = 0  # under way

    def __post_init__(self) -> None:
        self.view: View = self.predictor.views["plain"]
        limits = self.limits
        self.batcher = Batcher(self.score, most=limits.batch, wait=limits.wait, rest=_return_memory)
        self.decoders = ThreadPoolExecutor(limits.decoders, "halflabel-decode")
        self.uploads = Uploads(limits)

    def open(self) -> None:
        self.uploads.open()
        self.batcher.start()

    def close(self) -> None:
        self.decoders.shutdown(cancel_futures=True)
        self.batcher.stop()
        self.uploads.close()

    def score(self, images: Tensor) -> Tensor:
        """Calibrated probabilities (B, C) of images that have the model's size."""
        ready: dict[str, View] = {"plain": _Ready(self.view.size)}
        return self.predictor.scores(Arrays(images, Names.numbered(len(images)), ready))

    def check(self) -> None:
        """Score a grey square: the first call is slow, and a model that gives no numbers is to be known now."""
        side = self.view.size
        if not bool(torch.isfinite(self.score(torch.full((1, 3, side, side), 128, dtype=torch.uint8))).all()):
            raise UserError(f"{self.name} gives no numbers", "train again, with a smaller --lr")

    async def answer(self, uploads: Sequence[Upload], top: int, every: bool) -> list[dict[str, Any]]:
        """One answer per file; refused where not one of them can be read."""
        loop = asyncio.get_running_loop()
        read = [loop.run_in_executor(self.decoders, self._read, upload) for upload in uploads]
        found = await asyncio.gather(*read)
        bad = [item for item in found if isinstance(item, Upload)]
        if len(bad) == len(found):
            statuses = {item.status for item in bad}
            reasons = "; ".join(f"{item.name}: {item.reason}" if item.name else item.reason for item in bad[:4])
            raise Refused(statuses.pop() if len(statuses) == 1 else 400, reasons)
        waits = [asyncio.wrap_future(self.batcher.submit(item)) for item in found if isinstance(item, Tensor)]
        scores = iter(await self._scored(waits))
        answers = []
        for upload, item in zip(uploads, found, strict=True):
            labels = [] if isinstance(item, Upload) else self.predictor.labels(next(scores), top=top, every=every)
            error = item.reason if isinstance(item, Upload) else ""
            answers.append({"image": upload.name, "labels": labels, "error": error})
        return answers

    async def pictures(self, uploads: Sequence[Upload]) -> list[str]:
        """One small copy per file as a data address, for a page that shows them; "" of one that cannot be read."""
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(self.decoders, self._picture, one) for one in uploads))

    def _picture(self, upload: Upload) -> str:
        from PIL import Image

        if upload.path is None:
            return ""
        try:
            image = read_image(upload.path, max_pixels=self.limits.pixels)
        except BadImage:
            return ""
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        picture.thumbnail((_SIDE, _SIDE))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=80)
        if image.numel() > _LARGE:
            del image
            _return_memory()
        return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()

    async def _scored(self, waits: Sequence[asyncio.Future[Tensor]]) -> list[Tensor]:
        """The scores of images when they are there; what the model raises is a fault here, and not the client's."""
        try:
            scores = list(await asyncio.gather(*waits))
        except Exception as error:  # whatever a model may raise
            _LOG.error("the model failed", exc_info=error)
            if isinstance(error, MemoryError | torch.OutOfMemoryError):
                raise Refused(503, "no memory for so much at a time") from None
            raise Refused(500, f"the model failed ({type(error).__name__})") from None
        if not all(bool(torch.isfinite(row).all()) for row in scores):
            raise Refused(500, "the model gives no numbers for this")
        return scores

    def _read(self, upload: Upload) -> Tensor | Upload:
        """The image as the model takes it, or the upload with what is wrong with it."""
        if upload.path is None:
            return upload
        try:
            image = read_image(upload.path, max_pixels=self.limits.pixels)
            ready, large = self.view(image, 0), image.numel() > _LARGE
            del image
            if large:
                _return_memory()
            return ready
        except BadImage as bad:
            status = 415 if bad.reason == "not an image" else 413 if "pixels" in bad.reason else 400
            return upload._replace(status=status, reason=bad.reason)


def make_app(predictor: Predictor, name: str = "model", limits: Limits | None = None) -> FastAPI:
    """The application: POST /predict, and GET /health, /classes, /openapi.json and a page at / and /docs."""
    limits = limits or Limits()
    service = _Service(predictor, name, limits)
    service.check()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.open()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="halflabel",
        version=__version__,
        description=f"Labels of images by {name}. {limits.said}",
        lifespan=lifespan,
        docs_url=None,  # the usual pages load their scripts from elsewhere
        redoc_url=None,
    )
    faults: dict[int | str, dict[str, Any]] = {
        400: {"model": Fault, "description": "an image is damaged, or the request is"},
        408: {"model": Fault, "description": "the request came too slowly"},
        413: {"model": Fault, "description": "too many bytes, files or pixels"},
        415: {"model": Fault, "description": "not an image of a known format"},
        500: {"model": Fault, "description": "the model failed"},
        503: {"model": Fault, "description": "too many requests at a time: try again after Retry-After seconds"},
    }

    async def answered(
        request: Request, top: int, every: bool, *, shown: bool = False
    ) -> list[dict[str, Any]] | _Refusal | None:
        """The answer to a request, why there is none, or None where nobody is left to read it.

        Where it is to be shown to people, each image has its picture with it.
        """
        body = Body(request.receive, limits.request_bytes)
        uploads: list[Upload] = []
        if service.requests >= limits.requests:
            return await _refuse(request, body, Refused(503, f"{limits.requests} requests are under way"))
        service.requests += 1
        try:
            try:
                async with asyncio.timeout(limits.seconds):
                    uploads = await service.uploads.keep(request, body)
            except TimeoutError:
                raise Refused(408, f"the request did not arrive within {limits.seconds:g} s") from None
            except OSError as error:
                raise Refused(503, f"no room to keep the request ({error.strerror})") from None
            try:
                async with asyncio.timeout(limits.seconds):
                    found = await service.answer(uploads, top, every)
                    if not shown:
                        return found
                    pictures = await service.pictures(uploads)
                    return [{**one, "picture": picture} for one, picture in zip(found, pictures, strict=True)]
            except TimeoutError:
                raise Refused(503, f"no answer within {limits.seconds:g} s: too much to do") from None
        except Refused as refused:
            return await _refuse(request, body, refused)
        except ClientDisconnect:
            return None
        finally:
            service.requests -= 1
            for upload in uploads:
                if upload.path is not None:
                    upload.path.unlink(missing_ok=True)

    @app.post("/predict", responses={**faults, 200: {"model": Answers}}, openapi_extra={"requestBody": _BODY})
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=0, description="Show at least so many labels.")] = 3,
        every: Annotated[bool, Query(alias="all", description="All classes, not only the likely ones.")] = False,
    ) -> Response:
        """Labels of the images of a form, or of one image that is the body itself. A form of which at least one file
        can be read is answered with 200, and says of each other file what is wrong with it."""
        found = await answered(request, top, every)
        if isinstance(found, _Refusal):
            return JSONResponse({"detail": found.reason}, found.status, found.headers)
        return JSONResponse({"images": found}) if found is not None else Response(status_code=400)

    @app.post("/try", include_in_schema=False)
    async def try_it(request: Request) -> Response:
        """The same for people: the page with the answer on it."""
        found = await answered(request, 5, False, shown=True)
        if isinstance(found, _Refusal):
            return HTMLResponse(page(request, refused=found.reason), found.status, found.headers)
        cuts = dict(zip(predictor.classes, predictor.thresholds.tolist(), strict=True))
        return HTMLResponse(page(request, answers=found or (), thresholds=cuts))

    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether the model answers, and how much it has done."""
        ok, batcher = service.batcher.alive, service.batcher
        content = {
            "status": "ok" if ok else "stopped",
            "model": name,
            "classes": len(predictor.classes),
            "requests": service.requests,
            "waiting": batcher.waiting,
            "images": batcher.images,
            "batches": batcher.batches,
            "seconds": round(time.monotonic() - service.started, 1),
        }
        return JSONResponse(content, 200 if ok else 503)

    @app.get("/classes")
    async def classes() -> JSONResponse:
        """The classes, and the probability from which each is said to be present."""
        cuts = predictor.thresholds.tolist()
        pairs = zip(predictor.classes, cuts, strict=True)
        return JSONResponse({"classes": [{"class": word, "threshold": cut} for word, cut in pairs]})

    def page(request: Request, **more: Any) -> str:
        return docs_page(name, len(predictor.classes), limits, _address(request), **more)

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    @app.get("/try", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(page(request))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 400)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        """What nobody thought of: the server logs it in full, the client is told no more than its kind."""
        return JSONResponse({"detail": f"the server failed ({type(error).__name__})"}, 500)

    return app


def _return_memory() -> None:
    """Hand what was freed back to the system: the C library would keep what the largest request took for ever."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _address(request: Request) -> str:
    """Where the client found this server, by its own word; a word that is no address is not repeated."""
    host = request.headers.get("host", "")
    scheme, root = request.scope.get("scheme", "http"), request.scope.get("root_path", "")
    return f"{scheme}://{host if _HOST.fullmatch(host) else 'HOST:PORT'}{root}"


async def _refuse(request: Request, body: Body, refused: Refused) -> _Refusal:
    # A client that waits for leave to send has sent nothing: reading would give it leave.
    if refused.status != 408 and not (body.bytes == 0 and "expect" in request.headers):
        await body.drain()
    headers = {"Retry-After": "1"} if refused.status == 503 else {}
    if not body.ended:
        headers["Connection"] = "close"
    return _Refusal(refused.status, refused.reason, headers)


def serve(app: FastAPI, listening: socket.socket, *, patience: float = 30.0) -> None:
    """Answer requests until Ctrl-C or SIGTERM; those under way are then given `patience` seconds to finish."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=int(patience)
    )
    server = uvicorn.Server(config)
    # Once it has stopped, the server raises the signal again, for whoever listened before: being asked is no failure.
    asked = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in asked}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listening.close()
