"""Label vectors from co-occurrence, a file of word vectors, or a text encoder."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

from halflabel.errors import LabelError, UserError
from halflabel.features.names import clean_name, encode_texts, sentence_encoder
from halflabel.labels.names import Names
from halflabel.labels.table import Table

Vectors = NDArray[np.float64]  # (C, d)

_DENSE = 1500  # up to this many classes computing all eigenvectors is as fast as computing some
_CLASSES = 256  # classes counted at a time
_MOST_CLASSES = 20_000  # for the decomposition of the co-occurrence matrix


def label_vectors(source: str, table: Table, size: int) -> Vectors:
    """Return (C, size) vectors of the classes, all scaled by one number so that their mean squared length is 1.

    `source`: "graph" = `from_cooccurrence`; "text:NAME" = a sentence-transformers model by name; else a file of word
    vectors. The head has a fixed `size`: vectors of other sizes are refused, and vectors from co-occurrence are padded
    with zeros.
    """
    if source == "graph":
        vectors = from_cooccurrence(table, size)
    elif source.startswith("text:"):
        encode = sentence_encoder(source.removeprefix("text:"))
        vectors = encode_texts([clean_name(name) for name in table.classes], encode)
    elif Path(source).exists():
        vectors = from_file(source, table.classes)
    else:
        raise UserError(
            f"there are no label vectors {source!r}",
            "use ‹vectors=graph›, ‹vectors=text:MODEL›, or name a file of word vectors (GloVe or word2vec as text)",
        )
    if vectors.shape[1] != size:
        raise UserError(
            f"{source} has vectors of {vectors.shape[1]} numbers, not {size}", f"add ‹vector_size={vectors.shape[1]}›"
        )
    length = math.sqrt(float(np.square(vectors).sum(1).mean())) if len(vectors) else 0.0
    return vectors / length if length > 0 else vectors


def from_cooccurrence(table: Table, size: int, *, prior: float = 1.0) -> Vectors:
    """Compute vectors whose inner products measure how much more often than by chance two labels occur together.

        M_ij = max(log((n_ij + prior) / (m_ij p_i p_j + prior)), 0)     (positive PMI)
        vectors = U √S of the `size` largest singular values of M; columns beyond C are 0

    n_ij = images that show both, m_ij = images where both are known, p_i = positives_i / known_i. `prior` keeps pairs
    seen once or twice near 0. If no label is known to be absent, m is useless: unknown counts as absent then. Each
    vector's sign is fixed by its largest component, so the same table gives the same vectors.
    """
    classes = len(table.classes)
    if classes > _MOST_CLASSES:
        raise UserError(
            f"{classes} classes are too many for vectors from their co-occurrence", "give a file of word vectors"
        )
    vectors = np.zeros((classes, size))
    images, positives_only = float(len(table)), not (table.value < 0).any()
    present, known = (part.astype(np.int32) for part in (table.values > 0, abs(table.values)))
    known_of = np.full(classes, images) if positives_only else known.sum(0).astype(np.float64)
    share = present.sum(0) / known_of.clip(1)
    rows, cols = [np.arange(classes)], [np.arange(classes)]
    values = [np.log((present.sum(0) + prior) / (known_of * share**2 + prior))]
    by_class_present, by_class_known = present.tocsc(), known.tocsc()
    for first in range(0, classes, _CLASSES):
        block = slice(first, first + _CLASSES)
        together = (by_class_present[:, block].T.tocsr() @ present).tocoo()
        apart = together.row + first != together.col
        row, col, count = together.row[apart], together.col[apart], together.data[apart]
        if len(row):
            both = np.asarray((by_class_known[:, block].T.tocsr() @ known).tocsr()[row, col]).ravel()
            rows.append(row + first)
            cols.append(col)
            total = images if positives_only else both
            values.append(np.log((count + prior) / (total * share[row + first] * share[col] + prior)))
    row, col, value = (np.concatenate(parts) for parts in (rows, cols, values))
    matrix = csr_array((value[value > 0], (row[value > 0], col[value > 0])), shape=(classes, classes))
    count = min(size, classes)
    if count:
        value, vector = _eigen(matrix, count)
        # The matrix is symmetric: its singular values are the absolute eigenvalues.
        vector = vector * np.sign(vector[np.abs(vector).argmax(0), np.arange(count)] + 1e-300)
        vectors[:, :count] = vector * np.sqrt(np.abs(value))
    return vectors


def from_file(path: str | Path, classes: Names) -> Vectors:
    """Read vectors from a text file of lines `word number number …`, as GloVe and word2vec write them.

    A first line of two numbers is skipped. A name is looked up unchanged, then with _ or - for blanks, then as the mean
    of its words; each also in lower case. Missing names raise.
    """
    path = Path(path)
    if not path.is_file():
        raise LabelError("there is no such file", "give a text file of word vectors", path)
    spelled = {name: _spellings(name) for name in classes}
    words, size = _read(path, {word for each in spelled.values() for spelling in each for word in spelling})
    if not size:
        raise LabelError("the file contains no vector", "give a text file of lines: word number number …", path)
    found = {
        name: next((each for each in spellings if each and all(word in words for word in each)), None)
        for name, spellings in spelled.items()
    }
    if missing := [name for name, spelling in found.items() if spelling is None]:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise LabelError(
            f"no vector for {', '.join(map(repr, missing[:5]))}{more}",
            "rename these classes to words of the file, or use ‹vectors=graph›",
            path,
        )
    means = [np.mean([words[word] for word in spelling or ()], axis=0) for spelling in found.values()]
    return np.stack(means) if means else np.zeros((0, size))


def _eigen(matrix: Any, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the `count` eigenvalues with the largest absolute values, largest first, and their vectors."""
    classes = matrix.shape[0]
    if classes <= _DENSE or count >= classes - 1:
        value, vector = np.linalg.eigh(matrix.toarray())
    else:
        value, vector = eigsh(matrix, count, v0=np.ones(classes))
    order = np.argsort(-np.abs(value), kind="stable")[:count]
    return value[order], vector[:, order]


def _spellings(name: str) -> list[list[str]]:
    """Return the spellings to look up, best first; each is a list of words whose mean is taken."""
    parts = re.findall(r"[^\W_]+", name)
    spellings = [[name], *([sign.join(parts)] for sign in ("_", "-")), parts]
    lower = [[word.lower() for word in spelling] for spelling in spellings]
    return [spelling for pair in zip(spellings, lower, strict=True) for spelling in pair]


def _read(path: Path, needed: set[str]) -> tuple[dict[str, NDArray[np.float64]], int]:
    """Return the vectors of the wanted words, and their length."""
    words: dict[str, NDArray[np.float64]] = {}
    size = 0
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip()
            fields = text.split(" ") if " " in text else text.split("\t")
            if not text or (number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields)):
                continue
            size = size or len(fields) - 1
            word = " ".join(fields[: len(fields) - size])  # some files have words with blanks in them
            if word not in needed or word in words:
                continue
            try:
                vector = np.array(fields[len(fields) - size :], np.float64)
            except ValueError:
                vector = np.zeros(0)
            if len(vector) != size or not size or not np.isfinite(vector).all():
                raise LabelError(f"the vector of {word!r} is not {size} numbers", "repair the line", path, line=number)
            words[word] = vector
    return words, size
