from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from halflabel.images.views import Plain, Strong, Varied, View, Weak, view_keys

VIEWS: list[View] = [
    Plain(64),
    Plain(64, "crop"),
    Weak(64),
    Weak(64, "crop", "bicubic"),
    Varied(64),
    Strong(64),
    Strong(64, "crop"),
]


def picture(height: int = 90, width: int = 70) -> torch.Tensor:
    rough = torch.rand((1, 3, 9, 7), generator=torch.Generator().manual_seed(5)).mul(255)
    return torch.nn.functional.interpolate(rough, (height, width), mode="bilinear")[0].to(torch.uint8)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.describe())
@pytest.mark.parametrize("shape", [(90, 70), (64, 64), (1, 1), (1, 500), (200, 3)])
def test_views_are_new_square_bytes_and_the_image_is_unchanged(view: View, shape: tuple[int, int]) -> None:
    image = picture(*shape)
    before = image.clone()
    for key in range(8):
        out = view(image, key)
        assert out.shape == (3, 64, 64)
        assert out.dtype == torch.uint8
        assert out.is_contiguous()
        out.fill_(7)
        assert torch.equal(image, before)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.describe())
def test_views_depend_on_the_key_only(view: View) -> None:
    image = picture()
    keys = view_keys(1, 2, np.arange(24, dtype=np.uint64), 1)[:, 0].tolist()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = [view(image, key) for key in keys]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(8) as pool:
        in_threads = list(pool.map(view, [image] * len(keys), keys))
    torch.set_num_threads(1)
    one_thread = [view(image, key) for key in keys]
    torch.set_num_threads(threads)
    for expected, threaded, single in zip(first, in_threads, one_thread, strict=True):
        assert torch.equal(expected, threaded)
        assert torch.equal(expected, single)


def test_keys_differ_in_every_part() -> None:
    hashes = np.array([0, 1, 2**64 - 1], np.uint64)
    keys = {int(key) for s in range(3) for e in range(5) for key in view_keys(s, e, hashes, 3).flat}
    assert len(keys) == 3 * 5 * 3 * 3


def test_descriptions_change_with_every_parameter() -> None:
    text_values = {"resize": "crop", "interpolation": "bicubic"}
    descriptions = {view.describe() for view in (Plain(64), Weak(64), Varied(64), Strong(64))}
    assert len(descriptions) == 4
    for view in (Plain(64), Weak(64), Varied(64), Strong(64)):
        assert view.describe() == replace(view).describe()
        changed = {
            replace(view, **{f.name: text_values.get(f.name) or getattr(view, f.name) / 2}).describe()
            for f in fields(view)
        }
        assert len(changed | {view.describe()}) == 1 + len(fields(view))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(37, 120), (64, 64), (300, 20)])
def test_plain_squash_is_a_resize_of_torchvision(size: tuple[int, int], interpolation: str) -> None:
    image = picture(*size)
    expected = F.resize(image, [64, 64], interpolation=v2.InterpolationMode(interpolation), antialias=True)
    for key in (0, 1):
        assert torch.equal(Plain(64, interpolation=interpolation)(image, key), expected)


def test_plain_crop_is_resize_short_side_then_centre() -> None:
    image = picture(240, 160)
    expected = F.center_crop(F.resize(image, [128], antialias=True), [112, 112])
    difference = (Plain(112, "crop")(image, 0).int() - expected.int()).abs()
    # The border differs: there the antialiasing of one uses pixels that the other has cropped.
    assert difference[:, 2:-2, 2:-2].max() <= 2


def test_weak_crops_have_the_expected_size_and_flips() -> None:
    """Columns and rows numbered by colour show which box a view has cropped."""
    height, width = 100, 200
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    image = torch.stack([y * 2, x, x * 0]).to(torch.uint8)
    shares, mirrored = [], 0
    for key in range(200):
        out = Weak(50)(image, key).float()
        high = (out[0, -1].mean() - out[0, 0].mean()) / 2 * 50 / 49
        wide = out[1, :, -1].mean() - out[1, :, 0].mean()
        mirrored += int(wide < 0)
        wide = wide.abs() * 50 / 49
        assert abs(wide / width - high / height) < 0.03
        shares.append(float(wide * high) / (width * height))
    assert min(shares) > 0.77
    assert max(shares) < 1.03
    assert 0.87 < np.mean(shares) < 0.93
    assert 70 < mirrored < 130
    assert all((Weak(50, flip=0)(image, key)[1, 0, -1] > 100) for key in range(20))
    assert torch.equal(Weak(50, least=1, flip=0)(image, 5), Plain(50)(image, 0))


def test_strong_is_weak_then_operations_then_cutout() -> None:
    image = picture()
    bare = Strong(64, num_ops=0, cutout=0.0)
    assert all(torch.equal(bare(image, key), Weak(64)(image, key)) for key in range(20))
    changed = sum(not torch.equal(Strong(64, cutout=0.0)(image, key), Weak(64)(image, key)) for key in range(40))
    assert changed > 30


def test_cutout_is_one_grey_square_of_varied_side() -> None:
    image = torch.zeros((3, 64, 64), dtype=torch.uint8)
    sides = []
    for key in range(300):
        out = Strong(64, num_ops=0)(image, key)
        assert torch.equal(out[0], out[1])
        rows, columns = (out[0] > 0).any(1), (out[0] > 0).any(0)
        assert torch.equal(out[0] == 128, rows[:, None] & columns[None, :])
        sides.append(max(int(rows.sum()), int(columns.sum())))
    assert max(sides) <= 32
    assert max(sides) > 28
    assert min(sides) <= 2
    assert 13 < np.mean(sides) < 18
