"""Images of N bands, and TIFF files of all kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.fitting.config import Config
from halflabel.images.decode import BadImage, locate_images, read_image
from halflabel.labels.table import Table
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

tifffile = pytest.importorskip("tifffile")


def bands(count: int, dtype: str = "uint8", high: int = 256) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, (20, 30, count)).astype(dtype)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["bands last", "bands first"])
@pytest.mark.parametrize("ending", ["npy", "tif"])
def test_bands_are_read_in_both_orders(tmp_path: Path, ending: str, order: tuple[int, ...]) -> None:
    values, path = bands(5), tmp_path / f"x.{ending}"
    stored = np.ascontiguousarray(values.transpose(order))
    np.save(path, stored) if ending == "npy" else tifffile.imwrite(path, stored, photometric="minisblack")
    image = read_image(path, channels=5)
    assert image.dtype == torch.uint8
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), values)
    # Where RGB is wanted, such as for thumbnails, the first three bands are read.
    if ending == "npy":
        np.testing.assert_array_equal(read_image(path).permute(1, 2, 0).numpy(), values[:, :, :3])


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_other_numbers_are_scaled_by_one_factor_for_all_bands(tmp_path: Path, dtype: str) -> None:
    values = bands(4, dtype, 3000)
    values[:, :, 1] = values[:, :, 0] / 2
    np.save(tmp_path / "x.npy", values)
    image = read_image(tmp_path / "x.npy", channels=4).float()
    assert int(image.max()) == 255
    dark = image[0] < 200
    assert torch.allclose(image[1][dark], image[0][dark] / 2, atol=1)


@pytest.mark.parametrize(
    "content",
    [bands(4), bands(5)[0], bands(5).astype(complex), np.full((4, 4, 5), np.nan), np.zeros((0, 4, 5)), "text"],
    ids=["4 bands", "2-d", "complex", "NaN", "empty", "no file"],
)
def test_arrays_that_are_not_images_of_five_bands_are_unreadable(tmp_path: Path, content: np.ndarray | str) -> None:
    path = tmp_path / "x.npy"
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    with pytest.raises(BadImage):
        read_image(path, channels=5)


def test_objects_in_an_array_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(BadImage):
        read_image(tmp_path / "x.npy", channels=1)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_tiff_of_eight_and_sixteen_bits(
    tmp_path: Path, compression: str | None, tile: tuple[int, int] | None, bigtiff: bool
) -> None:
    options = {"compression": compression, "tile": tile, "bigtiff": bigtiff}
    rgb, path = bands(3), tmp_path / "x.tif"
    tifffile.imwrite(path, rgb, photometric="rgb", **options)
    np.testing.assert_array_equal(read_image(path).permute(1, 2, 0).numpy(), rgb)
    grey = bands(1, "uint16", 65536)[:, :, 0]
    tifffile.imwrite(path, grey, **options)
    expected = np.rint(grey / 257).astype(np.uint8)
    np.testing.assert_array_equal(read_image(path).permute(1, 2, 0).numpy(), np.repeat(expected[:, :, None], 3, 2))
    tifffile.imwrite(path, rgb.astype(np.uint16) * 257, photometric="rgb", **options)  # which Pillow cannot read
    assert np.abs(read_image(path).permute(1, 2, 0).numpy().astype(int) - rgb).max() <= 2


def test_the_first_convolution_is_adapted() -> None:
    rgb, more = build_backbone("tiny"), build_backbone("tiny", bands=6)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=torch.manual_seed(0), dtype=torch.uint8)
    with torch.no_grad():  # each colour twice, at half the weight
        assert torch.allclose(more(torch.cat([images, images], 1)), rgb(images), atol=1e-5)
    with pytest.raises(ValueError, match="6"):
        more(images)


def test_a_run_learns_from_a_band_beyond_rgb(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "patches"
    folder.mkdir()
    labels = rng.choice([-1, 1], (60, 1))
    names = [f"p{number}" for number in range(60)]
    for name, label in zip(names, labels[:, 0], strict=True):
        values = rng.integers(0, 100, (5, 32, 32))
        values[4] += 100 * (label > 0)
        np.save(folder / f"{name}.npy", values.astype(np.uint8))
    assert all(locate_images(names, folder))
    config = Config(method="bce", backbone="tiny", size=32, channels=5, fit="auto", device="cpu")
    run = RunFolder(tmp_path / "run")
    evaluation = train(Table.from_dense(labels, names, ["x"]), folder, config, run)
    assert evaluation is not None
    assert evaluation.overall["mAP"] > 0.95
    predictor = Model.open(run)
    paths = [folder / f"{name}.npy" for name in names[:5]]
    scores = [prediction.labels[0]["probability"] > 0.5 for prediction in predictor.predict(paths)]
    assert scores == (labels[:5, 0] > 0).tolist()
    with pytest.raises(UserError, match="5 bands"):
        export_onnx(predictor, tmp_path / "x.onnx")
