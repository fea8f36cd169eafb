"""Limits on requests, and the exception for requests that are refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    Decoding an image needs 10 to 14 bytes of memory per pixel, 28 for 16-bit grey; `decoders` images are decoded at a
    time.
    """

    file_bytes: int = 20_000_000
    request_bytes: int = 64_000_000
    files: int = 16
    pixels: int = 50_000_000
    seconds: float = 30.0  # to receive a request, and again to answer it
    requests: int = 64  # at a time; more are refused with 503
    decoders: int = 2
    batch: int = 16
    wait: float = 0.005  # seconds that an image waits for others, to share a batch

    @property
    def description(self) -> str:
        """The limits in words, for the page and the API description."""
        return (
            f"JPEG, PNG, WebP, AVIF, GIF (first frame), BMP, TIFF, HEIC or DICOM; {self.files} files per request, "
            f"{megabytes(self.file_bytes)} per file, {megabytes(self.request_bytes)} per request, "
            f"{self.pixels / 1e6:g} million pixels per image, {self.requests} requests at a time."
        )


class RequestRefused(Exception):
    """A request that is not served, with status (below 500 if the request is at fault) and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status, self.reason = status, reason


def megabytes(number: float) -> str:
    """Format a number of bytes."""
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{int(number)} bytes"
