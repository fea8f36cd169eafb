"""How much a client may ask for, and how it is told that it was too much."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits", "Refused", "megabytes"]


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for.

    While it is decoded, an image takes some 10 to 14 bytes of memory per pixel, and 28 where it is 16-bit grey;
    `decoders` of them are decoded at a time.
    """

    file_bytes: int = 20_000_000
    request_bytes: int = 64_000_000
    files: int = 16
    pixels: int = 50_000_000
    seconds: float = 30.0  # to send a request, and again to be answered
    requests: int = 64  # at a time; more are sent away with 503
    decoders: int = 2
    batch: int = 16
    wait: float = 0.005  # seconds that an image waits for others to share its batch

    @property
    def said(self) -> str:
        """In words, for those who send."""
        return (
            f"JPEG, PNG, WebP, AVIF, GIF (first frame), BMP or TIFF; {self.files} files per request, "
            f"{megabytes(self.file_bytes)} per file, {megabytes(self.request_bytes)} per request, "
            f"{self.pixels / 1e6:g} million pixels per image, {self.requests} requests at a time."
        )


class Refused(Exception):
    """A request that is not served: its status, below 500 where the request is at fault, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def megabytes(number: float) -> str:
    """A number of bytes for people."""
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{int(number)} bytes"
