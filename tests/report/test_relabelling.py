"""The picture of relabelling: which lines of a log it takes, and that it is written."""

from __future__ import annotations

import math
import struct

import pytest
from matplotlib.axes import Axes

from halflabel.report.relabelling import draw_relabelling, relabellings

PLAIN = [{"epoch": epoch, "loss": 1 / epoch} for epoch in range(1, 7)]


def labelled(**more):
    log = [dict(line) for line in PLAIN]
    log[2] |= {"label_proportion": 0.6, "weak_positives": 4.0}
    log[4] |= {"label_proportion": 0.8, "weak_positives": 6.0}
    for name, (first, second) in more.items():
        log[2][name], log[4][name] = first, second
    return log


@pytest.fixture
def drawn(monkeypatch):
    """Every curve plotted: label -> (epochs, values)."""
    found = {}
    plot = Axes.plot

    def watch(self, x, y, *style, **more):
        found[more["label"]] = (list(x), list(y))
        return plot(self, x, y, *style, **more)

    monkeypatch.setattr(Axes, "plot", watch)
    return found


def is_picture(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width > 200 and height > 200


def test_without_relabelling_nothing_is_drawn(tmp_path):
    assert relabellings(PLAIN) == []
    assert not draw_relabelling(PLAIN, tmp_path / "relabelling.png")
    assert not draw_relabelling([], tmp_path / "relabelling.png")
    assert list(tmp_path.iterdir()) == []


def test_the_lines_after_which_labels_were_added():
    assert [line["epoch"] for line in relabellings(labelled())] == [3, 5]


def test_draws_what_the_log_says(tmp_path, drawn):
    path = tmp_path / "relabelling.png"
    assert draw_relabelling(labelled(tp_rate=(0.7, 0.5), tn_rate=(0.99, 0.98), accuracy=(0.9, 0.8)), path)
    assert is_picture(path)
    assert drawn["labelled, of all entries"] == ([3, 5], [0.6, 0.8])
    assert drawn["true positive rate of new labels"] == ([3, 5], [0.7, 0.5])
    assert drawn["true negative rate of new labels"] == ([3, 5], [0.99, 0.98])
    assert drawn["accuracy of new labels"] == ([3, 5], [0.9, 0.8])


def test_rates_that_are_not_known_leave_a_gap_or_are_left_out(tmp_path, drawn):
    """As for positives alone, where no true negative is ever labelled; null is how JSON writes NaN."""
    log = labelled(tp_rate=(math.nan, 0.5), tn_rate=(None, math.nan))
    assert draw_relabelling(log, tmp_path / "relabelling.png")
    _, values = drawn["true positive rate of new labels"]
    assert math.isnan(values[0])
    assert values[1] == 0.5
    assert set(drawn) == {"labelled, of all entries", "true positive rate of new labels"}
