"""Features and scores of images, batch by batch in this process or in blocks of batches on Ray (`--engine ray`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.features.vector_store import Block, Reasons
from halflabel.images.items import Items
from halflabel.images.sources import Arrays, Images, Plan, Source, plan_of, sequential_plan
from halflabel.images.stored_features import StoredFeatures
from halflabel.images.views import ImageList
from halflabel.system import ray_engine
from halflabel.system.gpu_memory import MicroBatcher

_COPY_SEED = 0x636F7079  # of the cached strong views, the same for every training seed
_BLOCK = 1024  # images of a block; fewer if there are few images


@dataclass
class FeatureExtractor:
    """The features of one view of images; it can be sent to another process."""

    network: Any  # Backbone or OnnxBackbone
    view: str
    copy: int
    maps: bool
    device: torch.device | str
    batch_size: int
    _batcher: MicroBatcher = field(default_factory=MicroBatcher)

    def batches(self, source: Images | Arrays, plan: Plan) -> Iterator[Block]:
        """Yield the features of each batch of the plan."""
        self.network = self.network.to(self.device).to(memory_format=torch.channels_last).eval()
        fetched = source.fetch(plan, (self.view,), seed=_COPY_SEED, epoch=self.copy)
        for planned, (images, views) in zip(plan, fetched, strict=True):
            features, bad, digests = None, Reasons(), None
            if len(images):
                with torch.inference_mode():
                    features = self._batcher.run(self._extract, views[0].to(self.device)).cpu().numpy()
            if isinstance(source, Images):
                bad = {number: source.bad[number] for number in np.setdiff1d(planned, images).tolist()}
                digests = source.digests[planned]
            yield Block(planned, features, bad, digests)

    def _extract(self, view: torch.Tensor | ImageList) -> torch.Tensor:
        if isinstance(view, ImageList):
            return view.apply(self._extract)
        features: torch.Tensor = self.network(view) if self.maps else self.network.pooled(view)
        return features.to(torch.float16)

    def __call__(self, part: Images) -> Block:
        """Return the features of all images of a part, as one batch."""
        batches = list(self.batches(part, sequential_plan(len(part), self.batch_size)))
        features = [batch.values for batch in batches if batch.values is not None]
        return Block(np.arange(len(part)), np.concatenate(features) if features else None, {**part.bad}, part.digests)


def goes_to_ray(source: Source) -> bool:
    """Return whether the images of a source are computed on Ray: they are files, and Ray is the engine."""
    return ray_engine.is_active() and isinstance(source, Images) and not isinstance(source, Items | StoredFeatures)


def engine_device(source: Source, device: torch.device | str) -> torch.device | str:
    """Return the device that computes the images of a source: on Ray a GPU, if the cluster has any; else `device`."""
    if not goes_to_ray(source):
        return device
    return "cuda" if ray_engine.gpus() else "cpu"


def map_images(
    work: Callable[[Images], Block], source: Images, batch_size: int, rows: NDArray[np.int64]
) -> Iterator[Block]:
    """Yield what the workers of Ray compute of blocks of `rows`, in order; `source` notes what could not be read."""
    share = -(-len(rows) // (4 * ray_engine.workers()))
    size = max(min(share, _BLOCK) // batch_size, 1) * batch_size
    blocks = plan_of(rows, size)
    results = ray_engine.map_blocks(work, lambda number: source.part(blocks[number]), len(blocks))
    for planned, result in zip(blocks, results, strict=True):
        source.digests[planned] = result.digests
        bad = {int(planned[number]): reason for number, reason in result.bad.items()}
        for number, (_, path, reason) in bad.items():
            source.mark_unreadable(number, path, reason)
        yield result._replace(images=planned, bad=bad)
