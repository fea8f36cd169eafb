"""Where training has another length than a table's, all that is counted in epochs has too."""

from __future__ import annotations

from typing import Any

import pytest

from halflabel.methods.base import recipe, recipes
from halflabel.papers.settings import CellSetup, Overrides, scale_options, scale_settings, set_up_cell
from halflabel.papers.tables import TABLES
from halflabel.training.config import Settings
from halflabel.training.optimizer import learning_rate_factor

MOVED = {"apl_from", "apl_to", "cr_from", "every", "prior_epochs", "span", "start", "start_epoch", "warm"}
NO_EPOCHS = {
    *("bank", "beam", "blends", "block", "dictionary", "dimensions", "ensemble", "hidden", "k", "k_a", "length"),
    *("levels", "passes", "prototypes", "rank", "steps", "theta_seed", "topk", "vector_size", "width"),
}


def made(id: str, row: str, **overrides: Any) -> CellSetup:
    table = TABLES[id]
    (found,) = [one for one in table.rows if row in (one.name, one.method)]
    return set_up_cell(table.cell(found, table.conditions[0]), Overrides(**overrides))


def test_the_rate_is_lowered_at_the_same_share_of_training() -> None:
    row = "partial-BCE + GNN + relabeling"
    for epochs, step, relabel in ((8, 4, "4,6"), (20, 10, "10,15"), (40, 20, "20,30")):
        found = made("S2-table4", row, epochs=epochs)
        settings = found.config.settings
        assert (settings.epochs, settings.step_epochs, found.options["relabel_at"]) == (epochs, step, relabel)
        assert [learning_rate_factor(share * epochs, settings) for share in (0.45, 0.55)] == [1.0, 0.1]
        assert any(line.startswith(f"step epochs {step} instead of 10") for line in found.differs) == (epochs != 20)
    one = made("S2-table4", row, epochs=1)
    assert one.config.settings.step_epochs == 1
    # On a frozen backbone the schedule is the library's, which has no steps.
    frozen = made("S2-table4", row, epochs=8, tune="head")
    assert frozen.config.settings.schedule == Settings.schedule
    assert not any("step epochs" in line for line in frozen.differs)


def test_options_follow_both_ways_where_the_table_says_its_epochs() -> None:
    assert made("S4-table1", "csl", epochs=2).options == {"prior_epochs": 1}
    assert made("S4-table1", "csl", epochs=20).options == {}
    assert made("S4-table1", "csl", epochs=40).options == {"prior_epochs": 4}
    assert made("S4-table1", "splc", epochs=8).options == {}
    assert made("S4-table1", "splc", epochs=60).options == {"start_epoch": 6}
    found = made("S4-table1", "hst", epochs=8)
    assert (found.options["warm"], found.options["every"]) == (2, 2)
    assert found.options["theta_fall"] == pytest.approx(0.025 * 20 / 8)
    assert any("every 2 instead of 5" in line for line in found.row_differs)
    assert any("theta_fall 0.0625 instead of 0.025" in line for line in found.row_differs)
    assert "cr_from" not in made("S4-table1", "srcr", epochs=60).options  # from the beginning is from the beginning
    assert made("S5-table", "em-apl", epochs=4).options["apl_from"] == 2


def test_epochs_that_are_no_share_of_any_length() -> None:
    """S3 does not say how long it trains: labels are passed on every 20 epochs, whatever their number."""
    assert made("S3-table1", "ss-rml", epochs=2).options == {"start": 0}
    assert made("S3-table1", "ss-rml", epochs=40).options == {"start": 0}
    own = {"start": 5, "every": 20}
    assert scale_options({}, own, 10, 2, declared=False) == {"start": 1}
    assert scale_options({}, own, 10, 40, declared=False) == {}
    assert scale_options({"start": -1}, own, 10, 2) == {"start": -1, "every": 4}


def test_patience_and_linear_init_follow_too() -> None:
    longer, shorter = (made("S5-table", "role-li", epochs=epochs) for epochs in (30, 2))
    assert (longer.config.settings.patience, longer.config.linear_init) == (3, 75)
    assert (shorter.config.settings.patience, shorter.config.linear_init) == (1, 5)
    assert "linear init 5 instead of 25" in shorter.differs
    assert scale_settings({"warmup": 1.0}, 10, 5) == {"warmup": 0.5}
    assert scale_settings({"patience": 1, "step_epochs": 3}, 10, 10) == {"patience": 1, "step_epochs": 3}


def test_every_whole_number_of_a_method_is_known_to_be_epochs_or_not() -> None:
    used = {row.method for table in TABLES.values() for row in table.rows if row.method in recipes()}
    found = {
        name
        for method in used
        for name, option in recipe(method).options.items()
        if isinstance(option.default, int) and not isinstance(option.default, bool)
    }
    assert found - NO_EPOCHS <= MOVED
    assert scale_options({}, dict.fromkeys(MOVED, 4), 10, 20) == dict.fromkeys(MOVED, 8)
