"""The list of unreadable images (bad_images.csv), and the limit on how many a run tolerates."""

from __future__ import annotations

import math
from pathlib import Path

from halflabel.errors import UserError
from halflabel.system.files import write_csv


class TooManyBadImages(UserError):
    """More images cannot be read than the limit allows."""


class Quarantine:
    """Collects images that could not be read, so that a few bad files do not stop a long run.

    `path` is the file that finally lists them; errors refer to it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: list[tuple[str, str, str]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, image: str, path: str | Path, reason: str) -> None:
        """Add an image; `image` is its id in the label table."""
        self.rows.append((image, str(path), reason))

    def check(self, total: int, limit: float = 0.01, *, so_far: bool = False) -> None:
        """Raise TooManyBadImages if more than the share `limit` of `total` images is bad.

        `so_far` says in the error that not all images were tried yet.
        """
        bad = len(self.rows)
        if bad > limit * total:
            image, path, reason = self.rows[0]
            untried = ", and the others were not tried yet" if so_far else ""
            raise TooManyBadImages(
                f"{bad} of {total} images ({100 * bad / max(total, 1):.3g} %) cannot be read, "
                f"over the limit of {100 * limit:.3g} %{untried}: first: {image} ({path}): {reason}",
                f"see {self.path or 'bad_images.csv'}, or raise ‹max_bad›",
            )

    def check_missing(self, total: int, limit: float, folder: Path, lack: str = "file") -> None:
        """Raise TooManyBadImages before any file is opened, when all images so far are those without a file."""
        bad = len(self.rows)
        if bad > limit * total:
            examples = ", ".join(repr(image) for image, _, _ in self.rows[:3])
            see_list = f"see {self.path}; " if self.path else ""
            share = f"{100 * bad / max(total, 1):.3g} %"
            raise TooManyBadImages(
                f"{bad} of {total} images ({share}) have no {lack} in {folder}, over the limit of {100 * limit:.3g} %: "
                f"{examples}{' …' if bad > 3 else ''}",
                f"{see_list}check the folder, leave those images out of the label file, or add "
                f"‹max_bad={math.ceil(100 * bad / total) / 100:g}›",
            )

    def write(self) -> None:
        """Write the rows as CSV `image,path,reason` to `path`, atomically; nothing without a path."""
        if self.path is not None:
            write_csv(self.path, ("image", "path", "reason"), self.rows)
