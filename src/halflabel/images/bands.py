"""Images of N bands, from .npy files and TIFF, to bytes; also TIFF files that Pillow cannot read (extra `tiff`)."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

NPY_MARK = b"\x93NUMPY"
TIFF_MARKS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BRIGHTEST = 99.5  # percentile of the values of all bands that becomes 255


def decode_bands(file: IO[bytes], path: str | Path, channels: int, *, max_pixels: int) -> NDArray[np.uint8]:
    """Decode an array (H, W, N) or (N, H, W) to (H, W, channels); with 3 channels the first three bands of more.

    8-bit values are kept. Others are scaled by one factor for all bands, so that the ratio of two bands is kept: 0
    stays, and the 99.5th percentile of the image becomes 255.
    """
    from halflabel.images.decode import BadImage, TooManyPixels

    mark = file.read(len(NPY_MARK))
    file.seek(0)
    if mark == NPY_MARK:
        values: Any = np.lib.format.read_array(file, allow_pickle=False)
    else:
        try:
            import tifffile
        except ImportError:
            raise BadImage(path, "this TIFF file needs tifffile: pip install 'halflabel[tiff]'") from None
        values = tifffile.imread(file)
    values = values[:, :, None] if values.ndim == 2 else values
    if values.ndim == 3 and channels not in values.shape[::2] and channels == 3 and min(values.shape[::2]) > 3:
        values = values[:, :, :3] if values.shape[2] < values.shape[0] else values[:3]
    if values.ndim == 3 and values.shape[2] != channels == values.shape[0]:
        values = values.transpose(1, 2, 0)
    if values.ndim == 3 and values.shape[2] == 1 and channels == 3:
        values = np.repeat(values, 3, axis=2)
    if values.ndim != 3 or values.shape[2] != channels or not values.size or values.dtype.kind not in "uif":
        raise BadImage(path, f"an array of the shape {values.shape} and type {values.dtype}, not of {channels} bands")
    if values.shape[0] * values.shape[1] * channels > 3 * max_pixels:
        height, width = values.shape[:2]
        raise TooManyPixels(path, f"{width} × {height} pixels of {channels} bands are over the limit")
    return np.ascontiguousarray(_to_bytes(values))


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return np.asarray(values, np.uint8)
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("pixels that are not numbers")
    bright = max(float(np.percentile(numbers, _BRIGHTEST)), 0.0)
    scaled: NDArray[np.uint8] = np.rint(np.clip(numbers / (bright or 1.0), 0, 1) * 255).astype(np.uint8)
    return scaled
