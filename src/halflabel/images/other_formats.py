"""Images that Pillow does not read, to bytes: .npy and TIFF files of N bands (extra `tiff`), DICOM (extra `dicom`)."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.images.decode import NPY_MARK, BadImage, TooManyPixels

if TYPE_CHECKING:
    from pydicom import Dataset


_BRIGHTEST = 99.5  # percentile of the values of all bands that becomes 255


def decode_bands(file: IO[bytes], path: str | Path, channels: int, *, max_pixels: int) -> NDArray[np.uint8]:
    """Decode an array (H, W, N) or (N, H, W) to (H, W, channels); with 3 channels the first three bands of more.

    8-bit values are kept. Others are scaled by one factor: 0 stays, and the 99.5th percentile of all bands becomes 255.
    """
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


def decode_dicom(file: IO[bytes], path: str | Path, *, max_pixels: int) -> NDArray[np.uint8]:
    """Decode the first frame of a DICOM file to (H, W, 3).

    Grey values pass through the file's modality and value-of-interest transforms, are stretched from their minimum to
    their maximum, and inverted for MONOCHROME1, where small values are white.
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
    colours = np.ascontiguousarray(values[:, :, :3])
    return colours if colours.dtype == np.uint8 else np.rint(colours.astype(np.float64) / 257).astype(np.uint8)


def _grey(values: NDArray[np.generic], dataset: Dataset) -> NDArray[np.uint8]:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    shown = apply_voi_lut(apply_modality_lut(values, dataset), dataset).astype(np.float64)
    smallest, largest = float(shown.min()), float(shown.max())
    scaled = (shown - smallest) / ((largest - smallest) or 1.0)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        scaled = 1.0 - scaled
    return np.rint(255 * scaled).astype(np.uint8)
