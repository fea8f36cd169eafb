"""Compare methods on VOC 2012: the whole network is tuned on one GPU, which holds all images.

python benchmarks/voc_tuned.py prepare --labels labels.csv --photos DIR --out voc.safetensors [--size 224]
python benchmarks/voc_tuned.py run --labels labels.csv --images voc.safetensors --single single_positive.csv
    --jobs jobs.json --out results.jsonl [--workers 4] [--seconds 500]

`labels.csv` and the splits are those of voc_frozen.py. `jobs.json` lists the runs, most important first. A job has:

    method, protocol, lr, seed
    options       of the method
    settings      fields of `halflabel.fitting.config.Config`
    view          training view: "flip" or "weak"
    linear_init   train the head alone on frozen feature maps before the whole network
    frozen        train only the head, with three fixed strong views per image for methods with two views
    select        labels of the held-out 20 % that choose the epoch: "clean" (all labels, as in the single-positive
                  literature), "known" (labels that the protocol leaves known), or "last" (no choice)

Several worker processes share the GPU, because one small network does not use it fully. Every finished job is one line
of the results. Jobs that are already in the results are skipped. No job starts after --seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel import metrics
from halflabel.evaluation.evaluate import ValidationMetric
from halflabel.features.backbones import Backbone, Preprocess, build_backbone
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.device_views import DeviceViews
from halflabel.images.sources import Arrays, Features, Source, Subset, open_images, sequential_plan
from halflabel.images.views import Plain, Strong, View, Weak, make_views
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from voc_frozen import hide_labels, read_labels


def prepare(args: argparse.Namespace) -> None:
    """Decode every photo once and save the pixels."""
    from safetensors.torch import save_file

    images = {}
    for split in ("train", "val"):
        table = read_labels(args.labels, split)
        files = open_images(table.images, args.photos, make_views(args.size), workers=args.workers)
        images[split] = DeviceViews(files, "cpu").hold().held
    save_file(images, args.out)


def resnet50(weights: str, size: int) -> Backbone:
    """ResNet-50 with the strides and normalisation that belong to these weights (the original "v1")."""
    import timm
    from safetensors.torch import load_file

    net: Any = timm.create_model("resnet50", num_classes=0)
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eps = 1e-3
    state = {name: value.float() for name, value in load_file(weights).items() if not name.startswith("fc.")}
    net.load_state_dict(state, strict=False)
    preprocess = Preprocess(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear", 0.875)
    return Backbone("resnet50", net, 2048, preprocess)


def frozen_maps(backbone: Backbone, source: DeviceViews, copies: int = 0) -> Features:
    """Feature maps of the plain and some strong views, on the GPU: 1,280 · 7 · 7 · 2 bytes per image and view."""
    backbone = backbone.to(source.device).eval()

    def maps(view: str, epoch: int) -> torch.Tensor:
        fetched = source.fetch(sequential_plan(len(source), 256), (view,), epoch=epoch)
        with torch.no_grad():
            return torch.cat([backbone(views[0]).half() for _, views in fetched])

    return Features(maps("plain", 0), source.names, strong=[maps("strong", copy) for copy in range(copies)])


FROZEN_MAPS: dict[str, Features] = {}  # shared by the jobs of one worker


class TwoMetrics:
    """Selects the epoch by one set of labels and logs the metric of both."""

    def __init__(self, clean: torch.Tensor, known: torch.Tensor, select: str) -> None:
        self.clean, self.known, self.select = ValidationMetric(clean), ValidationMetric(known), select
        self.epoch = 0

    def __call__(self, logits: torch.Tensor) -> dict[str, float]:
        self.epoch += 1
        clean, known = self.clean(logits)["select"], self.known(logits)["select"]
        return {"clean": clean, "known": known, "select": {"clean": clean, "known": known}.get(self.select, self.epoch)}


def train_once(job: dict[str, Any], full: Table, single: Path, data: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    method_recipe = recipe(job["method"])
    method = method_recipe.make(**job.get("options", {}))
    seed = job.get("seed", 0)
    known = hide_labels(full, job["protocol"], single, seed)
    part = assign_parts(full, (0.8, 0.2), seed=seed)
    inside, outside = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
    if job.get("all_images"):
        inside = np.arange(len(full))
    size, device = data["train"].shape[-1], data["train"].device.type
    views: dict[str, View] = {
        "plain": Plain(size),
        "weak": Weak(size, least=1.0 if job.get("view", "flip") == "flip" else job.get("least", 0.5)),
        "strong": Strong(size, **job.get("strong", {})),
    }
    names = {"train": full.images, "val": data["test_names"]}
    train, test = (
        DeviceViews(Arrays(data[split], names[split], views), data[split].device, held=data[split]) for split in names
    )
    backbone = resnet50(job["weights"], size) if job.get("backbone") == "resnet50" else build_backbone("fast")
    head = seeded(seed, lambda: method.head(backbone.channels, len(full.classes)))
    model = Model(backbone, head)
    train_source: Source = train
    test_source: Source = test
    if job.get("frozen"):
        if not FROZEN_MAPS:
            FROZEN_MAPS.update(train=frozen_maps(backbone, train, 3), test=frozen_maps(backbone, test))
        model, train_source, test_source = Model(None, head), FROZEN_MAPS["train"], FROZEN_MAPS["test"]
    linear_init = job.get("linear_init")
    if linear_init:  # {"epochs", "lr"}, and "method" if it is another one
        maps = frozen_maps(backbone, train)
        first = recipe(linear_init["method"]).make() if "method" in linear_init else method
        linear_init = {name: linear_init[name] for name in ("epochs", "lr")}
        rest = {"weight_decay": method_recipe.weight_decay, "seed": seed, "device": device, "schedule": "cosine"}
        fit(Model(None, head), first, Subset(maps, inside), known.subset(inside), Config(**rest, **linear_init))
    settings = Config(
        **{
            "weight_decay": method_recipe.weight_decay,
            "epochs": 10,
            "batch_size": 32,
            "backbone_lr": 1.0,
            "compile": "inductor",
        }
        | job.get("settings", {})
        | ({"epochs": 20, "compile": "no"} if job.get("frozen") else {})
        | {"lr": job["lr"], "seed": seed, "device": device}
        | ({"compile": "no", "precision": "no"} if device == "cpu" else {})
    )
    labels = torch.from_numpy(full.subset(outside).dense()), torch.from_numpy(known.subset(outside).dense())
    fitted = fit(
        model,
        method,
        Subset(train_source, inside),
        known.subset(inside),
        settings,
        validation=Subset(train_source, outside),
        judge=TwoMetrics(*labels, job.get("select", "clean")),
        truth=full.subset(inside),
    )
    trained = time.perf_counter() - started
    truth = data["truth"]
    scores = {
        "mAP": metrics.mean_average_precision(
            score_source(model, test_source, device=device, batch_size=256).logits, truth
        )
    }
    rates = [line["images_per_s"] for line in fitted.log]
    extra = ("label_proportion", "tp_rate", "tn_rate")
    return {
        **job,
        **{name: 100 * value for name, value in scores.items()},
        "best_epoch": fitted.best_epoch,
        "clean": max(line["clean"] for line in fitted.log),
        "known": max(line["known"] for line in fitted.log),
        "curve": [round(line["clean"], 4) for line in fitted.log],
        "relabelled": [{name: line[name] for name in extra} for line in fitted.log if "tp_rate" in line],
        "images_per_s": float(np.median(rates)),
        "seconds": trained,
    }


def work(number: int, jobs: Any, results: Any, args: argparse.Namespace) -> None:
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    data: dict[str, Any] = load_file(args.images, device="cuda" if torch.cuda.is_available() else "cpu")
    full, test = read_labels(args.labels, "train"), read_labels(args.labels, "val")
    data |= {"test_names": test.images, "truth": torch.from_numpy(test.dense())}
    while time.time() < args.deadline:
        try:
            job = jobs.get(timeout=1)
        except Exception:  # the queue is empty
            break
        try:
            results.put(train_once(job, full, args.single, data))
        except Exception as error:  # one failure must not stop the other jobs
            results.put({**job, "error": f"{type(error).__name__}: {error}"})
    results.put(None)


def run(args: argparse.Namespace) -> None:
    import torch.multiprocessing as mp

    args.deadline = time.time() + args.seconds
    context = mp.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    done = set()
    if args.out.exists():
        done = {json.loads(line)["id"] for line in args.out.read_text().splitlines()}
    all_jobs = [{"id": json.dumps(job, sort_keys=True), **job} for job in json.loads(args.jobs.read_text())]
    for job in all_jobs:
        if job["id"] not in done:
            jobs.put(job)
    workers = [context.Process(target=work, args=(n, jobs, results, args)) for n in range(args.workers)]
    for worker in workers:
        worker.start()
    ended = 0
    started = time.perf_counter()
    with open(args.out, "a") as file:
        while ended < len(workers):
            try:
                result = results.get(timeout=5)
            except Exception:
                if not any(worker.is_alive() for worker in workers):
                    break
                continue
            if result is None:
                ended += 1
                continue
            file.write(json.dumps(result) + "\n")
            file.flush()
            value = (
                result.get("error") or f"{result['mAP']:.2f}  epoch {result['best_epoch']}  {result['seconds']:.0f} s"
            )
            seconds, label = time.perf_counter() - started, result.get("label", result["method"])
            rate, seed = f"lr {result['lr']:g}", f"seed {result.get('seed', 0)}"
            print(f"{seconds:5.0f}  {label:40} {result['protocol']:20} {rate} {seed}  {value}", flush=True)
    for worker in workers:
        worker.join(5)
        worker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    prepare_parser = commands.add_parser("prepare")
    prepare_parser.set_defaults(act=prepare)
    prepare_parser.add_argument("--photos", type=Path, required=True)
    prepare_parser.add_argument("--size", type=int, default=224)
    prepare_parser.add_argument("--workers", type=int, default=0)
    run_parser = commands.add_parser("run")
    run_parser.set_defaults(act=run)
    run_parser.add_argument("--images", type=Path, required=True)
    run_parser.add_argument("--single", type=Path, required=True)
    run_parser.add_argument("--jobs", type=Path, required=True)
    run_parser.add_argument("--workers", type=int, default=4)
    run_parser.add_argument("--seconds", type=float, default=1e9)
    for command in (prepare_parser, run_parser):
        command.add_argument("--labels", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.act(args)


if __name__ == "__main__":
    main()
