"""Sparse label graphs: which labels are inferred from which, from a label table, a CSV file or WordNet."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
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
from halflabel.labels.table import Table, count_together

_PLURALS = (("men", "man"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"), ("ies", "y"), ("s", ""))
_HYPERNYMS = ("@", "@i")  # kind of, instance of


class WordNet:
    """The noun hierarchy of a folder with the files of WordNet 3, such as Debian's package wordnet-base installs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parents: dict[int, tuple[int, ...]] = {}
        self._depths: dict[int, int] = {}

    @classmethod
    def find(cls) -> WordNet:
        """Open the WordNet of the system: $WNSEARCHDIR, /usr/share/wordnet, or the data folder of nltk."""
        places = ["/usr/share/wordnet", "/usr/local/share/wordnet", "~/nltk_data/corpora/wordnet"]
        for place in [os.environ.get("WNSEARCHDIR", ""), *places]:
            folder = Path(place).expanduser()
            if place and (folder / "index.noun").is_file() and (folder / "data.noun").is_file():
                return cls(folder)
        raise UserError(
            "WordNet is not installed",
            "apt install wordnet-base, or set WNSEARCHDIR to the folder of index.noun; or use ‹graph=cooccurrence›",
        )

    def meanings(self, names: Iterable[str]) -> list[int | None]:
        """Return the first noun meaning of each name, as a synset number; None for names that WordNet lacks."""
        return [next((self._index[form] for form in _forms(name) if form in self._index), None) for name in names]

    def similarity(self, first: int, second: int) -> float:
        """Return 2 · d / (d_1 + d_2) of Wu and Palmer 1994, from 0 to 1.

        d is the depth of the deepest common ancestor, counted in nodes from the root; d_1 and d_2 are d plus the steps
        from it down to each meaning.
        """
        steps_of_first, steps_of_second = self._ancestors(first), self._ancestors(second)
        common = steps_of_first.keys() & steps_of_second.keys()
        if not common:
            return 0.0
        depth, steps = max(
            (self._depth(synset), -steps_of_first[synset] - steps_of_second[synset]) for synset in common
        )
        return 2 * depth / (2 * depth - steps)

    @cached_property
    def _index(self) -> dict[str, int]:
        """The first meaning of each lemma."""
        index = {}
        with open(self.folder / "index.noun", encoding="utf-8") as file:
            for line in file:
                if not line.startswith(" "):  # the licence
                    fields = line.split()
                    index[fields[0]] = int(fields[-int(fields[2])])
        return index

    def _hypernyms(self, synset: int) -> tuple[int, ...]:
        if synset not in self._parents:
            with open(self.folder / "data.noun", "rb") as file:
                file.seek(synset)
                fields = file.readline().decode("utf-8").partition("|")[0].split()
            if not fields or int(fields[0]) != synset:
                raise UserError(f"{self.folder / 'data.noun'} does not fit its index", "install WordNet again")
            pointers = fields[4 + 2 * int(fields[3], 16) + 1 :]
            self._parents[synset] = tuple(
                int(number) for kind, number in zip(pointers[::4], pointers[1::4], strict=False) if kind in _HYPERNYMS
            )
        return self._parents[synset]

    def _ancestors(self, synset: int) -> dict[int, int]:
        """The fewest steps to each ancestor, the synset itself included."""
        steps, newest = {synset: 0}, [synset]
        while newest:
            reached = {parent: steps[each] + 1 for each in newest for parent in self._hypernyms(each)}
            newest = [parent for parent in reached if parent not in steps]
            steps |= {parent: reached[parent] for parent in newest}
        return steps

    def _depth(self, synset: int) -> int:
        """Nodes on the longest way to the root, both ends included."""
        if synset not in self._depths:
            self._depths[synset] = 1 + max((self._depth(parent) for parent in self._hypernyms(synset)), default=0)
        return self._depths[synset]


def _forms(name: str) -> list[str]:
    """The lemmas that a name may stand for: itself, and its singular."""
    lemma = "_".join(name.replace("_", " ").lower().split())
    return [lemma, *(lemma[: -len(end)] + singular for end, singular in _PLURALS if lemma.endswith(end))]


_PRODUCTS = 1 << 23  # products of gradients and labels computed at a time


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

    def or_else(self, others: Edges) -> Edges:
        """Add the edges of `others` for labels that have none here."""
        missing = ~np.isin(others.rows, self.rows)
        return _by_row(*(np.concatenate([here, other[missing]]) for here, other in zip(self, others, strict=True)))

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
    """Return the label graph of a `--graph` option, with at most k edges per label where it is counted or measured.

    source: "cooccurrence", "identity", "wordnet", a CSV file, or "wordnet+FILE", where the file serves the labels that
    WordNet does not know.
    """
    kind, _, path = source.partition("+")
    if source == "identity":
        return identity(len(table.classes))
    if source == "cooccurrence":
        return from_cooccurrence(table, k)
    file = path if kind == "wordnet" else source
    if file and not Path(file).exists():
        raise UserError(
            f"there is no label graph {file!r}",
            "use ‹graph=cooccurrence›, wordnet or identity, or name a CSV file of rows class,class,weight",
        )
    if kind != "wordnet":
        return from_file(file, table.classes)
    edges = from_wordnet(table.classes, k)
    return edges.or_else(from_file(file, table.classes)) if file else edges


def from_cooccurrence(table: Table, k: int | None = None, *, prior: float = 1.0) -> Edges:
    """Connect each label to the k others (None = all) most often present with it, in images where both are known.

        rank of j' for row j:  #(j and j' present) / (#(j present, j' known) + prior), then the count, then the number
        weight of (j, j'):     #(j and j' present) / (#(j' present, j known) + prior), that is P(j | j')

    Images where either label is unknown are not counted, so missing labels do not count as absent. `prior` keeps pairs
    seen once or twice from outranking frequent ones; with 0, weights are the plain P(j | j'). Pairs never present
    together have no edge. If no label is known to be absent, all P are near 1 and the count decides the rank.

    Memory: 28 bytes per pair of a class that is present and a class that is known in the same image.
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


def from_wordnet(classes: Names, k: int | None = None) -> Edges:
    """Connect each label to its k nearest others (None = all) in WordNet, by the similarity of Wu and Palmer 1994.

    weight = 2 · depth of the closest common ancestor / (depth of one + depth of the other), from 0 to 1, of the first
    noun meaning of each name. Names that WordNet does not know have no edge. Needs the files of WordNet
    (`apt install wordnet-base`). Time: C² / 2 comparisons, 200 classes in about a second.
    """
    wordnet = WordNet.find()
    meanings = wordnet.meanings(classes)
    if not any(meanings):
        raise UserError("WordNet knows none of the classes", "use another ‹graph›, or English nouns as names")
    similarity = np.zeros((len(meanings), len(meanings)))
    for row, meaning in enumerate(meanings):
        for col in range(row):
            other = meanings[col]
            if meaning is not None and other is not None:
                similarity[row, col] = similarity[col, row] = wordnet.similarity(meaning, other)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    rows, cols = np.repeat(np.arange(len(meanings)), order.shape[1]), order.ravel()
    weights = similarity[rows, cols]
    is_edge = weights > 0
    return Edges(rows[is_edge], cols[is_edge], weights[is_edge])


class LabelGraph(nn.Module):
    """A, a sparse C × C matrix with learned weights on given edges: (A y)_j = Σ_j' a_j'j y_j'.

    Memory: 16 bytes per edge and 8 per class; if learned, 12 more per edge for the gradient and Adam's two averages.
    With C = 5,000 and 51 edges per label that is 4 MB and 3 MB; a dense C × C matrix would take 100 MB and 300 MB.
    """

    rows: Tensor  # (E,) int32, ascending
    cols: Tensor  # (E,) int32
    first: Tensor  # (C,) int32, the first edge of each row
    turned: Tensor  # (E,) int32, the edges sorted by column
    turned_first: Tensor  # (C,) int32, the first of them of each column
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
        """Return A y: (B, C) -> (B, C), with gradients for labels and weights; `weights` (E,) replace those of A."""
        weights = (self.weights if weights is None else weights).to(labels.dtype)
        product: Tensor = _SparseProduct.apply(labels, weights, self)
        return product

    def clip(self) -> None:
        """Clip the weights at 0; an optimizer step may have made them negative."""
        # On .data: a loss that is still to be differentiated used clipped weights too, so autograd need not know.
        self.weights.data.clamp_(min=0)

    def edges(self) -> Edges:
        """Return the edges with their present weights, clipped at 0."""
        rows, cols = (numbers.cpu().numpy().astype(np.int64) for numbers in (self.rows, self.cols))
        return Edges(rows, cols, self.weights.detach().cpu().numpy().astype(np.float64).clip(0))


class _SparseProduct(torch.autograd.Function):
    """A y and its gradients Aᵀ g and Σ_images g_j y_j', as sums over edges, without a (B, C, edges) tensor."""

    @staticmethod
    def forward(ctx: Any, labels: Tensor, weights: Tensor, graph: LabelGraph) -> Tensor:
        ctx.save_for_backward(labels, weights)
        ctx.graph = graph
        return _weighted_sums(labels, graph.cols, graph.first, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (labels, weights), graph = ctx.saved_tensors, ctx.graph
        label_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            turned = graph.turned
            label_gradient = _weighted_sums(gradient, graph.rows[turned], graph.turned_first, weights[turned])
        if ctx.needs_input_grad[1]:
            row_values, col_values = gradient.T.contiguous(), labels.T.contiguous()
            size = max(_PRODUCTS // max(len(labels), 1), 1)
            ends = zip(graph.rows.split(size), graph.cols.split(size), strict=True)
            products = [(row_values.index_select(0, j) * col_values.index_select(0, i)).sum(1) for j, i in ends]
            weight_gradient = torch.cat(products) if products else torch.zeros_like(weights)
        return label_gradient, weight_gradient, None


def _weighted_sums(labels: Tensor, cols: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """Sum weight · label over the edges of each row: (B, C) -> (B, C)."""
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
