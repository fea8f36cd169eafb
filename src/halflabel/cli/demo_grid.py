"""A picture of what a model decides on some photos: each photo with its labels, probabilities and mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from halflabel.system.files import atomic_write

_PHOTO, _GAP, _LINE = 185, 12, 27  # pixels; four photos are 800 wide
_RIGHT, _WRONG, _INK, _PALE = (24, 128, 84), (190, 48, 40), (32, 36, 40), (226, 230, 233)


class Decision(NamedTuple):
    """A class that was called present, or that is present and was missed."""

    name: str
    probability: float
    is_called: bool
    is_present: bool

    @property
    def is_right(self) -> bool:
        return self.is_called == self.is_present

    @property
    def text(self) -> str:
        """The class and its probability, with a word on a mistake.

        >>> Decision("sky", 0.31, False, True).text
        'sky 0.31 missed'
        """
        mistake = "" if self.is_right else " wrong" if self.is_called else " missed"
        return f"{self.name} {self.probability:.2f}{mistake}"


class DecidedPhoto(NamedTuple):
    """A photo and its decisions, most probable first."""

    path: Path
    decisions: Sequence[Decision]


def write_grid(photos: Sequence[DecidedPhoto], path: Path, credit: str) -> None:
    """Write photos side by side as one JPEG, decisions below them, with a credit line."""
    lines = max((len(photo.decisions) for photo in photos), default=0)
    width = len(photos) * (_PHOTO + _GAP) + _GAP
    picture = Image.new("RGB", (width, _GAP + _PHOTO + 8 + lines * _LINE + 30), "white")
    draw = ImageDraw.Draw(picture)
    font, small = ImageFont.load_default(16), ImageFont.load_default(13)
    for number, photo in enumerate(photos):
        left = _GAP + number * (_PHOTO + _GAP)
        with Image.open(photo.path) as opened:
            picture.paste(opened.convert("RGB").resize((_PHOTO, _PHOTO), Image.Resampling.LANCZOS), (left, _GAP))
        for row, decision in enumerate(photo.decisions):
            top = _GAP + _PHOTO + 8 + row * _LINE
            colour = _RIGHT if decision.is_right else _WRONG
            draw.text((left, top), decision.text, _INK if decision.is_right else _WRONG, font)
            draw.rectangle((left, top + 20, left + _PHOTO - 1, top + 22), _PALE)
            draw.rectangle((left, top + 20, left + round(decision.probability * (_PHOTO - 1)), top + 22), colour)
    draw.text((_GAP, picture.height - 22), credit, (110, 116, 122), small)
    with atomic_write(path) as temporary:
        picture.save(temporary, "JPEG", quality=90)
