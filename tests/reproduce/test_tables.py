"""The recipes say nothing that the library does not know, and cover what the papers print."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from halflabel import drop
from halflabel.config import Config
from halflabel.data.views import Weak
from halflabel.datasets import DATASETS
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.method import recipe, recipes
from halflabel.reproduce.measure import GUESSES, METRICS
from halflabel.reproduce.protocol import Condition, Row, Table, Training
from halflabel.reproduce.published import PUBLISHED
from halflabel.reproduce.tables import TABLES, recipe_for
from halflabel.train import Settings

PLANNED: set[str] = set()

ALL = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def names(fields: type) -> set[str]:
    return {field.name for field in dataclasses.fields(fields)}


@ALL
def test_training_is_in_the_words_of_the_library(table: Table) -> None:
    for condition in table.conditions:
        training = condition.training
        assert set(training.config) <= names(Config)
        assert set(training.settings) <= names(Settings)
        Settings(**training.settings)
        Config(**training.config)
        assert set(training.weak) <= names(Weak)
        assert condition.select == "last epoch" or condition.held_out or condition.validation


@ALL
def test_data_sets_and_hidings_take_their_options(table: Table) -> None:
    small = LabelTable.from_dense([[1, -1], [-1, 1], [1, 1], [-1, -1]] * 10)
    for condition in table.conditions:
        entry = DATASETS[condition.dataset]
        opener = import_module(f"halflabel.datasets.{entry.module}").read
        for trial in condition.trials:
            inspect.signature(opener).bind(Path(), **entry.fixed, **condition.options, **trial)
        overrides = [row.hiding for row in table.rows if row.hiding is not None]
        for hiding in (*condition.hidings, *overrides):
            if hiding.protocol:
                drop.apply(hiding.protocol, small, **hiding.options)
            else:
                assert not hiding.options


@ALL
def test_methods_take_their_options(table: Table) -> None:
    known = recipes()
    for row in table.rows:
        if row.method is None:
            continue
        assert row.method in known or row.method in PLANNED, row.method
        if row.method in known:
            for condition in table.conditions:
                recipe(row.method).make(**table.cell(row, condition).options)
        else:
            assert not row.options, "the options of a method that is not here are not known"
        assert set(row.on) <= {condition.name for condition in table.conditions}
        assert set(row.config) <= names(Config)
        assert set(row.settings) <= names(Settings)


@ALL
def test_no_two_rows_are_the_same_experiment(table: Table) -> None:
    seen = {}
    for row in table.rows:
        if row.method in recipes():
            for condition in table.conditions:
                cell = table.cell(row, condition)
                key = (condition.name, cell.method, *map(repr, (cell.options, cell.hidings, cell.config)))
                assert key not in seen, (row.name, seen[key])
                seen[key] = row.name


@ALL
def test_rows_columns_and_measures_are_those_published(table: Table) -> None:
    metrics = {**METRICS, **GUESSES}
    assert all(measure.metric in metrics for measure in table.measures)
    assert all(metric in metrics for row in table.rows for metric in row.measured_as.values())
    rows = [row.name for row in table.rows]
    assert len(set(rows)) == len(rows)
    for row in table.rows:
        relative = any(measure.relative for measure in table.measures)
        assert row.relative_to is None or (relative and row.relative_to in rows)
        assert set(row.measured_as) <= {measure.name for measure in table.measures}
    if table.id == "S3-noise":  # a diagram
        assert table.id not in PUBLISHED
        return
    printed = PUBLISHED[table.id]
    others = {row for row, cells in printed.rows.items() if {c.condition for c in cells} == {"other networks"}}
    extra = {row.relative_to for row in table.rows} - {None}
    assert set(rows) == (set(printed.rows) - others) | extra
    columns = {column for row, cells in printed.rows.items() if row not in others for column in cells}
    assert {column.condition for column in columns} == {condition.name for condition in table.conditions}
    assert {column.measure for column in columns} == {measure.name for measure in table.measures}


def test_f1_is_the_harmonic_mean_where_the_print_is() -> None:
    """S3 quotes rows of other papers, whose F1-C is another measure than its own: what is printed shows which."""
    for id, condition in (("S3-table3", "NUS-WIDE"), ("S3-table4", "MS-COCO")):
        table = TABLES[id]
        for row in table.rows:
            numbers = [table.number(row.name, condition, measure) for measure in ("P-C", "R-C", "F1-C")]
            precision, recall, f1 = (number.value for number in numbers if number is not None)
            harmonic = abs(f1 - 2 * precision * recall / (precision + recall)) < 0.1
            if row.method is not None:
                assert (row.measured_as.get("F1-C", "macro_f1") == "CF1") == harmonic, row.name


def test_dropout_is_for_strategy_e_alone() -> None:
    for id, table in TABLES.items():
        if id.startswith("S2-"):
            for row in table.rows:
                wet = row.options.get("dropout", 0.5) > 0
                assert wet == (row.options["strategy"] == "e"), (id, row.name)


def test_a_note_about_a_data_set_stays_with_it() -> None:
    (condition,) = TABLES["S2-table4"].conditions
    assert condition.notes == ("trained on train2014, tested on val2014",)
    assert condition.on("coco2014").notes
    assert not condition.on("voc2012").notes
    for table in TABLES.values():
        assert not any("train2014" in note for note in table.notes)


def test_the_tables_that_were_asked_for() -> None:
    assert {"S5-table", "S4-table2", "S2-table2", "S2-table4", "S1-table1", "S3-noise"} <= set(TABLES)
    with pytest.raises(UserError, match="S2-table9"):
        recipe_for("S2-table9")


def test_cells_and_what_is_skipped() -> None:
    training = Training({"tune": "all", "size": 448}, {"epochs": 3})
    table = Table(
        "S0-table1",
        (Condition("a", "cub", training), Condition("b", "cub", training)),
        (),
        (
            Row("one", "bce", {"x": 1}, on={"b": {"x": 2, "y": 3}}, config={"tune": "head"}),
            Row("two", "not-here"),
            Row("three", None),
        ),
    )
    first, second = table.cells({"bce"})
    assert (first.options, second.options) == ({"x": 1}, {"x": 2, "y": 3})
    assert first.config == {"tune": "head", "size": 448}
    assert first.settings == {"epochs": 3}
    assert table.skipped({"bce"}) == [
        "two: the method 'not-here' is not here yet",
        "three: only the published figures are here",
    ]
    assert table.number("one", "a", "mAP") is None
    with pytest.raises(UserError, match="'three'"):
        table.cell(table.rows[2], table.conditions[0])


def test_the_hyper_parameters_of_zhou_2022() -> None:
    table = TABLES["S5-table"]
    row = next(row for row in table.rows if row.method == "em-apl")
    found = {}
    for condition in table.conditions:
        cell = table.cell(row, condition)
        found[condition.name] = (*cell.options.values(), cell.settings["batch_size"], cell.settings["lr"])
    assert found == {
        "VOC": (0.2, 0.02, 0.9, 5, 8, 1e-5),
        "COCO": (0.1, 0.9, 0.9, 5, 16, 1e-5),
        "NUS": (0.1, 0.2, 0.9, 4, 16, 1e-5),
        "CUB": (0.01, 0.4, 0.9, 3, 8, 1e-4),
    }
