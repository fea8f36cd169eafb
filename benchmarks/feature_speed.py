"""Images per second from image files to cached features on a CPU: torch against ONNX Runtime, timed alternately.

python benchmarks/feature_speed.py --photos DIR [--images 1000] [--backbones efficientnet-lite0,efficientnet-lite2]
    [--workers 2] [--repeats 3] [--threads 2]

Every pass decodes, resizes, computes and writes a new feature cache, as `halflabel train` does. Export and check of the
network are timed once, apart. Wall time on a busy machine says little: the CPU time of all processes per image is shown
too, and the ratio is that of two passes that follow each other.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

from halflabel.features import onnx_features
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.images.decode import find_images
from halflabel.images.sources import Images
from halflabel.images.views import make_views
from halflabel.labels.names import Names


def cpu_seconds() -> float:
    """CPU time of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(backbone: Backbone, paths: list[Path], folder: Path, workers: int) -> tuple[float, float]:
    """Images per second, and milliseconds of CPU time per image."""
    preprocess = backbone.preprocess
    views = make_views(preprocess.size, "squash", preprocess.interpolation, preprocess.crop_pct)
    began, used = time.perf_counter(), cpu_seconds()
    source = Images(paths, Names.numbered(len(paths)), views, workers=workers, max_bad=1.0)
    cache_features(backbone, source, folder)
    elapsed = time.perf_counter() - began
    source._loader = None  # ends the workers, so that their CPU time counts
    return len(paths) / elapsed, 1e3 * (cpu_seconds() - used) / len(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--backbones", default="efficientnet-lite0,efficientnet-lite2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    paths = find_images(arguments.photos)[: arguments.images]
    torch.set_num_threads(arguments.threads)
    fewest = onnx_features.FEWEST_IMAGES
    print(f"{len(paths)} photos, {arguments.workers} workers, {arguments.threads} threads, torch {torch.__version__}")
    print(f"{'':24}{'torch':>22}{'ONNX Runtime':>22}{'ratio':>14}")
    print(f"{'':24}{'images/s   CPU ms':>22}{'images/s   CPU ms':>22}{'wall    CPU':>14}")
    for name in arguments.backbones.split(","):
        backbone = build_backbone(name)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            began = time.perf_counter()
            onnx_features.find_onnx_backbone(backbone, backbone.preprocess.size, folder, images=fewest)
            export = time.perf_counter() - began
            (network,) = folder.glob("*.onnx")
            speeds: dict[str, list[tuple[float, float]]] = {"torch": [], "onnx": []}
            for repeat in range(arguments.repeats):
                for way, results in speeds.items():
                    onnx_features.FEWEST_IMAGES = fewest if way == "onnx" else len(paths) + 1
                    cache = folder / f"{way}-{repeat}"
                    cache.mkdir()
                    (cache / network.name).write_bytes(network.read_bytes())
                    results.append(measure(backbone, paths, cache, arguments.workers))
        columns = "".join(
            f"{statistics.median(wall for wall, _ in results):13.1f}{statistics.median(cpu for _, cpu in results):9.1f}"
            for results in speeds.values()
        )
        pairs = list(zip(speeds["torch"], speeds["onnx"], strict=True))
        wall = statistics.median(theirs[0] / ours[0] for ours, theirs in pairs)
        cpu = statistics.median(ours[1] / theirs[1] for ours, theirs in pairs)
        print(f"{name:24}{columns}{wall:9.2f}{cpu:7.2f}   export and check {export:.1f} s", flush=True)


if __name__ == "__main__":
    main()
