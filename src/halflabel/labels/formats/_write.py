"""Checks and small steps that several writers of label files share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.labels import UNLISTED_SOURCE, Labels
from halflabel.labels.table import UNCERTAIN, Table
from halflabel.system.files import atomic_write
from halflabel.system.format import counted


def check_names(rows: Labels) -> None:
    if "" in rows.images or "" in rows.classes:
        raise UserError("an image or a class has no name", "give every image and every class a name")


def check_provenance(rows: Labels, is_kept: NDArray[np.bool_], format: str) -> None:
    """Raise UserError if a label that holds has a source, score or inclusion weight that the format cannot hold."""
    has_source = np.array([name not in ("", UNLISTED_SOURCE) for name in rows.sources], bool)[rows.source]
    holding = rows.holding()
    lost = holding[((has_source | ~np.isnan(rows.score) | rows.is_answer()) & ~is_kept)[holding]]
    if not len(lost):
        return
    names = [rows.sources[number] for number in np.unique(rows.source[lost][has_source[lost]])]
    by_model = int(np.count_nonzero(rows.is_model_made()[lost]))
    message = f"{format} cannot hold the source, score and inclusion weight of {counted(len(lost), 'label')}"
    if names:
        message += f" ({', '.join(map(repr, names[:4]))}{', …' if len(names) > 4 else ''})"
    if by_model:
        message += f": the file would not state that a model made {by_model:,} of them"
    raise UserError(message, "write ‹to=long› or binary, which keep them, or add ‹without_sources› to lose them")


def drop_uncertain(rows: Labels, format: str, *, accepted: bool) -> Labels:
    """Remove uncertain labels, if the user accepted that; raise UserError for them otherwise."""
    if not (rows.value == UNCERTAIN).any():
        return rows
    rows = rows.drop_overridden()
    is_uncertain = rows.value == UNCERTAIN
    if is_uncertain.any() and not accepted:
        raise UserError(
            f"{format} cannot hold {counted(int(is_uncertain.sum()), 'uncertain label')}",
            "write ‹to=long› or wide, which keep them, or add ‹without_uncertain› to make them unknown",
        )
    return rows.select(~is_uncertain)


def keeps_no_provenance(rows: Labels) -> NDArray[np.bool_]:
    """For formats that hold neither sources nor scores."""
    return np.zeros(len(rows), bool)


def shortest_float(score: np.float32) -> float:
    """The float with the fewest digits that is the same float32: 0.7, not 0.699999988."""
    return float(str(score))


def split_by_image(rows: Labels, index: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row indices that are ordered by image, as one array per image; without any image, one empty array."""
    return np.split(index, np.searchsorted(rows.image[index], np.arange(1, len(rows.images))))


def table_lines(table: Table, words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each image with a word per class: those of absent, unknown, present and, if there are any, uncertain."""
    vocabulary = np.array(words)
    for first in range(0, len(table), 4096):
        block = np.arange(first, min(first + 4096, len(table)))
        labels = table.rows(block)
        if table.uncertain is not None:
            labels[table.uncertain[block].nonzero()] = UNCERTAIN
        for position, cells in zip(block, vocabulary[labels + 1].tolist(), strict=True):
            yield table.images[int(position)], cells


def write_compact_json(path: Path, content: Any) -> None:
    """Write JSON in one line, completely or not at all; characters are not escaped."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
