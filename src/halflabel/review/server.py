"""The web server of the review page: a small JSON API, photos by public ids, and the page's static files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

from halflabel.errors import UserError, missing_package
from halflabel.labels.answers import holding_answers
from halflabel.labels.labels import WEIGHT_COLUMN
from halflabel.review.live_process import LiveLoop
from halflabel.review.photo_map import PhotoMap
from halflabel.review.session import ReviewSession
from halflabel.review.thumbnails import ClassMaps, ImageUnavailable, Thumbnails

try:
    from fastapi import FastAPI, Header, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field

    from halflabel.serve.guard import Guard
except ImportError as error:
    raise missing_package(error, "web") from None


PORT = 8765
_KINDS = {  # of the static files, by their ending
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MOST_NAME = 60  # characters of a reviewer's name


def _reviewer_name(text: str) -> str:
    """Return the name of a reviewer, which the page sends percent-encoded."""
    name = unquote(text).strip()
    if len(name) > MOST_NAME or not name.isprintable():
        raise ValueError(f"a name has at most {MOST_NAME} printable characters")
    return name


Reviewer = Annotated[str, Header(alias="x-halflabel-reviewer", max_length=1000), AfterValidator(_reviewer_name)]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")]
Tab = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Entry = Annotated[int, Field(ge=0, lt=2**53)]
State = Literal["open", "answered", "present", "absent", "unsure"]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class QuestionRequest(_StrictModel):
    """Which questions a tab asks for."""

    tab: Tab
    count: int = Field(8, ge=1, le=60)
    label: str = Field("", max_length=500)
    state: State = "open"
    skip: list[Entry] = Field(default_factory=list, max_length=2000)
    one_class: bool = False
    order: Literal["useful", "high", "low"] = "useful"
    like: str = Field("", max_length=64)
    name: str = Field("", max_length=200)
    within: list[Key] = Field(default_factory=list, max_length=2000)  # public ids


class ReservedEntries(_StrictModel):
    """Questions that a tab still shows, or no longer shows."""

    tab: Tab
    entries: list[Entry] = Field(max_length=500)


class AnswerStep(_StrictModel):
    """An answer, or an undo."""

    kind: Literal["answer", "undo"]
    key: Key
    entry: Entry = 0
    value: Literal[-1, 0, 1] = 0
    chosen: bool = False  # the person chose what to answer
    settles: bool = False  # the answer ends a conflict
    who: Annotated[str, Field(max_length=1000), AfterValidator(_reviewer_name)] = ""


class AnswerSteps(_StrictModel):
    """Answers and undos in their order."""

    tab: Tab
    steps: list[AnswerStep] = Field(min_length=1, max_length=200)


def make_app(
    session: ReviewSession,
    thumbnails: Thumbnails,
    maps: ClassMaps | None = None,
    *,
    token: str,
    host: str,
    port: int,
    layout: Path,
    live: LiveLoop | None = None,
    tls: bool = False,
) -> Guard:
    """Return the page and its API behind the guard.

    `layout` is the file that stores the places of the map; `tls` says that the page is served over https.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, default_response_class=JSONResponse)
    get, post = partial(app.get, response_model=None), partial(app.post, response_model=None)

    def name(sent: str) -> str:
        """Return the reviewer's name: the one that the browser sent, if it may send one."""
        return sent if sent and session.asks_name else session.who

    def progress(who: str) -> dict[str, Any]:
        return {**session.progress(name(who)), "live": None if live is None else live.state()}

    @get("/api/state")
    def state(who: Reviewer = "") -> dict[str, Any]:
        about: dict[str, Any] = {"project": session.project, "run": session.run, "maps": maps is not None}
        about |= {"who": session.who, "asks_name": session.asks_name}
        return about | progress(who) | {"labels": session.classes}

    @post("/api/questions")
    def questions(request: QuestionRequest, who: Reviewer = "") -> dict[str, Any]:
        if request.one_class and (request.order != "useful" or request.like or request.name or request.within):
            return {"questions": session.browse(**request.model_dump(exclude={"state", "one_class"}))}
        options = request.model_dump(exclude={"order", "like", "name", "within"})
        return {"questions": session.take_questions(who=name(who), **options)}

    @post("/api/renew")
    def renew(reserved: ReservedEntries) -> dict[str, Any]:
        session.renew(reserved.tab, reserved.entries)
        return {}

    @post("/api/release")
    def release(reserved: ReservedEntries) -> dict[str, Any]:
        session.release(reserved.tab, reserved.entries)
        return {}

    @post("/api/answers")
    def answers(batch: AnswerSteps, who: Reviewer = "") -> dict[str, Any] | Response:
        if any(step.entry >= len(session.images) * len(session.classes) for step in batch.steps):
            return JSONResponse({"error": "no such entry"}, 422)
        # Consecutive steps of one kind are stored in one transaction.
        for (kind, chosen, settles, given_by), group in groupby(
            batch.steps, key=lambda step: (step.kind, step.chosen, step.settles, name(step.who))
        ):
            steps = list(group)
            if kind == "answer":
                given = [(step.key, step.entry, step.value) for step in steps]
                session.add_answers(given, batch.tab, who=given_by, chosen=chosen, settles=settles)
            else:
                session.undo([step.key for step in steps], batch.tab, given_by)
        if live is not None:
            live.answers_changed(len(batch.steps))
        return {"stored": [step.key for step in batch.steps], **progress(who)}

    @get("/api/labels")
    def labels() -> Response:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("image", "class", "value", "source", WEIGHT_COLUMN, "who", "at"))
        for item in holding_answers(session.answers.current()):
            if item.value:
                writer.writerow((item.image, item.label, item.value, item.source, item.weight, item.who, item.at))
        return Response(text.getvalue(), media_type="text/csv; charset=utf-8")

    @get("/api/photo/{public}")
    def photo(public: str, who: Reviewer = "") -> dict[str, Any] | Response:
        image = session.image(public)
        if image is None:
            return JSONResponse({"error": "no such image"}, 404)
        return {"classes": session.photo(image, name(who))}

    @get("/api/gallery")
    def gallery(
        kind: Literal["wrong", "conflicts"],
        label: Annotated[str, Query(max_length=500)] = "",
        start: Annotated[int, Query(ge=0, le=10_000)] = 0,
        count: Annotated[int, Query(ge=1, le=60)] = 24,
        who: Reviewer = "",
    ) -> dict[str, Any]:
        return session.gallery(kind, label, start, count, name(who))

    get("/api/agreement")(session.agreement)

    if live is not None:
        get("/api/live")(partial(live.state, everything=True))

        @post("/api/live/{step}")
        def advance(step: Literal["fit", "finish"]) -> dict[str, Any]:
            live.fit_now() if step == "fit" else live.finish_now()
            return live.state()

    def picture(public: str, make: Callable[[int], bytes | None], kind: str) -> Response:
        index = session.image(public)
        if index is None:
            return JSONResponse({"error": "no such image"}, 404)
        try:
            made = make(index)
        except ImageUnavailable as error:
            return JSONResponse({"error": str(error)}, 404)
        # Not 404, which browsers log as an error.
        return JSONResponse({"nothing": "it is seen nowhere"}) if made is None else Response(made, media_type=kind)

    @get("/api/image/{public}")
    def image(public: str, size: Literal["small", "large"] = "large") -> Response:
        return picture(public, lambda index: thumbnails.jpeg(index, size), "image/jpeg")

    @get("/api/map/{public}/{column}")
    def class_map(public: str, column: int) -> Response:
        if maps is None or not 0 <= column < len(session.classes):
            return JSONResponse({"error": "no such map"}, 404)
        return picture(public, lambda index: maps.png(index, column), "image/png")

    photo_map = PhotoMap(session, layout)

    @get("/api/points")
    def points() -> Response:
        return JSONResponse(photo_map.points())  # a response: FastAPI would look at each of its 200,000 numbers

    @get("/api/colours")
    def colours(label: Annotated[str, Query(max_length=500)] = "") -> Response:
        return JSONResponse(photo_map.colours(label))

    def static(path: Path) -> Callable[[], Response]:
        content = path.read_bytes()
        return lambda: Response(content, media_type=_KINDS[path.suffix])

    for path in Path(__file__).with_name("static").iterdir():
        get("/" if path.name == "page.html" else f"/{path.name}")(static(path))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the invalid value, which may not be text, nor a number that JSON can hold.
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))[:200].encode("utf-8", "replace").decode()
        return JSONResponse({"error": f"{field}: {first['msg']}"}, 422)

    @app.exception_handler(UserError)
    async def failed(_: Request, error: UserError) -> JSONResponse:
        # A full disk or a damaged file: the page shows the message, keeps its answers and tries again.
        return JSONResponse({"error": f"{error}."}, 503)

    return Guard(app, host=host, port=port, token=token, scheme="https" if tls else "http", for_page=True)


class Address(NamedTuple):
    """The secret token of the page, and the port of its server, which is part of the origin of unsent answers."""

    token: str
    port: int


def read_address(file: Path) -> Address | None:
    """Return the address of the last server; None if there is none, or if other users can read its token."""
    try:
        if os.name == "posix" and file.stat().st_mode & 0o077:
            return None
        address = Address(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    is_valid = isinstance(address.token, str) and len(address.token) >= 32 and address.token.isascii()
    return address if is_valid and isinstance(address.port, int) and 0 < address.port < 1 << 16 else None


def keep_address(file: Path, address: Address) -> None:
    """Write the address for the next server, readable by this user only; where that fails the next one is new."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(address._asdict(), opened)
