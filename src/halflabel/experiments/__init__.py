"""Many methods × seeds × ways of hiding labels on one data set, judged alike: who does how well, and at what cost.

grid.py    what is compared: candidates, label masks, tasks, and the order they are run in
bench.py   the data, divided once, and one task trained on it
start.py   a model that is trained once, and whose weights all tasks begin with
store.py   the folder with what is finished; the only file that knows its paths
loop.py    `compare`: tasks in turn, within the budget, skipping what is done
result.py  intervals, paired differences, the table
"""

from __future__ import annotations

from halflabel.experiments.compare import compare
from halflabel.experiments.grid import Candidate, Grid, LabelMask, Task
from halflabel.experiments.result import Comparison, Row

__all__ = ["Candidate", "Comparison", "Grid", "LabelMask", "Row", "Task", "compare"]
