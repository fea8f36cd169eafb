"""DICOM files (X-rays, scans) to RGB pixels, by pydicom: the extra `dicom`."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halflabel.images.decode import BadImage, TooManyPixels

if TYPE_CHECKING:
    from pydicom import Dataset


def decode_dicom(file: IO[bytes], path: str | Path, *, max_pixels: int) -> NDArray[np.uint8]:
    """Decode the first frame of a DICOM file to (H, W, 3).

    Grey values pass through the file's modality and value-of-interest transforms (rescaling, then its first window or
    look-up table), are stretched from their minimum to their maximum, and inverted for MONOCHROME1, where small values
    are white.
    """
    try:
        import pydicom
        from pydicom.pixels.processing import apply_color_lut
        from pydicom.pixels.utils import pixel_array
    except ImportError:
        raise BadImage(path, "DICOM needs pydicom: pip install 'halflabel[dicom]'") from None
    dataset = pydicom.dcmread(file)
    if "PixelData" not in dataset:
        raise BadImage(path, "a DICOM file without pixels")
    width, height = int(dataset.Columns), int(dataset.Rows)
    if width * height > max_pixels:
        raise TooManyPixels(path, f"{width} × {height} pixels is over the limit of {max_pixels}")
    try:
        values = pixel_array(dataset, index=0)
    except (NotImplementedError, RuntimeError) as error:
        syntax = dataset.file_meta.TransferSyntaxUID.name
        raise BadImage(path, f"no decoder for {syntax}: pip install 'pylibjpeg[all]'") from error
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        values = apply_color_lut(values, dataset)
    if values.ndim == 2:
        values = np.repeat(_grey(values, dataset)[:, :, None], 3, axis=2)
    return _to_bytes(values[:, :, :3])


def _grey(values: NDArray[np.generic], dataset: Dataset) -> NDArray[np.uint8]:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    shown = apply_voi_lut(apply_modality_lut(values, dataset), dataset).astype(np.float64)
    smallest, largest = float(shown.min()), float(shown.max())
    scaled = (shown - smallest) / ((largest - smallest) or 1.0)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        scaled = 1.0 - scaled
    return np.rint(255 * scaled).astype(np.uint8)


def _to_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """8-bit colours as they are, 16-bit colours divided by 257."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    return np.rint(values.astype(np.float64) / 257).astype(np.uint8)
