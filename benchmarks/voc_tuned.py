"""Methods side by side on VOC 2012 photos, the whole network tuned on one GPU, all images held there as bytes.

python benchmarks/voc_tuned.py prepare --labels labels.csv --photos DIR --out voc.safetensors [--size 224]
python benchmarks/voc_tuned.py run --labels labels.csv --images voc.safetensors --single single_positive.csv
    --jobs jobs.json --out results.jsonl [--workers 4] [--seconds 500]

`labels.csv` and the splits are those of voc_frozen.py. `jobs.json` lists what to train, most important first. Each job
names method, protocol, lr and seed, and may set options of the method and of `halflabel.training.loop.Settings`, the
training view ("flip", "weak"), epochs of the head alone on frozen maps before all is tuned ("linear_init"), or the head
alone for good ("frozen", with three fixed strong views per image for methods that want them), and by what the epoch is
chosen: the clean labels of the held-out 20 % ("clean", as the single-positive literature does), what the protocol
leaves known of them ("known"), or not at all ("last"). Several worker processes share the GPU, which one small network
does not fill. Every finished job is one line of the results; jobs that are already there are not run again, none is
started after --seconds.
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
from halflabel.data.gpu_views import DeviceImages, load_to_device
from halflabel.data.sources import Features, Source, Subset, sequential_plan
from halflabel.data.views import Plain, Strong, View, Weak
from halflabel.labels.split import assign_parts
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.models.backbones import Backbone, Preprocess, build_backbone
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import ValidationMetric
from halflabel.training.config import Config, Settings, make_views, open_images
from halflabel.training.loop import fit
from voc_frozen import hide, read


def prepare(asked: argparse.Namespace) -> None:
    """Decode every photo once."""
    from safetensors.torch import save_file

    found = {}
    for split in ("train", "val"):
        table = read(asked.labels, split)
        views = make_views(asked.size, "squash", build_backbone("tiny"))
        files = open_images(table.images, asked.photos, views, Config(workers=asked.workers))
        found[split] = load_to_device(files, "cpu").images
    save_file(found, asked.out)


def resnet50(weights: str, size: int) -> Backbone:
    """ResNet-50 with the strides and the normalisation of the weights it is given (the original "v1")."""
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
    usual = Preprocess(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear", 0.875)
    return Backbone("resnet50", net, 2048, usual)


def frozen_maps(backbone: Backbone, source: DeviceImages, copies: int = 0) -> Features:
    """The maps of the plain views and of some strong ones, on the GPU: 1,280 · 7 · 7 · 2 bytes per image and view."""
    backbone = backbone.to(source.images.device).eval()

    def maps(view: str, epoch: int) -> torch.Tensor:
        fetched = source.fetch(sequential_plan(len(source), 256), (view,), epoch=epoch)
        with torch.no_grad():
            return torch.cat([backbone(views[0]).half() for _, views in fetched])

    return Features(maps("plain", 0), source.names, strong=[maps("strong", copy) for copy in range(copies)])


KEPT: dict[str, Features] = {}  # maps that the jobs of one worker share


class TwoJudges:
    """Chooses by one set of labels, and notes what the others say."""

    def __init__(self, clean: torch.Tensor, known: torch.Tensor, select: str) -> None:
        self.clean, self.known, self.select = ValidationMetric(clean), ValidationMetric(known), select
        self.epoch = 0

    def __call__(self, logits: torch.Tensor) -> dict[str, float]:
        self.epoch += 1
        clean, known = self.clean(logits)["select"], self.known(logits)["select"]
        return {"clean": clean, "known": known, "select": {"clean": clean, "known": known}.get(self.select, self.epoch)}


def train_once(job: dict[str, Any], full: LabelTable, single: Path, data: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    how = recipe(job["method"])
    method = how.make(**job.get("options", {}))
    seed = job.get("seed", 0)
    known = hide(full, job["protocol"], single, seed)
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
    train = DeviceImages(data["train"], full.images, views)
    test = DeviceImages(data["val"], data["test_names"], views)
    backbone = resnet50(job["weights"], size) if job.get("backbone") == "resnet50" else build_backbone()
    head = seeded(seed, lambda: method.head(backbone.channels, len(full.classes)))
    model = Model(backbone, head)
    seen: Source = train
    shown: Source = test
    if job.get("frozen"):
        if not KEPT:
            KEPT.update(train=frozen_maps(backbone, train, 3), test=frozen_maps(backbone, test))
        model, seen, shown = Model(None, head), KEPT["train"], KEPT["test"]
    first = job.get("linear_init")
    if first:  # {"epochs", "lr"}: the head alone on frozen maps, before all is tuned
        maps = frozen_maps(backbone, train)
        rest = {"weight_decay": how.weight_decay, "seed": seed, "device": device, "schedule": "cosine"}
        fit(Model(None, head), method, Subset(maps, inside), known.subset(inside), Settings(**rest, **first))
    settings = Settings(
        **{"weight_decay": how.weight_decay, "epochs": 10, "batch_size": 32, "backbone_lr": 1.0, "compile": "graph"}
        | job.get("settings", {})
        | ({"epochs": 20, "compile": "no"} if job.get("frozen") else {})
        | {"lr": job["lr"], "seed": seed, "device": device}
        | ({"compile": "no", "precision": "no"} if device == "cpu" else {})
    )
    held = torch.from_numpy(full.subset(outside).dense()), torch.from_numpy(known.subset(outside).dense())
    fitted = fit(
        model,
        method,
        Subset(seen, inside),
        known.subset(inside),
        settings,
        validation=Subset(seen, outside),
        judge=TwoJudges(*held, job.get("select", "clean")),
        truth=full.subset(inside),
    )
    trained = time.perf_counter() - began
    truth = data["truth"]
    found = {
        "mAP": metrics.mean_average_precision(score_source(model, shown, device=device, batch_size=256).logits, truth)
    }
    if model.backbone is not None:
        both = score_source(model, shown, device=device, batch_size=256, mirror=True).logits
        found["mirror"] = metrics.mean_average_precision(both, truth)
    rates = [line["images_per_s"] for line in fitted.log]
    extra = ("label_proportion", "tp_rate", "tn_rate")
    return {
        **job,
        **{name: 100 * value for name, value in found.items()},
        "best_epoch": fitted.best_epoch,
        "clean": max(line["clean"] for line in fitted.log),
        "known": max(line["known"] for line in fitted.log),
        "curve": [round(line["clean"], 4) for line in fitted.log],
        "relabelled": [{name: line[name] for name in extra} for line in fitted.log if "tp_rate" in line],
        "images_per_s": float(np.median(rates)),
        "seconds": trained,
    }


def work(number: int, jobs: Any, results: Any, asked: argparse.Namespace) -> None:
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    data: dict[str, Any] = load_file(asked.images, device="cuda" if torch.cuda.is_available() else "cpu")
    full, test = read(asked.labels, "train"), read(asked.labels, "val")
    data |= {"test_names": test.images, "truth": torch.from_numpy(test.dense())}
    while time.time() < asked.deadline:
        try:
            job = jobs.get(timeout=1)
        except Exception:  # empty: all is done or under way
            break
        try:
            results.put(train_once(job, full, asked.single, data))
        except Exception as error:  # one method must not end the others
            results.put({**job, "error": f"{type(error).__name__}: {error}"})
    results.put(None)


def run(asked: argparse.Namespace) -> None:
    import torch.multiprocessing as mp

    asked.deadline = time.time() + asked.seconds
    context = mp.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    done = set()
    if asked.out.exists():
        done = {json.loads(line)["id"] for line in asked.out.read_text().splitlines()}
    listed = [{"id": json.dumps(job, sort_keys=True), **job} for job in json.loads(asked.jobs.read_text())]
    for job in listed:
        if job["id"] not in done:
            jobs.put(job)
    workers = [context.Process(target=work, args=(n, jobs, results, asked)) for n in range(asked.workers)]
    for worker in workers:
        worker.start()
    ended = 0
    began = time.perf_counter()
    with open(asked.out, "a") as file:
        while ended < len(workers):
            try:
                found = results.get(timeout=5)
            except Exception:
                if not any(worker.is_alive() for worker in workers):
                    break
                continue
            if found is None:
                ended += 1
                continue
            file.write(json.dumps(found) + "\n")
            file.flush()
            value = found.get("error") or f"{found['mAP']:.2f}  epoch {found['best_epoch']}  {found['seconds']:.0f} s"
            print(f"{time.perf_counter() - began:5.0f}  {found.get('label', found['method']):40} {found['protocol']:20}"
                  f" lr {found['lr']:g} seed {found.get('seed', 0)}  {value}", flush=True)  # fmt: skip
    for worker in workers:
        worker.join(5)
        worker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.set_defaults(act=prepare)
    first.add_argument("--photos", type=Path, required=True)
    first.add_argument("--size", type=int, default=224)
    first.add_argument("--workers", type=int, default=0)
    second = commands.add_parser("run")
    second.set_defaults(act=run)
    second.add_argument("--images", type=Path, required=True)
    second.add_argument("--single", type=Path, required=True)
    second.add_argument("--jobs", type=Path, required=True)
    second.add_argument("--workers", type=int, default=4)
    second.add_argument("--seconds", type=float, default=1e9)
    for command in (first, second):
        command.add_argument("--labels", type=Path, required=True)
        command.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.act(asked)


if __name__ == "__main__":
    main()
