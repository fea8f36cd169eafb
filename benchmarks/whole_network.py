"""`--tune all` beside the frozen recipe of the same commit, on VOC 2012 (`train` → `val`), on one GPU.

    python benchmarks/whole_network.py prepare LABELS.csv PHOTOS DATA [--workers 16]
    python benchmarks/whole_network.py run LABELS.csv SINGLE_POSITIVE.csv DATA JOBS.json OUT.jsonl [--processes 3]
        [--seconds 500] [--likeness FILE.npy] [--dump FOLDER]

PHOTOS holds the photos, or tars of them. `prepare` decodes each once: squashed to 448 px, and as the frozen recipe's
plain view for EfficientNet-Lite2. JOBS.json lists runs, the most important first: `{"labels": "all", "seed": 0,
"training": {…}}` with options of `halflabel train` in `training`; "resnet50" names the file of the original weights,
"frozen": true stands for the frozen recipe alone, with its default size. `labels`: all, tenth (2 of 20 labels per
photo) or one (positive; seed 0 is the published choice). FILE.npy holds how like the class names are to those of
ImageNet. Test mAP counts "difficult" objects as absent; the second figure of a pair leaves them out.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import interpolate

from halflabel import metrics
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.heads import Model
from halflabel.fitting import fit as fitting
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, Watch, fit
from halflabel.fitting.whole import Member, Mix, combine, sum_of
from halflabel.images.decode import read_image
from halflabel.images.device_views import DeviceViews
from halflabel.images.sources import Arrays, Features
from halflabel.images.views import Plain, kept_shapes
from halflabel.labels import drop
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.new_run import choose_for, make_config
from halflabel.system.reporter import Reporter
from strong_base import read_labels, read_single
from voc_tuned import resnet50

SIDE, KEPT = 448, 304
BATCH = 128


def decode(task: tuple[bytes | str, str, int]) -> tuple[int, Any, Any]:
    """Return the number, the squashed view and the kept view of a photo."""
    torch.set_num_threads(1)
    content, _, number = task
    if isinstance(content, str):
        image = read_image(content)
    else:
        from PIL import Image

        image = torch.from_numpy(np.array(Image.open(io.BytesIO(content)).convert("RGB"))).permute(2, 0, 1)
    views = (Plain(SIDE, "squash", "bicubic"), Plain(KEPT, "keep", "bicubic"))
    squashed, kept = (view(image, 0).numpy() for view in views)
    return number, squashed, kept


def photos(folder: Path, place: dict[str, int]) -> Any:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".tar":
            with tarfile.open(path) as tar:
                for member in tar:
                    if (name := Path(member.name).stem) in place:
                        yield tar.extractfile(member).read(), "", place[name]  # type: ignore[union-attr]
        elif path.stem in place:
            yield str(path), "", place[path.stem]


def prepare(options: argparse.Namespace) -> None:
    table, _ = read_labels(options.labels)
    place = {name: number for number, name in enumerate(table.images)}
    options.data.mkdir(exist_ok=True)
    count, began = len(table), time.time()
    squashed = np.lib.format.open_memmap(options.data / "squashed.npy", "w+", np.uint8, (count, 3, SIDE, SIDE))
    shapes = sorted(set(kept_shapes(KEPT)))
    kept: dict[tuple[int, int], list[Any]] = {shape: [] for shape in shapes}
    number_of: dict[tuple[int, int], list[int]] = {shape: [] for shape in shapes}
    found = np.zeros(count, bool)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = build_backbone(size=KEPT).to(device)
    features = np.full((count, backbone.width(maps=False)), np.nan, np.float32)

    def embed(shape: tuple[int, int]) -> None:
        with torch.no_grad():
            batch = torch.from_numpy(np.stack(kept[shape])).to(device)
            features[number_of[shape]] = backbone.pooled(batch).float().cpu().numpy()
        kept[shape], number_of[shape] = [], []

    with get_context("spawn").Pool(options.workers) as pool:
        for number, square, view in pool.imap_unordered(decode, photos(options.photos, place), 16):
            squashed[number], found[number] = square, True
            shape = view.shape[1:]
            kept[shape].append(view)
            number_of[shape].append(number)
            if len(kept[shape]) == BATCH:
                embed(shape)
    for shape in shapes:
        if kept[shape]:
            embed(shape)
    squashed.flush()
    np.save(options.data / "kept_features.npy", features)
    np.save(options.data / "found.npy", found)
    print(f"{found.sum()} of {count} photos in {time.time() - began:.0f} s", flush=True)


def first_resnet50(weights: str) -> Backbone:
    """Return ResNet-50 with the original weights, whose strides differ from timm's, and their classifier."""
    state = load_file(weights)
    backbone = resnet50(weights, SIDE)
    backbone.classifier = (state["fc.weight"].float(), state["fc.bias"].float())
    return backbone.eval()


def mean_ap(logits: torch.Tensor, truth: np.ndarray[Any, Any]) -> float:
    return round(100 * float(metrics.mean_average_precision(logits.float().cpu(), truth)), 2)


class Bench:
    """Photos and labels, loaded once per process."""

    def __init__(self, options: argparse.Namespace) -> None:
        table, training = read_labels(options.labels)
        found = np.load(options.data / "found.npy")
        self.rows = {"train": np.flatnonzero(training & found), "test": np.flatnonzero(~training & found)}
        self.full, self.test = (table.subset(rows) for rows in self.rows.values())
        self.single = read_single(options.single, table).subset(self.rows["train"])
        difficult = np.loadtxt(
            options.labels, np.int8, delimiter=",", skiprows=1, usecols=range(2, 2 + len(table.classes))
        )
        self.truth = self.test.dense()
        self.easy_truth = np.where(difficult[self.rows["test"]] == 0, 0, self.truth)
        self.squashed = np.load(options.data / "squashed.npy", mmap_mode="r")
        self.features = torch.from_numpy(np.load(options.data / "kept_features.npy"))
        self.likeness = None if options.likeness is None else np.load(options.likeness)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.held: dict[tuple[str, int], torch.Tensor] = {}
        self.dump: Path | None = options.dump

    def known(self, name: str, seed: int) -> Table:
        if name == "one":
            return self.single if seed == 0 else drop.single_positive(self.full, seed=seed)
        return self.full if name == "all" else drop.partial(self.full, 0.1, seed=seed, exact=True)

    def photos(self, part: str, size: int) -> torch.Tensor:
        """Return the photos (N, 3, S, S) of a part, on the device."""
        if (part, size) not in self.held:
            rows = self.rows[part]
            held = torch.empty(len(rows), 3, size, size, dtype=torch.uint8, device=self.device)
            for into, some in zip(held.split(512), np.split(rows, range(512, len(rows), 512)), strict=True):
                images = torch.from_numpy(self.squashed[some]).to(self.device)
                if size != SIDE:
                    images = interpolate(images.float(), (size, size), mode="bicubic", antialias=True)
                    images = images.round().clamp(0, 255).to(torch.uint8)
                into.copy_(images)
            self.held = {key: value for key, value in self.held.items() if key[1] == size} | {(part, size): held}
        return self.held[part, size]

    def config(self, job: dict[str, Any], known: Table) -> Config:
        options = {"seed": job.get("seed", 0), "device": self.device, **job.get("training", {})}
        options |= {} if job.get("frozen") else {"tune": "all"}
        method = options.pop("method", None)
        options |= {"size": SIDE} if "resnet50" in job else {}
        return make_config(choose_for(known.stats, options, method), options, {})

    def measure(self, logits: torch.Tensor) -> list[float]:
        return [mean_ap(logits, self.truth), mean_ap(logits, self.easy_truth)]

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        known = self.known(job["labels"], job.get("seed", 0))
        config, began = self.config(job, known), time.time()
        lines: list[str] = []
        reporter = Reporter(message=lambda text: lines.append(f"{time.time() - began:.0f} s: {text}"))
        frozen_backbone = Assembly(config).make_backbone() if "resnet50" not in job else first_resnet50(job["resnet50"])
        backbone = Assembly(config).make_backbone() if "resnet50" not in job else first_resnet50(job["resnet50"])
        likeness = self.likeness if config.backbone.startswith("efficientnet") else None
        labels = Labels.of(known)
        if job.get("frozen"):
            train, test = (self.features[torch.from_numpy(self.rows[part])] for part in ("train", "test"))
            fitted = fit(labels, Inputs(lambda: Features(train, known.images), backbone, likeness=likeness), config)
            with torch.no_grad():
                scores = fitted.model.head(test).logits
            return {**job, "mAP": self.measure(scores), "seconds": round(time.time() - began)}
        size, views = config.size or backbone.preprocess.size, config.views(backbone)

        def source(part: str, table: Table) -> DeviceViews:
            held = self.photos(part, size)
            return DeviceViews(Arrays(held, table.images, views), self.device, held=held)

        inputs = Inputs(lambda: None, backbone, lambda: source("train", known), likeness=likeness)  # type: ignore[arg-type, return-value]
        kept: list[Any] = []

        def keep(members: Any, known: torch.Tensor, fold: Any, **how: Any) -> Any:
            mix = combine(members, known, fold, **how)
            kept.extend((members, known, fold, mix))
            return mix

        fitting.combine = keep  # type: ignore[assignment]
        fitted = fit(labels, inputs, config, watch=Watch(reporter))
        seconds = round(time.time() - began)
        members, judged, fold, mix = kept
        self.networks = [each.to(self.device).eval() for each in (backbone, frozen_backbone)]
        result = self.judge(members, mix, fitted.model, source("test", self.test))
        if self.dump is not None:
            stored = {f"held {number}": each.logits.numpy() for number, each in enumerate(members)}
            stored |= {f"test {number}": each for number, each in enumerate(result.pop("logits"))}
            name = f"{job['labels']}-{job.get('seed', 0)}-{job.get('name', 'lite2')}.npz"
            np.savez_compressed(self.dump / name, labels=judged.numpy(), fold=fold, **stored)
        result.pop("logits", None)
        rates = [line["images_per_s"] for line in fitted.log]
        curve = [round(line.get("select", float("nan")), 4) for line in fitted.log]
        result |= {"images_per_s": round(float(np.median(rates))), "curve": curve, "seconds": seconds}
        return {**job, **result, "messages": lines}

    def judge(self, members: list[Member], mix: Mix, model: Model, test: DeviceViews) -> dict[str, Any]:
        """Return the test mAP of the model, of it with mirror images, and of each of its members."""
        assert test.held is not None
        tuned, frozen = self.networks
        scores: list[list[torch.Tensor]] = [[], []]
        with torch.no_grad():
            for mirrored in range(2):
                parts = [
                    [network.pooled(some.flip(3) if mirrored else some) for some in test.held.split(BATCH)]
                    for network in (tuned, frozen)
                ]
                features = [torch.cat(part) for part in parts]
                scores[mirrored] = [
                    each.head.to(self.device).eval()(features[each.is_frozen]).logits.cpu() for each in members
                ]
        sums = [sum_of(mix.weight, each) for each in scores]
        result: dict[str, Any] = {"mAP": self.measure(sums[0]), "mirrored": self.measure(sums[0] + sums[1])}
        for each, plain in zip(members, scores[0], strict=True):
            result[each.name] = self.measure(plain)
        return {**result, "logits": [each.half().numpy() for each in scores[0]]}


def work(jobs: Any, results: Any, options: argparse.Namespace) -> None:
    torch.set_num_threads(2)
    try:
        bench = Bench(options)
    except Exception as error:
        results.put({"error": f"{type(error).__name__}: {error}"})
        results.put(None)
        return
    while time.time() < options.deadline and (job := jobs.get()) is not None:
        try:
            results.put(bench.run(job))
        except Exception as error:  # one failure must not stop the other jobs
            results.put({**job, "error": f"{type(error).__name__}: {error}"})
    results.put(None)


def run(options: argparse.Namespace) -> None:
    options.deadline = time.time() + options.seconds
    context = get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    done = {line.split("|")[0] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    for job in json.loads(options.jobs.read_text()):
        if json.dumps(job, sort_keys=True) not in done:
            jobs.put(job)
    for _ in range(options.processes):
        jobs.put(None)
    workers = [context.Process(target=work, args=(jobs, results, options)) for _ in range(options.processes)]
    for worker in workers:
        worker.start()
    running, began = len(workers), time.time()
    with options.out.open("a") as file:
        while running:
            result = results.get()
            if result is None:
                running -= 1
                continue
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(f"{time.time() - began:.0f} s: {json.dumps(result)}", flush=True)
    for worker in workers:
        worker.join(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_prepare, of_run = commands.add_parser("prepare"), commands.add_parser("run")
    of_prepare.set_defaults(act=prepare)
    of_run.set_defaults(act=run)
    for name in ("labels", "photos", "data"):
        of_prepare.add_argument(name, type=Path)
    of_prepare.add_argument("--workers", type=int, default=16)
    for name in ("labels", "single", "data", "jobs", "out"):
        of_run.add_argument(name, type=Path)
    of_run.add_argument("--processes", type=int, default=3)
    of_run.add_argument("--seconds", type=float, default=500)
    of_run.add_argument("--likeness", type=Path)
    of_run.add_argument("--dump", type=Path, help="a folder for the scores of each run")
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
