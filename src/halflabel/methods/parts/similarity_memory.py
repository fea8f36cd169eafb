"""Images that other images may be similar to: imputed labels, features and groups, and a memory of them (imcl)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.groups import image_groups
from halflabel.labels.table import Table
from halflabel.methods.parts.relabel import Begins, Ignore
from halflabel.types import Sweep, at_least_float32

_LARGEST = 2 * 10**9  # most bytes stored about images
_BLOCK_IMAGES = 1 << 12  # images of a sweep copied at a time


def impute(labels: Tensor, logits: Tensor) -> Tensor:
    """y: 1 where known present, −0.5 where known absent, 1.5 p − 0.5 where unknown; (B, C), with the gradient of p.

    Eq. 3, then scaled from [−1, 1] to [−0.5, 1] (section 4.3). At least float32.
    """
    logits = at_least_float32(logits)
    scores = torch.where(labels == 0, torch.sigmoid(logits), (labels > 0).to(logits.dtype))
    return 1.5 * scores - 0.5


class ImageVectors(NamedTuple):
    """Images that can be similar: their numbers in the training table, features and imputed labels."""

    number: Tensor  # (M,) int64, −1 for an empty slot
    features: Tensor  # (M, D)
    labels: Tensor  # (M, C)


class SimilarityMemory(Ignore):
    """A relabeler that uses known labels only, and stores features and imputed labels of training images.

    It stores the last `size` images seen in training, each once, with the vectors they had then: 4·(C + D) + 8 bytes
    per image. With `keep_start` it also stores all training images as they were after the logistic epochs: 4·(C + D)
    bytes per image on the device, and as much for the sweep (from 256 MB on in scratch files).
    """

    late_buffers = ("features", "labels", "start_features", "start_labels")
    number: Tensor  # (M,) int64, image numbers, −1 for an empty slot
    next_slot: Tensor  # () int64, the slot of the next image
    features: Tensor | None  # (M, D)
    labels: Tensor | None  # (M, C)
    start_features: Tensor | None  # (N, D)
    start_labels: Tensor | None  # (N, C)

    def __init__(self, size: int, logistic_share: float, *, keep_start: bool) -> None:
        super().__init__()
        self.size = size
        self.logistic_share = logistic_share
        self.keep_start = keep_start
        self.logistic_epochs = 1 if keep_start else 0
        self.table: Table | None = None
        for name in self.late_buffers:
            self.register_buffer(name, None)

    def plan(self, epochs: int) -> None:
        self.logistic_epochs = max(round(self.logistic_share * epochs), 1 if self.keep_start else 0)

    def begins(self) -> Begins | None:
        if self.logistic_share == 1:  # smoothness is switched off on purpose
            return None
        return Begins("smoothness", self.logistic_epochs + 1, "logistic_share")

    def start(self, table: Table) -> None:
        if self.table == table:
            return
        self.table = table
        self.check_size(0)
        slots = min(self.size, len(table))
        self.register_buffer("number", torch.full((slots,), -1))
        self.register_buffer("next_slot", torch.zeros((), dtype=torch.int64))
        for name in self.late_buffers:
            setattr(self, name, None)

    def wants_sweep(self, epoch: int) -> bool:
        return self.keep_start and epoch == self.logistic_epochs

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        assert self.table is not None
        self.check_size(sweep.features.shape[1])
        device = self.number.device
        self.start_features = torch.empty_like(sweep.features, device=device)
        self.start_labels = torch.empty_like(sweep.logits, device=device)
        for first in range(0, len(self.table), _BLOCK_IMAGES):
            block = slice(first, min(first + _BLOCK_IMAGES, len(self.table)))
            logits = sweep.logits[block]
            labels = impute(torch.from_numpy(self.table.rows(np.arange(block.start, block.stop))), logits)
            # Images that could not be read get zero vectors, which are similar to none.
            self.start_features[block] = sweep.features[block].nan_to_num(0.0).to(device)
            self.start_labels[block] = labels.masked_fill(logits.isnan().any(1, keepdim=True), 0).to(device)
        return {}

    def check_size(self, features: int) -> None:
        """Raise if storing all training images with this many features each would take too much memory."""
        if self.keep_start and self.table is not None:
            _check_bytes(len(self.table), features + len(self.table.classes), "image_similarity fixed")

    def remember(self, batch: ImageVectors) -> None:
        """Store these images in the slots of the oldest ones; each image is stored once."""
        slots = len(self.number)
        if not slots:
            return
        batch = ImageVectors(*(part[-slots:].detach() for part in batch))
        if self.features is None or self.labels is None:
            channels, classes = batch.features.shape[1], batch.labels.shape[1]
            _check_bytes(slots, channels + classes, f"dictionary {slots}")
            self.features = batch.features.new_zeros(slots, channels)
            self.labels = batch.labels.new_zeros(slots, classes)
        self.number.masked_fill_(torch.isin(self.number, batch.number), -1)
        slot = (self.next_slot + torch.arange(len(batch.number), device=self.next_slot.device)) % slots
        self.number[slot] = batch.number
        self.features[slot] = batch.features
        self.labels[slot] = batch.labels
        self.next_slot.copy_((self.next_slot + len(batch.number)) % slots)

    def recent(self) -> ImageVectors | None:
        """Return the stored recent images, with empty slots; None before the first batch or without a dictionary."""
        if self.features is None or self.labels is None:
            return None
        return ImageVectors(self.number, self.features, self.labels)

    def at_start(self, numbers: Tensor, like: ImageVectors) -> tuple[Tensor, Tensor]:
        """Return features and labels of these images as they were after the logistic epochs."""
        assert self.start_features is not None
        assert self.start_labels is not None
        return self.start_features[numbers].to(like.features), self.start_labels[numbers].to(like.labels)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # The number of features is known only from the first batch on, so the saved state decides the shapes.
        for name in self.late_buffers:
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else torch.empty_like(saved, device=self.number.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def group_numbers(side: str, table: Table) -> NDArray[np.int64]:
    """Return the number of the group of each image, (N,), −1 for none; `side` states groups as `--group` does."""
    groups = image_groups(side, table.images, option="side") or []
    number = {group: place for place, group in enumerate(sorted(filter(None, set(groups))))}
    return np.array([number.get(group or "", -1) for group in groups], np.int64)


def _check_bytes(images: int, width: int, option: str) -> None:
    if 4 * images * width > _LARGEST:
        raise UserError(
            f"{option} would store {4 * images * width / 1e9:.1f} GB about {images} images",
            "use a smaller ‹dictionary›, or ‹image_similarity=learned›, which stores nothing per training image",
        )
