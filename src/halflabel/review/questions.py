"""Questions: which (image, class) entries a person should look at next, and which known labels look wrong.

Choosing needs NumPy alone, so that a page of questions opens at once; scoring images needs torch.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.table import LabelTable
from halflabel.metrics.calibration import PositiveUnlabelled, image_blocks
from halflabel.system.files import atomic_write
from halflabel.system.rng import bits, hash_names

__all__ = [
    "CONTROL",
    "CONTROL_ABSENT",
    "CONTROL_PRESENT",
    "Question",
    "choose",
    "doubtful",
    "likely",
    "read_questions",
    "write_questions",
]

CONTROL = "control"
CONTROL_PRESENT = "control: called present"  # drawn at random from the unknown entries at or above their threshold
CONTROL_ABSENT = "control: called absent"  # … and from those below
COLUMNS = ("image", "class", "probability", "why")

_CONTROL = 0x6374726C  # what the random numbers of the control are for
_ALIKE = 0.97  # cosine of centred features from which two photos count as one
_MOST_KEPT = 64  # candidates of a class


class Question(NamedTuple):
    """One entry to ask about, by image and class number, with the probability that the class is present."""

    image: int
    column: int
    probability: float
    why: str

    @property
    def is_control(self) -> bool:
        """Whether it was drawn at random, so that its answer may be counted for estimates."""
        return self.why.startswith(CONTROL)


class _Least:
    """The `most` entries of each group with the least cost, of equal ones the first; images come in ascending order.

    Memory: about 60 bytes for each of groups · most, and for the entries of a block.
    """

    def __init__(self, groups: int, most: int, highest: Any) -> None:
        self.most = most
        self.limit = np.full(groups, highest)  # only what costs less is of interest
        self.group, self.image, self.column = (np.zeros(0, np.int64) for _ in range(3))
        self.cost = self.limit[:0]

    def add(self, group: NDArray[Any], image: NDArray[Any], column: NDArray[Any], cost: NDArray[Any]) -> None:
        if not self.most or not len(group):
            return
        self.group, self.image = np.concatenate([self.group, group]), np.concatenate([self.image, image])
        self.column, self.cost = np.concatenate([self.column, column]), np.concatenate([self.cost, cost])
        order = np.lexsort((self.column, self.image, self.cost, self.group))
        group = self.group[order]
        place = np.arange(len(order)) - np.searchsorted(group, group)
        last = order[place == self.most - 1]
        self.limit[self.group[last]] = self.cost[last]
        order = order[place < self.most]
        self.group, self.image, self.column = self.group[order], self.image[order], self.column[order]
        self.cost = self.cost[order]

    def of(self, group: int) -> slice:
        """Where the entries of a group are, the least cost first."""
        return slice(*np.searchsorted(self.group, (group, group + 1)).tolist())


def choose(
    scores: NDArray[Any],
    table: LabelTable,
    thresholds: NDArray[Any],
    count: int,
    *,
    features: NDArray[Any] | None = None,
    control: float = 0.1,
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
    seed: int = 0,
) -> list[Question]:
    """The unknown entries most worth asking about; scores (N, C) calibrated, features (N, D) or none.

    An answer is worth what it is expected to add to a class, and the more is known of a class the less each adds:

        worth(i, c) = q_ic / (n_c + Σ q of the entries of c chosen so far)

    with q = `presence` where unknown entries are taken for absent in training (a "no" then tells nothing new), and
    q (1 − q) + q / 4 where the known labels are a fair sample (both answers teach). n_c = known positives. So rare
    classes come first and give way as they fill. At most `per_image` questions per image, and none about a photo all
    but equal to one already asked about for the class. The share `control` is drawn at random, half from the entries
    at or above their threshold and half from the others, and marked. `skip` are entries answered already.

    The control comes first, in random order: whenever answering stops, what was answered of it is a random sample. Then
    class after class.
    """
    if count < 1 or not 0 <= control <= 1 or per_image < 1:
        raise UserError(
            f"{count} questions, a control share of {control:g} and {per_image} per image make no list",
            "ask for at least 1 question and 1 per image, with a control share between 0 and 1",
        )
    fit = PositiveUnlabelled.fit(scores, *table.entries())
    drawn, open_ = _survey(scores, table, thresholds, fit, min(round(control * count), count), count, skip, seed)
    chosen = _control(drawn, seed)
    positives = np.bincount(table.column[table.value > 0], minlength=len(table.classes))
    looks = _Looks.of(features)
    picked = _greedy(open_, chosen, scores, fit, positives, count - len(chosen), per_image, looks)
    few = np.median(positives)
    asked = [Question(i, c, q, _why(q, bool(positives[c] < few))) for i, c, q in picked]
    worth = [float(fit.answer_value(item.probability)) for item in asked]
    q = fit.probabilities(np.array([scores[item.image, item.column] for item in chosen], scores.dtype)).tolist()
    return [item._replace(probability=p) for item, p in zip(chosen, q, strict=True)] + _by_class(asked, worth)


class _Open(NamedTuple):
    """The unknown entries: how many of each class (C,), the best of each, and all of one."""

    left: NDArray[np.int64]
    best: _Least
    whole: Callable[[int], tuple[NDArray[np.int64], NDArray[np.float64]]]  # images of a class by cost, and the costs


def _survey(
    scores: NDArray[Any],
    table: LabelTable,
    cuts: NDArray[Any],
    fit: PositiveUnlabelled,
    control: int,
    count: int,
    skip: Iterable[tuple[int, int]],
    seed: int,
) -> tuple[_Least, _Open]:
    """Look at all entries once: a random sample below (0) and at or above (1) their threshold, and what is open."""
    classes = len(table.classes)
    answered = _entries(skip)
    names = hash_names(table.images.array)
    drawn = _Least(2, control, np.uint64(0xFFFFFFFFFFFFFFFF))
    best = _Least(classes, min(max(_MOST_KEPT, 2 * count // max(classes, 1)), len(table)), np.inf)
    left = np.zeros(classes, np.int64)
    for index, found, unknown in _open_entries(scores, table, answered):
        left += unknown.sum(0)
        cost = -fit.answer_value(fit.probabilities(found))
        row, column = np.nonzero(unknown & (cost < best.limit))
        best.add(column, index[row], column, cost[row, column])
        if control:
            key = bits(seed, _CONTROL, names[index][:, None], np.arange(classes)[None, :])
            with np.errstate(invalid="ignore"):
                called = found >= cuts
            row, column = np.nonzero(unknown & (key < np.where(called, drawn.limit[1], drawn.limit[0])))
            drawn.add(called[row, column].astype(np.int64), index[row], column, key[row, column])

    def whole(c: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        q = fit.probabilities(np.asarray(scores[:, c]))
        q[np.searchsorted(table.start, np.flatnonzero(table.column == c), side="right") - 1] = np.nan
        q[answered[answered[:, 1] == c, 0]] = np.nan
        cost = -fit.answer_value(q)
        order = np.argsort(cost, kind="stable")[: int((~np.isnan(cost)).sum())]  # NaN comes last
        return order, cost[order]

    return drawn, _Open(left, best, whole)


def _control(drawn: _Least, seed: int) -> list[Question]:
    """A random sample of the unknown entries, half from each side of the threshold; chosen by names and seed alone."""
    count, strata = drawn.most, ((CONTROL_PRESENT, drawn.of(1)), (CONTROL_ABSENT, drawn.of(0)))
    have = [part.stop - part.start for _, part in strata]
    first = min(have[0], max(count - count // 2, count - have[1]))
    found: list[Question] = []
    for (why, part), many in zip(strata, (first, min(have[1], count - first)), strict=True):
        image, column = (values[part][:many].tolist() for values in (drawn.image, drawn.column))
        found += [Question(i, c, math.nan, why) for i, c in zip(image, column, strict=True)]
    # In an order of its own: by their keys, the smaller of the two samples would come last.
    mixed = bits(seed, _CONTROL + 1, np.arange(len(found)))
    return [found[k] for k in np.argsort(mixed, kind="stable")]


def _greedy(
    open_: _Open,
    taken: Sequence[Question],
    scores: NDArray[Any],
    fit: PositiveUnlabelled,
    positives: NDArray[Any],
    count: int,
    per_image: int,
    looks: _Looks | None,
) -> list[tuple[int, int, float]]:
    """Entries in the order of their worth; a class's worth falls as it fills, so a heap holds its best candidate."""
    shut = {(item.image, item.column) for item in taken}
    filled = np.maximum(positives, 1).astype(np.float64)
    asked: Counter[int] = Counter()
    seen: list[list[NDArray[np.float32]]] = [[] for _ in filled]

    def candidates(c: int) -> Iterator[tuple[int, float]]:
        """(image, cost) of a class: first those kept, and all when they are used up, which near-duplicates bring on."""
        part = open_.best.of(c)
        image, cost = open_.best.image[part], open_.best.cost[part]
        yield from ((i, each) for i, each in zip(image.tolist(), cost.tolist(), strict=True) if (i, c) not in shut)
        if len(image) < open_.left[c]:
            more, costs = (values[len(image) :] for values in open_.whole(c))
            yield from ((int(i), float(each)) for i, each in zip(more, costs, strict=True) if (i, c) not in shut)

    waiting = [candidates(c) for c in range(len(filled))]
    heap: list[tuple[float, int, int, float]] = []

    def wait(c: int) -> None:
        if (following := next(waiting[c], None)) is not None:
            heapq.heappush(heap, (following[1] / float(filled[c]), c, *following))

    for c in range(len(filled)):
        wait(c)
    found: list[tuple[int, int, float]] = []
    while heap and len(found) < count:
        _, c, i, _ = heapq.heappop(heap)
        look = looks.unit(i) if looks is not None else None
        if asked[i] < per_image and not (look is not None and seen[c] and _repeats(look, seen[c])):
            q = float(fit.probabilities(np.asarray(scores[i, c])))
            found.append((i, c, q))
            if look is not None:
                seen[c].append(look)
            asked[i] += 1
            filled[c] += q
        wait(c)
    return found


class _Looks(NamedTuple):
    """Centred features of length 1, made when they are asked for; images that could not be read are like no other."""

    features: NDArray[Any]  # (N, D)
    mean: NDArray[np.float32]  # (D,)

    @classmethod
    def of(cls, features: NDArray[Any] | None) -> _Looks | None:
        if features is None or not len(features):
            return None
        total, many = np.zeros(features.shape[1]), np.zeros(features.shape[1], np.int64)
        for index in image_blocks(*features.shape):
            part = features[index[0] : index[-1] + 1].astype(np.float32)
            total += np.nansum(part, axis=0, dtype=np.float64)
            many += (~np.isnan(part)).sum(0)
        return cls(features, (total / np.maximum(many, 1)).astype(np.float32)) if many.any() else None

    def unit(self, image: int) -> NDArray[np.float32]:
        wide = np.nan_to_num(self.features[image].astype(np.float32) - self.mean)
        found: NDArray[np.float32] = wide / np.maximum(np.linalg.norm(wide), np.float32(1e-9))
        return found


def _repeats(look: NDArray[np.float32], seen: list[NDArray[np.float32]]) -> bool:
    return bool((np.stack(seen) @ look).max() > _ALIKE)


def _why(q: float, rare: bool) -> str:
    said = "likely missing" if q >= 0.5 else "uncertain" if q >= 0.1 else "best of the rest"
    return f"{said}, rare class" if rare else said


def _by_class(questions: Sequence[Question], worth: Sequence[float]) -> list[Question]:
    """Class after class, that with the most worth first; in it the likeliest first, so that answers come in runs."""
    total: dict[int, float] = {}
    for item, each in zip(questions, worth, strict=True):
        total[item.column] = total.get(item.column, 0.0) + each
    return sorted(questions, key=lambda item: (-total[item.column], item.column, -item.probability, item.image))


def likely(
    scores: NDArray[Any],
    table: LabelTable,
    fit: PositiveUnlabelled,
    count: int,
    *,
    skip: Iterable[tuple[int, int]] = (),
    column: int | None = None,
) -> list[Question]:
    """Unknown entries that are present with a chance of a tenth or more, likeliest first; of one class, or of all."""
    best = _Least(1, count, np.nextafter(-0.1, 0))
    for index, found, unknown in _open_entries(scores, table, _entries(skip)):
        if column is not None:
            unknown[:, np.arange(unknown.shape[1]) != column] = False
        cost = -fit.probabilities(found)
        row, to = np.nonzero(unknown & (cost < best.limit[0]))
        best.add(np.zeros_like(row), index[row], to, cost[row, to])
    entries = zip(best.image.tolist(), best.column.tolist(), best.cost.tolist(), strict=True)
    return [Question(i, c, -cost, "likely missing") for i, c, cost in entries]


def _entries(given: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """(n, 2) numbers of images and classes, by image."""
    return np.array(sorted(given), np.int64).reshape(-1, 2)


def _open_entries(
    scores: NDArray[Any], table: LabelTable, answered: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.bool_]]]:
    """(image numbers, their scores, which entries are unknown, scored and not answered), some images at a time."""
    for index in image_blocks(*table.shape):
        found = scores[index[0] : index[-1] + 1]
        unknown = (table.rows(index) == 0) & ~np.isnan(found)
        here = answered[slice(*np.searchsorted(answered[:, 0], (index[0], index[-1] + 1)))]
        unknown[here[:, 0] - index[0], here[:, 1]] = False
        yield index, found, unknown


def doubtful(
    scores: NDArray[Any],
    table: LabelTable,
    count: int,
    *,
    trained_on: NDArray[np.bool_] | None = None,
    how: str = "held-out score",
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
) -> list[Question]:
    """Known labels that look wrong, least probable first: of a present label p, of an absent one 1 − p.

    Only labels with less than even odds, and no class takes more than a quarter while others wait. Scores of images
    numbered in the mask `trained_on` (N,) come from a model that learned those very labels; the others are what `how`
    says. `why` tells which.
    """
    answered = np.array([i * len(table.classes) + c for i, c in skip], np.int64)
    parts = []
    for index in image_blocks(len(table), 1):
        known = slice(table.start[index[0]], table.start[index[-1] + 1])
        image = np.repeat(index, np.diff(table.start[index[0] : index[-1] + 2]))
        column, value = table.column[known].astype(np.int64), table.value[known]
        score = np.asarray(scores[image, column])
        with np.errstate(invalid="ignore"):
            own = np.where(value > 0, score, 1 - score)
            fits = (own < 0.5) & ~np.isin(image * len(table.classes) + column, answered)
        parts.append((image[fits], column[fits], value[fits], own[fits], score[fits]))
    image, column, value, own, score = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((column, image, own))
    taken: Counter[int] = Counter()
    per_class: Counter[int] = Counter()
    quota = max(2, count // 4)
    first: list[int] = []
    rest: list[int] = []
    for k in order:
        if len(first) == count:
            break
        i, c = int(image[k]), int(column[k])
        if taken[i] < per_image:
            taken[i] += 1
            per_class[c] += 1
            (first if per_class[c] <= quota else rest).append(int(k))
    found = []
    for k in sorted((first + rest)[:count], key=lambda k: float(own[k])):
        seen = trained_on is not None and bool(trained_on[image[k]])
        said = "labelled present" if value[k] > 0 else "labelled absent"
        why = f"{said}; {'score of a label trained on' if seen else how}"
        found.append(Question(int(image[k]), int(column[k]), float(score[k]), why))
    return found


def write_questions(questions: Sequence[Question], table: LabelTable, path: str | Path) -> None:
    """CSV `image,class,probability,why`, in the order given."""
    with (
        atomic_write(path) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for item in questions:
            name, title = table.images[item.image], table.classes[item.column]
            writer.writerow((name, title, f"{item.probability:.4f}", item.why))


def read_questions(path: str | Path, table: LabelTable) -> list[Question]:
    """Questions from CSV; images and classes must be those of the run, probability and why may be left out."""
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            raise UserError(f"{path} is no file", "make it with `halflabel next`")
        # A name that is no text is not in the labels; replaced, it is refused below as any other unknown one.
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            header = reader.fieldnames or []
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error})", "make it with `halflabel next`") from None
    for column in COLUMNS[:2]:
        if column not in header:
            raise LabelError(f"there is no column {column!r}", "make the file with `halflabel next`", path, line=1)
    images = table.images.index([row["image"] or "" for _, row in rows])
    columns = table.classes.index([row["class"] or "" for _, row in rows])
    found = []
    for (line, row), image, column in zip(rows, images.tolist(), columns.tolist(), strict=True):
        for kind, at in (("image", image), ("class", column)):
            if at < 0:
                message = f"the run knows no {kind} {row[kind]!r}"
                raise LabelError(message, "use questions of this run", path, line=line, column=kind)
        try:
            probability = float(row.get("probability") or "nan")
        except ValueError:
            message = f"{row['probability']!r} is no probability"
            raise LabelError(message, "use a number or blank", path, line=line, column="probability") from None
        found.append(Question(image, column, probability, row.get("why") or ""))
    return found
