"""The server of the review page: a few JSON calls, pictures by opaque names, and the page's own files."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any, Literal

from halflabel.errors import UserError, missing_package
from halflabel.review.security import Guard
from halflabel.review.session import Desk
from halflabel.review.thumbnails import Maps, NoPicture, NothingSeen, Pictures

try:
    import uvicorn
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise missing_package(error, "web") from None

__all__ = ["PORT", "make_app", "new_token", "serve"]

PORT = 8765
_STATIC = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_STATIC |= {
    f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
    for name in ("screen", "tab", "talk", "list", "one", "grid", "gallery", "page")  # each needs only those before it
}

Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")]
Tab = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Entry = Annotated[int, Field(ge=0, lt=2**53)]
State = Literal["open", "answered", "present", "absent", "unsure"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Ask(_Strict):
    """What a page wants to show next."""

    tab: Tab
    count: int = Field(8, ge=1, le=60)
    label: str = Field("", max_length=500)
    state: State = "open"
    low: float = Field(0.0, ge=0, le=1)
    high: float = Field(1.0, ge=0, le=1)
    skip: list[Entry] = Field(default_factory=list, max_length=2000)
    one_class: bool = False


class Held(_Strict):
    """Questions that a page still shows, or no longer does."""

    tab: Tab
    entries: list[Entry] = Field(max_length=500)


class Step(_Strict):
    """An answer, or the taking back of one."""

    kind: Literal["answer", "undo"]
    key: Key
    entry: Entry = 0
    value: Literal[-1, 0, 1] = 0


class Say(_Strict):
    """Steps in the order in which they were taken."""

    tab: Tab
    steps: list[Step] = Field(min_length=1, max_length=200)


def new_token() -> str:
    """256 random bits: no page of another origin can guess or read it."""
    return secrets.token_urlsafe(32)


def make_app(desk: Desk, pictures: Pictures, maps: Maps | None, *, token: str, host: str, port: int) -> Guard:
    """The page and its calls behind the guard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    folder = files("halflabel.review") / "static"

    def static(name: str, kind: str) -> Callable[[], Response]:
        content = (folder / name).read_bytes()
        return lambda: Response(content, media_type=kind)

    for address, (name, kind) in _STATIC.items():
        app.add_api_route(address, static(name, kind), methods=["GET"])

    @app.get("/api/state")
    def state() -> JSONResponse:
        about = {"project": desk.project, "run": desk.run, "who": desk.who, "maps": maps is not None}
        return JSONResponse({**about, **desk.progress(), "labels": desk.classes})

    @app.post("/api/next")
    def ask(wanted: Ask) -> JSONResponse:
        found = desk.next(
            wanted.tab,
            wanted.count,
            label=wanted.label,
            state=wanted.state,
            low=wanted.low,
            high=wanted.high,
            skip=wanted.skip,
            one_class=wanted.one_class,
        )
        return JSONResponse({"questions": found})

    @app.post("/api/hold")
    def hold(given: Held) -> JSONResponse:
        desk.hold(given.tab, given.entries)
        return JSONResponse({})

    @app.post("/api/release")
    def release(given: Held) -> JSONResponse:
        desk.release(given.tab, given.entries)
        return JSONResponse({})

    @app.post("/api/say")
    def say(said: Say) -> JSONResponse:
        if not all(desk.knows(step.entry) for step in said.steps):
            return JSONResponse({"error": "no such entry"}, 422)
        # Runs of one kind go down together, in one transaction each, in their order.
        run: list[Step] = []
        for step in [*said.steps, None]:
            if run and (step is None or step.kind != run[0].kind):
                if run[0].kind == "answer":
                    desk.say([(one.key, one.entry, one.value) for one in run])
                else:
                    desk.undo([one.key for one in run], said.tab)
                run = []
            if step is not None:
                run.append(step)
        return JSONResponse({"kept": [step.key for step in said.steps], **desk.progress()})

    @app.get("/api/gallery")
    def gallery(
        kind: Literal["missing", "wrong"],
        label: Annotated[str, Query(max_length=500)] = "",
        start: Annotated[int, Query(ge=0, le=10_000)] = 0,
        count: Annotated[int, Query(ge=1, le=60)] = 24,
    ) -> JSONResponse:
        return JSONResponse(desk.gallery(kind, label, start, count))

    @app.get("/api/picture/{public}")
    def picture(public: str, size: Literal["small", "large"] = "large") -> Response:
        return _picture(desk, public, lambda image: pictures.jpeg(image, size), "image/jpeg")

    @app.get("/api/map/{public}/{column}")
    def class_map(public: str, column: int) -> Response:
        if maps is None or not 0 <= column < len(desk.classes):
            return JSONResponse({"error": "no such map"}, 404)
        return _picture(desk, public, lambda image: maps.png(image, column), "image/png")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was sent: it need not be text, nor a number that JSON has.
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:200].encode("utf-8", "replace").decode()
        return JSONResponse({"error": f"{place}: {first['msg']}"}, 422)

    @app.exception_handler(UserError)
    async def failed(_: Request, error: UserError) -> JSONResponse:
        # A full disk, a damaged file: the page tells it, keeps its answers and tries again.
        return JSONResponse({"error": f"{error}."}, 503)

    return Guard(app, token, host, port)


def _picture(desk: Desk, public: str, make: Callable[[int], bytes], kind: str) -> Response:
    image = desk.image(public)
    if image is None:
        return JSONResponse({"error": "no such image"}, 404)
    try:
        return Response(make(image), media_type=kind)
    except NothingSeen as error:  # no 404: browsers log those as faults
        return JSONResponse({"nothing": str(error)})
    except NoPicture as error:
        return JSONResponse({"error": str(error)}, 404)


def serve(app: Any, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, limit_concurrency=100, timeout_keep_alive=75,
        timeout_graceful_shutdown=2, lifespan="off",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
