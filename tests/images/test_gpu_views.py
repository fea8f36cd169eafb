"""Views made on the device, a batch at a time, against those made on the CPU, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.images.gpu_views import DeviceImages, _places, make_view
from halflabel.images.sources import Arrays
from halflabel.images.views import RANDAUGMENT_OPS, Plain, Strong, Weak, draw_uniform, view_keys
from halflabel.labels.names import Names
from halflabel.system.rng import hash_names

SIZE = 48


def smooth(count: int, seed: int = 0) -> torch.Tensor:
    """Blurred noise: nearest and bilinear resampling of it differ little."""
    noise = torch.rand((count, 3, 7, 7), generator=torch.Generator().manual_seed(seed))
    large = torch.nn.functional.interpolate(noise, size=(SIZE, SIZE), mode="bicubic", align_corners=False)
    return large.mul(255).clamp(0, 255).to(torch.uint8)


def keys_for(count: int, seed: int = 0) -> np.ndarray:
    return view_keys(seed, 1, hash_names([f"image {i}" for i in range(count)]), 1)[:, 0]


def one_by_one(view: Weak, images: torch.Tensor, keys: np.ndarray) -> torch.Tensor:
    return torch.stack([view(image, int(key)) for image, key in zip(images, keys, strict=True)])


def test_draws_equal_those_of_the_cpu():
    from halflabel.images.views import _draws

    keys = keys_for(5)
    assert np.array_equal(draw_uniform(keys, 9), np.stack([_draws(int(key), 9) for key in keys]))


def test_mirror_images_alone_are_the_same_bytes():
    images, keys = smooth(16), keys_for(16)
    view = Weak(SIZE, least=1.0)
    assert torch.equal(make_view(view, images, keys), one_by_one(view, images, keys))


def test_a_weak_view_shows_the_same_part_of_the_image():
    images, keys = smooth(32), keys_for(32)
    view = Weak(SIZE, least=0.5)
    actual, expected = make_view(view, images, keys).float(), one_by_one(view, images, keys).float()
    other_seed = one_by_one(view, images, keys_for(32, seed=1)).float()
    assert (actual - expected).abs().mean() < 6 < 20 < (actual - other_seed).abs().mean()


@pytest.mark.parametrize("name", RANDAUGMENT_OPS)
def test_each_operation_is_that_of_the_cpu(name):
    """One operation at a time, on the images whose key picks it."""
    view = Strong(SIZE, least=1.0, flip=0.0, num_ops=1, magnitude=20, cutout=0.0)
    keys = keys_for(600)
    picks = (draw_uniform(keys, 9)[:, 7] * len(RANDAUGMENT_OPS)).astype(int)
    keys = keys[picks == list(RANDAUGMENT_OPS).index(name)][:24]
    moved = name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    noise = torch.randint(40, 220, (len(keys), 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1))
    images = smooth(len(keys)) if moved else noise.to(torch.uint8)
    actual, expected = make_view(view, images, keys).float(), one_by_one(view, images, keys).float()
    error = (actual - expected).abs().mean(dim=(1, 2, 3))
    changed = (expected - images.float()).abs().mean(dim=(1, 2, 3))
    # The CPU moves by whole pixels, the device by parts of pixels; colours agree to rounding.
    assert float(error.max()) < (9 if moved else 1.5)
    if name != "Identity":
        assert float((error / changed.clamp(min=0.5)).mean()) < 0.35


def test_the_grey_square_is_where_the_cpu_puts_it():
    view = Strong(SIZE, least=1.0, flip=0.0, num_ops=0, cutout=0.8)
    images, keys = smooth(32), keys_for(32)
    assert torch.equal(make_view(view, images, keys), one_by_one(view, images, keys))


def test_a_view_depends_on_its_key_alone_not_on_its_batch():
    view = Strong(SIZE)
    images, keys = smooth(12), keys_for(12)
    batch = make_view(view, images, keys)
    assert torch.equal(batch[5:6], make_view(view, images[5:6], keys[5:6]))
    assert not torch.equal(batch, make_view(view, images, keys_for(12, seed=3)))


def test_device_images_give_the_requested_views():
    names = Names([f"image {i}" for i in range(6)])
    views = {"plain": Plain(SIZE), "weak": Weak(SIZE, least=1.0), "strong": Strong(SIZE)}
    images = smooth(6)
    source = DeviceImages(images, names, views, bad=[2])
    plan = [np.array([3, 2, 0]), np.array([5])]
    fetched = list(source.fetch(plan, ("plain", "weak", "strong"), seed=1, epoch=2))
    assert [f.images.tolist() for f in fetched] == [[3, 0], [5]]
    same = list(Arrays(images, names, views).fetch([np.array([5])], ("plain", "weak"), seed=1, epoch=2))
    assert torch.equal(fetched[1].views[0], same[0].views[0])
    assert torch.equal(fetched[1].views[1], same[0].views[1])
    assert fetched[0].views[2].dtype == torch.uint8
    assert fetched[0].views[2].shape == (2, 3, SIZE, SIZE)


@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
def test_batches_without_readable_images_have_no_views(view: str) -> None:
    names = Names.numbered(6)
    views = {"plain": Plain(8), "weak": Weak(8), "strong": Strong(8)}
    source = DeviceImages(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), names, views, bad=[4, 5])
    index, actual = next(iter(source.fetch([np.array([4, 5])], (view,))))
    assert not len(index)
    assert actual == ()


def test_places_are_those_of_torch() -> None:
    maps = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.affine_grid(maps, [3, 3, 10, 10], align_corners=False)
    actual = _places(10, torch.device("cpu")).expand(3, -1, -1).bmm(maps.transpose(1, 2)).view_as(expected)
    torch.testing.assert_close(actual, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
def test_prefetched_batches_are_not_overwritten(view: str) -> None:
    """Each batch is read late, on a busy stream, and dropped at once: memory freed too early would show."""
    views = {"plain": Plain(SIZE), "weak": Weak(SIZE), "strong": Strong(SIZE)}
    images = smooth(256)
    plan = [np.arange(first, first + 16) for first in range(0, 256, 16)]
    busy = torch.randn(2048, 2048, device="cuda")
    source = DeviceImages(images.cuda(), Names.numbered(256), views)
    expected = [make_view(views[view], images[i].cuda(), view_keys(0, 0, source.hashes[i], 1)[:, 0]) for i in plan]
    results = []
    for _, actual in source.fetch(plan, (view,)):
        for _ in range(20):
            busy = busy @ busy / 50
        results.append(actual[0].float() * 2)
        del actual
    for result, expected_view in zip(results, expected, strict=True):
        assert torch.equal(result, expected_view.float() * 2)


@pytest.mark.parametrize("name", ["Brightness", "Color", "Contrast", "Sharpness"])
def test_an_operation_drawn_twice_is_applied_twice(name: str) -> None:
    view = Strong(SIZE, least=1.0, flip=0.0, num_ops=2, magnitude=20, cutout=0.0)
    keys = keys_for(40_000)
    picks = (draw_uniform(keys, 11)[:, [7, 9]] * len(RANDAUGMENT_OPS)).astype(int)
    keys = keys[(picks == list(RANDAUGMENT_OPS).index(name)).all(1)][:24]
    images = torch.randint(90, 160, (len(keys), 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1))
    images = images.to(torch.uint8)
    actual, expected = make_view(view, images, keys).float(), one_by_one(view, images, keys).float()
    assert float((actual - expected).abs().mean(dim=(1, 2, 3)).max()) < 3
