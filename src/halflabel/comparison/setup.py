"""The options that `compare`, `study` and `grow` share, and the bench they make of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from halflabel import __version__
from halflabel.comparison.bench import Bench
from halflabel.comparison.data import split_data, without_model_labels
from halflabel.comparison.grid import deadline_of
from halflabel.comparison.store import Store
from halflabel.errors import UserError
from halflabel.evaluation.registry import check_own_metrics
from halflabel.fitting.auto import epochs_for
from halflabel.fitting.config import Config
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.system.files import cache_folder
from halflabel.system.reporter import SILENT, Reporter

_TEST_SHARE = 0.2


class ExperimentOptions(TypedDict, total=False):
    """Keyword arguments of every experiment."""

    test: Table | Labels | None  # labels of other images to evaluate on; without them `test_share` is set aside
    test_images: Path | Tensor | None  # their images; by default in the same folder
    test_share: float  # default 0.2
    budget: float | str | None  # seconds, or text such as "30m"; limits this call
    lr: float | None  # replaces the learning rates of the methods
    config: Config | None  # how all are trained; its method, options, lr, weight decay and seed are not used
    cache: Path | None  # folder of cached features; default: beside `out`
    force: bool  # overwrite results that were made with other settings
    reporter: Reporter  # its progress counts images with features; `budget` sets its deadline


def make_bench(
    table: Table,
    images: str | Path | Tensor,
    out: Path,
    options: ExperimentOptions,
    *,
    held_out: float = Config.held_out,
    choosing: Table | None = None,
) -> Bench:
    """Check the options, split the data and return the bench; labels made by a model are removed from the test labels.

    Without a config: a head on the bundled backbone, fitted as `train` does; for methods that need batches, with epochs
    by the number of images and the share `held_out`. A given learning rate is a choice of batches.
    """
    check_own_metrics()
    deadline = deadline_of(options.get("budget"))
    lr, config = options.get("lr"), options.get("config")
    test_share, test, cache = options.get("test_share", _TEST_SHARE), options.get("test"), options.get("cache")
    if not 0 < test_share < 1:
        raise UserError(f"the test share {test_share:g} is not between 0 and 1", "use 0.2")
    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"the learning rate {lr:g} cannot be used", "use ‹lr=0.001›, or leave it to the method")
    if config is None:
        config = Config(held_out=held_out, fit="auto")
        epochs = epochs_for(len(table), config.tune)
        config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, epochs=epochs))
    if lr is not None and config.fit == "auto" and config.tune == "head":
        config = dataclasses.replace(config, fit="batches")
    reporter = options.get("reporter", SILENT)
    data = split_data(
        table,
        images if isinstance(images, Tensor) else Path(images),
        test=None if test is None else without_model_labels(test, reporter),
        test_images=options.get("test_images"),
        test_share=test_share,
        group=config.group,
        choosing=choosing,
        reporter=reporter,
    )
    return Bench(
        data,
        config,
        cache if cache is not None else cache_folder(out.parent),
        with_f1=True,
        reporter=dataclasses.replace(reporter, deadline=deadline),
    )


def open_store(out: Path, bench: Bench, options: ExperimentOptions) -> Store:
    """Open the images, then the folder of results, which is refused if it was made with other settings."""
    bench.open()
    store = Store(out)
    identity: dict[str, Any] = {"halflabel": __version__, "test_share": options.get("test_share", _TEST_SHARE)}
    store.start({**identity, **bench.identity()}, force=options.get("force", False))
    return store
