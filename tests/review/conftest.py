"""A run of generated digit scenes with made-up scores, its review session and servers; a PostgreSQL server."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from digit_scenes import CLASSES, scenes

from halflabel.evaluation.scores import Scores
from halflabel.features.vector_store import Block
from halflabel.fitting.config import Config
from halflabel.images.decode import first_files
from halflabel.labels import drop
from halflabel.labels.answers import AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.choose import choose_questions
from halflabel.review.session import ReviewSession
from halflabel.review.thumbnails import Thumbnails
from halflabel.runs import scores as score_cache
from halflabel.runs.folder import RunFolder
from halflabel.runs.scores import ScoredImages, scored_images

N = 80


class Project(NamedTuple):
    run: RunFolder
    images: Path
    truth: np.ndarray

    def scored(self) -> ScoredImages:
        return scored_images(self.run, self.images)

    def session(self, count: int = 40, place: str = "", **more) -> ReviewSession:
        scored = self.scored()
        asked = choose_questions(scored.scores, scored.table, scored.thresholds, count, control=0.5)
        store = AnswerStore(place or self.run / "answers.sqlite")
        return ReviewSession(scored, asked, store, who="me", run="first", **more)


def build(folder: Path, flipped: list[tuple[int, int]] | None = None) -> Project:
    """A project of single positives; or, with entries to label wrong, one in which all labels are known."""
    from PIL import Image

    samples = scenes(N)
    images = folder / "images"
    images.mkdir()
    names = [f"{name}.png" for name in samples.names]
    for name, picture in zip(names, samples.images, strict=True):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(images / name)
    table = drop.apply("single-positive", Table.from_dense(samples.labels, names, CLASSES), seed=0)
    if flipped is not None:
        labels = samples.labels.copy()
        labels[:, -1] = 0  # one class stays open: there is something to ask
        for entry in flipped:
            labels[entry] *= -1
        table = Table.from_dense(labels, names, CLASSES)
    run = RunFolder(folder / "runs" / "first")
    run.start(Labels.of(table), Config(images=str(images)).as_dict())
    run.weights.write_bytes(b"no weights are needed where scores are kept")
    draw = np.random.default_rng(0)
    noise = draw.normal(size=samples.labels.shape) if flipped is None else 0
    scores = 1 / (1 + np.exp(-(1.2 * samples.labels + noise)))
    features = draw.normal(size=(N, 64)).astype(np.float16)
    logits = np.log(scores / (1 - scores)).astype(np.float32)
    held_out = np.arange(0, N, 5)
    fold = np.zeros(len(held_out), np.int8)
    run.write_scores(Scores(table.images.take(held_out), table.classes, logits[held_out], fold, "held-out"))
    cache_scores(run, images, table, logits, features)
    return Project(run, images, samples.labels)


def cache_scores(run: RunFolder, images: Path, table: Table, logits: np.ndarray, features: np.ndarray) -> None:
    """Write logits (N, C) and features (N, 64) to where those of the final model are cached."""
    store = score_cache._store(run, table, images, first_files(list(table.images), images))
    values = np.hstack([logits, features]).astype(np.float32)
    store.build(lambda rows: iter([Block(rows, values[rows], {})]))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return build(tmp_path)


@pytest.fixture
def with_wrong_labels(tmp_path: Path) -> Callable[[list[tuple[int, int]]], Project]:
    return partial(build, tmp_path)


@pytest.fixture
def session(project: Project) -> Iterator[ReviewSession]:
    actual = project.session()
    yield actual
    actual.answers.close()


@pytest.fixture
def client(project: Project, session: ReviewSession) -> Any:
    """A client of the server of the session, without a browser."""
    from server_examples import client_of

    return client_of(session, Thumbnails(project.images, session.scored.paths))


@pytest.fixture
def server(project: Project) -> Iterator[Any]:
    """`halflabel review` in a process of its own."""
    from page_examples import Server

    server = Server(project)
    yield server
    server.stop()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context
    context.close()


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Start PostgreSQL; each call of the fixture returns the URL of an empty database."""
    psycopg = pytest.importorskip("psycopg")
    installed = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")), shutil.which("initdb")]
    initdb = next((Path(path) for path in reversed(installed) if path), None)
    if initdb is None:
        reason = "PostgreSQL is not tested: it is not installed (apt-get install postgresql)"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="halflabel-postgresql-"))
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to be run by root
    if user:
        shutil.chown(folder, user)

    def command(*words: str) -> None:
        subprocess.run(words, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    bin_folder = initdb.resolve().parent
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    control = [str(bin_folder / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    command(str(bin_folder / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "ann", "--no-sync")
    command(*control, "-l", str(folder / "log"), "-o", options, "start")
    numbers = itertools.count()

    def create() -> str:
        name = f"review{next(numbers)}"
        with psycopg.connect(f"postgresql://ann@/postgres?host={folder}", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://ann:secret@/{name}?host={folder}"

    try:
        yield create
    finally:
        command(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder)
