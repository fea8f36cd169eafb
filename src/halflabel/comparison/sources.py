"""The images of an experiment and their cached features, opened once and shared by all tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.comparison.data import ExperimentData
from halflabel.comparison.shared_start import OutOfTime
from halflabel.features.backbones import Backbone
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.device import choose_device
from halflabel.images.device_views import DeviceViews
from halflabel.images.sources import Arrays, Features, Images, Source, Subset, open_images
from halflabel.labels.table import Table
from halflabel.system.reporter import SILENT, Reporter

_MAX_BYTES_IN_MEMORY = 1 << 30  # larger features are memory-mapped


class Parts(NamedTuple):
    """Sources of the images to learn from, the test images, and separate validation images if there are any."""

    rest: Subset
    test: Subset
    validation: Source | None


@dataclass(eq=False)
class ExperimentSources:
    """Opens the backbone, the images and their features when a task first needs them."""

    data: ExperimentData
    config: Config
    cache: Path
    pretrained: bool = True
    reporter: Reporter = SILENT
    unfinished_features: tuple[int, int] | None = None  # (images done, images in all) where the time ran out
    _features: dict[str, Parts] = field(default_factory=dict)  # by kind

    @cached_property
    def backbone(self) -> Backbone:
        return Assembly(self.config).make_backbone(pretrained=self.pretrained)

    @cached_property
    def likeness(self) -> NDArray[np.float32] | None:
        """How like the names of the classes are to those of ImageNet; None where names are not used."""
        return Assembly(self.config).likeness(self.backbone, self.data.table.classes, self.cache, self.reporter)

    @cached_property
    def raw(self) -> list[Images | Arrays]:
        """The source of the images, then that of separate test images and of validation images, if any."""
        views = self.config.views(self.backbone)

        def open_source(table: Table, images: Path | Tensor | None) -> Images | Arrays:
            images = data.images if images is None else images
            if isinstance(images, Tensor):
                return Arrays(images, table.images, views)
            return open_images(table.images, images, views, workers=self.config.workers, max_bad=self.config.max_bad)

        data = self.data
        sources = [open_source(data.table, data.images)]
        if data.has_own_test:
            sources.append(open_source(data.test, data.test_images))
        if data.validation is not None:
            sources.append(open_source(data.validation, data.validation_images))
        return sources

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the content of the images, of separate test images and of validation images."""
        has_own_test, has_validation = self.data.has_own_test, self.data.validation is not None
        names = ["images", *["test images"] * has_own_test, *["validation images"] * has_validation]
        return {name: source.digest() for name, source in zip(names, self.raw, strict=True)}

    def bad_images(self) -> list[tuple[str, str, str]]:
        """Return (image, path, reason) of the images that could not be read so far."""
        raw = vars(self).get("raw", ())
        return [row for source in raw if isinstance(source, Images) for row in source.quarantine.rows]

    @cached_property
    def pictures(self) -> Parts:
        """The images themselves, for tuning the whole network."""
        raw: list[Any] = self.raw
        if self.config.hold == "device":
            device, progress = choose_device(self.config.settings.device), self.reporter.progress
            raw = [DeviceViews(each, device).hold(progress) if isinstance(each, Images) else each for each in raw]
        return self._parts(raw)

    def features(self, assembly: Assembly) -> Parts:
        """Return cached features, computed when a task first needs them and shared from then on."""
        classes = len(self.data.table.classes)
        kind = str(assembly.feature_kind(classes))
        if kind not in self._features:
            reporter = replace(self.reporter, progress=self._report_features)
            cached = [
                assembly.features(self.backbone, raw, classes, self.cache, for_training=number == 0, reporter=reporter)
                for number, raw in enumerate(self.raw)
            ]
            self._features[kind] = self._parts([_in_memory(features) for features in cached])
        return self._features[kind]

    def _parts(self, sources: list[Any]) -> Parts:
        test = sources[1] if self.data.has_own_test else sources[0]
        validation = None if self.data.validation is None else sources[-1]
        return Parts(Subset(sources[0], self.data.inside), Subset(test, self.data.outside), validation)

    def _report_features(self, done: int, total: int) -> None:
        """Report the progress of features; raise OutOfTime at the deadline, and the next call continues from there."""
        self.reporter.progress(done, total)
        self.unfinished_features = (done, total) if done < total else None
        deadline = self.reporter.deadline
        if deadline is not None and time.monotonic() > deadline and done < total:
            raise OutOfTime


def _in_memory(features: Features) -> Features:
    """Read small features into memory: faster, and no task is charged for reading them first."""
    strong = features.strong
    views = (features.values, *(strong or ()))
    if sum(each.nbytes for each in views) > _MAX_BYTES_IN_MEMORY:
        return features
    tensors = [each.clone() if isinstance(each, Tensor) else torch.from_numpy(np.array(each)) for each in views]
    return Features(tensors[0], features.names, features.bad.tolist(), strong=None if strong is None else tensors[1:])
