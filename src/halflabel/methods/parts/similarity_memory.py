"""Images that others may be similar to: imputed labels and features, groups, and a memory of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import detect_delimiter, existing_path, first_line, read_records
from halflabel.labels.table import LabelTable
from halflabel.methods.parts.relabel import Ignore, never_starts
from halflabel.types import Sweep, at_least_float32

__all__ = ["Items", "Memory", "impute", "read_groups"]

_LARGEST = 2 * 10**9  # bytes that may be remembered about images
_PIECE = 1 << 12  # images whose scores are taken over together


def impute(labels: Tensor, logits: Tensor) -> Tensor:
    """y: 1 where known present, −0.5 where known absent, 1.5 p − 0.5 where unknown; (B, C), with the gradient of p.

    Eq. 3, then from [−1, 1] to [−0.5, 1] (section 4.3). Float32 at least.
    """
    logits = at_least_float32(logits)
    scores = torch.where(labels == 0, torch.sigmoid(logits), (labels > 0).to(logits.dtype))
    return 1.5 * scores - 0.5


class Items(NamedTuple):
    """Images that can be similar: their numbers in the training table, features and imputed labels."""

    number: Tensor  # (M,) int64, −1 for none
    features: Tensor  # (M, D)
    labels: Tensor  # (M, C)


class Memory(Ignore):
    """Charges known labels alone, and remembers features and imputed labels: of recent images, and of a start.

    The last `size` images seen in training, each once, as they were then: 4·(C + D) + 8 bytes each. And, where it
    `keeps`, all training images as they were after the logistic epochs: 4·(C + D) bytes each, on the device, and as
    much for the sweep that they come from, from 256 MB on in scratch files.
    """

    number: Tensor  # (M,) int64, image numbers, −1 for a free place
    place: Tensor  # () int64, where the next image goes
    features: Tensor | None  # (M, D)
    labels: Tensor | None  # (M, C)
    start_features: Tensor | None  # (N, D)
    start_labels: Tensor | None  # (N, C)

    def __init__(self, size: int, logistic_share: float, *, keeps: bool) -> None:
        super().__init__()
        self.size = size
        self.logistic_share = logistic_share
        self.keeps = keeps
        self.logistic_epochs = 1 if keeps else 0
        self.table: LabelTable | None = None
        for name in _SIZED:
            self.register_buffer(name, None)

    def plan(self, epochs: int) -> None:
        self.logistic_epochs = max(round(self.logistic_share * epochs), 1 if self.keeps else 0)

    def idle(self, epochs: int) -> str:
        if self.logistic_share == 1:  # that is to say never
            return ""
        return never_starts("smoothness", self.logistic_epochs + 1, epochs)

    def start(self, table: LabelTable) -> None:
        if self.table == table:
            return
        self.table = table
        self.check(0)
        room = min(self.size, len(table))
        self.register_buffer("number", torch.full((room,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))
        for name in _SIZED:
            setattr(self, name, None)

    def wants_sweep(self, epoch: int) -> bool:
        return self.keeps and epoch == self.logistic_epochs

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        assert self.table is not None
        self.check(sweep.features.shape[1])
        device = self.number.device
        self.start_features = torch.empty_like(sweep.features, device=device)
        self.start_labels = torch.empty_like(sweep.logits, device=device)
        for first in range(0, len(self.table), _PIECE):
            part = slice(first, min(first + _PIECE, len(self.table)))
            logits = sweep.logits[part]
            labels = impute(torch.from_numpy(self.table.rows(np.arange(part.start, part.stop))), logits)
            # Images that could not be read are similar to none.
            self.start_features[part] = sweep.features[part].nan_to_num(0.0).to(device)
            self.start_labels[part] = labels.masked_fill(logits.isnan().any(1, keepdim=True), 0).to(device)
        return {}

    def check(self, features: int) -> None:
        """Refuse to keep all training images with so many features each, rather before the first epoch than after."""
        if self.keeps and self.table is not None:
            _check_room(len(self.table), features + len(self.table.classes), "image_similarity fixed")

    def remember(self, batch: Items) -> None:
        """Put these images in the places of the oldest; each image is there once."""
        room = len(self.number)
        if not room:
            return
        batch = Items(*(part[-room:].detach() for part in batch))
        if self.features is None or self.labels is None:
            channels, classes = batch.features.shape[1], batch.labels.shape[1]
            _check_room(room, channels + classes, f"dictionary {room}")
            self.features, self.labels = batch.features.new_zeros(room, channels), batch.labels.new_zeros(room, classes)
        self.number.masked_fill_(torch.isin(self.number, batch.number), -1)
        at = (self.place + torch.arange(len(batch.number), device=self.place.device)) % room
        self.number[at] = batch.number
        self.features[at] = batch.features
        self.labels[at] = batch.labels
        self.place.copy_((self.place + len(batch.number)) % room)

    def recent(self) -> Items | None:
        """The images in memory, free places among them; None if there are none yet."""
        if self.features is None or self.labels is None:
            return None
        return Items(self.number, self.features, self.labels)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # How many features there are is known from the first batch on, so the state says how large these are.
        for name in _SIZED:
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=self.number.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


_SIZED = ("features", "labels", "start_features", "start_labels")


def read_groups(path: str | Path, table: LabelTable) -> NDArray[np.int64]:
    """The group of each image, (N,) numbers, −1 for none, from CSV rows `image,group`.

    A first line whose first field is no image is a header; images that are not in the table are passed over, and one
    whose group is blank has none.
    """
    path = existing_path(path)
    names: list[str] = []
    groups: list[str] = []
    lines: list[int] = []
    for line, fields in read_records(path, detect_delimiter(first_line(path))):
        if len(fields) != 2:
            raise LabelError(f"{len(fields)} fields", "write image,group on each line", path, line=line)
        names.append(fields[0].strip())
        groups.append(fields[1].strip())
        lines.append(line)
    at = table.images.index(names)
    inside = at >= 0
    if not inside.any():
        example = f"the first is {names[0]!r}" if names else "the file is blank"
        raise LabelError(
            f"not one image of the training labels is named ({example})",
            f"write names as the labels have them, such as {table.images[0]!r}" if len(table) else "give labels",
            path,
        )
    number = {
        group: place for place, group in enumerate(sorted({groups[row] for row in np.flatnonzero(inside)} - {""}))
    }
    numbers = np.array([number.get(group, -1) for group in groups])
    found = np.full(len(table), -1, np.int64)
    found[at[inside]] = numbers[inside]
    if len(other := np.flatnonzero(inside & (found[at] != numbers))):
        row = int(other[0])
        raise LabelError(
            f"{names[row]!r} is in {groups[row]!r} here, and in another group further down",
            "give each image one group",
            path,
            line=lines[row],
        )
    return found


def _check_room(images: int, width: int, what: str) -> None:
    if 4 * images * width > _LARGEST:
        raise UserError(
            f"{what} would remember {4 * images * width / 1e9:.1f} GB about {images} images",
            "use a smaller --dictionary, or --image-similarity learned, which remembers nothing per training image",
        )
