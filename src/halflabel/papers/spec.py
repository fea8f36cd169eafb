"""Data classes of a published table: printed numbers, data sets, label masks, training, rows and measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from halflabel.labels import drop
from halflabel.papers.datasets import dataset_options

if TYPE_CHECKING:
    from halflabel.comparison.grid import LabelMask


class Column(NamedTuple):
    """A column of a printed table: what was measured on (data set, share of known labels, …), and the measure."""

    condition: str
    measure: str


class PrintedNumber(NamedTuple):
    """A number and, where the paper gives it, its spread."""

    value: float
    spread: float | None

    @classmethod
    def parse(cls, text: str) -> PrintedNumber | None:
        """
        >>> PrintedNumber.parse("89.42±0.27")
        PrintedNumber(value=89.42, spread=0.27)
        >>> PrintedNumber.parse("–") is None
        True
        """
        if text == "–":
            return None
        value, _, spread = text.partition("±")
        return cls(float(value), float(spread) if spread else None)


@dataclass(frozen=True)
class PrintedTable:
    """One table as the paper prints it: row -> column -> number. `notes` state what the print leaves open."""

    id: str
    caption: str
    rows: Mapping[str, Mapping[Column, PrintedNumber]]
    notes: tuple[str, ...] = ()

    def number(self, row: str, condition: str, measure: str) -> PrintedNumber | None:
        """The printed number, or None if the paper has none."""
        return self.rows.get(row, {}).get(Column(condition, measure))


def read_printed(
    id: str, caption: str, measures: Sequence[str], blocks: Mapping[str, str], notes: Sequence[str] = ()
) -> PrintedTable:
    """Read a printed table from text blocks: condition -> lines of `row | numbers`, one per measure, – for none.

    In a block for several conditions, "10 %; 90 %", each line has all measures of the first, then those of the second,
    etc.

    >>> small = read_printed("S0-table1", "", ("mAP", "OF1"), {"10 %; 90 %": "bce | 61.7 – 77.7 76.6"})
    >>> small.number("bce", "90 %", "OF1").value, small.number("bce", "10 %", "OF1")
    (76.6, None)
    """
    rows: dict[str, dict[Column, PrintedNumber]] = {}
    for conditions, text in blocks.items():
        columns = [Column(condition, measure) for condition in conditions.split("; ") for measure in measures]
        for line in text.strip().splitlines():
            name, _, numbers = line.partition("|")
            cells = rows.setdefault(name.strip(), {})
            for column, word in zip(columns, numbers.split(), strict=True):
                number = PrintedNumber.parse(word)
                if number is None:
                    continue
                if column in cells:
                    raise ValueError(f"{id}: {name.strip()!r} has two numbers for {column}")
                cells[column] = number
    return PrintedTable(id, caption, rows, tuple(notes))


# Which epoch's weights are tested. "all labels" and "known labels": the epoch with the best mAP on held-out images,
# computed from all their labels (including labels hidden from training) or from the labels that training may see.
Select = Literal["all labels", "known labels", "last epoch"]
_SELECTION: dict[Select, str] = {
    "all labels": "the epoch with the best mAP there over all their labels, including those hidden from training",
    "known labels": "the epoch with the best mAP there over their known labels",
    "last epoch": "the last epoch; no epoch is selected",
}

# Options that only some data sets have, used when a table of another data set runs on them. The values are those of the
# released code of the partial-label and single-positive literature.
_OTHER_DATASET_OPTIONS = {"difficult": "absent"}


@dataclass(frozen=True)
class MaskSpec:
    """A protocol of `halflabel.labels.drop` and its options; "" keeps all training labels."""

    protocol: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MaskSpec:
        """Read a protocol as `compare --protocol` takes it, such as "dense:share=0.1"; "all" keeps all labels."""
        return cls() if text == "all" else cls(*drop.parse_protocol(text))

    @classmethod
    def partial(cls, percent: int, *, exact: bool) -> MaskSpec:
        """Keep part of the labels: the same number in each image (exact), or each label with the same probability."""
        return cls() if percent == 100 else cls("partial", {"share": percent / 100, "exact": exact})

    def label_mask(self) -> LabelMask:
        """The same mask in the form that experiments use."""
        from halflabel.comparison.grid import LabelMask  # imports torch

        return LabelMask(self.protocol, tuple(sorted(self.options.items())))


@dataclass(frozen=True)
class PaperMeasure:
    """A measure by the paper's name, and the metric of `papers.measure` with its options; all in percent.

    `relative`: the paper prints the difference to another row.
    """

    name: str
    metric: str
    options: Mapping[str, Any] = field(default_factory=dict)
    relative: bool = False


class InitialModel(NamedTuple):
    """A method that is trained first, for this many epochs; the rows start from its weights.

    `labelled_only` trains it without the images that have no known label, even where the rows use them.
    """

    method: str
    epochs: int
    labelled_only: bool = False


@dataclass(frozen=True)
class PaperTraining:
    """How a paper trains, as fields of `Config` and of the weak view `data.views.Weak`.

    backbone_weights  whether the backbone starts from pre-trained or random weights
    initial_model     the model that all rows start from
    unsaid            settings that the paper does not state; their values here are the library's or the released code's
    differs           what the paper does that these settings cannot express
    """

    config: Mapping[str, Any]
    weak_view: Mapping[str, Any] = field(default_factory=dict)
    backbone_weights: Literal["pretrained", "random"] = "pretrained"
    initial_model: InitialModel | None = None
    unsaid: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A column, or several columns that one training run fills: a data set, its hidden labels, and the training.

    dataset_options   options of `open_dataset`; each of `trials` adds to them, and the number is the mean over trials
    sample            share of training images used; class frequencies are preserved
    with_positives    use only images with at least one positive label, in training and test
    labelled_only     do not train on images without a known label
    test_split        the split that is tested on
    masks             label masks; the number is the mean over them
    select            which epoch is tested, chosen on a share `held_out` of training images or on `validation_split`
    notes             remarks about this data set only
    """

    name: str
    dataset: str
    training: PaperTraining
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ({},)
    sample: float = 1.0
    with_positives: bool = False
    labelled_only: bool = False
    test_split: str = "test"
    masks: tuple[MaskSpec, ...] = (MaskSpec(),)
    select: Select = "last epoch"
    held_out: float = 0.0
    validation_split: str = ""
    notes: tuple[str, ...] = ()

    def on_dataset(self, dataset: str) -> Condition:
        """The same condition on another data set, with those options that the other data set has too."""
        if dataset == self.dataset:
            return self
        accepted = dataset_options(dataset)
        options = {**_OTHER_DATASET_OPTIONS, **self.dataset_options}
        has_trials = all(name in accepted for trial in self.trials for name in trial)
        return replace(
            self,
            dataset=dataset,
            dataset_options={name: value for name, value in options.items() if name in accepted},
            trials=self.trials if has_trials else ({},),
            notes=(),
        )

    def describe_selection(self) -> str:
        """Which weights are tested, in words."""
        images = f"{100 * self.held_out:g} % of the training images are held out, " if self.held_out else ""
        if self.validation_split:
            images = f"on the split {self.validation_split}, "
        return f"{images}{_SELECTION[self.select]}"


@dataclass(frozen=True)
class TableRow:
    """A row by the paper's name, with its method and options; method None: only the printed numbers are available.

    options_by_condition  additional options under a condition, such as {"COCO": {"alpha": 0.1}}
    mask                  replaces the masks of the condition
    masks_by_condition    the same per condition; the row then has no numbers under other conditions
    config                replaces fields of the condition's training
    labelled_only         do not train this row on images without a known label
    initial_model         replaces the initial model of the condition's training
    relative_to           the row that relative measures are the difference to; the paper may not print that row
    measured_as           measure -> metric, where this row uses another metric than the column
    differs               what the paper does in this row that is not done here
    needs                 what is missing to run this row
    """

    name: str
    method: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    options_by_condition: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mask: MaskSpec | None = None
    masks_by_condition: Mapping[str, MaskSpec] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    labelled_only: bool = False
    initial_model: InitialModel | None = None
    relative_to: str | None = None
    measured_as: Mapping[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    needs: str = ""

    def applies_to(self, condition: Condition) -> bool:
        """Whether the row has numbers under a condition."""
        return not self.masks_by_condition or condition.name in self.masks_by_condition

    def mask_for(self, condition: Condition) -> MaskSpec | None:
        """The row's own mask under a condition; None: the masks of the condition apply."""
        return self.masks_by_condition.get(condition.name, self.mask)


class Cell(NamedTuple):
    """One row under one condition with everything resolved; trained once per mask, trial and seed."""

    row: TableRow
    condition: Condition
    method: str
    options: dict[str, Any]
    masks: tuple[MaskSpec, ...]
    config: dict[str, Any]


@dataclass(frozen=True)
class PaperTable:
    """The protocol of a published table: its rows, conditions and measures."""

    id: str
    conditions: tuple[Condition, ...]
    measures: tuple[PaperMeasure, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    def cell(self, row: TableRow, condition: Condition) -> Cell:
        assert row.method is not None, f"the row {row.name!r} of {self.id} has no method"
        mask, training = row.mask_for(condition), condition.training
        return Cell(
            row,
            replace(
                condition,
                labelled_only=row.labelled_only or condition.labelled_only,
                training=replace(training, initial_model=row.initial_model or training.initial_model),
            ),
            row.method,
            {**row.options, **row.options_by_condition.get(condition.name, {})},
            condition.masks if mask is None else (mask,),
            {**condition.training.config, **row.config},
        )

    def skipped(self) -> dict[str, str]:
        """Rows that cannot be trained, and why."""
        return {
            row.name: "only the printed numbers are available" + (f"; it needs {row.needs}" if row.needs else "")
            for row in self.rows
            if row.method is None
        }
