"""`halflabel.dataset`: a torch Dataset of labelled images, for training loops of your own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, read_image, require_images
from halflabel.labels.table import Table


class LabelledImages(Dataset[Any]):
    """The images of a label table, in its order, as (image, labels), or (image, labels, index) with `with_index`.

    The image is uint8 (3, H, W), or what `transform` makes of it; labels are int8 (C,) in {−1, 0 unknown, +1}. `folder`
    is an image folder or a pack. A missing image is a UserError at once, a damaged one when it is read.

    >>> table = Table.from_dense([[1, 0]], images=["a.jpg"])
    >>> LabelledImages(table, "no-such-folder")
    Traceback (most recent call last):
    halflabel.errors.UserError: no-such-folder is not a folder. Fix: name the folder with the images
    """

    def __init__(
        self,
        table: Table,
        folder: str | Path,
        transform: Callable[[Tensor], Any] | None = None,
        *,
        with_index: bool = False,
    ) -> None:
        self.table = table
        self.paths = [str(path) for path in require_images(list(table.images), folder)]
        self.transform = transform
        self.with_index = with_index

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]  # an IndexError after the last image ends loops over the dataset
        try:
            image: Any = read_image(path)
        except BadImage as bad:
            raise UserError(
                f"{bad.path} cannot be read: {bad.reason}", "replace the file, or leave it out with table.subset(...)"
            ) from None
        if self.transform is not None:
            image = self.transform(image)
        number = index % len(self.paths)  # -1 is the last image
        labels = torch.from_numpy(self.table.rows([number])[0])
        return (image, labels, number) if self.with_index else (image, labels)
