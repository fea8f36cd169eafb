"""A folder of part-00000.parquet, …, that an interrupted command continues; for `predict --out` and `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from halflabel.errors import UserError
from halflabel.system.files import atomic_write, file_crc32, read_json, write_json

PART = 8192  # images of a file, a multiple of every batch size


class PartFiles:
    """The files of one result. Each is complete or not there, and its checksum is in a note in the folder.

    Files that were not `made_of` the same are only replaced with `force`. Readers of Parquet skip the note, as it
    begins with _.
    """

    def __init__(self, folder: Path, kind: str, made_of: dict[str, Any], *, force: bool = False) -> None:
        self.folder = folder
        self.note = folder / f"_{kind}.json"
        self.made_of = made_of
        self.parts: list[dict[str, Any]] = []
        if self.note.exists() and not force:
            earlier = read_json(self.note, "choose another folder, or replace it by ‹force›")
            if not isinstance(earlier, dict) or earlier.get("made_of") != made_of:
                raise UserError(
                    f"{folder} holds {kind} of another model or other images", "add ‹force›, or name another"
                )
            self.parts = self._intact(earlier["parts"])
        elif folder.exists() and not self.note.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} exists and holds other files", "name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("part-*.parquet"):
            if path.name not in {part["file"] for part in self.parts}:
                path.unlink()
        self._write_note()

    def _intact(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the finished files up to the first one that is missing or damaged."""
        for number, part in enumerate(parts):
            path = self.folder / part["file"]
            if not path.is_file() or file_crc32(path) != part["crc32"]:
                return parts[:number]
        return parts

    @property
    def images(self) -> int:
        """The number of images in the finished files."""
        return sum(part["images"] for part in self.parts)

    @property
    def bad(self) -> int:
        """The number of images that could not be read."""
        return sum(part["bad"] for part in self.parts)

    def add(self, table: Any, images: int, bad: int) -> None:
        """Write a pyarrow table with the results of the next images as a file."""
        path = self.folder / f"part-{len(self.parts):05d}.parquet"
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        with atomic_write(path) as temporary:
            pq.write_table(table, temporary, use_dictionary=texts)  # numbers hardly repeat
        self.parts.append({"file": path.name, "crc32": file_crc32(path), "images": images, "bad": bad})
        self._write_note()

    def _write_note(self) -> None:
        write_json(self.note, {"made_of": self.made_of, "parts": self.parts})
