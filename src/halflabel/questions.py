"""Questions: which (image, class) entries a person should look at next, and which known labels look wrong.

Choosing needs NumPy alone, so that a page of questions opens at once; scoring images needs torch.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.files import replacing
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.rng import bits, hash_names

__all__ = [
    "CONTROL",
    "CONTROL_ABSENT",
    "CONTROL_PRESENT",
    "Question",
    "choose",
    "doubtful",
    "is_fair",
    "presence",
    "read_questions",
    "write_questions",
]

CONTROL = "control"
CONTROL_PRESENT = "control: called present"  # drawn at random from the unknown entries at or above their threshold
CONTROL_ABSENT = "control: called absent"  # … and from those below
COLUMNS = ("image", "class", "probability", "why")

_CONTROL = 0x6374726C  # what the random numbers of the control are for
_ALIKE = 0.97  # cosine of centred features from which two photos count as one
_MOST_FITTED = 1_000_000


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


def is_fair(labels: NDArray[Any]) -> bool:
    """Whether known labels can calibrate scores: at least as many negatives as positives are known.

    Where people mostly note what they see, known entries are mostly present and unknown ones mostly absent: a
    probability fitted on the known ones is far too high for the others.
    """
    return int((labels < 0).sum()) >= max(int((labels > 0).sum()), 1)


def presence(scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """The probability that an unknown entry is present: (N, C) scores and labels -> (N, C); NaN for unread images.

    Where the known labels are a fair sample, the calibrated scores themselves. Else (Elkan 2008, eq. 1 and 3, with
    s = known to be present and c = P(s | present)):

        g = P(s | x) = σ(a · logit + b), fitted with unknown entries as s = 0;    c = mean of g over s = 1
        P(present | x, not s) = (1 − c)/c · g/(1 − g),    below 1

    c comes out too low where classes overlap, so that this is then an upper estimate: near the truth for a good model,
    far above it for a poor one. Within a class the order does not depend on c.
    """
    if is_fair(labels) or not bool((labels > 0).any()):
        return scores.astype(np.float64)
    inside = np.clip(scores.astype(np.float64), 1e-6, 1 - 1e-6)
    logits = np.log(inside / (1 - inside))
    said = labels > 0
    slope, offset = _logistic(logits[labels >= 0], said[labels >= 0])
    g = 1 / (1 + np.exp(-(slope * logits + offset)))
    c = float(np.clip(np.nanmean(g[said]), 0.05, 0.95))
    # Not cut off at 1: what is likelier still ranks above what is likely.
    return np.minimum((1 - c) / c * g / np.maximum(1 - g, 1e-12), 1 - 1e-3 * (1 - g))


def _logistic(x: NDArray[Any], y: NDArray[Any], steps: int = 25) -> tuple[float, float]:
    """(a, b) that make y most likely under σ(a x + b), a ≥ 0, by Newton's method with halving."""
    read = ~np.isnan(x)
    x, y = x[read], y[read].astype(np.float64)
    stride = -(-len(x) // _MOST_FITTED)
    x, y = x[::stride], y[::stride]
    if not len(x) or not 0 < y.sum() < len(y):
        return 1.0, 0.0
    w = np.array([1.0, 0.0])

    def loss(w: NDArray[Any]) -> float:
        z = w[0] * x + w[1]
        return float((np.logaddexp(0, z) - y * z).mean())

    now = loss(w)
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(w[0] * x + w[1], -500, 500)))
        slant = np.array([((p - y) * x).mean(), (p - y).mean()])
        v = p * (1 - p)
        bend = np.array([[(v * x * x).mean(), (v * x).mean()], [(v * x).mean(), v.mean()]]) + 1e-9 * np.eye(2)
        move = np.linalg.solve(bend, slant)
        size = 1.0
        while (then := loss(w - size * move)) > now and size > 1e-4:
            size /= 2
        if then >= now - 1e-12:
            break
        w, now = w - size * move, then
    # Scores that rank backwards stay in their own order: a question list turned upside down helps nobody.
    return (float(w[0]), float(w[1])) if w[0] > 0 else (1.0, 0.0)


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
    labels = table.dense()
    q = presence(scores, labels)
    unknown = (labels == 0) & ~np.isnan(q)
    for entry in skip:
        unknown[entry] = False
    chosen = _control(unknown, scores, thresholds, table.images, min(round(control * count), count), seed)
    for question in chosen:
        unknown[question.image, question.column] = False
    worth = q * (1 - q) + q / 4 if is_fair(labels) else q
    positives = (labels > 0).sum(axis=0)
    picked = _greedy(worth, q, unknown, positives, count - len(chosen), per_image, _unit(features))
    few = np.median(positives)
    asked = [Question(i, c, float(q[i, c]), _why(float(q[i, c]), bool(positives[c] < few))) for i, c in picked]
    return [c._replace(probability=float(q[c.image, c.column])) for c in chosen] + _by_class(asked, worth)


def _control(
    unknown: NDArray[np.bool_], scores: NDArray[Any], cuts: NDArray[Any], names: Names, count: int, seed: int
) -> list[Question]:
    """A random sample of the unknown entries, half from each side of the threshold; chosen by names and seed alone."""
    with np.errstate(invalid="ignore"):
        called = scores >= cuts
    key = bits(seed, _CONTROL, hash_names(names.array)[:, None], np.arange(unknown.shape[1])[None, :])
    strata = [(CONTROL_PRESENT, unknown & called), (CONTROL_ABSENT, unknown & ~called)]
    have = [int(mask.sum()) for _, mask in strata]
    first = min(have[0], max(count - count // 2, count - have[1]))
    found: list[Question] = []
    for (why, mask), many in zip(strata, (first, min(have[1], count - first)), strict=True):
        image, column = np.nonzero(mask)
        order = np.argsort(key[image, column], kind="stable")[:many]
        found += [Question(int(i), int(c), math.nan, why) for i, c in zip(image[order], column[order], strict=True)]
    # In an order of its own: by `key`, the smaller of the two samples would come last.
    mixed = bits(seed, _CONTROL + 1, np.arange(len(found)))
    return [found[k] for k in np.argsort(mixed, kind="stable")]


def _greedy(
    worth: NDArray[Any],
    q: NDArray[Any],
    unknown: NDArray[np.bool_],
    positives: NDArray[Any],
    count: int,
    per_image: int,
    unit: NDArray[np.float32] | None,
) -> list[tuple[int, int]]:
    """Entries in the order of their worth; a class's worth falls as it fills, so a heap holds its best candidate."""
    rank = np.where(unknown, worth, -np.inf)
    order = np.argsort(-rank, axis=0, kind="stable")
    left = unknown.sum(axis=0).tolist()
    filled = np.maximum(positives, 1).astype(np.float64)
    taken = np.zeros(len(rank), np.int64)
    seen: list[list[int]] = [[] for _ in left]
    at = [0] * len(left)
    heap = [(-float(rank[order[0, c], c] / filled[c]), c) for c in range(len(left)) if left[c]]
    heapq.heapify(heap)
    found: list[tuple[int, int]] = []
    while heap and len(found) < count:
        _, c = heapq.heappop(heap)
        i = int(order[at[c], c])
        at[c] += 1
        if taken[i] < per_image and not (unit is not None and seen[c] and _repeats(unit, seen[c], i)):
            found.append((i, c))
            seen[c].append(i)
            taken[i] += 1
            filled[c] += q[i, c]
        if at[c] < left[c]:
            heapq.heappush(heap, (-float(rank[order[at[c], c], c] / filled[c]), c))
    return found


def _repeats(unit: NDArray[np.float32], seen: list[int], image: int) -> bool:
    return bool((unit[seen] @ unit[image]).max() > _ALIKE)


def _unit(features: NDArray[Any] | None) -> NDArray[np.float32] | None:
    """Centred features of length 1, (N, D); images that could not be read are like no other."""
    if features is None or not len(features):
        return None
    wide = features.astype(np.float32)
    if np.isnan(wide).all():
        return None
    wide = np.nan_to_num(wide - np.nanmean(wide, axis=0))
    unit: NDArray[np.float32] = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-9)
    return unit


def _why(q: float, rare: bool) -> str:
    said = "likely missing" if q >= 0.5 else "uncertain" if q >= 0.1 else "best of the rest"
    return f"{said}, rare class" if rare else said


def _by_class(questions: Sequence[Question], worth: NDArray[Any]) -> list[Question]:
    """Class after class, that with the most worth first; in it the likeliest first, so that answers come in runs."""
    total: dict[int, float] = {}
    for item in questions:
        total[item.column] = total.get(item.column, 0.0) + float(worth[item.image, item.column])
    return sorted(questions, key=lambda item: (-total[item.column], item.column, -item.probability, item.image))


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
    labels = table.dense()
    with np.errstate(invalid="ignore"):
        own = np.where(labels > 0, scores, 1 - scores)
    rank = np.where((labels != 0) & ~np.isnan(own) & (own < 0.5), own, np.inf)
    for entry in skip:
        rank[entry] = np.inf
    image, column = np.nonzero(np.isfinite(rank))
    order = np.lexsort((column, image, rank[image, column]))
    taken = np.zeros(len(labels), np.int64)
    per_class = np.zeros(labels.shape[1], np.int64)
    quota = max(2, count // 4)
    first: list[tuple[int, int]] = []
    rest: list[tuple[int, int]] = []
    for i, c in zip(image[order].tolist(), column[order].tolist(), strict=True):
        if len(first) == count:
            break
        if taken[i] < per_image:
            taken[i] += 1
            per_class[c] += 1
            (first if per_class[c] <= quota else rest).append((i, c))
    found = []
    for i, c in sorted((first + rest)[:count], key=lambda entry: rank[entry]):
        seen = trained_on is not None and bool(trained_on[i])
        said = "labelled present" if labels[i, c] > 0 else "labelled absent"
        found.append(Question(i, c, float(scores[i, c]), f"{said}; {'score of a label trained on' if seen else how}"))
    return found


def write_questions(questions: Sequence[Question], table: LabelTable, path: str | Path) -> None:
    """CSV `image,class,probability,why`, in the order given."""
    with (
        replacing(path) as temporary,
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
