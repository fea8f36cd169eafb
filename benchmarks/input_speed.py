"""Images per second of several ways to feed a model, timed alternately in one run, without a model.

python benchmarks/input_speed.py --photos DIR [--size 448] [--images 512] [--workers 2] [--batch 64] [--device cpu]
    [--train resnet50 --compile inductor]

a) torchvision: a plain Dataset and DataLoader: open, resize, mirror, to float, normalize
b) folder: halflabel's source of image files, weak view
c) pack: the same images packed at this size, weak view made by the workers
d) pack, views on the device: the workers decode, the weak view of a batch is made on the device
e) pack, decoded on the device: a GPU decodes the JPEGs too (left out without a GPU)

b) to e) yield bytes, a) normalized floats: in halflabel the model normalizes, and a quarter of the data is sent. So
that all end with the same tensor in the same place, b) to e) are normalized on the device here. Every number is the
median of --repeats passes; the first pass of each, which starts the workers, does not count. Packing is timed once.

With `--train BACKBONE`, that network is then tuned on each of b) to e) for two epochs in bf16. Its images/s in percent
of those on one random batch show whether the images come fast enough to keep the GPU busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpu_speed import CLASSES, ceiling, make_model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.decode import find_images
from halflabel.images.device_views import DeviceViews
from halflabel.images.pack.read import PackSettings
from halflabel.images.pack.source import open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.images.sources import Images, Source
from halflabel.images.views import Plain, Strong, View, Weak
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TorchvisionDataset(Dataset[Tensor]):
    """The data set of a typical training script."""

    def __init__(self, paths: list[Path], size: int) -> None:
        from torchvision.transforms import v2

        self.paths = paths
        self.transform = v2.Compose(
            [
                v2.PILToTensor(),
                v2.Resize((size, size), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Tensor:
        from PIL import Image

        with Image.open(self.paths[number]) as image:
            transformed: Tensor = self.transform(image.convert("RGB"))
        return transformed


def tune(arguments: argparse.Namespace, source: Source) -> float:
    """Images per second in the second epoch of training on a source."""
    table = Table.from_dense(
        np.random.default_rng(0).choice(np.array([-1, 0, 1], np.int8), (len(source), CLASSES)), images=source.names
    )
    method = recipe("bce").make()
    settings = Config(
        epochs=2, batch_size=arguments.batch, compile=arguments.compile, precision="bf16", device=arguments.device
    )
    log = fit(make_model(arguments.train, method), method, source, table, settings).log
    return float(log[-1]["images_per_s"])


def show(
    arguments: argparse.Namespace, speeds: dict[str, list[float]], photos: int, packing: float, about: Any
) -> None:
    rates = {name: statistics.median(values) for name, values in speeds.items()}
    print(
        f"{photos} photos, {arguments.size} px, {arguments.view} view, {arguments.workers} workers, "
        f"batch {arguments.batch}, {arguments.device}, torch {torch.__version__}"
    )
    print(f"packing {packing:.0f} images/s, {about['bytes'] / about['images'] / 1e3:.1f} kB per image\n")
    print(f"{'':30}{'images/s':>10}{'ratio':>8}{'least':>10}{'most':>10}")
    for name, rate in rates.items():
        print(
            f"{name:30}{rate:10.0f}{rate / rates['torchvision']:8.2f}{min(speeds[name]):10.0f}{max(speeds[name]):10.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--images", type=int, default=512, help="Number of photos; fewer are repeated.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--view", choices=["weak", "strong"], default="weak")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--train", default="", help="A backbone to tune on the images.")
    parser.add_argument("--compile", choices=["no", "inductor"], default="no")
    parser.add_argument("--out", type=Path, help="Also write the numbers as JSON.")
    arguments = parser.parse_args()

    paths = find_images(arguments.photos)[: arguments.images]
    if not paths:
        parser.error(f"{arguments.photos} contains no image")
    if arguments.train and arguments.device == "cpu":
        parser.error("--train needs --device cuda")
    device = torch.device(arguments.device)
    views: dict[str, View] = {
        "plain": Plain(arguments.size),
        "weak": Weak(arguments.size),
        "strong": Strong(arguments.size),
    }
    names = Names(str(path.relative_to(arguments.photos)) for path in paths)
    # Fewer photos than arguments for are repeated, so that start and end have little weight.
    rounds = max(1, round(arguments.images / len(paths)))
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(paths)) for _ in range(rounds)])
    plan = [order[first : first + arguments.batch] for first in range(0, len(order), arguments.batch)]
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))

    def normalize(images: Tensor) -> Tensor:
        return (images.to(device, non_blocking=True).float() / 255 - mean) / std

    def from_source(source: Source) -> Callable[[int], Iterator[Tensor]]:
        return lambda epoch: (
            normalize(batch.views[0])
            for batch in source.fetch(plan, (arguments.view,), seed=0, epoch=epoch)
            if batch.views
        )

    with tempfile.TemporaryDirectory() as temporary:
        pack = Path(temporary) / "pack"
        began = time.perf_counter()
        stored = PackSettings(size=arguments.size)
        about = pack_images(
            arguments.photos,
            pack,
            stored,
            labels=Labels.build(
                names, Names(["any"]), np.arange(len(names)), np.zeros(len(names)), np.ones(len(names))
            ),
            workers=arguments.workers,
            max_bad=1.0,
            shard_bytes=64 << 20,
        )
        packing = len(paths) / (time.perf_counter() - began)
        options: dict[str, Any] = {"workers": arguments.workers, "max_bad": 1.0}
        loader: DataLoader[Tensor] = DataLoader(
            TorchvisionDataset(paths, arguments.size),
            batch_sampler=[batch.tolist() for batch in plan],
            num_workers=arguments.workers,
            persistent_workers=arguments.workers > 0,
            pin_memory=device.type == "cuda",
        )
        sources: dict[str, Source] = {
            "folder": Images(paths, names, views, **options),
            "pack": open_packed_images(names, pack, views, **options),
            "pack, views on the device": DeviceViews(open_packed_images(names, pack, views, **options), device),
        }
        if device.type == "cuda":
            packed = open_packed_images(names, pack, views, **options)
            sources["pack, decoded on the device"] = DeviceViews(packed, device, decode=True)
        ways: dict[str, Callable[[int], Iterator[Tensor]]] = {
            "torchvision": lambda epoch: (images.to(device, non_blocking=True) for images in loader),
            **{name: from_source(source) for name, source in sources.items()},
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(arguments.repeats + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                seen = sum(len(images) for images in way(repeat))
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if repeat:
                    speeds[name].append(seen / (time.perf_counter() - began))
        show(arguments, speeds, len(paths), packing, about)
        trained = {}
        if arguments.train:
            limit = ceiling(arguments.train, arguments.size, arguments.batch, arguments.compile, "bf16")
            print(f"\n{arguments.train} on one random batch: {limit:.0f} images/s", flush=True)
            for name, source in sources.items():
                trained[name] = tune(arguments, source)
                print(f"{name:30}{trained[name]:10.0f}{trained[name] / limit:8.0%}", flush=True)
    if arguments.out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
        settings.pop("out")
        settings.pop("photos")
        arguments.out.write_text(
            json.dumps({"settings": settings, "packing": packing, "images_per_s": speeds, "trained": trained}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
