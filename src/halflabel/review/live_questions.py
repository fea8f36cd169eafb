"""The queue of a live review: questions by the newest scores, classes without any positive, and random controls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.questions.choose import CONTROL_ABSENT, CONTROL_PRESENT, Question

CONTROL_SHARE = 0.1  # share of the queue that is drawn at random
NAMES_SHARE = 0.5  # the same, of the first questions where only class names rank the photos: random answers test them
QUEUE = 200
_LIKELIEST = 0.3  # least probability of the photo that most likely shows a class whose name found nothing
_CHUNK = 20  # questions between two fits: within a chunk those of a class follow each other
_NEIGHBOURS = 10  # most similar photos whose similarity is the density
_SAMPLE = 2000  # photos that similarity is measured to


class EntryAnswer(NamedTuple):
    """The current answer about an entry: +1 present, −1 absent, 0 unsure; and its inclusion weight."""

    image: int
    column: int
    value: int
    weight: float  # 0 if the question was chosen

    @property
    def entry(self) -> tuple[int, int]:
        return self.image, self.column


class Explorer:
    """Probabilities of classes without a known positive, about which the model knows nothing yet.

    A photo that none of the other classes explains shows one of these classes, each as likely as the others, except
    those that were answered absent in it or in a similar photo. Photos in the midst of many similar ones come first.
    With class names their probabilities are used instead, since a fit to absences alone would lower them, until too
    many photos that a name calls likely were answered absent.
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        classes: int,
        seed: int = 0,
        named: NDArray[np.float32] | None = None,
    ) -> None:
        """Take features (N, K), NaN for unreadable images, and the probabilities from class names (N, C)."""
        self.named = named
        length = np.linalg.norm(features, axis=1, keepdims=True)
        self.unit = np.nan_to_num(features / np.maximum(length, 1e-12))
        sample = np.random.default_rng(seed).permutation(len(features))[:_SAMPLE]
        density = np.empty(len(features), np.float32)
        for first in range(0, len(features), 1 << 14):
            similarity = self.unit[first : first + (1 << 14)] @ self.unit[sample].T
            nearest = min(_NEIGHBOURS, similarity.shape[1])
            density[first : first + (1 << 14)] = np.partition(similarity, -nearest, axis=1)[:, -nearest:].mean(1)
        self.density = np.clip(density / max(float(density.max()), 1e-12), 0, 1)
        self.denied = np.zeros((len(features), classes), np.float32)  # similarity to the nearest absent answer
        self.seen: set[tuple[int, int]] = set()

    def probabilities(self, p: NDArray[Any], labels: NDArray[np.int8]) -> NDArray[np.float32]:
        """Return p (N, C) with the classes without a known positive in labels (N, C) replaced."""
        unseen = ~(labels > 0).any(0)
        result = p.astype(np.float32)
        if not unseen.any():
            return result
        for image, column in np.argwhere((labels < 0) & unseen).tolist():
            if (image, column) not in self.seen:
                self.seen.add((image, column))
                self.denied[:, column] = np.maximum(self.denied[:, column], self.unit @ self.unit[image])
        with np.errstate(invalid="ignore"):
            unexplained = np.prod(1 - result[:, ~unseen], axis=1) * ~(labels > 0).any(1)
        left = np.maximum(unseen.sum() - (labels[:, unseen] < 0).sum(1), 1)
        guess = ((unexplained * self.density / left)[:, None] * (1 - self.denied[:, unseen])).clip(0, 1)
        if self.named is not None:
            named = self.named[:, unseen]
            holds = np.prod(np.where((labels < 0)[:, unseen], 1 - named, 1), 0)  # P(these absences) if names are right
            likeliest = np.maximum(np.nanmax(guess, 0, initial=0), 1e-3)  # a class that nobody finds keeps being asked
            guess = holds * named + (1 - holds) * guess * np.maximum(_LIKELIEST / likeliest, 1)
        result[:, unseen] = guess
        return result


def draw_controls(
    p: NDArray[Any],
    population: NDArray[np.bool_],
    drawn: Sequence[tuple[int, int]],
    threshold: float,
    count: int,
    seed: Sequence[int],
) -> list[Question]:
    """Draw entries at random from the population (N, C), in turn from those called present and from the others.

    Entries in `drawn` are not drawn again. An entry that somebody answered already may be drawn: leaving such entries
    out would bias what is estimated from the others.
    """
    generator = np.random.default_rng(list(seed))
    free, called = population & ~np.isnan(p), p >= threshold
    for image, column in drawn:
        free[image, column] = False
    strata = [(CONTROL_PRESENT, np.flatnonzero(free & called)), (CONTROL_ABSENT, np.flatnonzero(free & ~called))]
    strata = [(why, entries) for why, entries in strata if len(entries)]
    samples: list[list[Question]] = []
    for turn, (why, entries) in enumerate(strata):
        number = min(len(range(turn, count, len(strata))), len(entries))
        places = (divmod(int(e), p.shape[1]) for e in generator.choice(entries, number, replace=False))
        samples.append([Question(i, c, float(p[i, c]), why, len(entries) / number) for i, c in places])
    return [question for group in zip_longest(*samples) for question in group if question is not None]


def mix(
    chosen: Sequence[Question], controls: Sequence[Question], share: float, generator: np.random.Generator
) -> list[Question]:
    """Return the queue, in chunks as long as the time between two fits.

    A chunk has its `share` of the controls, at random places; its other questions are grouped by class.
    """
    queue: list[Question] = []
    waiting = list(controls)
    per_chunk = max(1, round(_CHUNK * share)) if controls else 0
    for first in range(0, max(len(chosen), 1), _CHUNK - per_chunk):
        chunk = sorted(chosen[first : first + _CHUNK - per_chunk], key=lambda item: item.column)
        for item in waiting[:per_chunk]:
            chunk.insert(int(generator.integers(len(chunk) + 1)), item)
        waiting = waiting[per_chunk:]
        queue += chunk
    return queue + waiting
