"""Photos laid out by similarity, for the map of the review page: computed once, in a thread, and cached in a file."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.review.session import ReviewSession
from halflabel.system.files import atomic_write

MAX_POINTS = 50_000  # photos on a map; of more, a random sample
_EMBEDDED = 2000  # photos that t-SNE places; the others stand among their most similar ones
_NEIGHBOURS = 3
_GRID = 65535  # places are whole numbers of 0 … _GRID
_BLOCK = 4096

Floats = NDArray[np.float32]


def lay_out(features: NDArray[Any], embedded: int = _EMBEDDED) -> Floats:
    """Return places (N, 2) in 0 … 1 at which similar photos, by the cosine of centred features (N, D), are close.

    t-SNE of the principal components places at most `embedded` photos. Each other photo stands at the weighted mean of
    its most similar ones among these, a little aside.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(features) < 5:  # t-SNE needs more
        return np.stack([np.linspace(0.1, 0.9, len(features)), np.full(len(features), 0.5)], 1).astype(np.float32)
    draw = np.random.default_rng(0)
    unit = np.nan_to_num(features.astype(np.float32))
    unit += 1e-4 * draw.normal(size=unit.shape)  # copies of a photo stand side by side
    unit -= unit.mean(0)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-9)
    chosen = np.sort(draw.permutation(len(unit))[:embedded])
    components = PCA(min(30, len(chosen) - 1, unit.shape[1]), random_state=0).fit_transform(unit[chosen])
    perplexity = min(30.0, (len(chosen) - 1) / 3)
    places = np.empty((len(unit), 2), np.float32)
    places[chosen] = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=0).fit_transform(components)
    rest = np.setdiff1d(np.arange(len(unit)), chosen)
    spread = 0.01 * np.ptp(places[chosen], axis=0)
    for first in range(0, len(rest), _BLOCK):
        rows = rest[first : first + _BLOCK]
        similarity = unit[rows] @ unit[chosen].T
        nearest = np.argpartition(-similarity, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        weight = np.exp(8 * np.take_along_axis(similarity, nearest, 1))[..., None]
        mean = (weight * places[chosen][nearest]).sum(1) / weight.sum(1)
        places[rows] = mean + spread * draw.normal(size=mean.shape)
    low, high = places.min(0), places.max(0)
    return np.asarray(0.03 + 0.94 * (places - low) / np.maximum((high - low).max(), 1e-9), np.float32)


class PhotoMap:
    """The map of a session: places of photos, and what colours them."""

    def __init__(self, session: ReviewSession, path: Path) -> None:
        self.session, self.path = session, path
        count = len(session.images)
        shown = np.random.default_rng(0).permutation(count)[:MAX_POINTS] if count > MAX_POINTS else np.arange(count)
        self.images: NDArray[np.int64] = np.sort(shown)
        self._places: NDArray[np.uint16] | None = None
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._lock = threading.Lock()

    def points(self) -> dict[str, Any]:
        """Return public ids, names and places; not ready while the places are being computed."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
                self._thread.join(0.2)  # a stored layout is there at once
        if self._places is None:
            return {"ready": False, "photos": len(self.images)}
        x, y = self._places.T.tolist()
        ids, names = self.session.public_ids, self.session.images
        points = {"images": [ids[i] for i in self.images], "names": [names[i] for i in self.images], "x": x, "y": y}
        return {"ready": True, **points, "photos": len(names)}

    def colours(self, label: str) -> dict[str, Any]:
        """Return what colours the photos: probability in % (−1: none) and state of a class, or the best class."""
        scores = self.session.scored.scores[self.images]
        if label not in self.session.classes:
            filled = np.where(np.isnan(scores), -1, scores)
            best = filled.argmax(1)
            is_present = filled.max(1) >= self.session.scored.thresholds[best]
            return {"best": np.where(is_present, best, -1).tolist(), "classes": self.session.classes}
        column = self.session.classes.index(label)
        chance = np.where(np.isnan(scores[:, column]), -1, np.rint(100 * scores[:, column])).astype(int)
        return {"chance": chance.tolist(), "state": self.session.states(column)[self.images].tolist()}

    def _load(self) -> None:
        features = self.session.scored.features[self.images]
        digest = hashlib.sha256(np.ascontiguousarray(features).tobytes()).hexdigest()
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                if str(stored["digest"]) == digest:
                    self._places = stored["places"]
                    return
        except (OSError, ValueError, KeyError):
            pass  # not computed yet, or damaged: computed again
        places = np.rint(_GRID * lay_out(features)).astype(np.uint16)
        with atomic_write(self.path) as temporary, open(temporary, "wb") as file:
            np.savez(file, digest=digest, places=places)
        self._places = places
