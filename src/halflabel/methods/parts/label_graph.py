"""Label graphs: which labels say something about which, from a label table, a file, or none but themselves. Sparse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import detect_delimiter, existing_path, first_line, read_records
from halflabel.labels.names import Names, class_number
from halflabel.labels.table import LabelTable

__all__ = ["Edges", "LabelGraph", "from_cooccurrence", "from_file", "from_wordnet", "identity"]

_BLOCK = 256  # classes counted at a time
_AT_ONCE = 1 << 23  # products of gradients and labels at a time


class Edges(NamedTuple):
    """Label rows[e] is inferred from label cols[e] with weight weights[e]; by row, then as they were ranked."""

    rows: NDArray[np.int64]  # (E,)
    cols: NDArray[np.int64]  # (E,)
    weights: NDArray[np.float64]  # (E,) ≥ 0

    def with_loops(self, classes: int, weight: float = 1.0) -> Edges:
        """Every label is inferred from itself too, first; loops that are there stay as they are."""
        loops = np.setdiff1d(np.arange(classes), self.rows[self.rows == self.cols])
        rows, cols = np.concatenate([loops, self.rows]), np.concatenate([loops, self.cols])
        return _by_row(rows, cols, np.concatenate([np.full(len(loops), weight), self.weights]))

    def without_loops(self) -> Edges:
        """No label is inferred from itself."""
        apart = self.rows != self.cols
        return Edges(self.rows[apart], self.cols[apart], self.weights[apart])

    def normalised(self) -> Edges:
        """Weights divided by their sum over the row; rows of zeros stay."""
        total = np.bincount(self.rows, self.weights, int(self.rows.max(initial=-1)) + 1)[self.rows]
        return self._replace(weights=np.divide(self.weights, total, out=np.zeros_like(self.weights), where=total > 0))

    def or_else(self, others: Edges) -> Edges:
        """Labels that are inferred from none here are inferred as they are among the others."""
        fresh = ~np.isin(others.rows, self.rows)
        return _by_row(*(np.concatenate([own, other[fresh]]) for own, other in zip(self, others, strict=True)))

    def turned(self) -> Edges:
        """Each edge the other way round."""
        return _by_row(self.cols, self.rows, self.weights)

    def at_least(self, tau: float) -> Edges:
        """The edges of weight τ or more, each with weight 1. Chen 2019 (ML-GCN), eq. 7."""
        kept = self.weights >= tau
        return Edges(self.rows[kept], self.cols[kept], np.ones(int(kept.sum())))

    def reweighted(self, classes: int, p: float) -> Edges:
        """A label keeps 1 − p of itself and takes p from the others, in proportion to their weights.

        Chen 2019 (ML-GCN), eq. 8: with p near 1 a label's own features drown in those of its neighbours, with p near 0
        they say nothing. A label without others keeps 1 − p.
        """
        others = self.without_loops().normalised()
        return others._replace(weights=p * others.weights).with_loops(classes, 1 - p)

    def dense(self, classes: int) -> NDArray[np.float64]:
        """The C × C matrix of the weights, 8·C² bytes; row j holds what label j is inferred from."""
        found = np.zeros((classes, classes))
        found[self.rows, self.cols] = self.weights
        return found


def identity(classes: int) -> Edges:
    """Every label is inferred from itself alone, with weight 1."""
    own = np.arange(classes)
    return Edges(own, own, np.ones(classes))


def from_cooccurrence(table: LabelTable, k: int | None = None, *, prior: float = 1.0) -> Edges:
    """To each label the k others (None = all) that are most often present with it, among images where both are known.

        rank of j' for row j:  #(j and j' present) / (#(j present, j' known) + prior), then the count, then the number
        weight of (j, j'):     #(j and j' present) / (#(j' present, j known) + prior), that is P(j | j')

    Images where either is unknown say nothing, so missing labels do not pull towards absence. `prior` keeps pairs seen
    once or twice from outranking frequent ones; with 0, weights are the plain P(j | j'). Pairs never present together
    have no edge. Where nothing is known to be absent, all P are near 1, and the number of images that show both ranks.

    Memory: 8 bytes per known entry, 16 per known positive, and counts of 256 classes at a time, never C × C; time about
    2 Σ_images present · known.
    """
    present, known = table.matrix(table.value > 0), table.matrix(np.ones(table.known, bool))
    columns = present.tocsc()
    parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for first in range(0, len(table.classes), _BLOCK):
        here = columns[:, first : first + _BLOCK].T
        together = (here @ present).toarray()
        own = np.arange(len(together))
        together[own, own + first] = 0
        row, col = np.nonzero(together)
        count = together[row, col]
        rate = count / ((here @ known).toarray()[row, col] + prior)
        order = np.lexsort((col, -count, -rate, row))
        place = np.arange(len(order)) - np.searchsorted(row[order], row[order])
        kept = order if k is None else order[place < k]
        parts.append((row[kept] + first, col[kept], count[kept].astype(np.int64)))
    rows, cols, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    # A weight is counted from the other end of its edge, so in the block of the column: known entries by class, which
    # would do it in one go, take as much memory again.
    weights = np.zeros(len(rows))
    by_column = np.argsort(cols, kind="stable")
    for first in range(0, len(table.classes), _BLOCK):
        edges = by_column[slice(*np.searchsorted(cols, (first, first + _BLOCK), sorter=by_column))]
        seen = (columns[:, first : first + _BLOCK].T @ known).toarray()
        weights[edges] = counts[edges] / (seen[cols[edges] - first, rows[edges]] + prior)
    return Edges(rows.astype(np.int64), cols.astype(np.int64), weights)


def from_file(path: str | Path, classes: Names) -> Edges:
    """Edges from CSV rows `class,class,weight`: the first is inferred from the second. No weight is weight 1.

    A first line that names no class is a header. The delimiter may be a comma, a semicolon, a tab or a bar.
    """
    path = existing_path(path)
    read: dict[tuple[int, int], tuple[int, float]] = {}  # (row, col) -> line, weight
    number = {name: position for position, name in enumerate(classes)}
    for line, fields in _rows(path, number):
        pair = (class_number(fields[0], number, path, line), class_number(fields[1], number, path, line))
        if pair in read:
            said = f"the edge from {fields[1]!r} to {fields[0]!r} is already on line {read[pair][0]}"
            raise LabelError(said, "remove one of the two lines", path, line=line)
        read[pair] = (line, _weight(fields, path, line))
    if not read:
        raise LabelError("there is not one edge", "add rows such as dog,cat,0.5", path)
    ends = np.array(list(read), np.int64).reshape(-1, 2)
    return _by_row(ends[:, 0], ends[:, 1], np.array([weight for _, weight in read.values()]))


def from_wordnet(classes: Names, k: int | None = None, *, least: float = 0.0) -> Edges:
    """To each label the k others (None = all) nearest in WordNet, by the similarity of Wu and Palmer 1994.

    weight = 2 · depth of the closest common ancestor / (depth of one + depth of the other), from 0 to 1, of the first
    noun meaning of each name; pairs below `least` have no edge, and neither have names that WordNet does not know.
    Needs the package nltk and its WordNet data. Time: C² / 2 look-ups, 200 classes in about a second.
    """
    wordnet = _wordnet()
    meanings = []
    for name in classes:
        found = wordnet.synsets("_".join(name.replace("_", " ").split()), pos="n")
        meanings.append(found[0] if found else None)
    if not any(meanings):
        raise UserError("WordNet knows not one of the classes", "use another --graph, or English nouns as names")
    near = np.zeros((len(meanings), len(meanings)))
    for row, one in enumerate(meanings):
        for col in range(row):
            other = meanings[col]
            if one is not None and other is not None:
                near[row, col] = near[col, row] = one.wup_similarity(other) or 0.0
    order = np.argsort(-near, axis=1, kind="stable")[:, :k]
    rows, cols = np.repeat(np.arange(len(meanings)), order.shape[1]), order.ravel()
    kept = (near[rows, cols] > 0) & (near[rows, cols] >= least)
    return Edges(rows[kept], cols[kept], near[rows, cols][kept])


def _wordnet() -> Any:
    fix = "pip install nltk, then python -m nltk.downloader wordnet; or use --graph cooccurrence"
    try:
        wordnet: Any = import_module("nltk.corpus").wordnet
    except ImportError:
        raise UserError("the WordNet graph needs the package nltk, which is not installed", fix) from None
    try:
        wordnet.ensure_loaded()
    except LookupError:
        raise UserError("the package nltk has no WordNet data", fix) from None
    return wordnet


class LabelGraph(nn.Module):
    """A, a sparse C × C matrix with learned weights on given edges: (A y)_j = Σ_j' a_j'j y_j'.

    Memory: 16 bytes per edge and 8 per class; where it is learned, 12 more per edge for its gradient and Adam's two
    averages. With C = 5,000 and 51 edges each that is 4 MB and 3 MB; C × C in full would be 100 MB and 300 MB.
    """

    rows: Tensor  # (E,) int32, ascending
    cols: Tensor  # (E,) int32
    first: Tensor  # (C,) int32, where the edges of each row start
    turned: Tensor  # (E,) int32, the edges in the order of their columns
    turned_first: Tensor  # (C,) int32, where those of each column start
    weights: nn.Parameter  # (E,)

    def __init__(self, edges: Edges, classes: int, *, learned: bool = True) -> None:
        super().__init__()
        rows, cols, weights = _by_row(*edges)
        turned, labels = np.argsort(cols, kind="stable"), np.arange(classes)
        for name, numbers in (
            ("rows", rows),
            ("cols", cols),
            ("first", np.searchsorted(rows, labels)),
            ("turned", turned),
            ("turned_first", np.searchsorted(cols[turned], labels)),
        ):
            self.register_buffer(name, torch.from_numpy(numbers.astype(np.int32)))
        self.weights = nn.Parameter(torch.from_numpy(weights).float(), requires_grad=learned)

    def forward(self, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """(B, C) -> (B, C), with the gradient for labels and weights; other `weights` (E,) may stand in."""
        weights = (self.weights if weights is None else weights).to(labels.dtype)
        found: Tensor = _Spread.apply(labels, weights, self)
        return found

    def clip(self) -> None:
        """Cut the weights off at 0, below which a step of the optimizer may have put them."""
        # As data: a loss that is yet to be differentiated saw them cut off too, so this does not change what it saw.
        self.weights.data.clamp_(min=0)

    def edges(self) -> Edges:
        """Labels and weights as they are now, those below 0 as 0."""
        rows, cols = (numbers.cpu().numpy().astype(np.int64) for numbers in (self.rows, self.cols))
        return Edges(rows, cols, self.weights.detach().cpu().numpy().astype(np.float64).clip(0))


class _Spread(torch.autograd.Function):
    """A y and its gradients Aᵀ g and Σ_images g_j y_j', as sums over edges: (B, C, edges) is never spelled out."""

    @staticmethod
    def forward(ctx: Any, labels: Tensor, weights: Tensor, graph: LabelGraph) -> Tensor:
        ctx.save_for_backward(labels, weights)
        ctx.graph = graph
        return _bags(labels, graph.cols, graph.first, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (labels, weights), graph = ctx.saved_tensors, ctx.graph
        to_labels = to_weights = None
        if ctx.needs_input_grad[0]:
            turned = graph.turned
            to_labels = _bags(gradient, graph.rows[turned], graph.turned_first, weights[turned])
        if ctx.needs_input_grad[1]:
            of_row, of_col = gradient.T.contiguous(), labels.T.contiguous()
            size = max(_AT_ONCE // max(len(labels), 1), 1)
            ends = zip(graph.rows.split(size), graph.cols.split(size), strict=True)
            products = [(of_row.index_select(0, j) * of_col.index_select(0, i)).sum(1) for j, i in ends]
            to_weights = torch.cat(products) if products else torch.zeros_like(weights)
        return to_labels, to_weights, None


def _bags(labels: Tensor, cols: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """Σ over the edges of each row of weight · the label at its other end: (B, C) -> (B, C)."""
    if not len(cols) or not len(labels):
        return torch.zeros_like(labels)
    return embedding_bag(cols, labels.T.contiguous(), first, mode="sum", per_sample_weights=weights).T


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
