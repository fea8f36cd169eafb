"""Assemble what a configuration trains: recipe → method → head → features → fit.

Used by `train`, cross-fitting, comparisons and the estimator, so that a configuration means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.embed import checked_features
from halflabel.features.feature_cache import cache_features, copies_for
from halflabel.features.heads import Head, pool
from halflabel.features.names import likeness_for
from halflabel.fitting.config import OPTIONS_OF_BATCHES, Config
from halflabel.fitting.crossfit import FOLDS
from halflabel.fitting.device import choose_device
from halflabel.images.items import Items, pool_items
from halflabel.images.sources import Arrays, Features, Images, Source, Subset
from halflabel.images.stored_features import StoredFeatures
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.labels.uncertain import decide_uncertain
from halflabel.methods.base import Method, Recipe, recipe, seeded
from halflabel.system import distributed, memory
from halflabel.system.reporter import SILENT, Reporter

LARGEST_SOLVE = 2 * 10**8  # entries (images × classes) up to which the solver holds all scores at once


@dataclass(frozen=True)
class Assembly:
    """The parts that a configuration names; made anew by each call, from the seed alone."""

    config: Config
    given_recipe: Recipe | None = None  # of a method that may not be registered in this process

    @property
    def recipe(self) -> Recipe:
        return self.given_recipe or recipe(self.config.method)

    @property
    def device(self) -> Literal["cpu", "cuda", "mps"]:
        return choose_device(self.config.device, fall_back=True)

    def make_method(self) -> Method:
        """Build the method; some methods have weights, which depend on the seed alone."""
        method = seeded(self.config.seed, lambda: self.recipe.make(**self.config.options))
        if method.relabel.needs_group:
            if not self.config.group:
                raise UserError(
                    f"the method {self.config.method!r} needs groups of images",
                    "state them by ‹group›, a CSV file of images and groups or a regular expression on image names",
                )
            method.relabel.group = self.config.group
        return method

    def others(self, texts: str) -> list[Assembly]:
        """Return the parts by other methods instead, named as in `Config.candidates`: "bce smoothing=0.1, em"."""
        found = []
        for text in filter(None, texts.split(", ")):
            name, *options = text.split()
            parsed = recipe(name).parse(dict(option.split("=", 1) for option in options))
            found.append(Assembly(replace(self.config, method=name, options=parsed)))
        return found

    def make_head(self, method: Method, channels: int, classes: int) -> Head:
        return seeded(self.config.seed, lambda: method.head(channels, classes))

    def make_backbone(self, *, pretrained: bool = True) -> Backbone:
        weights = Path(self.config.weights) if self.config.weights else None
        config = self.config
        return build_backbone(
            config.backbone, weights=weights, pretrained=pretrained, size=config.size, bands=config.channels
        )

    def uses_solver(self, table: Table) -> bool:
        """Return whether L-BFGS fits the head: on a frozen backbone, for methods and tables that allow it."""
        config = self.config
        if config.fit == "batches":
            return False
        hindrance = "the whole network is tuned" if config.tune == "all" else None
        hindrance = hindrance or solver_hindrance(self.make_method(), config.method, table)
        if hindrance is not None and config.fit == "linear":
            raise UserError(f"a linear fit is not possible: {hindrance}", "use ‹fit=auto› or ‹fit=batches›")
        return hindrance is None

    @property
    def tunes_from_frozen(self) -> bool:
        """Whether a whole network is tuned from the frozen recipe on, and combined with it."""
        return self.config.tune == "all" and self.config.fit != "batches"

    def check_fit(self, given: Collection[str], table: Table, option: str = "fit") -> None:
        """Refuse given options that a linear fit would leave out; `option` is the name of the one that chooses it."""
        if self.uses_solver(table):
            refuse_options_of_batches(given, option)

    def describe(self, table: Table) -> str:
        """Return in one line what is trained: head, labels, and how it is fitted."""
        if not table.known:
            return f"{self.recipe.name}: class names alone, as no label is known; backbone frozen"
        if self.tunes_from_frozen:
            learns = " on soft targets of this frozen recipe" if self.config.targets == "soft" else ""
            way = f"then {self.config.epochs} epochs of the whole network{learns}"
        elif self.config.tune == "all":
            way = f"{self.config.epochs} epochs of batches, backbone tuned"
        elif self.uses_solver(table):
            way = "by L-BFGS on vectors, backbone frozen"
        else:
            method = self.make_method()
            needs_maps = self.needs_maps(method, len(table.classes))
            way = f"{self.config.epochs} epochs of batches on cached {'maps' if needs_maps else 'vectors'}"
            way += ", backbone frozen"
        if self.config.averaged_with and self.uses_solver(table):
            return f"average of {self.config.named} and {self.config.averaged_with.replace(', ', ' and ')}; {way}"
        return f"{self.recipe.name}: {self.make_method().describe()}; {way}"

    def training_table(self, table: Table) -> Table:
        """Return the labels to train on: uncertain ones as the configuration states."""
        return decide_uncertain(table, self.config.uncertain)

    def likeness(
        self, backbone: Backbone | None, classes: Names, folder: str | Path | None, reporter: Reporter = SILENT
    ) -> NDArray[np.float32] | None:
        """Return how like the names of the classes are to those of ImageNet, for `Inputs`; None to use no names."""
        if backbone is None:
            return None
        use, described, place = self.config.names, self.config.descriptions, None if folder is None else Path(folder)
        return distributed.run_on_main(lambda: likeness_for(list(classes), backbone, use, described, place, reporter))

    def needs_maps(self, method: Method, classes: int) -> bool:
        """Return whether the head of a method needs maps instead of pooled features."""
        return self.make_head(method, 8, classes).needs_maps

    def feature_kind(self, classes: int) -> tuple[bool, int]:
        """Return whether the head needs maps instead of pooled features, and the number of strong views to cache."""
        method = self.make_method()
        return self.needs_maps(method, classes), copies_for(method.views)

    def features(
        self,
        backbone: Backbone,
        source: Images | Arrays,
        classes: int,
        folder: Path,
        *,
        for_training: bool = True,
        reporter: Reporter = SILENT,
    ) -> Features:
        """Return the cached features of a source; with `for_training` also the strong views that the method uses."""
        maps, copies = self.feature_kind(classes)
        if isinstance(source, StoredFeatures):
            if maps:
                raise UserError(
                    f"the method {self.config.method!r} looks at places of images, and the features are pooled",
                    "give the images, or use another method",
                )
            return checked_features(source, backbone)
        is_items = isinstance(source, Items)
        features = cache_features(
            backbone,
            source.images if isinstance(source, Items) else source,
            folder,
            maps=maps,
            copies=copies if for_training and not is_items else 0,
            device=self.device,
            reporter=reporter,
        )
        return pool_items(source, features) if isinstance(source, Items) else features


def refuse_options_of_batches(given: Collection[str], option: str = "fit") -> None:
    """Raise if one of these options counts only in batches."""
    if idle := [name for name in OPTIONS_OF_BATCHES if name in given]:
        raise UserError(
            f"‹{idle[0]}› counts in batches, not in a linear fit", f"add ‹{option}=batches›, or leave ‹{idle[0]}› out"
        )


def solver_hindrance(method: Method, name: str, table: Table) -> str | None:
    """Return why L-BFGS cannot fit a head by this method on this table, or None if it can."""
    images, classes = table.shape
    if not method.is_linear_loss:
        return f"{name} needs batches, several views or a head of its own"
    if images * classes > LARGEST_SOLVE:
        return f"{images} images × {classes} classes are too many scores at once"
    return f"{images} images are too few for {FOLDS} folds" if images < 4 * FOLDS else None


def pooled_features(source: Source) -> Tensor:
    """Return cached features (N, D), NaN for images that could not be read: float32; large ones stay in their file."""
    index: NDArray[np.int64] | None = None
    while isinstance(source, Subset):
        index = source.index if index is None else source.index[index]
        source = source.whole
    assert isinstance(source, Features)
    values, bad = source.values, source.bad
    if index is not None:
        values = values[torch.from_numpy(index) if isinstance(values, Tensor) else index]
        bad = np.flatnonzero(np.isin(index, bad))
    if not isinstance(values, Tensor):
        values = torch.from_numpy(values if values.flags.writeable else np.array(values))
    stays = values.ndim == 2 and memory.is_large(4 * values.numel())
    pooled = values if stays else pool(values).float().clone()
    pooled[torch.from_numpy(bad)] = torch.nan
    return pooled
