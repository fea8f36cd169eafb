"""Label vectors from co-occurrence, a file of word vectors, or a text encoder."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    n_ij = images that show both, m_ij = images where both are known, p_i = positives_i / known_i. Images where either
    is unknown are not counted, so missing labels have no effect. `prior` keeps pairs seen once or twice near 0. M_ii is
    high for rare labels, so labels that never occur with others have their own direction. If no label is known to be
    absent, both known means both present and m is useless: unknown counts as absent then.

    Memory: the pairs that occur together, and 8·C² bytes up to 1,500 classes. Each vector's sign is fixed by its
    largest component, so the same table gives the same vectors.
    """
    classes = len(table.classes)
    if classes > _MOST_CLASSES:
        raise UserError(
            f"{classes} classes are too many for vectors from their co-occurrence", "give a file of word vectors"
        )
    vectors = np.zeros((classes, size))
    images, positives_only = float(len(table)), not (table.value < 0).any()
    present = np.bincount(table.column[table.value > 0], minlength=classes).astype(np.float64)
    known = np.bincount(table.column, minlength=classes).astype(np.float64)
    known = np.full(classes, images) if positives_only else known
    share = present / known.clip(1)
    rows, cols = [np.arange(classes)], [np.arange(classes)]
    values = [np.log((present + prior) / (known * share**2 + prior))]
    for row, col, together, both in _pairs(table):
        total = images if positives_only else both
        rows.append(row)
        cols.append(col)
        values.append(np.log((together + prior) / (total * share[row] * share[col] + prior)))
    matrix = _sparse(np.concatenate(rows), np.concatenate(cols), np.concatenate(values), classes)
    count = min(size, classes)
    if count:
        value, vector = _eigen(matrix, count)
        # The matrix is symmetric: its singular values are the absolute eigenvalues.
        vector = vector * np.sign(vector[np.abs(vector).argmax(0), np.arange(count)] + 1e-300)
        vectors[:, :count] = vector * np.sqrt(np.abs(value))
    return vectors


def from_file(path: str | Path, classes: Names) -> Vectors:
    """Read vectors from a text file of lines `word number number …`, as GloVe and word2vec write them.

    A first line of two numbers (count and length) is skipped. A name is looked up unchanged, then with _ or - for
    blanks, then as the mean of its words; each also in lower case. Missing names raise. The file is read line by line,
    and only the needed words are stored.
    """
    path = Path(path)
    if not path.is_file():
        raise LabelError("there is no such file", "give a text file of word vectors", path)
    names = list(classes)
    spelled = {name: _spellings(name) for name in names}
    needed = {word for spellings in spelled.values() for spelling in spellings for word in spelling}
    words, size = _read(path, needed)
    if not size:
        raise LabelError("the file contains no vector", "give a text file of lines: word number number …", path)
    vectors = np.zeros((len(names), size))
    not_found = []
    for number, name in enumerate(names):
        spelling = next(
            (spelling for spelling in spelled[name] if spelling and all(word in words for word in spelling)), None
        )
        if spelling is None:
            not_found.append(name)
        else:
            vectors[number] = np.mean([words[word] for word in spelling], axis=0)
    if not_found:
        raise _missing_names(path, not_found)
    return vectors


def _pairs(table: Table) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield pairs of classes (row, col) that occur together, in how many images, and in how many both are known."""
    present, known = (part.astype(np.int32) for part in (table.values > 0, abs(table.values)))
    columns_present, columns_known = present.tocsc(), known.tocsc()
    for first in range(0, len(table.classes), _CLASSES):
        block = slice(first, first + _CLASSES)
        together = (columns_present[:, block].T.tocsr() @ present).tocoo()
        apart = together.row + first != together.col
        row, col, count = together.row[apart], together.col[apart], together.data[apart]
        if len(row):
            both = (columns_known[:, block].T.tocsr() @ known).tocsr()[row, col]
            yield row + first, col, count, np.asarray(both).ravel()


def _sparse(rows: NDArray[Any], cols: NDArray[Any], values: NDArray[Any], classes: int) -> Any:
    from scipy.sparse import csr_array

    positive = values > 0
    return csr_array((values[positive], (rows[positive], cols[positive])), shape=(classes, classes))


def _eigen(matrix: Any, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the `count` eigenvalues with the largest absolute values, largest first, and their vectors."""
    classes = matrix.shape[0]
    if classes <= _DENSE or count >= classes - 1:
        value, vector = np.linalg.eigh(matrix.toarray())
    else:
        from scipy.sparse.linalg import eigsh

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
    for number, line in _lines(path):
        fields = line.split(" ") if " " in line else line.split("\t")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if text := line.rstrip():
                yield number, text


def _missing_names(path: Path, names: Sequence[str]) -> LabelError:
    """Return an error that lists names without a vector, with similar words of the file."""
    first_names = names[:5]
    starts = {name[:3].lower() for name in first_names}
    candidates: set[str] = set()
    for _, line in _lines(path):
        word = line.split(" ", 1)[0]
        if word[:3].lower() in starts:
            candidates.add(word)
    hints = []
    for name in first_names:
        close = get_close_matches(name.lower(), candidates, 2)
        hints.append(f"{name!r}" + (f" (near: {', '.join(close)})" if close else ""))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return LabelError(
        f"no vector for {', '.join(hints)}{more}",
        "rename these classes to words of the file, or use ‹vectors=graph›",
        path,
    )
