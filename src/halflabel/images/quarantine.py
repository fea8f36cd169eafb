"""The list of unreadable images (bad_images.csv), and the limit on how many a run tolerates."""

from __future__ import annotations

import math
from pathlib import Path

from halflabel.errors import UserError
from halflabel.system.files import write_csv


class TooManyBadImages(UserError):
    """More images cannot be read than the limit allows."""


class Quarantine:
    """Collects images that could not be read; `path` is the file that finally lists them."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: list[tuple[str, str, str]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, image: str, path: str | Path, reason: str) -> None:
        """Add an image; `image` is its id in the label table."""
        self.rows.append((image, str(path), reason))

    def check(self, total: int, limit: float, *, missing: str = "") -> None:
        """Raise TooManyBadImages if more than the share `limit` of `total` images is bad, or `missing` something."""
        bad, see = len(self.rows), f"see {self.path}, " if self.path else ""
        if bad <= limit * total:
            return
        share, over = f"{bad} of {total} images ({100 * bad / total:.3g} %)", f"over the limit of {100 * limit:.3g} %"
        if missing:
            examples = ", ".join(repr(image) for image, _, _ in self.rows[:3]) + (" …" if bad > 3 else "")
            see += "check the folder, leave those images out of the label file, "
            fix = f"{see}or add ‹max_bad={math.ceil(100 * bad / total) / 100:g}›"
            raise TooManyBadImages(f"{share} have no {missing}, {over}: {examples}", fix)
        image, path, reason = self.rows[0]
        raise TooManyBadImages(
            f"{share} cannot be read, {over}: first: {image} ({path}): {reason}", f"{see}or raise ‹max_bad›"
        )

    def write(self) -> None:
        """Write the rows as CSV `image,path,reason` to `path`, atomically; nothing without a path."""
        if self.path is not None:
            write_csv(self.path, ("image", "path", "reason"), self.rows)
