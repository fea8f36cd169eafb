"""What a published table consists of: conditions, rows, measures, and the printed numbers. `tables` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict

from halflabel.comparison.label_mask import LabelMask
from halflabel.papers.datasets import dataset_options

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

Printed = Mapping[tuple[str, str, str], tuple[float, float]]  # (row, condition, measure) -> number, its spread or NaN


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_mask(value: Any) -> Any:
    return LabelMask() if value == "all" else LabelMask.parse(value) if isinstance(value, str) else value


Mask = Annotated[LabelMask, BeforeValidator(_read_mask)]  # as `compare --protocol` takes it; "all" hides nothing


class PaperMeasure(_Spec):
    """A measure by the paper's name, and its metric, in percent; `relative`: as the difference to another row."""

    name: str
    metric: str
    options: Mapping[str, Any] = {}
    relative: bool = False


class InitialModel(NamedTuple):
    """A method that is trained first, and whose weights rows start from; on all images, or labelled ones."""

    method: str
    epochs: int
    labelled_only: bool = False


class PaperTraining(_Spec):
    """How a paper trains; `unsaid` are settings that it does not state, `differs` is what cannot be expressed."""

    config: Mapping[str, Any]
    weak_view: Mapping[str, Any] = {}
    backbone_weights: Literal["pretrained", "random"] = "pretrained"
    initial_model: InitialModel | None = None  # that all rows start from
    unsaid: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


class Condition(_Spec):
    """A column, or several columns that one training run fills: a data set, its hidden labels, and the training."""

    name: str
    dataset: str
    training: PaperTraining
    dataset_options: Mapping[str, Any] = {}
    trials: tuple[Mapping[str, Any], ...] = ({},)  # added to the options; the number is the mean over trials
    sample: float = 1.0  # share of the training images that is used; class frequencies are preserved
    with_positives: bool = False  # images with at least one positive label only, in training and test
    labelled_only: bool = False  # do not train on images without a known label
    test_split: str = "test"
    masks: tuple[Mask, ...] = (LabelMask(),)  # the number is the mean over them
    select: Select = "last epoch"  # chosen on a share `held_out` of the training images or on `validation_split`
    held_out: float = 0.0
    validation_split: str = ""
    notes: tuple[str, ...] = ()  # remarks about this data set only

    def on_dataset(self, dataset: str) -> Condition:
        """The same condition on another data set, with those options that the other data set has too."""
        if dataset == self.dataset:
            return self
        accepted = dataset_options(dataset)
        options = {**_OTHER_DATASET_OPTIONS, **self.dataset_options}
        has_trials = all(name in accepted for trial in self.trials for name in trial)
        options = {name: value for name, value in options.items() if name in accepted}
        trials = self.trials if has_trials else ({},)
        return self.model_copy(update={"dataset": dataset, "dataset_options": options, "trials": trials, "notes": ()})

    def describe_selection(self) -> str:
        """Which weights are tested, in words."""
        images = f"{100 * self.held_out:g} % of the training images are held out, " if self.held_out else ""
        if self.validation_split:
            images = f"on the split {self.validation_split}, "
        return f"{images}{_SELECTION[self.select]}"


class TableRow(_Spec):
    """A row by the paper's name, with its method and options; method None: only the printed numbers are available."""

    name: str
    method: str | None = None
    options: Mapping[str, Any] = {}
    options_by_condition: Mapping[str, Mapping[str, Any]] = {}
    mask: Mask | None = None  # replaces the masks of the condition
    masks_by_condition: Mapping[str, Mask] = {}  # the row has no numbers under other conditions
    config: Mapping[str, Any] = {}  # replaces fields of the condition's training
    labelled_only: bool = False
    initial_model: InitialModel | None = None  # replaces that of the condition's training
    relative_to: str | None = None  # the row that relative measures are the difference to; it may not be printed
    measured_as: Mapping[str, str] = {}  # measure -> metric, where it is another than the column's
    differs: tuple[str, ...] = ()  # what the paper does in this row that is not done here
    needs: str = ""  # what is missing to run this row

    def applies_to(self, condition: Condition) -> bool:
        """Whether the row has numbers under a condition."""
        return not self.masks_by_condition or condition.name in self.masks_by_condition

    def mask_for(self, condition: Condition) -> LabelMask | None:
        """The row's own mask under a condition; None: the masks of the condition apply."""
        return self.masks_by_condition.get(condition.name, self.mask)


class Cell(NamedTuple):
    """One row under one condition with everything resolved; trained once per mask, trial and seed."""

    row: TableRow
    condition: Condition
    method: str
    options: dict[str, Any]
    masks: tuple[LabelMask, ...]
    config: dict[str, Any]


class PaperTable(_Spec):
    """A published table: its protocol, and its numbers, which a diagram does not have."""

    id: str
    paper: str
    caption: str
    conditions: tuple[Condition, ...]
    measures: tuple[PaperMeasure, ...]
    rows: tuple[TableRow, ...]
    protocol: tuple[str, ...] = ()  # remarks on how it is run
    printed: Printed = {}
    notes: tuple[str, ...] = ()  # what the print leaves open

    def cell(self, row: TableRow, condition: Condition) -> Cell:
        assert row.method is not None, f"the row {row.name!r} of {self.id} has no method"
        mask, training = row.mask_for(condition), condition.training
        training = training.model_copy(update={"initial_model": row.initial_model or training.initial_model})
        labelled_only = row.labelled_only or condition.labelled_only
        return Cell(
            row,
            condition.model_copy(update={"labelled_only": labelled_only, "training": training}),
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
