"""The data that a group of runs is trained and tested on, and the bench for it, with what they are in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from halflabel.data.datasets import DATASETS, Dataset, Split, dataset_layout, open_dataset
from halflabel.errors import UserError
from halflabel.experiments.bench import Bench
from halflabel.experiments.data import split_data
from halflabel.papers.describe import begins, stops
from halflabel.papers.measure import GUESSES
from halflabel.papers.plan import Group
from halflabel.papers.spec import Condition, Table
from halflabel.system.format import counted

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


def _with_settings(group: Group) -> list[str]:
    """The rows of a group that has settings or images of its own."""
    rows = {row.name: row for found in group.wanted.values() for row, _ in found}
    own = any(row.config or row.settings or row.labelled_only or row.begin for row in rows.values())
    return list(rows) if own else []


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
    wanted = dict.fromkeys(name for name in ("train", condition.test, condition.validation) if name)
    splits: dict[str, Split] = {}
    about, gone = [f"{DATASETS[condition.dataset].title}; {'; '.join(opened.notes) or 'official split'}"], []
    for name in wanted:
        if name not in opened.splits:
            use = "test on" if name == condition.test else "choose epochs by"
            raise UserError(f"{condition.dataset} has no {name} images to {use}", "leave --dataset out")
        split = opened.splits[name]
        if name == "train" and condition.sample < 1:
            split = split.sample(condition.sample)
        if condition.with_positives:
            split = split.with_positives()
        splits[name] = split.on_disk()
        if not len(splits[name]):
            raise UserError(
                f"not one {name} image of {condition.dataset} is there", dataset_layout(condition.dataset).fix()
            )
        if lacking := len(split) - len(splits[name]):
            gone.append(f"{lacking} of {len(split)} {name} images are not in the folder")
    own = f" ({'; '.join(rows)})" if (rows := _with_settings(group)) else ""
    about.append(
        f"{len(splits['train'])} training images"
        + (f", a sample of {100 * condition.sample:g} % that keeps class frequencies" if condition.sample < 1 else "")
        + f"; {len(splits[condition.test])} {condition.test} images"
        + (" to test on" if condition.test != "test" else "")
        + ("; only images that show a class" if condition.with_positives else "")
        + ("; those of which nothing is known are not trained on" if condition.labelled_only else "")
        + (own if any(row.labelled_only for found in group.wanted.values() for row, _ in found) else "")
    )
    about.append(f"tested: {condition.tested}")
    config = setup.config
    about.append(
        f"{config.backbone}{'' if setup.pretrained else ' from random weights'}, {config.size or 'native'} px "
        f"({config.resize}), {'head on frozen features' if config.tune == 'head' else 'all tuned'}, "
        f"{counted(config.settings.epochs, 'epoch')} of {config.settings.optimizer}, "
        f"batches of {config.settings.batch_size}"
        + (", mirror images as only augmentation" if config.crop == 1 and config.tune == "all" else "")
        + stops(config.settings.patience)
        + (f", after {counted(config.linear_init, 'epoch')} of the head alone" if config.linear_init else "")
        + begins(setup.start)
        + own
    )
    validation = splits.get(condition.validation)
    data = split_data(
        splits["train"].labels,
        splits["train"].pictures(),
        test=splits[condition.test].labels,
        test_images=splits[condition.test].pictures(),
        validation=None if validation is None else validation.labels,
        validation_images=None if validation is None else validation.pictures(),
    )
    bench = Bench(
        data,
        config,
        select="hidden" if condition.select == "all labels" else "known",
        pretrained=setup.pretrained,
        truth=any(one.metric in GUESSES for one in table.measures),
        labelled_only=condition.labelled_only,
        start=setup.start,
        cache=cache,
        deadline=deadline,
        say=say,
        progress=progress,
    )
    return bench, about, gone
