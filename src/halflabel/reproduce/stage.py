"""The data that a group of runs is trained and tested on, and the bench for it, with what they are in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from halflabel.compare.bench import Bench
from halflabel.datasets import DATASETS, Dataset, Split, layout_of, open_dataset
from halflabel.errors import UserError
from halflabel.reproduce.measure import GUESSES
from halflabel.reproduce.plan import Group
from halflabel.reproduce.protocol import Condition, Table
from halflabel.reproduce.words import stops

__all__ = ["Shelf", "bench_of"]


class Shelf:
    """The data sets of a folder, each opened once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, Dataset] = {}

    def missing(self, conditions: Sequence[Condition]) -> dict[str, UserError]:
        """The conditions whose data set cannot be opened, and why."""
        found = {}
        for condition in conditions:
            try:
                self.open(condition, 0)
            except UserError as error:
                found[condition.name] = error
        return found

    def open(self, condition: Condition, trial: int) -> Dataset:
        options = {**condition.options, **condition.trials[trial]}
        key = json.dumps([condition.dataset, options], sort_keys=True)
        if key not in self._opened:
            own = self.folder / condition.dataset
            self._opened[key] = open_dataset(condition.dataset, own if own.is_dir() else self.folder, **options)
        return self._opened[key]


def bench_of(
    table: Table,
    group: Group,
    shelf: Shelf,
    cache: Path,
    deadline: float | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] | None,
) -> tuple[Bench, list[str], list[str]]:
    """The bench of a group, what it is in words, and what its data set lacks."""
    condition, setup = group.condition, group.setup
    opened = shelf.open(condition, group.trial)
    wanted = ["train", "test", *([condition.validation] if condition.validation else [])]
    splits: dict[str, Split] = {}
    about, gone = [f"{DATASETS[condition.dataset].title}; {'; '.join(opened.notes) or 'official split'}"], []
    for name in wanted:
        if name not in opened.splits:
            raise UserError(f"{condition.dataset} has no {name} images to choose epochs by", "leave --dataset out")
        split = opened.splits[name]
        if name == "train" and condition.sample < 1:
            split = split.sample(condition.sample)
        if condition.with_positives:
            split = split.with_positives()
        splits[name] = split.on_disk()
        if not len(splits[name]):
            raise UserError(f"not one {name} image of {condition.dataset} is there", layout_of(condition.dataset).fix())
        if lacking := len(split) - len(splits[name]):
            gone.append(f"{lacking} of {len(split)} {name} images are not in the folder")
    about.append(
        f"{len(splits['train'])} training images"
        + (f", a sample of {100 * condition.sample:g} % that keeps class frequencies" if condition.sample < 1 else "")
        + f"; {len(splits['test'])} test images"
        + ("; only images that show a class" if condition.with_positives else "")
    )
    about.append(f"tested: {condition.tested}")
    config = setup.config
    about.append(
        f"{config.backbone}{'' if setup.pretrained else ' from random weights'}, {config.size or 'native'} px "
        f"({config.resize}), {'head on frozen features' if config.tune == 'head' else 'all tuned'}, "
        f"{config.settings.epochs} epochs of {config.settings.optimizer}, batches of {config.settings.batch_size}"
        + (", mirror images as only augmentation" if config.crop == 1 and config.tune == "all" else "")
        + stops(config.settings.patience)
    )
    validation = splits.get(condition.validation)
    bench = Bench(
        splits["train"].labels,
        splits["train"].pictures(),
        config,
        test=splits["test"].labels,
        test_images=splits["test"].pictures(),
        validation=None if validation is None else validation.labels,
        validation_images=None if validation is None else validation.pictures(),
        select="hidden" if condition.select == "all labels" else "known",
        pretrained=setup.pretrained,
        truth=any(one.metric in GUESSES for one in table.measures),
        cache=cache,
        deadline=deadline,
        say=say,
        progress=progress,
    )
    return bench, about, gone
