"""Fill: complete a label table with labels that a trained model is sure of, marked as model-made; and undo that.

run.py         `fill`: from a run and its labels to filled rows; `write_filled`: to a file
plan.py        `plan_fill`: which unknown entries to fill, block by block
thresholds.py  thresholds per class that reach the precision; warnings where known labels are not a random sample
control.py     positives only: fills that rest on control answers, or on an assumption
undo.py        `undo`: remove filled rows from a file
"""
