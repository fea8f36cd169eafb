"""Metrics, optimizers, schedules and label formats in one file of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.evaluation import registry as metric_registry
from halflabel.evaluation.evaluate import measure
from halflabel.evaluation.registry import check_own_metrics, metric
from halflabel.fitting import optimizer as training_registry
from halflabel.fitting.config import Config
from halflabel.fitting.optimizer import learning_rate_factor, make_optimizer
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.model_card import model_card
from halflabel.system import plugins

PLUGIN = """
import sys
import torch
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats import add_format
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.evaluation.registry import metric
from halflabel.fitting.optimizer import optimizer, schedule

@metric("Hamming loss", note="share of wrong decisions; 0 is best")
def hamming_loss(scores, labels, thresholds):
    wrong = (scores >= thresholds) != (labels > 0)
    return float(wrong[labels != 0].float().mean())

@optimizer
def nadam(groups, settings):
    return torch.optim.NAdam(groups, weight_decay=settings.weight_decay)

@schedule
def linear(progress, settings):
    return max(1 - progress / settings.epochs, 0.0)

USES = ()

def sniff(path):
    return path.suffix == ".mine"

def read(path, policy):
    lines = path.read_text().split()
    table = Table.from_dense([[1]] * len(lines), images=lines, classes=["seen"])
    audit = Audit("mine", [str(path)])
    audit.add("name", "present", len(lines))
    return LabelImport(Labels.from_table(table), audit)

def write(rows, path):
    path.write_text("\\n".join(rows.training.images))

add_format("mine", "one image name per line, all with the class seen", sys.modules[__name__])
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(PLUGIN)
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "mine.py"))
    for table in ("_TABLE",):
        monkeypatch.setattr(metric_registry, table, dict(getattr(metric_registry, table)))
    for name in ("OPTIMIZERS", "SCHEDULES"):
        table_before = dict(getattr(training_registry, name))
        for module in ("config", "optimizer"):
            monkeypatch.setattr(f"halflabel.fitting.{module}.{name}", table_before)
    monkeypatch.setattr(formats, "_PLUGIN_FORMATS", {})
    plugins.load.cache_clear()
    yield
    plugins.load.cache_clear()


def test_a_metric_is_computed_and_shown_everywhere() -> None:
    labels = torch.tensor([[1, -1], [1, 0], [-1, 1], [-1, -1]], dtype=torch.int8)
    logits = torch.tensor([[2.0, 2.0], [2.0, -9.0], [-2.0, 1.0], [-2.0, -1.0]])
    evaluation = measure(logits, labels, Names(["a", "b"]))
    assert evaluation.overall["hamming_loss"] == pytest.approx(1 / 7)
    assert ("Hamming loss", "0.143", "share of wrong decisions; 0 is best") in [line[:3] for line in evaluation.lines()]
    config = {"backbone": "b", "method": "bce", "size": 8, "tune": "head"}
    card = model_card(config, "bce: cross-entropy", evaluation, Table.from_dense(labels.numpy()), "held-out")
    assert "| Hamming loss | 0.143 |" in card


def test_a_metric_that_fails_or_has_a_used_name_is_refused() -> None:
    def wrong(scores: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> float:
        raise ZeroDivisionError("no images")

    def micro_f1(scores: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor) -> float:
        return 0.0

    metric("Wrong")(wrong)
    with pytest.raises(UserError, match="the metric wrong fails: ZeroDivisionError: no images"):
        measure(torch.zeros(2, 1), torch.tensor([[1], [-1]]), Names(["a"]))
    with pytest.raises(UserError, match="the metric wrong fails"):  # before anything is trained
        check_own_metrics()
    with pytest.raises(ValueError, match="two metrics are called 'micro_f1'"):
        metric("F1")(micro_f1)


def test_optimizers_and_schedules_are_options() -> None:
    settings = Config(optimizer="nadam", schedule="linear", epochs=4)
    weights = [torch.nn.Parameter(torch.zeros(2))]
    assert isinstance(make_optimizer([{"params": weights, "lr": 0.1}], settings), torch.optim.NAdam)
    assert [learning_rate_factor(progress, settings) for progress in (0, 1, 4)] == [1.0, 0.75, 0.0]
    with pytest.raises(UserError, match=r"optimizer cannot be 'adan'.*nadam"):
        Config(optimizer="adan").check_names()
    with pytest.raises(UserError, match="schedule cannot be 'cosin'"):
        Config(schedule="cosin").check_names()


def test_a_label_format_is_detected_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "list.mine").write_text("b.jpg\na.jpg\n")
    table = formats.read(tmp_path / "list.mine").rows.training
    assert list(table.images) == ["b.jpg", "a.jpg"]
    assert np.array_equal(table.dense(), [[1], [1]])
    formats.write(table, tmp_path / "again.mine", format="mine")
    assert (tmp_path / "again.mine").read_text() == "b.jpg\na.jpg"
    with pytest.raises(UserError, match=r"no label format is called 'other'.*mine, binary"):
        formats.read(tmp_path / "list.mine", format="other")
    with pytest.raises(ValueError, match="'half' has no USES"):
        formats.add_format("half", "", os)


@pytest.mark.parametrize(
    ("part", "body", "error"),
    [
        ("sniff", 'path.suffix == ".mine" and {}["x"]', "KeyError: 'x'"),
        ("read", '1 / int("0")', "ZeroDivisionError: division by zero"),
        ("read", "42", "TypeError: returns a int, not a LabelImport"),
        ("write", 'open("no/such/folder")', "FileNotFoundError"),
    ],
)
def test_a_label_format_that_fails_is_named(tmp_path: Path, part: str, body: str, error: str) -> None:
    parameters = {"sniff": "path", "read": "path, policy", "write": "rows, path"}[part]
    plugin = PLUGIN.replace('add_format("mine"', f'def {part}({parameters}):\n    return {body}\n\nadd_format("mine"')
    (tmp_path / "mine.py").write_text(plugin)
    (tmp_path / "list.mine").write_text("b.jpg\na.jpg\n")
    with pytest.raises(UserError) as refused:
        formats.write(formats.read(tmp_path / "list.mine").rows, tmp_path / "again.mine", format="mine")
    place = "" if body == "42" else f", line {plugin.splitlines().index(f'    return {body}') + 1}"
    assert f"{tmp_path / 'mine.py'}{place}: {part}() of the label format 'mine': {error}" in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.slow
def test_the_command_line_finds_the_file(tmp_path: Path) -> None:
    (tmp_path / "list.mine").write_text("b.jpg\na.jpg\n")
    words = [sys.executable, "-m", "halflabel", "inspect", str(tmp_path / "list.mine")]
    process = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert "2 images" in process.stdout, process.stderr
