"""A live review against one batch of `next` and against random order: mAP and decided labels by answers, VOC 2012.

    python benchmarks/live_review.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv [--classifier FILE.npz] [--seeds 3]
        [--starts single,nothing] [--orders live,batch,random] [--answers 3000] [--every 20] [--jobs 8] [--out FILE]

The files are those of strong_base.py. A simulated person answers from the full labels of `train`, always rightly. The
start is one positive per photo (seed 0: the published choice) or no label at all. `live` fits the model after every
20 answers, as `halflabel review` does, controls included; `batch` chooses all questions by the first model, as
`halflabel next` does (from nothing, where there is none, by the model after 250 answers of a live review); `random`
asks about random entries. After every 250 answers (--measure) the labels so far train the model of `halflabel train`,
which is tested on `val`.
"decided" counts the unknown entries with a probability of at least 0.95 of being present or absent; "right" is the
share of these that is. A file of results is reused: finished curves are skipped.

`--latency 500` measures instead how long a person waits: so many answers over HTTP, each followed by a request for the
next question, while another process fits the model without a pause.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import Basis, crossfit
from halflabel.fitting.fit import Inputs
from halflabel.images.sources import Features
from halflabel.labels import drop
from halflabel.labels.answers import AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.questions.choose import choose_questions
from halflabel.review.live import LiveReview
from halflabel.review.live_questions import EntryAnswer
from halflabel.review.server import make_app
from halflabel.review.session import ReviewSession
from halflabel.review.thumbnails import Thumbnails
from halflabel.runs.from_nothing import learn_from_answers
from halflabel.runs.scores import ScoredImages
from halflabel.serve.guard import TOKEN_HEADER, run_server
from halflabel.system.sockets import open_socket
from strong_base import make_parser, read_labels, read_single

Entries = list[tuple[int, int, float]]  # image, class and inclusion weight
FIRST = 250  # answers from nothing before a batch


class Person:
    """The photos and labels, loaded once per process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        table, training = read_labels(options.labels)
        features = torch.from_numpy(np.load(options.features).astype(np.float32))
        self.classifier = None
        if options.classifier:
            loaded = np.load(options.classifier)
            self.classifier = (torch.from_numpy(loaded["W"].astype(np.float32)), torch.from_numpy(loaded["b"]))
        self.known = table.subset(np.flatnonzero(training))
        self.truth, self.test_truth = self.known.dense(), table.subset(np.flatnonzero(~training)).dense()
        self.names = self.known.images, self.known.classes
        self.train, self.test = features[torch.from_numpy(training)], features[torch.from_numpy(~training)]

    def measure(self, labels: NDArray[np.int8], start: str, seed: int, answers: list[EntryAnswer]) -> float:
        """Return the mAP on the test photos of the model that `train` fits to labels (N, C), some of them answers."""
        weight = learn_from_answers(Config(method="wan"), Table.from_dense(labels)).options["weight"]
        method = (lambda: recipe("n-ls").make()) if start == "single" else (lambda: recipe("wan").make(weight=weight))
        given = self.start(start, seed)
        weight_of = np.full(labels.shape, np.nan, np.float32)
        for item in answers:
            if not given[item.image, item.column]:
                weight_of[item.image, item.column] = item.weight
        image, column = np.nonzero(labels)
        entries = image, column, labels[image, column]
        rows = Labels.build(*self.names, *entries, weight=weight_of[image, column])
        fitted = crossfit(
            self.train, rows.training, lambda: seeded(seed, method), classifier=self.classifier,
            evaluation=rows.choosing, use_similar=not self.options.no_similar, seed=seed, folds=3,
        )  # fmt: skip
        with torch.no_grad():
            logits = torch.cat([fitted.head(part).logits for part in self.test.split(1024)])
        return 100 * float(metrics.mean_average_precision(logits, self.test_truth))

    def start(self, start: str, seed: int) -> NDArray[np.int8]:
        if start == "nothing":
            return np.zeros(self.truth.shape, np.int8)
        if seed:
            return drop.single_positive(self.known, seed=seed).dense()
        return read_single(self.options.single, self.known).dense()

    def review(self, labels: NDArray[np.int8], start: str, seed: int) -> LiveReview:
        features = Features(self.train, self.names[0])
        inputs = Inputs(lambda: features)
        vars(inputs)["basis"] = Basis.of(self.train, self.classifier)
        config = Config(method="n-ls" if start == "single" else "wan", fit="linear", seed=seed, device="cpu")
        rows = Labels.of(self.known.from_dense(labels, *map(list, self.names)))
        return LiveReview(inputs, config, rows)

    def curve(self, start: str, order: str, seed: int) -> list[dict[str, Any]]:
        """Return what is measured after every so many answers."""
        options, labels = self.options, self.start(start, seed)
        begun = time.perf_counter()
        review = self.review(labels, start, seed)
        first = review.update([])
        answers: list[EntryAnswer] = []
        points = [self.point(labels, start, seed, first.quality._asdict(), answers, first.probabilities)]
        update, seconds = first, [first.seconds]
        while len(answers) < options.answers:
            is_live = order == "live" or ((order, start) == ("batch", "nothing") and len(answers) < FIRST)
            drawn = {item[:2]: item.weight for item in update.queue if item.is_control}
            answers = [a._replace(weight=a.weight or drawn.get(a[:2], 0.0)) for a in answers]
            asked = self.questions(update, "live" if is_live else order, labels, seed)
            for image, column, inclusion in asked[: options.every if is_live else options.answers - len(answers)]:
                value = int(self.truth[image, column])
                answers.append(EntryAnswer(image, column, value, inclusion))
                labels[image, column] = value
                if len(answers) % options.measure == 0:
                    now = review.update(answers)
                    seconds.append(now.seconds)
                    points.append(self.point(labels, start, seed, now.quality._asdict(), answers, now.probabilities))
            if is_live:
                update = review.update(answers)
                seconds.append(update.seconds)
        points[-1] |= {"seconds": time.perf_counter() - begun, "update_seconds": float(np.median(seconds))}
        return points

    def questions(self, update: Any, order: str, labels: NDArray[np.int8], seed: int) -> Entries:
        """Return the questions of an order, the first first."""
        if order == "live":
            return [(i, c, weight) for i, c, _, _, weight in update.queue if labels[i, c] == 0]
        if order == "batch":
            table = self.known.from_dense(labels, list(self.known.images), list(self.known.classes))
            chosen = choose_questions(
                update.probabilities, table, np.full(len(table.classes), update.quality.threshold),
                self.options.answers, control=0.1, seed=seed, by_class=False,
            )  # fmt: skip
            controls = [item for item in chosen if item.is_control]
            others = [item for item in chosen if not item.is_control]
            for number, item in enumerate(controls):  # spread over the batch: a point is a batch of that size
                others.insert(10 * number, item)
            return [(item.image, item.column, item.weight) for item in others]
        unknown = np.argwhere(labels == 0)
        drawn = np.random.default_rng(seed).permutation(len(unknown))[: self.options.answers]
        return [(int(i), int(c), len(unknown) / len(drawn)) for i, c in unknown[drawn]]

    def point(
        self,
        labels: NDArray[np.int8],
        start: str,
        seed: int,
        quality: dict[str, Any],
        answers: list[EntryAnswer],
        p: NDArray[np.float32],
    ) -> dict[str, Any]:
        sure = (labels == 0) & ((p >= 0.95) | (p <= 0.05))
        right = float(((p >= 0.5) == (self.truth > 0))[sure].mean()) if sure.any() else None
        counted = {"answers": len(answers), "present": sum(item.value > 0 for item in answers)}
        estimates = {name: quality[name] for name in ("mean_average_precision", "precision", "decided", "unknown")}
        out_of_fold = 100 * float(metrics.mean_average_precision(torch.from_numpy(p), self.truth))
        mean = self.measure(labels, start, seed, answers) if (labels > 0).any() else 0.0
        return counted | {"mAP": mean, "live_mAP_on_train": out_of_fold, "right": right} | estimates


_person: Person | None = None


def _start(options: argparse.Namespace) -> None:
    global _person
    torch.set_num_threads(1)
    _person = Person(options)


def _run(task: tuple[str, str, int]) -> dict[str, Any]:
    assert _person is not None
    start, order, seed = task
    return {"start": start, "order": order, "seed": seed, "curve": _person.curve(start, order, seed)}


def _fit_forever(connection: Connection, options: argparse.Namespace) -> None:
    """Fit the model to the answers that come, as the process of a live review does."""
    os.nice(5)
    torch.set_num_threads(1)
    person = Person(options)
    labels = person.start("single", 0)
    review = person.review(labels, "single", 0)
    with contextlib.suppress(EOFError):  # the server has ended
        while True:
            update = review.update([EntryAnswer(*item) for item in connection.recv()])
            connection.send((update.probabilities, update.quality.threshold, update.queue))


def _answer(port: int, token: str, count: int, results: Connection) -> None:
    """Answer questions over HTTP; send the seconds from each answer to the next question."""
    import httpx

    seconds = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={TOKEN_HEADER: token}, timeout=60) as client:
        question = {"tab": "person", "count": 1}
        entry = client.post("/api/questions", json=question).json()["questions"][0]["entry"]
        for number in range(count):
            begun = time.perf_counter()
            step = {"kind": "answer", "key": f"answer-{number:06}", "entry": entry, "value": -1}
            client.post("/api/answers", json={"tab": "person", "steps": [step]}).raise_for_status()
            entry = client.post("/api/questions", json=question).json()["questions"][0]["entry"]
            seconds.append(time.perf_counter() - begun)
            time.sleep(0.1)
    results.send(seconds)


def measure_latency(options: argparse.Namespace) -> None:
    """Print percentiles of the time from an answer to the next question while the model is fitted."""
    person = Person(options)
    table, context = person.known.from_dense(person.start("single", 0), *map(list, person.names)), get_context("spawn")
    connection, other = context.Pipe()
    context.Process(target=_fit_forever, args=(other, options), daemon=True).start()
    connection.send([])
    scores, threshold, queue, _ = connection.recv()
    blank = np.zeros((len(table), 64), np.float16)
    thresholds, paths = np.full(len(table.classes), threshold), [None] * len(table)
    scored = ScoredImages(table, scores, blank, np.zeros(len(table), bool), thresholds, Path(), paths)
    fits = 0
    with tempfile.TemporaryDirectory() as folder, open_socket("127.0.0.1", 0) as listening:
        store = AnswerStore(Path(folder) / "answers.sqlite")
        session = ReviewSession(scored, queue, store, who="person", live=True)
        port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
        layout = Path(folder) / "map.npz"
        thumbnails = Thumbnails(Path(), paths)
        app = make_app(session, thumbnails, token=token, host="127.0.0.1", port=port, layout=layout)
        threading.Thread(target=run_server, args=(app, listening), kwargs={"patience": 2}, daemon=True).start()
        receiver, sender = context.Pipe()
        context.Process(target=_answer, args=(port, token, options.latency, sender), daemon=True).start()
        used = time.process_time()
        while not receiver.poll():
            connection.send(session.entry_answers())
            session.apply_update(*connection.recv())
            fits += 1
        used = 1000 * (time.process_time() - used) / options.latency
        milliseconds = 1000 * np.array(receiver.recv())
    middle, high, most = np.percentile(milliseconds, (50, 99, 100)).tolist()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{len(milliseconds)} answers during {fits} fits; load {load} on {os.cpu_count()} cores")
    print(
        f"median {middle:.1f} ms, 99 % {high:.1f} ms, at most {most:.1f} ms; the server used {used:.1f} ms of CPU each"
    )


def main() -> None:
    parser = make_parser(__doc__, seeds=3)
    parser.add_argument("--starts", default="single,nothing")
    parser.add_argument("--orders", default="live,batch,random")
    parser.add_argument("--answers", type=int, default=3000)
    parser.add_argument("--every", type=int, default=20, help="answers between two fits")
    parser.add_argument("--measure", type=int, default=250, help="answers between two measurements")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "live_review.jsonl")
    parser.add_argument("--latency", type=int, default=0, help="measure the waiting time over so many answers instead")
    options = parser.parse_args()
    if options.latency:
        measure_latency(options)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(line["start"], line["order"], line["seed"]) for line in lines}
    tasks = [
        (start, order, seed)
        for seed in range(options.seeds)
        for start in options.starts.split(",")
        for order in options.orders.split(",")
        if (start, order, seed) not in done
    ]
    with (
        options.out.open("a") as file,
        ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=_start, initargs=(options,)) as pool,
    ):
        for line in pool.map(_run, tasks):
            file.write(json.dumps(line) + "\n")
            file.flush()
            for point in line["curve"]:
                print(line["start"], line["order"], line["seed"], json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
