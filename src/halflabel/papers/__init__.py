"""Published tables of five papers, run again and compared with the printed numbers, and the papers' figures.

spec.py          data classes of tables, rows, conditions and printed numbers
tables/          per paper, a file with the printed numbers and the protocols of its tables and figures
measure.py       the papers' measures
settings.py      from a table cell to training settings, with the deviations from the paper
result.py        published and reproduced numbers side by side, and protocols in words
run.py           `reproduce`: groups of runs that share data and settings
figures.py       the papers' figures, drawn from a run
"""
