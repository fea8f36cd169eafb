from __future__ import annotations

import csv
import os
import pickle
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, find_images, locate_images, read_image
from halflabel.images.quarantine import Quarantine, TooManyBadImages


def picture(height: int = 20, width: int = 30) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 255 // height, x * 255 // width, (x + y) % 256], axis=2).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and ends where its pixels should begin."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + b"\0\0\1\0IDAT"


SAMPLES = {
    "jpg": encoded(Image.fromarray(picture()), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x00\x00"),
    "png": encoded(Image.fromarray(picture()), "PNG"),
    "palette.png": encoded(Image.fromarray(picture()).quantize(16), "PNG", transparency=3),
    "grey16.png": encoded(Image.fromarray(picture()[:, :, 0].astype(np.uint16) * 257), "PNG"),
    "webp": encoded(Image.fromarray(picture()), "WEBP"),
    "gif": encoded(Image.fromarray(picture()), "GIF"),
    "bmp": encoded(Image.fromarray(picture()), "BMP"),
    "tiff": encoded(Image.fromarray(picture()), "TIFF", compression="tiff_lzw"),
}


def read(tmp_path: Path, data: bytes | Image.Image, kind: str = "PNG", **options: object) -> torch.Tensor:
    path = tmp_path / "image"
    path.write_bytes(data if isinstance(data, bytes) else encoded(data, kind, **options))
    return read_image(path)


def reason(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "image"
    path.write_bytes(data)
    with pytest.raises(BadImage) as caught:
        read_image(path)
    assert caught.value.path == path
    return caught.value.reason


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_give_the_exact_pixels(tmp_path: Path, kind: str, options: dict[str, object]) -> None:
    image = read(tmp_path, Image.fromarray(picture()), kind, **options)
    assert image.dtype == torch.uint8
    assert np.array_equal(image.permute(1, 2, 0).numpy(), picture())


def test_jpeg_in_rgb_grey_and_cmyk_is_close(tmp_path: Path) -> None:
    original = Image.fromarray(picture())
    for mode in ("RGB", "L", "CMYK"):
        image = read(tmp_path, original.convert(mode), "JPEG", quality=98)
        expected = np.asarray(original.convert("L").convert("RGB") if mode == "L" else original)
        assert image.shape == (3, 20, 30)
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected).mean() < 4, mode


def test_a_jpeg_of_several_pictures_gives_the_first(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (16, 8), colour) for colour in ("red", "blue")]
    image = read(tmp_path, pictures[0], "MPO", save_all=True, append_images=pictures[1:])
    assert image.shape == (3, 8, 16)
    assert image[0, 4, 4] > 240
    assert image[2, 4, 4] < 15


def test_avif_is_read_or_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = pytest.importorskip("PIL.AvifImagePlugin")
    if not plugin.SUPPORTED:
        pytest.skip("Pillow is built without AVIF")
    data = encoded(Image.fromarray(picture()), "AVIF", quality=95)
    image = read(tmp_path, data)
    assert image.shape == (3, 20, 30)
    assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - picture()).mean() < 6
    (tmp_path / "a.avif").write_bytes(data)
    assert find_images(tmp_path) == [tmp_path / "a.avif"]
    assert locate_images(["a"], tmp_path) == [tmp_path / "a.avif"]
    with pytest.raises(BadImage, match="30 × 20 pixels is over the limit of 100"):
        read_image(tmp_path / "a.avif", max_pixels=100)
    assert reason(tmp_path, data[: len(data) // 2])
    # Other files in the same container, such as videos, are not images.
    assert reason(tmp_path, b"\0\0\0\x18ftypisom\0\0\0\0isommp42" + bytes(100)) == "not an image"
    monkeypatch.setattr(plugin, "SUPPORTED", False)
    assert reason(tmp_path, data).startswith("AVIF needs Pillow")


def test_gif_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    image = read(tmp_path, frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert image[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB", "1"])
def test_transparent_pixels_are_white_and_opaque_ones_stay(tmp_path: Path, mode: str) -> None:
    if mode in ("RGBA", "LA"):
        data = np.zeros((1, 3, 2 if mode == "LA" else 4), np.uint8)
        data[0, :, -1] = [0, 255, 128]
        image = read(tmp_path, Image.fromarray(data, mode))
        assert image[:, 0, 2].tolist() == [127] * 3
    else:
        black_white = Image.fromarray(np.array([[0, 255, 255]], np.uint8)).convert(mode)
        transparent = {"P": black_white.getpixel((0, 0)), "L": 0, "RGB": (0, 0, 0), "1": 0}[mode]
        assert read(tmp_path, black_white)[:, 0, 0].tolist() == [0, 0, 0]
        image = read(tmp_path, black_white, transparency=transparent)
        assert image[:, 0, 1].tolist() == [255] * 3
    # RGBA and LA: the second pixel is opaque black, the first transparent.
    assert image[:, 0, 0].tolist() == [255] * 3
    if mode in ("RGBA", "LA"):
        assert image[:, 0, 1].tolist() == [0] * 3


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    assert read(tmp_path, Image.fromarray(values))[1, 0].tolist() == [0, 1, 128, 255]
    assert read(tmp_path, Image.fromarray(values), "TIFF")[2, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 65535, 32768]], np.int32), [0, 255, 128]),
        (np.array([[-1000, 99000, 49000]], np.int32), [0, 255, 128]),
        (np.array([[0.0, 1.0, 0.5]], np.float32), [0, 255, 128]),
        (np.array([[0.0, 200.0, 7.0]], np.float32), [0, 200, 7]),
        (np.array([[0.0, 65535.0, 257.0]], np.float32), [0, 255, 1]),
        (np.array([[-3e38, 3e38, 0]], np.float32), [0, 255, 128]),
        (np.array([[-7.0, -7.0, -7.0]], np.float32), [0, 0, 0]),
    ],
)
def test_wide_numbers_are_scaled(tmp_path: Path, values: np.ndarray, expected: list[int]) -> None:
    image = read(tmp_path, Image.fromarray(values), "TIFF")
    assert image.shape == (3, 1, 3)
    assert image[0, 0].tolist() == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_numbers_make_a_bad_image(tmp_path: Path, value: float) -> None:
    with pytest.raises(BadImage, match="not numbers"):
        read(tmp_path, Image.fromarray(np.array([[0.0, 1.0, value]], np.float32)), "TIFF")


def test_pixels_of_16_bits_count_twice(tmp_path: Path) -> None:
    for dtype, fits in ((np.uint8, True), (np.uint16, False)):
        Image.fromarray(np.zeros((10, 10), dtype)).save(tmp_path / "x.png")
        if fits:
            assert read_image(tmp_path / "x.png", max_pixels=150).shape == (3, 10, 10)
        else:
            with pytest.raises(BadImage, match="more than 8 bits is over the limit of 75"):
                read_image(tmp_path / "x.png", max_pixels=150)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path: Path, kind: str, orientation: int) -> None:
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :16] = 255  # the top left corner is white
    stored = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }[orientation](upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read(tmp_path, Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif)
    assert image.shape == (3, 32, 48)
    assert image[0, 8, 8] > 200
    assert image[0, 24, 8] < 50
    assert image[0, 8, 40] < 50


def test_faulty_exif_does_not_spoil_a_picture(tmp_path: Path) -> None:
    good = encoded(Image.fromarray(picture()), "JPEG")
    entry = struct.pack("<HHHII", 1, 0x0112, 2, 5000, 60000)  # a value that lies behind the end of the file
    bad = encoded(Image.fromarray(picture()), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00" + entry)
    assert torch.equal(read(tmp_path, bad), read(tmp_path, good))


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    data = SAMPLES[kind]
    assert read(tmp_path, data).shape == (3, 20, 30)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert reason(tmp_path, data[: len(data) * 6 // 10])


def test_a_decompression_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    assert reason(tmp_path, png_header(200_000, 200_000)) == "200000 × 200000 pixels is over the limit of 100000000"
    # Above Pillow's warning level and below its error level: no warning, and it is the missing data that is reported.
    assert "limit" not in reason(tmp_path, png_header(9_999, 10_000))


def test_files_that_are_not_images(tmp_path: Path) -> None:
    assert reason(tmp_path, b"image,class\n1,2\n") == "not an image"
    assert reason(tmp_path, b"") == "empty file"
    assert reason(tmp_path, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n") == "not an image"
    assert reason(tmp_path, encoded(Image.new("RGB", (4, 4)), "PPM")) == "not an image"
    os.mkfifo(tmp_path / "pipe")
    for path, expected in (("absent.png", "no such file"), (".", "not a file"), ("pipe", "not a file")):
        with pytest.raises(BadImage) as caught:
            read_image(tmp_path / path)
        assert caught.value.reason == expected
    with pytest.raises(BadImage):
        read_image(tmp_path / "a\0b.png")


def test_bad_image_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(BadImage("a/b.png", "truncated")))
    assert (error.path, error.reason, str(error)) == (Path("a/b.png"), "truncated", f"{Path('a/b.png')}: truncated")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_give_an_image_or_bad_image(tmp_path: Path, data: st.DataObject) -> None:
    sample = bytearray(data.draw(st.sampled_from(sorted(SAMPLES.values()))))
    for _ in range(data.draw(st.integers(1, 6))):
        # Headers are short: half of the changes are aimed at them.
        place = data.draw(st.integers(0, 60) | st.integers(0, len(sample) - 1)) % len(sample)
        change = data.draw(st.sampled_from(["set", "cut", "insert", "word"]))
        if change == "set":
            sample[place] = data.draw(st.integers(0, 255))
        elif change == "word":
            sample[place : place + 4] = data.draw(st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"]))
        elif change == "insert":
            sample[place:place] = data.draw(st.binary(min_size=1, max_size=8))
        else:
            del sample[max(place, 1) :]
    path = tmp_path / "mutated"
    path.write_bytes(sample)
    try:
        image = read_image(path, max_pixels=1_000_000)
    except BadImage:
        return
    assert image.dtype == torch.uint8
    assert image.shape[0] == 3
    assert 0 < image[0].numel() <= 1_000_000


def touch(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"")


def test_find_images_is_recursive_sorted_and_ignores_case(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.PNG", "b/1.jpg", "a.JPeG", "notes.txt", ".hidden.jpg", ".cache/x.jpg", "z.tif", "b/._1.jpg")
    assert find_images(tmp_path) == [tmp_path / path for path in ("a.JPeG", "b/1.jpg", "b/2.PNG", "z.tif")]


def test_find_images_follows_links_and_does_not_loop(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.jpg", "set/2.jpg")
    (tmp_path / "set/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/up").symlink_to(tmp_path / "set")
    assert find_images(tmp_path / "set") == [tmp_path / "set/2.jpg", tmp_path / "set/link/1.jpg"]


def test_locate_in_order_of_certainty(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    touch(folder, "1.jpg", "1.png", "sub/2.PNG", "sub/3.jpg", "other/3.jpg", "v1.5.jpg", "sub/v1.7.jpg", "raw.dat")
    touch(tmp_path, "secret.jpg")
    expected = {
        "1.png": "1.png",
        "1": "1.jpg",
        "1.webp": "1.jpg",
        "./1.jpg": "1.jpg",
        "sub/2": "sub/2.PNG",
        "sub/2.png": "sub/2.PNG",
        "sub\\2.PNG": "sub/2.PNG",
        "2": "sub/2.PNG",
        "2.jpg": "sub/2.PNG",
        "3": None,
        "3.jpg": None,
        "sub/3": "sub/3.jpg",
        "v1.5": "v1.5.jpg",
        "v1.7": "sub/v1.7.jpg",
        "raw.dat": "raw.dat",
        "raw": None,
        "images/1.jpg": "1.jpg",
        "images/sub/3": "sub/3.jpg",
        "wrong/2.PNG": None,
        "wrong/1.jpg": None,
        "../secret.jpg": None,
        "../images/1.jpg": None,
        "sub/../1.jpg": None,
        str(folder / "1.jpg"): None,
        "/1.jpg": None,
        "": None,
        ".": None,
        "sub": None,
    }
    paths = [locate_images([name], folder)[0] for name in expected]
    assert dict(zip(expected, paths, strict=True)) == {
        name: None if path is None else folder / path for name, path in expected.items()
    }


def test_accents_of_one_character_or_two_are_the_same_name(tmp_path: Path) -> None:
    composed, two = "caf\u00e9.jpg", "cafe\u0301.jpg"
    touch(tmp_path, f"a/{two}", f"b/{composed}", f"b/{two}")
    with pytest.warns(UserWarning, match="1 image names and their files differ in Unicode form"):
        found = locate_images([f"a/{composed}", f"b/{composed}", "b/other.jpg"], tmp_path)
    assert found == [tmp_path / "a" / two, tmp_path / "b" / composed, None]


def test_quarantine_tolerates_a_few_and_stops_at_many(tmp_path: Path) -> None:
    quarantine = Quarantine()
    for number in range(10):
        quarantine.add(f"cat,{number}", tmp_path / f"{number}.jpg", "truncated")
    quarantine.check(1000, 0.01)
    for number in range(27):
        quarantine.add(str(number), "x.jpg", "not an image")
    with pytest.raises(UserError) as caught:
        quarantine.check(1000, 0.01)
    start = "37 of 1000 images (3.7 %) cannot be read, over the limit of 1 %: first: cat,0 ("
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith("0.jpg): truncated")
    assert "‹max_bad" in caught.value.fix
    quarantine.check(1000, 0.037)
    quarantine.path = tmp_path / "out" / "bad_images.csv"
    with pytest.raises(TooManyBadImages) as caught:
        quarantine.check(1000, 0.01)
    assert caught.value.fix == f"see {quarantine.path}, or raise ‹max_bad›"
    with pytest.raises(
        TooManyBadImages, match=r"37 of 1000 images \(3.7 %\) have no file in photos, .*'cat,0', 'cat,1'"
    ):
        quarantine.check(1000, 0.01, missing="file in photos")
    quarantine.write()
    with open(tmp_path / "out" / "bad_images.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["image", "path", "reason"]
    assert rows[1] == ["cat,0", str(tmp_path / "0.jpg"), "truncated"]
    assert len(rows) == 1 + len(quarantine) == 38
    assert os.listdir(tmp_path / "out") == ["bad_images.csv"]


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (64, 48), "red").save(path, progressive=True)
    assert read_image(path).shape == (3, 48, 64)
    data = path.read_bytes()
    last = data.rindex(b"\xff\xda")
    path.write_bytes(data[:last] + 5000 * data[last:-2] + data[-2:])
    with pytest.raises(BadImage, match="scans are over the limit"):
        read_image(path)
