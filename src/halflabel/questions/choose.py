"""Choose questions: which (image, class) entries a person should look at.

This module needs only NumPy, so that the review page starts quickly; scoring images needs torch.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.evaluation.calibration import has_as_many_negatives
from halflabel.evaluation.scores import image_blocks
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.formats.unsupported import QUESTION_COLUMNS
from halflabel.labels.labels import WEIGHT_COLUMN, Labels
from halflabel.labels.table import Table
from halflabel.system.files import write_csv
from halflabel.system.rng import bits, hash_names

# Why a random question was asked, for people.
CONTROL_PRESENT = "control: called present"  # unknown entries at or above their threshold
CONTROL_ABSENT = "control: called absent"  # unknown entries below their threshold
FEWEST_ANSWERS = 30  # to random questions, that show the precision of a fill
CONTROL_FILL = "control: fill"  # unknown entries that `fill` could fill as present

_CONTROL_STREAM = 0x6374726C  # random stream of the control sample
_DUPLICATE_COSINE = 0.97  # of centred features, from which on two photos count as duplicates
_CANDIDATES = 64  # kept per class
_ADDED = 25  # average positives, so that few known ones say little about the error of a class


class Question(NamedTuple):
    """An entry to ask about, by image and class index, with the probability that the class is present.

    `weight` is the inclusion weight: 0 if the entry was chosen; if it was drawn at random, the number of entries that
    it stands for, 1 / the probability that it was drawn. `why` is for people.
    """

    image: int
    column: int
    probability: float
    why: str
    weight: float = 0.0

    @property
    def entry(self) -> tuple[int, int]:
        return self.image, self.column

    @property
    def is_control(self) -> bool:
        """Whether the entry was drawn at random, so that its answer counts for unbiased estimates."""
        return self.weight > 0


class LowestCost:
    """Collects the `most` entries of each group with the lowest cost; ties go to the first image.

    Blocks must come in ascending order of images. Memory: about 60 bytes per kept entry and per entry of a block.
    """

    def __init__(self, groups: int, most: int, highest: Any) -> None:
        self.most = most
        self.limit = np.full(groups, highest)  # only entries below can still enter
        self.group, self.image, self.column = (np.zeros(0, np.int64) for _ in range(3))
        self.cost = self.limit[:0]

    def add(self, group: NDArray[Any], image: NDArray[Any], column: NDArray[Any], cost: NDArray[Any]) -> None:
        if not self.most or not len(group):
            return
        self.group, self.image = np.concatenate([self.group, group]), np.concatenate([self.image, image])
        self.column, self.cost = np.concatenate([self.column, column]), np.concatenate([self.cost, cost])
        order = np.lexsort((self.column, self.image, self.cost, self.group))
        group = self.group[order]
        rank = np.arange(len(order)) - np.searchsorted(group, group)
        last = order[rank == self.most - 1]
        self.limit[self.group[last]] = self.cost[last]
        order = order[rank < self.most]
        self.group, self.image, self.column = self.group[order], self.image[order], self.column[order]
        self.cost = self.cost[order]

    def add_block(self, index: NDArray[np.int64], cost: NDArray[np.float64], *, by_class: bool = False) -> None:
        """Add the costs (B, C) of images (B,); entries that cannot be chosen have a cost of inf."""
        row, column = np.nonzero(cost < (self.limit if by_class else self.limit[0]))
        self.add(column if by_class else np.zeros_like(column), index[row], column, cost[row, column])

    def entries(self) -> Iterator[tuple[int, int, float]]:
        """Yield image, class and cost of what was kept."""
        return zip(self.image.tolist(), self.column.tolist(), self.cost.tolist(), strict=True)

    def group_slice(self, group: int) -> slice:
        """Return where the entries of a group are, lowest cost first."""
        return slice(*np.searchsorted(self.group, (group, group + 1)).tolist())


def choose_questions(
    scores: NDArray[Any],
    table: Table,
    thresholds: NDArray[Any],
    count: int,
    *,
    features: NDArray[Any] | None = None,
    control: float = 0.1,
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
    seed: int = 0,
    by_class: bool = True,
    both_teach: bool | None = None,
) -> list[Question]:
    """Return the unknown entries most worth asking about; scores (N, C) calibrated, features (N, D) or None.

    The worth of an answer is what it is expected to add to a class; it falls as more of the class is known:

        worth(i, c) = e_c · v(q_ic) / (n_c + Σ q of the entries of c chosen so far)

    with q the score, n_c the number of known positives, and e_c = 1 − their mean score, shrunk to that of all classes.
    Poorly recognised and rare classes therefore come first, until they fill. v(q) = q (1 − q) + q / 2 where training
    takes unknown entries for absent, so that a "no" teaches little, and q (1 − q) + q / 4 where `both_teach`, by
    default where enough negatives are known. At most `per_image` questions per image, and none about a near-duplicate
    of a photo already asked about for the class. `skip` lists entries that are answered already.

    The share `control` is drawn at random, half from the entries at or above their threshold and half from the others.
    It comes first, in random order, so that its answered part is a random sample whenever answering stops. The other
    questions follow class by class, or without `by_class` most worth first.
    """
    if count < 1 or not 0 <= control <= 1 or per_image < 1:
        raise UserError(
            f"no list can have {count} questions, a control share of {control:g} and {per_image} questions per image",
            "ask for at least 1 question and 1 per image, with a control share between 0 and 1",
        )
    if both_teach is None:
        both_teach = has_as_many_negatives(table.value)
    skip, value_of_no = list(skip), 4 if both_teach else 2

    def answer_value(q: Any) -> Any:
        return q * (1 - q) + q / value_of_no

    controls = min(round(control * count), count)
    drawn, sizes, open_ = _scan_entries(scores, table, thresholds, answer_value, controls, count, skip, seed)
    sample = [item._replace(probability=float(scores[item.entry])) for item in _control_sample(drawn, sizes, seed)]
    positives = np.bincount(table.column[table.value > 0], minlength=len(table.classes))
    error = _class_errors(scores, table)
    taken = {item.entry for item in sample}
    picked = _pick_greedily(open_, taken, scores, positives, error, count - len(sample), per_image, features)
    median = np.median(positives)
    asked = [Question(i, c, q, _reason(q, bool(positives[c] < median))) for i, c, q in picked]
    if by_class:  # the class with the most worth first; within a class the most probable entry first
        total: Counter[int] = Counter()
        for item in asked:
            total[item.column] += error[item.column] * answer_value(item.probability)
        asked.sort(key=lambda item: (-total[item.column], item.column, -item.probability, item.image))
    return sample + asked


def _class_errors(scores: NDArray[Any], table: Table) -> NDArray[np.float64]:
    """Return 1 − the mean score of the known positives of each class (C,), some average positives added."""
    classes = len(table.classes)
    missed, count = np.zeros(classes), np.zeros(classes)
    for index in image_blocks(*table.shape):
        entries = slice(*table.start[[index[0], index[-1] + 1]].tolist())
        positive = table.value[entries] > 0
        image = np.repeat(index, np.diff(table.start[index[0] : index[-1] + 2]))[positive]
        column = table.column[entries][positive]
        q = scores[image, column].astype(np.float64)
        missed += np.bincount(column, np.nan_to_num(1 - q), classes)
        count += np.bincount(column, ~np.isnan(q), classes)
    average = missed.sum() / count.sum() if count.any() else 1.0
    return np.asarray((missed + _ADDED * average) / (count + _ADDED), np.float64)


class _OpenEntries(NamedTuple):
    """The unknown entries: their number per class (C,), the best of each class, and a way to get all of a class."""

    remaining: NDArray[np.int64]
    best: LowestCost
    all_of_class: Callable[[int], tuple[NDArray[np.int64], NDArray[np.float64]]]  # images by cost, and the costs


def _scan_entries(
    scores: NDArray[Any],
    table: Table,
    thresholds: NDArray[Any],
    answer_value: Callable[[Any], Any],
    control: int,
    count: int,
    skip: Sequence[tuple[int, int]],
    seed: int,
) -> tuple[LowestCost, NDArray[np.int64], _OpenEntries]:
    """Scan all entries once: a random sample below (group 0) and above (1) the threshold, of how many, open entries."""
    classes = len(table.classes)
    names = hash_names(table.images.array)
    drawn, sizes = LowestCost(2, control, np.uint64(0xFFFFFFFFFFFFFFFF)), np.zeros(2, np.int64)
    best = LowestCost(classes, min(max(_CANDIDATES, 2 * count // max(classes, 1)), len(table)), np.inf)
    remaining = np.zeros(classes, np.int64)
    for index, block, labels, is_free in entry_blocks(scores, table, skip):
        unknown = is_free & (labels == 0)
        remaining += unknown.sum(0)
        best.add_block(index, np.where(unknown, -answer_value(block.astype(np.float64)), np.inf), by_class=True)
        if control:
            key = bits(seed, _CONTROL_STREAM, names[index][:, None], np.arange(classes)[None, :])
            with np.errstate(invalid="ignore"):
                is_above = block >= thresholds
            sizes += np.bincount(is_above[unknown], minlength=2)
            row, column = np.nonzero(unknown & (key < np.where(is_above, drawn.limit[1], drawn.limit[0])))
            drawn.add(is_above[row, column].astype(np.int64), index[row], column, key[row, column])

    def all_of_class(c: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        q = np.array(scores[:, c], np.float64)
        q[np.searchsorted(table.start, np.flatnonzero(table.column == c), side="right") - 1] = np.nan
        q[[i for i, column in skip if column == c]] = np.nan
        cost = -answer_value(q)
        order = np.argsort(cost, kind="stable")[: int((~np.isnan(cost)).sum())]  # NaN comes last
        return order, cost[order]

    return drawn, sizes, _OpenEntries(remaining, best, all_of_class)


def _control_sample(drawn: LowestCost, sizes: NDArray[np.int64], seed: int) -> list[Question]:
    """Return a random sample of the unknown entries, half from each side of the threshold, which have these sizes.

    It depends only on the image names, the class indices and the seed.
    """
    count, (below, above) = drawn.most, np.minimum(sizes, drawn.most).tolist()
    above = min(above, max(count - count // 2, count - below))
    sample: list[Question] = []
    for group, why, number in ((1, CONTROL_PRESENT, above), (0, CONTROL_ABSENT, min(below, count - above))):
        part = drawn.group_slice(group)
        entries = zip(drawn.image[part][:number].tolist(), drawn.column[part][:number].tolist(), strict=True)
        sample += [Question(i, c, math.nan, why, float(sizes[group]) / number) for i, c in entries]
    # A separate random order: sorted by the sampling keys, the smaller of the two samples would come last.
    shuffle = bits(seed, _CONTROL_STREAM + 1, np.arange(len(sample)))
    return [sample[k] for k in np.argsort(shuffle, kind="stable")]


def _pick_greedily(
    open_: _OpenEntries,
    taken: Set[tuple[int, int]],
    scores: NDArray[Any],
    positives: NDArray[Any],
    error: NDArray[Any],
    count: int,
    per_image: int,
    features: NDArray[Any] | None,
) -> list[tuple[int, int, float]]:
    """Pick entries by worth; it falls with every pick of a class, so a heap holds the best candidate of each class."""
    filled = np.maximum(positives, 1).astype(np.float64)
    asked: Counter[int] = Counter()
    asked_features: list[list[NDArray[np.float32]]] = [[] for _ in filled]
    if features is not None:
        features = None if np.isnan(features).all() else features
    mean = 0.0 if features is None else np.nanmean(features, axis=0, dtype=np.float64).astype(np.float32)

    def candidates(c: int) -> Iterator[tuple[int, float]]:
        """Yield (image, cost) of a class: the kept candidates, then all others if near-duplicates used them up."""
        part = open_.best.group_slice(c)
        image, cost = open_.best.image[part], open_.best.cost[part]
        yield from zip(image.tolist(), cost.tolist(), strict=True)
        if len(image) < open_.remaining[c]:
            others, costs = (values[len(image) :] for values in open_.all_of_class(c))
            yield from ((int(i), float(each)) for i, each in zip(others, costs, strict=True))

    waiting = [candidates(c) for c in range(len(filled))]
    heap: list[tuple[float, int, int, float]] = []

    def push_next(c: int) -> None:
        following = next((item for item in waiting[c] if (item[0], c) not in taken), None)
        if following is not None:
            heapq.heappush(heap, (following[1] * float(error[c] / filled[c]), c, *following))

    def is_repeat(i: int, c: int) -> bool:
        """Whether a near-duplicate was asked about for the class; unreadable images are similar to none."""
        if features is None:
            return False
        centred = np.nan_to_num(features[i].astype(np.float32) - mean)
        unit = centred / np.maximum(np.linalg.norm(centred), np.float32(1e-9))
        if asked_features[c] and bool((np.stack(asked_features[c]) @ unit).max() > _DUPLICATE_COSINE):
            return True
        asked_features[c].append(unit)
        return False

    for c in range(len(filled)):
        push_next(c)
    picked: list[tuple[int, int, float]] = []
    while heap and len(picked) < count:
        _, c, i, _ = heapq.heappop(heap)
        if asked[i] < per_image and not is_repeat(i, c):
            q = float(scores[i, c])
            picked.append((i, c, q))
            asked[i] += 1
            filled[c] += q
        push_next(c)
    return picked


def _reason(q: float, rare: bool) -> str:
    reason = "likely missing" if q >= 0.5 else "uncertain" if q >= 0.1 else "best of the rest"
    return f"{reason}, rare class" if rare else reason


def rank_among_equal(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each value how many before it are the same.

    >>> rank_among_equal(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.searchsorted(values, values[order], sorter=order)
    return rank


def entry_blocks(
    scores: NDArray[Any], table: Table, skip: Iterable[tuple[int, int]]
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int8], NDArray[np.bool_]]]:
    """Yield blocks of images: indices, scores, labels, and which entries have a score and are not in `skip`."""
    skipped = np.array(sorted(skip), np.int64).reshape(-1, 2)
    for index in image_blocks(*table.shape):
        block = scores[index[0] : index[-1] + 1]
        is_free = ~np.isnan(block)
        in_block = skipped[slice(*np.searchsorted(skipped[:, 0], (index[0], index[-1] + 1)))]
        is_free[in_block[:, 0] - index[0], in_block[:, 1]] = False
        yield index, block, table.rows(index), is_free


def refuse_other_content(path: Path) -> None:
    """Refuse to overwrite a file that is not a list of questions."""
    if path.exists() and first_line(path) != ",".join(QUESTION_COLUMNS):
        raise UserError(f"{path} exists and is not a list of questions", "choose another ‹out›")


def write_questions(questions: Sequence[Question], table: Table, path: str | Path) -> None:
    """Write questions in their order as CSV: image,class,probability,why,inclusion_weight."""
    entries = ((table.images[item.image], table.classes[item.column], item) for item in questions)
    rows = ((image, label, f"{q.probability:.4f}", q.why, f"{q.weight:g}") for image, label, q in entries)
    write_csv(path, QUESTION_COLUMNS, rows)


def record_questions(questions: Sequence[Question], table: Table, path: Path) -> None:
    """Add questions to the record of all that were asked about a run; of an entry asked again the last one counts."""
    if questions:  # a file without rows could not be read again
        write_questions([*(read_questions(path, table) if path.exists() else []), *questions], table, path)


def weigh_answers(answers: Labels, *records: Path) -> Labels:
    """Return answers with the inclusion weights of the recorded questions, where their file holds none.

    So answers to chosen questions are known to be chosen, in whatever form they come back.
    """
    asked = {entry: weight for path in records for entry, weight in asked_entries(path).items()}
    weight = np.where(np.isnan(answers.weight), recorded_weights(answers, asked), answers.weight)
    return replace(answers, weight=weight)


def recorded_weights(rows: Labels, asked: Mapping[tuple[str, str], float]) -> NDArray[np.float32]:
    """Return the inclusion weight of each row's question by image and class; NaN where it was not asked."""
    entries = zip(rows.image.tolist(), rows.column.tolist(), strict=True)
    return np.array([asked.get((rows.images[i], rows.classes[c]), math.nan) for i, c in entries], np.float32)


def asked_entries(path: Path) -> dict[tuple[str, str], float]:
    """Return the inclusion weight of the questions in a CSV file, by image and class; none without a file."""
    if not path.exists():
        return {}
    sheet = open_entries(path)
    names = (sheet.column(name).to_pylist() for name in QUESTION_COLUMNS[:2])
    return dict(zip(zip(*names, strict=True), _weights(sheet), strict=True))


def open_entries(path: str | Path, *columns: str) -> CsvTable:
    """Open a CSV file with the columns image and class, and others."""
    sheet = CsvTable(path)
    sheet.check_columns((*QUESTION_COLUMNS[:2], *columns))
    return sheet


def read_probabilities(sheet: CsvTable) -> NDArray[np.float32]:
    """Return the column `probability`; NaN where it is blank or missing."""
    return sheet.numbers("probability", "use a number from 0 to 1, or blank", least=0, most=1)


def _weights(sheet: CsvTable) -> list[float]:
    """Return the inclusion weights of a file; 0, for a chosen question, where it is blank or missing."""
    weights = sheet.numbers(WEIGHT_COLUMN, "use a number from 0 on, or blank", least=0)
    return [float(value) for value in np.nan_to_num(weights).tolist()]


def read_questions(path: str | Path, table: Table) -> list[Question]:
    """Read questions from CSV; images and classes must be those of the table, the other columns are optional."""
    sheet = open_entries(path)
    numbers = []
    for kind, names in zip(QUESTION_COLUMNS[:2], (table.images, table.classes), strict=True):
        cells = sheet.column(kind)
        index = names.index(cells)
        if (index < 0).any():
            row = int(np.argmax(index < 0))
            message = f"the run has no {kind} {cells[row].as_py()!r}"
            raise sheet.error(message, "use questions of this run", row=row, column=kind)
        numbers.append(index.tolist())
    why = sheet.column("why").to_pylist() if "why" in sheet else [""] * len(sheet)
    return [
        Question(*values)
        for values in zip(*numbers, read_probabilities(sheet).tolist(), why, _weights(sheet), strict=True)
    ]
