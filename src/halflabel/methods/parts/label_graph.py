"""Sparse label graphs: which labels are inferred from which, from a label table or a CSV file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import detect_delimiter, existing_path, first_line, read_records
from halflabel.labels.names import Names, class_number
from halflabel.labels.table import Table, count_together


class Edges(NamedTuple):
    """Label rows[e] is inferred from label cols[e] with weight weights[e]; sorted by row, then by rank."""

    rows: NDArray[np.int64]  # (E,)
    cols: NDArray[np.int64]  # (E,)
    weights: NDArray[np.float64]  # (E,) ≥ 0

    def with_loops(self, classes: int, weight: float = 1.0) -> Edges:
        """Add an edge from every label to itself, first in its row; existing loops keep their weight."""
        loops = np.setdiff1d(np.arange(classes), self.rows[self.rows == self.cols])
        rows, cols = np.concatenate([loops, self.rows]), np.concatenate([loops, self.cols])
        return _by_row(rows, cols, np.concatenate([np.full(len(loops), weight), self.weights]))

    def without_loops(self) -> Edges:
        """Remove the edges from a label to itself."""
        no_loop = self.rows != self.cols
        return Edges(self.rows[no_loop], self.cols[no_loop], self.weights[no_loop])

    def normalised(self) -> Edges:
        """Divide the weights by the sum of their row; rows of zeros stay zero."""
        total = np.bincount(self.rows, self.weights, int(self.rows.max(initial=-1)) + 1)[self.rows]
        return self._replace(weights=np.divide(self.weights, total, out=np.zeros_like(self.weights), where=total > 0))

    def transposed(self) -> Edges:
        """Reverse the direction of every edge."""
        return _by_row(self.cols, self.rows, self.weights)

    def at_least(self, tau: float) -> Edges:
        """Keep the edges of weight τ or more, each with weight 1. Chen 2019 (ML-GCN), eq. 7."""
        heavy = self.weights >= tau
        return Edges(self.rows[heavy], self.cols[heavy], np.ones(int(heavy.sum())))

    def reweighted(self, classes: int, p: float) -> Edges:
        """Give every label weight 1 − p for itself and p for the others together, in proportion to their weights.

        Chen 2019 (ML-GCN), eq. 8: with p near 1 the label's own features are lost among those of its neighbours, with p
        near 0 the neighbours have no effect. A label without neighbours has 1 − p only.
        """
        others = self.without_loops().normalised()
        return others._replace(weights=p * others.weights).with_loops(classes, 1 - p)

    def dense(self, classes: int) -> NDArray[np.float64]:
        """Return the C × C matrix of the weights, 8·C² bytes; label j is inferred from the labels of row j."""
        matrix = np.zeros((classes, classes))
        matrix[self.rows, self.cols] = self.weights
        return matrix


def identity(classes: int) -> Edges:
    """Return the graph in which every label is inferred only from itself, with weight 1."""
    labels = np.arange(classes)
    return Edges(labels, labels, np.ones(classes))


def read_edges(source: str, table: Table, k: int | None = None) -> Edges:
    """Return the label graph of a `--graph` option: "cooccurrence" (at most k edges each), "identity" or a file."""
    if source == "identity":
        return identity(len(table.classes))
    if source == "cooccurrence":
        return from_cooccurrence(table, k)
    if not Path(source).exists():
        raise UserError(
            f"there is no label graph {source!r}",
            "use ‹graph=cooccurrence› or identity, or name a CSV file of rows class,class,weight",
        )
    return from_file(source, table.classes)


def from_cooccurrence(table: Table, k: int | None = None, *, prior: float = 1.0) -> Edges:
    """Connect each label to the k others (None = all) most often present with it, in images where both are known.

        rank of j' for row j:  #(j and j' present) / (#(j present, j' known) + prior), then the count, then the number
        weight of (j, j'):     #(j and j' present) / (#(j' present, j known) + prior), that is P(j | j')

    `prior` keeps pairs seen once or twice from outranking frequent ones; with 0, weights are the plain P(j | j'). If no
    label is known to be absent, all P are near 1 and the count decides the rank.
    """
    together, seen = count_together(table)
    together = together.tocoo()
    apart = together.row != together.col
    row, col, count = (part[apart].astype(np.int64) for part in (together.row, together.col, together.data))
    if not len(row):  # SciPy would return a sparse array
        return Edges(row, col, np.zeros(0))
    rate, weight = count / (seen[row, col] + prior), count / (seen[col, row] + prior)
    order = np.lexsort((col, -count, -rate, row))
    place = np.arange(len(order)) - np.searchsorted(row[order], row[order])
    top = order if k is None else order[place < k]
    return Edges(row[top], col[top], weight[top])


def from_file(path: str | Path, classes: Names) -> Edges:
    """Read edges from CSV rows `class,class,weight`: the first class is inferred from the second; no weight means 1.

    A first line without a class name is a header. The delimiter may be a comma, a semicolon, a tab or a bar.
    """
    path = existing_path(path)
    read: dict[tuple[int, int], tuple[int, float]] = {}  # (row, col) -> line, weight
    number = {name: position for position, name in enumerate(classes)}
    for line, fields in _rows(path, number):
        pair = (class_number(fields[0], number, path, line), class_number(fields[1], number, path, line))
        if pair in read:
            message = f"the edge from {fields[1]!r} to {fields[0]!r} is already on line {read[pair][0]}"
            raise LabelError(message, "remove one of the two lines", path, line=line)
        read[pair] = (line, _weight(fields, path, line))
    if not read:
        raise LabelError("the file contains no edge", "add rows such as dog,cat,0.5", path)
    ends = np.array(list(read), np.int64).reshape(-1, 2)
    return _by_row(ends[:, 0], ends[:, 1], np.array([weight for _, weight in read.values()]))


class LabelGraph(nn.Module):
    """A, a sparse C × C matrix with learned weights on given edges: (A y)_j = Σ_j' a_j'j y_j'.

    With C = 5,000 and 51 edges per label it takes 4 MB; a dense matrix would take 100 MB.
    """

    rows: Tensor  # (E,) int32, ascending
    cols: Tensor  # (E,) int32
    first: Tensor  # (C,) int32, the first edge of each row
    weights: nn.Parameter  # (E,)

    def __init__(self, edges: Edges, classes: int, *, learned: bool = True) -> None:
        super().__init__()
        rows, cols, weights = _by_row(*edges)
        first = np.searchsorted(rows, np.arange(classes))
        for name, numbers in (("rows", rows), ("cols", cols), ("first", first)):
            self.register_buffer(name, torch.from_numpy(numbers.astype(np.int32)))
        self.weights = nn.Parameter(torch.from_numpy(weights).float(), requires_grad=learned)

    def forward(self, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return A y: (B, C) -> (B, C), with gradients for labels and weights; `weights` (E,) replace those of A."""
        weights = (self.weights if weights is None else weights).to(labels.dtype)
        if not len(self.cols) or not len(labels):
            return torch.zeros_like(labels)
        columns = labels.T.contiguous()
        return embedding_bag(self.cols, columns, self.first, mode="sum", per_sample_weights=weights).T

    def clip(self) -> None:
        """Clip the weights at 0; an optimizer step may have made them negative."""
        # On .data: a loss that is still to be differentiated used clipped weights too, so autograd need not know.
        self.weights.data.clamp_(min=0)

    def edges(self) -> Edges:
        """Return the edges with their present weights, clipped at 0."""
        rows, cols = (numbers.cpu().numpy().astype(np.int64) for numbers in (self.rows, self.cols))
        return Edges(rows, cols, self.weights.detach().cpu().numpy().astype(np.float64).clip(0))


def _by_row(rows: NDArray[np.int64], cols: NDArray[np.int64], weights: NDArray[np.float64]) -> Edges:
    order = np.argsort(rows, kind="stable")
    return Edges(rows[order], cols[order], weights[order])


def _rows(path: Path, classes: dict[str, int]) -> Iterator[tuple[int, list[str]]]:
    for place, (line, record) in enumerate(read_records(path, detect_delimiter(first_line(path)))):
        fields = [field.strip() for field in record]
        if len(fields) not in (2, 3):
            raise LabelError(f"{len(fields)} fields", "write class,class,weight or class,class", path, line=line)
        if place or fields[0] in classes or fields[1] in classes:
            yield line, fields


def _weight(fields: list[str], path: Path, line: int) -> float:
    text = fields[2] if len(fields) == 3 else ""
    try:
        weight = float(text or 1)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise LabelError(
            f"{text!r} is not a weight", "use a number of 0 or more, or leave it blank for 1", path, line=line
        )
    return weight
