"""What a published table was measured with, as plain data: data sets, hidden labels, training, methods, measures."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from halflabel.data.datasets import dataset_options
from halflabel.errors import UserError
from halflabel.papers.published import PUBLISHED, Number

__all__ = ["CHOICE", "Begin", "Cell", "Condition", "Hiding", "Measure", "Row", "Table", "Training"]

# What chooses the epoch whose weights are tested: the mAP of images held out for that over all their labels, also those
# that training does not see, or over the labels that it may see; or nothing, then it is the last.
Select = Literal["all labels", "known labels", "last epoch"]
CHOICE: dict[Select, str] = {
    "all labels": "the epoch with the best mAP there over all their labels, also those hidden from training",
    "known labels": "the epoch with the best mAP there over their known labels",
    "last epoch": "the last epoch, nothing is chosen",
}

# What to do about labels that only some data sets have, where a table of another one is run on them: as the released
# code of the partial-label and single-positive literature does.
_ELSEWHERE = {"difficult": "absent"}


@dataclass(frozen=True)
class Hiding:
    """A protocol of `halflabel.labels.drop` and its options; "" leaves the training labels as they are."""

    protocol: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """A measure by the paper's name, and the one of `reproduce.measure` it is, with its options; all in percent.

    `relative`: the paper prints the difference to another row.
    """

    name: str
    metric: str
    options: Mapping[str, Any] = field(default_factory=dict)
    relative: bool = False


class Begin(NamedTuple):
    """A method that is trained first for so many epochs, and with whose weights rows begin; its own row is it.

    `labelled_only` trains it on no image of which nothing is known, whatever the rows do.
    """

    method: str
    epochs: int
    labelled_only: bool = False


@dataclass(frozen=True)
class Training:
    """How a paper trains, in our words: fields of `config.Config`, of `train.Settings` and of `data.views.Weak`.

    `start` says whether the backbone's weights are pre-trained ones or random, `begin` what all rows are trained on
    from. `unsaid` names the settings that the paper leaves open, so that their values here are ours or those of
    released code; `differs` says what the paper does that these settings cannot.
    """

    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    weak: Mapping[str, Any] = field(default_factory=dict)
    start: Literal["pretrained", "random"] = "pretrained"
    begin: Begin | None = None
    unsaid: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A column, or several that one training run fills: a data set, what is hidden of it, and how it is trained on.

    options           of `open_dataset`; each of `trials` adds to them, and the figure is the mean over the trials
    sample            the share of training images used, class frequencies kept
    with_positives    only images that show at least one class, in training and test
    labelled_only     no image is trained on of which nothing is known
    test              the split that is tested on
    hidings           the figure is the mean over these
    select            what chooses the epoch, on a share `held_out` of the training images or on the split `validation`
    notes             about this data set alone
    """

    name: str
    dataset: str
    training: Training
    options: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ({},)
    sample: float = 1.0
    with_positives: bool = False
    labelled_only: bool = False
    test: str = "test"
    hidings: tuple[Hiding, ...] = (Hiding(),)
    select: Select = "last epoch"
    held_out: float = 0.0
    validation: str = ""
    notes: tuple[str, ...] = ()

    def on(self, dataset: str) -> Condition:
        """The same on another data set; of the options those that it has too."""
        if dataset == self.dataset:
            return self
        takes = dataset_options(dataset)
        options = {name: value for name, value in {**_ELSEWHERE, **self.options}.items() if name in takes}
        same = all(name in takes for trial in self.trials for name in trial)
        return replace(self, dataset=dataset, options=options, trials=self.trials if same else ({},), notes=())

    @property
    def tested(self) -> str:
        """Which weights are tested, in words."""
        held = f"{100 * self.held_out:g} % of the training images are held out, " if self.held_out else ""
        return f"{f'on the split {self.validation}, ' if self.validation else held}{CHOICE[self.select]}"


@dataclass(frozen=True)
class Row:
    """A row by the paper's name, and the method and options that it is here; None for what is not to be a method.

    on             further options under a condition, such as {"COCO": {"alpha": 0.1}}
    hiding         in place of the condition's
    hidings        the same by condition; with some, the row has no figures under the other conditions
    config         in place of the training's fields of the same name
    settings       the same of its settings
    labelled_only  it is trained on no image of which nothing is known, as under such a condition
    begin          what it is trained on from, in place of the training's
    relative_to    the row that relative measures are the difference to; it may be one the paper does not print
    measured_as    measure -> metric, where this row's measure is another than the column's
    differs        what the paper does in this row that is not done here
    needs          what it would take to be a method, where it is none, or to run, where it is one
    graph          its option of that name, "{}" for a file that is to be given: without that it does not run
    file           a digest of what is in the file that it was given
    """

    name: str
    method: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hiding: Hiding | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    relative_to: str | None = None
    measured_as: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    hidings: Mapping[str, Hiding] = field(default_factory=dict)
    needs: str = ""
    labelled_only: bool = False
    begin: Begin | None = None
    graph: str = ""
    file: str = ""

    def runs(self, known: Collection[str]) -> bool:
        """Whether it can be trained with the methods `known` and what it was given."""
        return self.method in known and not self.graph

    def under(self, condition: Condition) -> bool:
        """Whether the row has figures under a condition."""
        return not self.hidings or condition.name in self.hidings

    def own_hiding(self, condition: Condition) -> Hiding | None:
        """What it is trained on in place of what the condition hides."""
        return self.hidings.get(condition.name, self.hiding)


class Cell(NamedTuple):
    """What one row is under one condition, everything filled in: to be trained once per hiding, trial and seed."""

    row: Row
    condition: Condition
    method: str
    options: dict[str, Any]
    hidings: tuple[Hiding, ...]
    config: dict[str, Any]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A recipe: which rows under which conditions by which measures make up a published table."""

    id: str
    conditions: tuple[Condition, ...]
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def cells(self, known: Collection[str]) -> Iterator[Cell]:
        """What can be trained with the methods `known`, row by row."""
        for row in self.rows:
            if row.runs(known):
                yield from (self.cell(row, condition) for condition in self.conditions if row.under(condition))

    def cell(self, row: Row, condition: Condition) -> Cell:
        if row.method is None:
            raise UserError(f"the row {row.name!r} of {self.id} is not a method here", "choose another row")
        own, training = row.own_hiding(condition), condition.training
        return Cell(
            row,
            replace(
                condition,
                labelled_only=row.labelled_only or condition.labelled_only,
                training=replace(training, begin=row.begin or training.begin),
            ),
            row.method,
            {**row.options, **row.on.get(condition.name, {})},
            condition.hidings if own is None else (own,),
            {**condition.training.config, **row.config},
            {**condition.training.settings, **row.settings},
        )

    def skipped(self, known: Collection[str]) -> list[str]:
        """A line for each row that cannot be trained with the methods `known`."""
        lines = []
        for row in self.rows:
            if not row.runs(known):
                why = "only the published figures are here"
                if row.method is not None:
                    why = "no --graph FILE" if row.method in known else f"the method {row.method!r} is not here yet"
                lines.append(f"{row.name}: {why}" + (f"; it needs {row.needs}" if row.needs else ""))
        return lines

    def given(self, graph: Path) -> Table:
        """The table with a file in the rows that a label graph is to be given to."""
        if not any(row.graph for row in self.rows):
            raise UserError(f"no row of {self.id} takes a label graph", "leave --graph out")
        try:
            digest = hashlib.sha256(graph.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise UserError(
                f"the label graph {graph} cannot be read: {error.strerror}",
                "name a CSV file of rows class,class,weight by --graph",
            ) from error
        rows = tuple(
            replace(row, options={**row.options, "graph": row.graph.format(graph.absolute())}, graph="", file=digest)
            if row.graph
            else row
            for row in self.rows
        )
        return replace(self, rows=rows)

    def number(self, row: str, condition: str, measure: str) -> Number | None:
        """The published figure, or None where there is none."""
        printed = PUBLISHED.get(self.id)
        return None if printed is None else printed.number(row, condition, measure)
