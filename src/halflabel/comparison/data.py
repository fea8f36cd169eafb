"""The images and labels of an experiment, split once into images to learn from, test images and validation images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import NoReadableImage, UserError
from halflabel.images.sources import Arrays, group_images, open_images
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.system.reporter import SILENT, Reporter


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

    The images of `test` and `validation` are in `test_images` and `validation_images`, or in `images`. Images of one
    group, see `labels.groups`, and copies of one file stay together.
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
    """Return the labels that no model made: in an experiment any label may be used for evaluation.

    A method that learned from model-made labels would otherwise be evaluated on labels of its own kind.
    """
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
