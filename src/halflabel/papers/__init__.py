"""Published tables, and the recipes to run them again.

printed.py, papers/, published.py    the figures as printed
protocol.py, recipes/, tables.py     how each table is to be run, as plain data
measure.py                           the papers' measures
setup.py                             a declared cell as the library trains it, and how that differs from the paper
plan.py                              rows and conditions by name, and the runs that share data and settings
stage.py                             the data of such runs, and the bench they are trained on
given.py                             published lists of training labels
runner.py                            `reproduce`: the cells in turn, each kept when it is finished
words.py                             protocols in words
outcome.py                           published and measured figures side by side
"""

from __future__ import annotations

__all__: list[str] = []
