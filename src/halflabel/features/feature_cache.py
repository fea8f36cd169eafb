"""The feature cache: the features of a frozen backbone for every image, computed once, so that a head trains fast.

Float16, memory-mapped: 2·D bytes per image and view for pooled features, 2·D·h·w for maps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.features.backbones import Backbone, fingerprint
from halflabel.features.feature_blocks import FeatureExtractor, engine_device, goes_to_ray, map_images
from halflabel.features.onnx_features import OnnxBackbone, find_onnx_backbone, network_file
from halflabel.features.vector_store import Block, VectorStore
from halflabel.images.file_identity import digest_files
from halflabel.images.pack.source import PackedImages
from halflabel.images.sources import Arrays, Features, Images, plan_of, sequential_plan
from halflabel.system import distributed
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.threads import use_free_cores

_TRIED = 16  # unreadable images that are read again at a time


def copies_for(views: Sequence[str]) -> int:
    """Return the number of strong views to cache for a method that uses these views."""
    return 4 if "strong" in views else 0


def cache_features(
    backbone: Backbone,
    source: Images | Arrays,
    folder: Path,
    *,
    maps: bool = False,
    copies: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    reporter: Reporter = SILENT,
) -> Features:
    """The features of every image, of its plain view and `copies` strong views, computed if they are not cached.

    A cache belongs to a list of image names, and to the weights, the view and the state of the image files: with
    others, a new cache is written beside it. Unreadable images of a pack are tried again each time. Each strong view of
    all images is a cache of its own in the folder of the plain one. Several processes build it together, or the workers
    of Ray; the first one writes. On a CPU, ONNX Runtime computes pooled features where it can.
    """
    if copies and "strong" not in source.views:
        raise UserError("these images have no strong view to cache", "give the source a strong view, or use copies=0")
    device = engine_device(source, device)
    if batch_size is None:
        batch_size = 128 if torch.device(device).type == "cuda" else 16
    stores = _view_stores(backbone, source, folder, maps, copies)
    if isinstance(source, PackedImages):  # a photo that is a file of its own has another state once it is repaired
        distributed.run_on_main(lambda: _forget_repaired(stores, source))
    faults = distributed.run_on_main(lambda: [store.fault() for store in stores])
    missing = [number for number, fault in enumerate(faults) if fault is not None]
    total = len(missing) * len(source)
    network: Backbone | OnnxBackbone = backbone
    if missing and not maps:
        how: Any = {"images": len(source), "device": device, "reporter": reporter}
        network = find_onnx_backbone(backbone, source.views["plain"], folder, **how) or backbone
    for place, number in enumerate(missing):
        view_name, copy = ("strong", number - 1) if number else (_plain_view(source, maps), 0)
        extractor = FeatureExtractor(network, view_name, copy, maps, device, batch_size)
        compute = partial(_compute, extractor, source)

        def progress(done: int, before: int = place * len(source)) -> None:
            if distributed.is_main():
                reporter.progress(before + done, total)

        stores[number].build(compute, batch_size=batch_size, progress=progress, message=reporter.message)
    if not all(distributed.all_gather(all(store.noted_rows == store.rows for store in stores))):
        raise UserError(
            f"not every process can read the feature cache in {folder}", "put the run into a folder all machines share"
        )
    unreadable = {number: why for store in stores for number, why in store.unreadable().items()}
    if distributed.is_main():
        for store in stores:
            store.mark_used()
    if isinstance(source, Images):
        source.digests = np.array(stores[0].digests())
        for image, (_, path, reason) in unreadable.items():
            source.mark_unreadable(image, path, reason)
    plain, *strong = (store.values() for store in stores)
    return Features(plain, source.names, list(unreadable), strong=strong if "strong" in source.views else None)


def _forget_repaired(stores: Sequence[VectorStore], source: PackedImages) -> None:
    """Forget the images that could not be read when they were cached and can be read now, from a repaired pack."""
    bad = np.array(sorted({image for store in stores for image in store.unreadable()}), np.int64)
    if len(bad):
        part = source.part(bad)
        readable = [batch.images for batch in part.fetch(sequential_plan(len(bad), _TRIED), ("plain",))]
        for number, (_, path, reason) in part.bad.items():
            source.mark_unreadable(int(bad[number]), path, reason)
        for store in stores:
            store.forget(bad[np.concatenate(readable)])


def _plain_view(source: Images | Arrays, maps: bool) -> str:
    return "square" if maps and "square" in source.views else "plain"  # maps must have one shape


def _view_stores(
    backbone: Backbone, source: Images | Arrays, folder: Path, maps: bool, copies: int
) -> list[VectorStore]:
    """Return the store of the plain view, then those of the strong views, in folders inside its folder."""
    weights = fingerprint(backbone)
    if isinstance(source, Arrays | PackedImages):
        images = source.digest()
    else:  # by size and modification time
        images = digest_files(source.paths, lambda path: "{0.st_size} {0.st_mtime_ns}".format(os.stat(path)).encode())
    size, kind = source.views["plain"].size, "maps" if maps else "pooled"
    names = hashlib.sha256(source.hashes.tobytes()).hexdigest()[:12]
    network = network_file(backbone, weights, (size, size))
    about = {"backbone": backbone.name, "size": size, "kind": kind, "network": network}
    plain = VectorStore(
        folder,
        f"{backbone.name.replace('/', '_')}-{size}px-{kind}-{names}",
        {"weights": weights, "view": source.views[_plain_view(source, maps)].describe(), "images": images},
        len(source),
        about=about,
    )
    stores = [plain]
    for copy in range(copies):
        key = {"weights": weights, "strong view": source.views["strong"].describe(), "images": images}
        stores.append(VectorStore(plain.folder, f"strong-{copy}", key, len(source)))
    return stores


def _compute(extractor: FeatureExtractor, source: Images | Arrays, rows: NDArray[np.int64]) -> Iterator[Block]:
    """Compute the features of images in this process, in all processes of the job or on Ray."""
    with use_free_cores():
        if isinstance(source, Images) and goes_to_ray(source):
            yield from map_images(extractor, source, extractor.batch_size, rows)
        else:
            plan = plan_of(rows, extractor.batch_size)
            local = extractor.batches(source, plan[distributed.rank() :: distributed.world_size()])
            for _ in range(0, len(plan), distributed.world_size()):  # the first process gets all, in order
                yield from filter(None, distributed.gather_to_main(next(local, None)))
