"""The labels, images and cached features of trials: split once, opened once, and shared by all tasks."""

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

from halflabel.errors import NoReadableImage, UserError
from halflabel.features.backbones import Backbone
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.device import choose_device
from halflabel.images.device_views import fastest_source
from halflabel.images.sources import Arrays, Features, Images, Source, Subset, group_images, open_images
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.system.format import group_digits
from halflabel.system.reporter import SILENT, Reporter

_MAX_BYTES_IN_MEMORY = 1 << 30  # larger features are memory-mapped


class OutOfTime(Exception):
    """The time budget is spent."""


@dataclass(frozen=True)
class ExperimentData:
    """All labels, and how they are split; see `split_data`."""

    table: Table
    images: Path | Tensor
    rest: Table  # labels of the images to learn from
    test: Table
    inside: NDArray[np.int64]  # the images of `rest`, as numbers in `table`
    outside: NDArray[np.int64]  # the test images, as numbers in `table`, or in `test` where it has its own images
    groups: NDArray[np.int64] | None = None  # of the images of `table`; of one group all are in one part
    test_groups: NDArray[np.int64] | None = None
    has_own_test: bool = False
    test_images: Path | Tensor | None = None
    validation: Table | None = None
    validation_images: Path | Tensor | None = None
    choosing: Table | None = None  # the labels of `rest` by which strength and similar images are chosen; None: all


def split_data(
    table: Table,
    images: Path | Tensor,
    *,
    test: Table | None = None,
    test_images: Path | Tensor | None = None,
    test_share: float = 0.2,
    validation: Table | None = None,
    validation_images: Path | Tensor | None = None,
    group: str | None = None,
    choosing: Table | None = None,
    reporter: Reporter = SILENT,
) -> ExperimentData:
    """Split the labels; `test` and `validation` are labels of other images, without `test` a share is set aside.

    Their images are in `test_images` and `validation_images`, or in `images`. Images of one group stay together.
    """
    validation = None if validation is None else _matched(validation, table, "validation")
    for labels, own_images, name in ((test, test_images, "test"), (validation, validation_images, "validation")):
        if labels is not None and own_images is None and isinstance(images, Tensor):
            raise UserError(f"the {name} labels come without images", f"give {name}_images too")
    groups = _group(table, images, group, reporter)
    if test is None:
        part = assign_parts(table, (1 - test_share, test_share), groups=groups)
        inside, outside = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
        rest, test_table = table.subset(inside), table.subset(outside)
        test_groups = None if groups is None else groups[outside]
    else:
        inside, outside = np.arange(len(table)), np.arange(len(test))
        rest, test_table = table, _matched(test, table, "test")
        try:
            test_groups = _group(test, images if test_images is None else test_images, group, required=False)
        except NoReadableImage as error:
            if test_images is not None:
                raise
            fix = "name the folder of the test images: ‹test_images›"
            raise UserError(f"test labels: {error.message}", fix) from None
    _check_evaluable(test_table)
    return ExperimentData(
        table,
        images,
        rest,
        test_table,
        inside,
        outside,
        groups,
        test_groups,
        has_own_test=test is not None,
        test_images=test_images,
        validation=validation,
        validation_images=validation_images,
        choosing=None if choosing is None else choosing.subset(inside),
    )


def without_model_labels(labels: Table | Labels, reporter: Reporter = SILENT) -> Table:
    """Return the labels that no model made: in an experiment any label may be used for evaluation."""
    labels = Labels.of(labels)
    if excluded := labels.training.known - labels.people.known:
        reporter.message(f"{excluded} of {labels.training.known} labels were made by a model: they are left out")
    return labels.people


def choosing_labels(labels: Table | Labels) -> Table | None:
    """Return the labels by which training chooses strength and similar images, or None if they are all of people's."""
    rows = Labels.of(labels)
    return None if rows.choosing.known == rows.people.known else rows.choosing


def _group(
    table: Table, images: Path | Tensor, group: str | None, reporter: Reporter = SILENT, *, required: bool = True
) -> NDArray[np.int64] | None:
    names, source = table.images, None
    source = Arrays(images, names, {}) if isinstance(images, Tensor) else open_images(names, images, {}, max_bad=1.0)
    return group_images(group, names, source, reporter, required=required)


def _matched(labels: Table, table: Table, name: str) -> Table:
    """Return test or validation labels with the classes of `table`, by name; an image may not be in both."""
    column = labels.classes.index(table.classes.array)
    if (column < 0).any():
        missing = table.classes[int(np.flatnonzero(column < 0)[0])]
        raise UserError(f"the {name} labels have no class {missing!r}", "use the same class names in both files")
    shared = np.flatnonzero(table.images.index(labels.images.array) >= 0)
    if len(shared):
        raise UserError(
            f"{len(shared)} {name} images are also training images, such as {labels.images[int(shared[0])]!r}",
            "leave them out of one of the two files; without ‹test›, halflabel splits the images itself",
        )
    return labels.subset(classes=column)


def _check_evaluable(test: Table) -> None:
    """Raise an error if all rankings of the test labels would be equally good."""
    for sign, word in ((1, "present"), (-1, "absent")):
        if not bool((np.sign(test.value) == sign).any()):
            raise UserError(
                f"no label is known to be {word} among the {len(test)} test images, so methods cannot be compared",
                "label some other photos completely and give them by ‹test=FILE› and ‹test_images=DIR›, or use "
                "‹unlisted=absent› if that is what the file means",
            )


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
        device = choose_device(self.config.device)
        return self._parts([fastest_source(each, device, self.reporter.progress) for each in raw])

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
        deadline = self.reporter.deadline
        if deadline is not None and time.monotonic() > deadline and done < total:
            images = f"{group_digits(done)} of {group_digits(total)} images are done and saved"
            self.reporter.message(f"the time limit was reached while features were computed: {images}")
            raise OutOfTime


def _in_memory(features: Features) -> Features:
    """Read small features into memory: faster, and no task is charged for reading them first."""
    strong = features.strong
    views = (features.values, *(strong or ()))
    if sum(each.nbytes for each in views) > _MAX_BYTES_IN_MEMORY:
        return features
    tensors = [each.clone() if isinstance(each, Tensor) else torch.from_numpy(np.array(each)) for each in views]
    return Features(tensors[0], features.names, features.bad.tolist(), strong=None if strong is None else tensors[1:])
