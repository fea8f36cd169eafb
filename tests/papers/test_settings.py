"""Training settings of table cells: settings and options that count epochs are scaled with the training length."""

from __future__ import annotations

from typing import Any

import pytest

from halflabel.fitting.config import Config
from halflabel.fitting.optimizer import learning_rate_factor
from halflabel.methods.base import recipe, recipes
from halflabel.papers.settings import CellSetup, Overrides, scale_options, scale_settings, set_up_cell
from halflabel.papers.spec import PaperTable
from halflabel.papers.tables import TABLES

NO_EPOCHS = {
    "node_size",
    *("bank", "beam", "blends", "block", "dictionary", "dimensions", "ensemble", "hidden", "k", "k_a", "length"),
    *("levels", "passes", "prototypes", "rank", "steps", "theta_seed", "topk", "vector_size", "width"),
}


def setup_of(id: str, row: str, **overrides: Any) -> CellSetup:
    table = TABLES[id]
    (match,) = [candidate for candidate in table.rows if row in (candidate.name, candidate.method)]
    return set_up_cell(table.cell(match, table.conditions[0]), Overrides(**overrides))


def test_the_learning_rate_drops_at_the_same_share_of_training() -> None:
    row = "partial-BCE + GNN + relabeling"
    for epochs, step, relabel in ((8, 4, "4,6"), (20, 10, "10,15"), (40, 20, "20,30")):
        setup = setup_of("S2-table4", row, epochs=epochs)
        settings = setup.config
        assert (settings.epochs, settings.step_epochs, setup.options["relabel_at"]) == (epochs, step, relabel)
        assert [learning_rate_factor(share * epochs, settings) for share in (0.45, 0.55)] == [1.0, 0.1]
        assert any(line.startswith(f"step epochs {step} instead of 10") for line in setup.differs) == (epochs != 20)
    single_epoch = setup_of("S2-table4", row, epochs=1)
    assert single_epoch.config.step_epochs == 1
    # On a frozen backbone the schedule is the library's, which has no steps.
    frozen = setup_of("S2-table4", row, epochs=8, tune="head")
    assert frozen.config.schedule == Config.schedule
    assert not any("step epochs" in line for line in frozen.differs)


def test_a_sweep_of_learning_rates_keeps_them_on_a_frozen_backbone() -> None:
    for row, lr in (("BCE, lr 0.001", 0.001), ("BCE, lr 0.1", 0.1)):
        assert setup_of("S2-figure10", row, tune="head").lr == lr
    assert setup_of("S2-figure10", "BCE, lr 0.1", tune="head", lr=0.5).lr == 0.5


def test_options_scale_with_the_stated_number_of_epochs() -> None:
    assert setup_of("S4-table1", "csl", epochs=2).options == {"prior_epochs": 1}
    assert setup_of("S4-table1", "csl", epochs=20).options == {}
    assert setup_of("S4-table1", "csl", epochs=40).options == {"prior_epochs": 4}
    assert setup_of("S4-table1", "splc", epochs=8).options == {}
    assert setup_of("S4-table1", "splc", epochs=60).options == {"start_epoch": 6}
    setup = setup_of("S4-table1", "hst", epochs=8)
    assert (setup.options["warm"], setup.options["every"]) == (2, 2)
    assert "theta_fall" not in setup.options  # thresholds are learned
    assert any("every 2 instead of 5" in line for line in setup.row_differs)
    assert "cr_from" not in setup_of("S4-table1", "srcr", epochs=60).options  # from the beginning is from the beginning
    assert setup_of("S5-table", "em-apl", epochs=4).options["apl_from"] == 2


def test_options_of_tables_without_stated_epochs() -> None:
    """S3 does not state its training length: 40 epochs, so that labels are propagated again; shorter runs scale it."""
    assert setup_of("S3-table1", "ss-rml", epochs=2).options == {"start": 0, "every": 1}
    assert setup_of("S3-table1", "ss-rml", epochs=40).options == {"start": 0}
    assert scale_options("sst", {}, 10, 2, declared=False) == {"warm": 1}
    assert scale_options("sst", {}, 10, 40, declared=False) == {}
    assert scale_options("ss-rml", {"start": -1}, 10, 2) == {"start": -1, "every": 4}


def test_patience_and_linear_init_are_scaled() -> None:
    longer, shorter = (setup_of("S5-table", "role-li", epochs=epochs) for epochs in (30, 2))
    assert (longer.config.patience, longer.config.linear_init) == (3, 75)
    assert (shorter.config.patience, shorter.config.linear_init) == (1, 5)
    assert "linear init 5 instead of 25" in shorter.differs
    assert scale_settings({"warmup": 1.0}, 10, 5) == {"warmup": 0.5}
    assert scale_settings({"patience": 1, "step_epochs": 3}, 10, 10) == {"patience": 1, "step_epochs": 3}


def test_every_integer_option_is_classified_as_epochs_or_not() -> None:
    used = {row.method for table in TABLES.values() for row in table.rows if row.method in recipes()}
    for method in map(recipe, used):
        integers = {
            name
            for name, option in method.options.items()
            if isinstance(option.default, int) and not isinstance(option.default, bool)
        }
        assert integers - NO_EPOCHS <= set(method.counting_epochs())


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_cell_can_be_set_up_as_declared(table: PaperTable) -> None:
    pairs = [(row, each) for row in table.rows if row.method for each in table.conditions if row.applies_to(each)]
    for row, condition in pairs:
        cell = table.cell(row, condition)
        setup = set_up_cell(cell, Overrides())
        assert setup.differs == cell.condition.training.differs
        assert setup.weight_decay == cell.config.get("weight_decay", setup.weight_decay)
        assert setup.options == cell.options
        assert setup.lr == cell.config["lr"]
        for name, value in cell.config.items():
            if name not in ("lr", "weight_decay"):
                assert getattr(setup.config, name) == value
        assert setup.config.tune == cell.config["tune"]
        assert setup.pretrained == (cell.condition.training.backbone_weights == "pretrained")


def test_cached_strong_views_are_reported() -> None:
    table = TABLES["S4-table2"]
    messages = {
        row.name: set_up_cell(table.cell(row, table.conditions[0]), Overrides(tune="head")).row_differs
        for row in table.rows
    }
    for name, lines in messages.items():
        assert any("4 strong views per image" in line for line in lines) == ("CR" in name)
