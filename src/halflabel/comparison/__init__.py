"""Trials: several methods × seeds × sets of labels on one data set, evaluated alike.

compare.py         `compare`: which method is best for these labels; and what every kind of trials runs
study.py           `study` and `grow`: how to spend labels, and whether more labels pay, by a power law
conclusions.py     sentences that the intervals support, and how the numbers were obtained
grid.py            candidates, label masks, tasks, and the order in which they are run
sources.py         training and test images, and their features, opened once; model-made labels are left out
bench.py           trains one task, as `train` would, or from a start that all share; and all within a time budget
store.py           the folder with the finished tasks; what was edited is trained again
result.py          intervals, paired differences and the table
"""
