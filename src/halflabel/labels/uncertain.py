"""Uncertain labels in training: ignored, present, absent, or soft targets, for all classes or class by class.

`--uncertain` states it. An uncertain entry is unknown everywhere else: nothing is evaluated or calibrated by it.
Irvin 2019 (CheXpert) calls the readings U-Ignore, U-Ones and U-Zeros; Pham 2021 draws soft targets from an interval.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.system.rng import hash_names, uniform

SOFT = (0.55, 0.85)  # the interval of Pham 2021
IGNORED = (math.nan, math.nan)
_READING = re.compile(r"(?:(.*)=)?(ignore|present|absent|soft(?:=(\d*\.?\d+)-(\d*\.?\d+))?)", re.DOTALL)
_WORDS = {"ignore": IGNORED, "present": (1.0, 1.0), "absent": (0.0, 0.0), "soft": SOFT}


def parse_uncertain(text: str) -> dict[str, tuple[float, float]]:
    """Parse the option: the interval of the targets of each class that it names; "*" stands for all others.

    >>> parse_uncertain("Edema=present,*=soft=0.6-0.8")
    {'Edema': (1.0, 1.0), '*': (0.6, 0.8)}
    """
    readings: dict[str, tuple[float, float]] = {}
    for part in re.split("[,;]", text):
        match = _READING.fullmatch(part.strip())
        if match is None or (match[3] and not float(match[3]) <= float(match[4]) <= 1):
            raise UserError(
                f"‹uncertain={part.strip()}› cannot be read",
                'write ignore, present, absent, soft or soft=0.55-0.85; or per class: "Edema=present,*=ignore"',
            )
        interval = (float(match[3]), float(match[4])) if match[3] else _WORDS[match[2]]
        readings[(match[1] or "*").strip()] = interval
    return readings


def describe_reading(text: str) -> str:
    """Return what training does with uncertain labels, for a message."""
    return {"ignore": "not trained on", "soft": "trained on as soft targets"}.get(text, f"trained on as {text}")


def decide_uncertain(table: Table, text: str) -> Table:
    """Return the labels to train on: uncertain entries as the option `text` states; known ones as they are.

    The soft target of an entry depends on the names of its image and class alone.
    """
    readings = parse_uncertain(text)
    if missing := [name for name in readings if name != "*" and name not in table.classes]:
        raise UserError(f"‹uncertain› names no class {missing[0]!r}", f"the classes: {', '.join(table.classes)}")
    if table.uncertain is None:
        return table
    low, high = np.array([readings.get(name, readings.get("*", IGNORED)) for name in table.classes]).T
    row, column = table.uncertain.nonzero()
    share = uniform(0, hash_names(table.images.array)[row], hash_names(table.classes.array)[column])
    target = low[column] + share * (high - low)[column]
    is_hard = (target == 0) | (target == 1)
    image, known, value = table.entries()
    decided = Table.from_entries(
        table.images,
        table.classes,
        np.concatenate([image, row[is_hard]]),
        np.concatenate([known, column[is_hard]]),
        np.concatenate([value, np.where(target[is_hard] == 1, 1, -1).astype(np.int8)]),
    )
    if is_hard.all():
        return decided
    soft = np.nan_to_num(target, nan=-1).astype(np.float32)[~is_hard]
    return replace(decided, uncertain=csr_array((soft, (row[~is_hard], column[~is_hard])), shape=table.shape))
