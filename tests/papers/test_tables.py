"""The table protocols only use settings and options that the library has, and cover all printed rows and columns."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.images.views import Weak
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, recipes
from halflabel.papers.datasets import _READERS, DATASETS
from halflabel.papers.measure import LABEL_METRICS, METRICS, RELABEL_METRICS, label_shares
from halflabel.papers.spec import Condition, PaperTable, PaperTraining, TableRow
from halflabel.papers.tables import PRINTED, TABLES, find_table

ALL = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def names(fields: type) -> set[str]:
    return {field.name for field in dataclasses.fields(fields)}


@ALL
def test_training_uses_fields_of_the_library(table: PaperTable) -> None:
    for condition in table.conditions:
        training = condition.training
        assert set(training.config) <= names(Config)
        Config(**training.config)
        assert set(training.weak_view) <= names(Weak)
        assert condition.select == "last epoch" or condition.held_out or condition.validation_split


@ALL
def test_data_sets_and_masks_accept_their_options(table: PaperTable) -> None:
    small = Table.from_dense([[1, -1], [-1, 1], [1, 1], [-1, -1]] * 10)
    for condition in table.conditions:
        entry = DATASETS[condition.dataset]
        for trial in condition.trials:
            inspect.signature(_READERS[entry.reader][0]).bind(
                Path(), **entry.fixed, **condition.dataset_options, **trial
            )
        overrides = [hiding for row in table.rows if (hiding := row.mask_for(condition)) is not None]
        for hiding in (*condition.masks, *overrides):
            if hiding.protocol:
                drop.apply(hiding.protocol, small, **hiding.options)
            else:
                assert not hiding.options


@ALL
def test_methods_accept_their_options(table: PaperTable) -> None:
    known = recipes()
    for row in table.rows:
        if row.method is None:
            continue
        assert row.method in known, row.method
        for condition in table.conditions:
            recipe(row.method).make(**table.cell(row, condition).options)
        assert set(row.options_by_condition) <= {condition.name for condition in table.conditions}
        assert set(row.config) <= names(Config)


@ALL
def test_no_two_rows_are_the_same_experiment(table: PaperTable) -> None:
    rows_by_key = {}
    for row in table.rows:
        if row.method is not None:
            for condition in filter(row.applies_to, table.conditions):
                cell = table.cell(row, condition)
                key = (condition.name, cell.method, *map(repr, (cell.options, cell.masks, cell.config, row.config)))
                if (table.id, condition.name) == ("S2-table6", "100 %"):  # all labels, whatever the strategy
                    continue
                assert key not in rows_by_key, (row.name, rows_by_key[key])
                rows_by_key[key] = row.name


@ALL
def test_rows_columns_and_measures_are_those_published(table: PaperTable) -> None:
    metrics = {**METRICS, **RELABEL_METRICS, **LABEL_METRICS}
    assert all(measure.metric in metrics for measure in table.measures)
    assert all(metric in metrics for row in table.rows for metric in row.measured_as.values())
    rows = [row.name for row in table.rows]
    assert len(set(rows)) == len(rows)
    for row in table.rows:
        relative = any(measure.relative for measure in table.measures)
        assert row.relative_to is None or (relative and row.relative_to in rows)
        assert set(row.measured_as) <= {measure.name for measure in table.measures}
    if "figure" in table.id or table.id in ("S3-noise", "S5-mlml"):  # a diagram
        assert table.id not in PRINTED
        return
    printed = PRINTED[table.id]
    other_networks = {row for row, cells in printed.rows.items() if {c.condition for c in cells} == {"other networks"}}
    extra = {row.relative_to for row in table.rows} - {None}
    assert set(rows) == (set(printed.rows) - other_networks) | extra
    columns = {column for row, cells in printed.rows.items() if row not in other_networks for column in cells}
    assert {column.condition for column in columns} == {condition.name for condition in table.conditions}
    assert {column.measure for column in columns} == {measure.name for measure in table.measures}
    for row in table.rows:
        if row.masks_by_condition:  # where the row is not run nothing is printed
            assert set(row.masks_by_condition) == {column.condition for column in printed.rows[row.name]}


def test_f1_is_defined_as_in_the_quoted_paper() -> None:
    """S3 quotes rows of other papers with another definition of F1-C; the printed numbers show which one."""
    for id, condition in (("S3-table3", "NUS-WIDE"), ("S3-table4", "MS-COCO")):
        table = TABLES[id]
        for row in table.rows:
            numbers = [PRINTED[id].number(row.name, condition, measure) for measure in ("P-C", "R-C", "F1-C")]
            precision, recall, f1 = (number.value for number in numbers if number is not None)
            harmonic = abs(f1 - 2 * precision * recall / (precision + recall)) < 0.1
            if row.method is not None:
                assert (row.measured_as.get("F1-C", "macro_f1") == "CF1") == harmonic, row.name


def test_only_strategy_e_uses_dropout() -> None:
    for id, table in TABLES.items():
        if id.startswith("S2-"):
            for row in table.rows:
                wet = row.options.get("dropout", 0.5) > 0
                assert wet == (row.options["strategy"] == "e"), (id, row.name)
                # "The setting used in the original paper [28]" (A.9), which is Kendall and Gal 2017.
                assert not wet or (row.options["dropout"], row.options["passes"]) == (0.2, 50), (id, row.name)


def test_skipped_rows_of_huynh_2020_state_what_they_need() -> None:
    for id in ("S1-table1", "S1-table2", "S1-table3", "S1-table4"):
        skipped = TABLES[id].skipped()
        assert all(
            "only the printed numbers are available; it needs " in line and "Wikipedia" in line
            for line in skipped.values()
        )
        assert len(skipped) == {"S1-table3": 2, "S1-table4": 1}.get(id, 0)


def test_strategies_of_durand_2019_use_equally_many_clean_labels() -> None:
    table = TABLES["S2-table6"]
    full = Table.from_dense([[1, -1] * 5, [-1, 1] * 5] * 50)
    for row in table.rows:
        for condition in filter(row.applies_to, table.conditions):
            (hiding,) = table.cell(row, condition).masks
            known = drop.apply(hiding.protocol, full, **hiding.options) if hiding.protocol else full
            shares = label_shares(known, full)
            wrong_share = 100 - shares["clean_labels"] if row.name.endswith("noisy") else 0
            assert (f"{shares['clean_labels']:g} %", shares["wrong_labels"]) == (
                condition.name,
                pytest.approx(wrong_share),
            )


def test_notes_about_a_data_set_belong_to_it() -> None:
    (condition,) = TABLES["S2-table4"].conditions
    assert condition.notes == ("trained on train2014, tested on val2014",)
    assert condition.on_dataset("coco2014").notes
    assert not condition.on_dataset("voc2012").notes
    for table in TABLES.values():
        assert not any("train2014" in note for note in table.notes)


def test_all_tables_are_present() -> None:
    assert {"S5-table", "S4-table2", "S1-table1", "S3-noise"} <= set(TABLES)
    for paper in ("S1", "S2", "S3", "S5"):
        assert {id for id in PRINTED if id.startswith(paper)} <= set(TABLES)
    with pytest.raises(UserError, match="S2-table9"):
        find_table("S2-table9")


def test_cells_and_skipped_rows() -> None:
    training = PaperTraining({"tune": "all", "size": 448, "epochs": 3})
    table = PaperTable(
        "S0-table1",
        (Condition("a", "cub", training), Condition("b", "cub", training)),
        (),
        (
            TableRow("one", "bce", {"x": 1}, options_by_condition={"b": {"x": 2, "y": 3}}, config={"tune": "head"}),
            TableRow("two", None, needs="a file"),
        ),
    )
    first, second = (table.cell(table.rows[0], condition) for condition in table.conditions)
    assert (first.options, second.options) == ({"x": 1}, {"x": 2, "y": 3})
    assert first.config == {"tune": "head", "size": 448, "epochs": 3}
    assert table.skipped() == {"two": "only the printed numbers are available; it needs a file"}


def test_the_hyper_parameters_of_zhou_2022() -> None:
    table = TABLES["S5-table"]
    row = next(row for row in table.rows if row.method == "em-apl")
    results = {}
    for condition in table.conditions:
        cell = table.cell(row, condition)
        results[condition.name] = (*cell.options.values(), cell.config["batch_size"], cell.config["lr"])
    assert results == {
        "VOC": (0.2, 0.02, 0.9, 5, 8, 1e-5),
        "COCO": (0.1, 0.9, 0.9, 5, 16, 1e-5),
        "NUS": (0.1, 0.2, 0.9, 4, 16, 1e-5),
        "CUB": (0.01, 0.4, 0.9, 3, 8, 1e-4),
    }


def test_role_gets_the_positives_per_image_in_zhou_2022() -> None:
    """The labels only show one positive per image, 31 times too few on CUB."""
    table = TABLES["S5-table"]
    for row in (row for row in table.rows if row.method in ("role", "role-li")):
        actual = {condition.name: table.cell(row, condition).options for condition in table.conditions}
        assert actual == {
            name: {"positives": k} for name, k in {"VOC": 1.5, "COCO": 2.9, "NUS": 1.9, "CUB": 31.4}.items()
        }
