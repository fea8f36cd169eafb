from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halflabel.images.decode import BadImage, read_pixels

pydicom = pytest.importorskip("pydicom")


def dicom(path: Path, values: np.ndarray, photometric: str = "MONOCHROME2", **tags: object) -> Path:
    """Write pixels as an uncompressed DICOM file."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.Rows, dataset.Columns = values.shape[:2]
    bits = values.dtype.itemsize * 8
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = bits, bits, bits - 1, 0
    dataset.SamplesPerPixel = values.shape[2] if values.ndim == 3 else 1
    if values.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = photometric
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.PixelData = values.tobytes()
    dataset.save_as(path, enforce_file_format=True)
    return path


RAMP = (np.arange(12 * 16, dtype=np.uint16) * 20).reshape(12, 16)


def test_grey_values_are_stretched_to_bytes(tmp_path: Path) -> None:
    pixels = read_pixels(dicom(tmp_path / "a.dcm", RAMP))
    assert pixels.shape == (12, 16, 3)
    np.testing.assert_array_equal(pixels[..., 0], np.rint(255.0 * RAMP / RAMP.max()))
    assert (pixels[..., 0] == pixels[..., 2]).all()


def test_small_values_of_monochrome1_are_white(tmp_path: Path) -> None:
    black_is_small = read_pixels(dicom(tmp_path / "a.dcm", RAMP)).astype(int)
    white_is_small = read_pixels(dicom(tmp_path / "b.dcm", RAMP, "MONOCHROME1")).astype(int)
    assert np.abs(black_is_small + white_is_small - 255).max() <= 1


def test_the_window_of_the_file_is_applied_after_rescaling(tmp_path: Path) -> None:
    path = dicom(
        tmp_path / "a.dcm", RAMP, RescaleSlope="2", RescaleIntercept="-1000", WindowCenter="2000", WindowWidth="1000"
    )
    grey = read_pixels(path)[..., 0]
    rescaled = RAMP.astype(float) * 2 - 1000
    assert (grey[rescaled <= 1500 - 1] == 0).all()
    assert (grey[rescaled >= 2500] == 255).all()
    inside = (rescaled > 1550) & (rescaled < 2450)
    np.testing.assert_allclose(grey[inside], 255 * (rescaled[inside] - 1500) / 1000, atol=2)


def test_colour_files_keep_their_colours(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(read_pixels(dicom(tmp_path / "a.dcm", colours, "RGB")), colours)


def test_real_scans_of_pydicom_are_read() -> None:
    from pydicom.data import get_testdata_file

    for name in ("CT_small.dcm", "MR_small.dcm"):
        pixels = read_pixels(str(get_testdata_file(name)))
        assert pixels.ndim == 3
        assert pixels.std() > 10


def test_unreadable_files_are_bad_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP)
    with pytest.raises(BadImage, match="over the limit"):
        read_pixels(path, max_pixels=100)
    truncated = tmp_path / "b.dcm"
    truncated.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadImage):
        read_pixels(truncated)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(BadImage, match=r"halflabel\[dicom\]"):
        read_pixels(path)


def test_heic_photos_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    y, x = np.mgrid[:64, :96]
    picture = np.stack([y * 4, x * 2, 0 * x], axis=2).astype(np.uint8)
    path = tmp_path / "photo.heic"
    pillow_heif.from_pillow(Image.fromarray(picture)).save(path, quality=95)
    assert np.abs(read_pixels(path).astype(int) - picture).mean() < 4
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage, match=r"halflabel\[heic\]"):
        read_pixels(path)
