"""Published tables of five papers, run again and compared with the printed numbers, and the papers' figures.

spec.py          data classes of tables, rows, conditions and printed numbers
tables/          per paper, a module with the protocol of each table and a file with the printed numbers
measure.py       the papers' measures
settings.py      from a table cell to training settings, with the deviations from the paper
plan.py          selection by name, and groups of runs that share data and settings
describe.py      protocols in words
result.py        published and reproduced numbers side by side
run.py           `reproduce`
figures.py       the papers' figures, drawn from a run
"""
