"""Fill: complete a label table with labels that a trained model is sure of, marked as model-made; and undo that.

run.py            `fill_run`: from a run and its labels to filled rows; `write_filled`: to a file
plan.py           `plan_fill`: which unknown entries to fill, block by block
thresholds.py     thresholds per class that reach the precision
sampling_bias.py  warnings where known labels are not a random sample
undo.py           `undo`: remove filled rows from a file
"""

from __future__ import annotations

from halflabel.fill.run import fill_run, write_filled
from halflabel.fill.undo import undo

__all__ = ["fill_run", "undo", "write_filled"]
