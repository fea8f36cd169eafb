"""Photos and class names without a label: what `train --classes` and `review --classes` start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.fitting.auto import Choice, choose
from halflabel.fitting.config import Config
from halflabel.images.decode import list_images
from halflabel.images.stored_features import holds_features, stored_names
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.table import Table

FROM_NOTHING = "wan"  # the method that learns from the first answers
_UNKNOWN_WEIGHT = 0.4  # of all unknown labels together, where known ones have 1
_MANY_ANSWERS = 0.1  # share of the labels


def read_class_names(text: str) -> list[str]:
    """Read class names from a text file, one per line, or from a list separated by commas."""
    path = Path(text)
    is_file = path.is_file()
    names = path.read_text(encoding="utf-8", errors="replace").splitlines() if is_file else text.split(",")
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError(f"{text!r} names no class", "give names such as cat,dog,bird, or a file with one per line")
    if (twice := first_duplicate(names)) is not None:
        raise UserError(f"the class {twice!r} is named twice", "name each class once")
    return names


def learn_from_answers(config: Config, table: Table) -> Config:
    """Return the configuration of a run that started from nothing, for the labels that a table knows by now.

    Few answers alone would call everything present that was asked about: unknown labels count as absent, with 0.4 of
    the weight of the answers together. From a share of known labels on, the rules of `auto` choose.
    """
    if not config.from_nothing or not table.known:
        return config
    share = table.known / (table.shape[0] * table.shape[1])
    choice = Choice(FROM_NOTHING, options={"weight": max(_UNKNOWN_WEIGHT * share, 1e-6)})
    if share >= _MANY_ANSWERS:
        choice = choose(table.stats)
    named: Any = {"method": choice.method, "options": choice.options, "averaged_with": ""}
    return replace(config, **named, candidates=", ".join(map(str, choice.candidates)))


def without_labels(images: Path, classes: Sequence[str]) -> Labels:
    """Return the photos, or stored features, of a folder and these classes, and no label."""
    names = stored_names(images).array if holds_features(images) else list_images(images)[0]
    if not len(names):
        raise UserError(f"{images} has no images", "name the folder with the photos")
    return Labels.build(Names(names), Names(classes), *np.zeros((3, 0), np.int8))
