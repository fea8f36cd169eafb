"""The HTTP application for predictions: images in, labels with calibrated probabilities out.

Requests are not trusted: sizes are checked before anything is stored, and pixels before anything is decoded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any

import torch
from torch import Tensor

from halflabel import __version__
from halflabel.errors import UserError, missing_package
from halflabel.images.decode import BadImage, TooManyPixels, UnknownFormat, decode_image, open_image
from halflabel.images.sources import Arrays
from halflabel.images.views import View
from halflabel.labels.names import Names
from halflabel.runs.model import Model
from halflabel.serve.page import try_page
from halflabel.system.format import shorten

try:
    import python_multipart  # noqa: F401
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, Response
    from pydantic import BaseModel, Field
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    from halflabel.serve.guard import Body, Limits, RequestRefused, Upload, megabytes, refuse_after
    from halflabel.serve.label_studio import TaskImages, answer_tasks, read_json
except ImportError as error:
    raise missing_package(error, "web") from None

_LOG = logging.getLogger(__name__)
_IN_MEMORY = 1 << 20  # bytes of an upload that stay in memory; larger ones are on the disk
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
    """One class of one image."""

    name: str = Field(alias="class")
    probability: float
    present: bool


class ImagePrediction(BaseModel):
    """One image: its labels, most probable first, or why it could not be read."""

    image: str
    labels: list[Label]
    error: str = ""


class Predictions(BaseModel):
    """One prediction per file, in their order."""

    images: list[ImagePrediction]


class _IdentityView(View):
    """A view that changes nothing, for images that are already in the model's input size."""

    def __call__(self, image: Tensor, key: int = 0) -> Tensor:
        return image


@dataclass
class _Service:
    """The state that all requests share: model, the threads that decode and score, and counts."""

    predictor: Model
    name: str
    limits: Limits
    started: float = field(default_factory=time.monotonic)
    requests: int = 0  # in progress
    scored: int = 0  # images

    def __post_init__(self) -> None:
        self.view: View = self.predictor.views["plain"]
        self.decoders = ThreadPoolExecutor(self.limits.decoders, "halflabel-decode")
        self.scorer = ThreadPoolExecutor(1, "halflabel-score")  # only this thread uses the model

    def close(self) -> None:
        self.decoders.shutdown(cancel_futures=True)
        self.scorer.shutdown()

    def score(self, images: Sequence[Tensor]) -> Tensor:
        """Return calibrated probabilities (B, C) of images in the model's input size."""
        views: dict[str, View] = {"plain": _IdentityView(self.view.size)}
        return self.predictor.scores(Arrays(images, Names.numbered(len(images)), views))

    def check(self) -> None:
        """Score a grey image at the start: the first call is slow, and a broken model is found at once."""
        side = self.view.size
        if not bool(torch.isfinite(self.score([torch.full((3, side, side), 128, dtype=torch.uint8)])).all()):
            raise UserError(f"{self.name} returns scores that are not finite", "train again, with a smaller ‹lr›")

    async def predict(self, uploads: Sequence[Upload], top: int, every: bool) -> list[dict[str, Any]]:
        """Return one prediction per file; refuse the request if no file can be read, or there is no result in time."""
        loop = asyncio.get_running_loop()
        refused = RequestRefused(503, f"no result within {self.limits.seconds:g} s: the server is overloaded")
        async with refuse_after(self.limits.seconds, refused):
            decoding = [loop.run_in_executor(self.decoders, self._decode, upload) for upload in uploads]
            decoded = await asyncio.gather(*decoding)
            bad = [item for item in decoded if isinstance(item, Upload)]
            if uploads and len(bad) == len(decoded):
                statuses = {item.status for item in bad}
                reasons = "; ".join(f"{item.name}: {item.reason}" if item.name else item.reason for item in bad[:4])
                raise RequestRefused(statuses.pop() if len(statuses) == 1 else 400, reasons)
            scores = iter(await self._await_scores([item for item in decoded if isinstance(item, Tensor)]))
        predictions = []
        for upload, item in zip(uploads, decoded, strict=True):
            labels = [] if isinstance(item, Upload) else self.predictor.labels(next(scores), top=top, every=every)
            error = item.reason if isinstance(item, Upload) else ""
            predictions.append({"image": upload.name, "labels": labels, "error": error})
        return predictions

    async def _await_scores(self, images: Sequence[Tensor]) -> Tensor:
        """Wait for scores; an exception of the model becomes status 500 or 503, as it is not the client's fault."""
        if not images:
            return torch.zeros(0, len(self.predictor.classes))
        try:
            scores = await asyncio.get_running_loop().run_in_executor(self.scorer, self.score, images)
        except Exception as error:  # a model may raise anything
            _LOG.error("the model failed", exc_info=error)
            if isinstance(error, MemoryError | torch.OutOfMemoryError):
                raise RequestRefused(503, "not enough memory for these images") from None
            raise RequestRefused(500, f"the model failed ({type(error).__name__})") from None
        if not bool(torch.isfinite(scores).all()):
            raise RequestRefused(500, "the model returns scores that are not finite")
        self.scored += len(images)
        return scores

    def _decode(self, upload: Upload) -> Tensor | Upload:
        """Return the image in the model's input size, or the upload with the reason why it cannot be decoded."""
        if upload.file is None:
            return upload
        try:
            with nullcontext(upload.file) if not isinstance(upload.file, Path) else open_image(upload.file) as file:
                channels = self.predictor.config.channels
                pixels = decode_image(file, upload.name, max_pixels=self.limits.pixels, channels=channels)
            return self.view(torch.from_numpy(pixels).permute(2, 0, 1), 0)
        except BadImage as bad:
            status = 415 if isinstance(bad, UnknownFormat) else 413 if isinstance(bad, TooManyPixels) else 400
            return upload._replace(status=status, reason=bad.reason)


_REPLIES: dict[int | str, dict[str, Any]] = {
    200: {"model": Predictions},
    400: {"description": "an image or the request is damaged"},
    408: {"description": "the request arrived too slowly"},
    413: {"description": "too many bytes, files or pixels"},
    415: {"description": "not an image of a known format"},
    500: {"description": "the model failed"},
    503: {"description": "too many requests at a time: try again after Retry-After seconds"},
}


def make_app(
    predictor: Model, name: str = "model", limits: Limits | None = None, images: Path | None = None
) -> FastAPI:
    """Return the application: POST /predict, GET /health, /classes, /openapi.json, and a page at / and /docs.

    `images` is the folder with the images of Label Studio's tasks: the application is then also its ML backend.
    """
    limits = limits or Limits()
    service = _Service(predictor, name, limits)
    task_images = None if images is None else TaskImages(images)
    service.check()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="halflabel",
        version=__version__,
        description=f"Labels of images by {name}. {limits.description}",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load their scripts from a public server
        redoc_url=None,
    )
    thresholds = dict(zip(predictor.classes, predictor.thresholds.tolist(), strict=True))

    @app.post("/predict", responses=_REPLIES, openapi_extra={"requestBody": _BODY})
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=0, description="Show at least so many labels.")] = 3,
        every: Annotated[bool, Query(alias="all", description="All classes, not only the likely ones.")] = False,
    ) -> Response:
        """Labels of the images of a form, or of one image as the body. If at least one file of a form can be read, the
        status is 200, and the other files have the reason why they cannot."""
        if _content_type(request) == "application/json":
            return JSONResponse(await answer_tasks(request, limits, name, task_images, service.predict))
        return JSONResponse({"images": await _predict_uploads(service, request, top, every)})

    @app.post("/setup", include_in_schema=False)
    async def setup(request: Request) -> JSONResponse:
        """Reply to Label Studio, which sends this when a project is connected or changed."""
        await read_json(request, limits)
        return JSONResponse({"model_version": name})

    @app.get("/health")
    async def health() -> JSONResponse:
        """How much the server has done."""
        content = {
            "status": "UP",
            "model": name,
            "classes": len(predictor.classes),
            "requests": service.requests,
            "images": service.scored,
            "seconds": round(time.monotonic() - service.started, 1),
        }
        return JSONResponse(content)

    @app.get("/classes")
    async def classes() -> JSONResponse:
        """The classes with their thresholds: the probabilities from which on they are called present."""
        return JSONResponse({"classes": [{"class": each, "threshold": value} for each, value in thresholds.items()]})

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def show_page(request: Request) -> HTMLResponse:
        return HTMLResponse(try_page(name, thresholds, limits, str(request.base_url).rstrip("/")))

    @app.exception_handler(RequestRefused)
    async def refuse(request: Request, refused: RequestRefused) -> JSONResponse:
        body: Body = getattr(request.state, "body", None) or Body(request.receive, limits.request_bytes)
        # A client with "Expect: 100-continue" has sent nothing yet: reading would make it send.
        if refused.status != 408 and not (body.bytes == 0 and "expect" in request.headers):
            await body.drain()
        headers = {"Retry-After": "1"} if refused.status == 503 else {}
        if not body.ended:
            headers["Connection"] = "close"
        return JSONResponse({"detail": refused.reason}, refused.status, headers)

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody receives it

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 400)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        """Handle unexpected errors: the server logs all of it, the client gets only the type."""
        return JSONResponse({"detail": f"the server failed ({type(error).__name__})"}, 500)

    return app


async def _predict_uploads(service: _Service, request: Request, top: int, every: bool) -> list[dict[str, Any]]:
    """Return the predictions for the files of a request."""
    limits = service.limits
    uploads: list[Upload] = []
    if service.requests >= limits.requests:
        raise RequestRefused(503, f"{limits.requests} requests are in progress")
    service.requests += 1
    try:
        slow = RequestRefused(408, f"the request did not arrive within {limits.seconds:g} s")
        try:
            async with refuse_after(limits.seconds, slow):
                uploads = await _receive_uploads(request, limits)
        except OSError as error:
            raise RequestRefused(503, f"no space to store the request ({error.strerror})") from None
        return await service.predict(uploads, top, every)
    finally:
        service.requests -= 1
        for upload in uploads:
            if upload.file is not None and not isinstance(upload.file, Path):
                upload.file.close()


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _receive_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the files of a request, the large ones on the disk; too large files have a reason in place of a file."""
    kind, length = _content_type(request), request.headers.get("content-length", "")
    is_form = kind == "multipart/form-data"
    if kind.startswith("multipart/") and not is_form:
        raise RequestRefused(415, f"{kind} is not supported: send multipart/form-data, or the image itself")
    request.state.body = body = Body(request.receive, limits.request_bytes if is_form else limits.file_bytes)
    if length.isdecimal() and int(length) > body.limit:
        raise RequestRefused(413, f"the request has {megabytes(int(length))}; the limit is {megabytes(body.limit)}")
    counted = Request(request.scope, body)
    if is_form:
        return await _receive_form(counted, limits)
    file: IO[bytes] = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed when the request is answered
    try:
        async for chunk in counted.stream():
            file.write(chunk)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return [Upload("", file)]


async def _receive_form(request: Request, limits: Limits) -> list[Upload]:
    try:
        form = await request.form(max_files=limits.files, max_fields=limits.files, max_part_size=1 << 16)
    except HTTPException as error:
        raise RequestRefused(413 if "Too many" in error.detail else 400, error.detail) from None
    except (RequestRefused, ClientDisconnect, TimeoutError, OSError):
        raise
    except Exception as error:  # invalid character sets raise many types
        raise RequestRefused(400, f"the form cannot be read ({type(error).__name__})") from None
    uploads = []
    for _, sent in form.multi_items():
        if not isinstance(sent, UploadFile):
            continue
        # The name may hold anything; invalid characters could not be sent as JSON.
        name = shorten((sent.filename or "").encode("utf-8", "replace").decode(), 255)
        if (sent.size or 0) > limits.file_bytes:
            sent.file.close()
            uploads.append(Upload(name, None, 413, f"larger than {megabytes(limits.file_bytes)}"))
        else:
            uploads.append(Upload(name, sent.file))
    if not uploads:
        raise RequestRefused(400, "the form has no file: curl -F files=@photo.jpg")
    return uploads
