"""Random operations on batches, against torchvision's on single images; views made on the device, against the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from halflabel.images.augmentation import RANDAUGMENT_OPS, augmented
from halflabel.images.device_views import DeviceViews, make_view
from halflabel.images.sources import Arrays
from halflabel.images.views import Plain, Strong, Varied, Weak, view_keys
from halflabel.labels.names import Names
from halflabel.system.rng import hash_names

SIZE = 48
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def smooth(count: int, seed: int = 0) -> torch.Tensor:
    """Blurred noise: two ways to resample it differ little."""
    noise = torch.rand((count, 3, 7, 7), generator=torch.Generator().manual_seed(seed))
    large = torch.nn.functional.interpolate(noise, size=(SIZE, SIZE), mode="bicubic", align_corners=False)
    return large.mul(255).clamp(0, 255).to(torch.uint8)


def noise(count: int) -> torch.Tensor:
    values = torch.randint(40, 220, (count, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1))
    return values.to(torch.uint8)


def keys_for(count: int, seed: int = 0) -> np.ndarray:
    return view_keys(seed, 1, hash_names([f"image {i}" for i in range(count)]), 1)[:, 0]


def one_by_one(view: Weak, images: torch.Tensor, keys: np.ndarray) -> torch.Tensor:
    return torch.stack([view(image, int(key)) for image, key in zip(images, keys, strict=True)])


def operated(images: torch.Tensor, names: list[str], magnitude: int, sign: int) -> torch.Tensor:
    """Apply operations by name, without a square."""
    picks = [[(RANDAUGMENT_OPS.index(name) + 0.5) / len(RANDAUGMENT_OPS), 0.25 if sign < 0 else 0.75] for name in names]
    count = len(images)
    square = np.zeros((count, 1)), np.zeros((count, 2), np.int64)
    return augmented(images, np.tile(np.array(picks), (count, 1, 1)), magnitude, square)


@pytest.mark.parametrize("magnitude", [0, 9, 30])
@pytest.mark.parametrize("name", RANDAUGMENT_OPS)
def test_operations_are_those_of_torchvision(name: str, magnitude: int) -> None:
    reference = v2.RandAugment(interpolation=v2.InterpolationMode.BILINEAR, fill=0)
    assert tuple(reference._AUGMENTATION_SPACE) == RANDAUGMENT_OPS
    magnitudes_of, signed = reference._AUGMENTATION_SPACE[name]
    magnitudes = magnitudes_of(31, SIZE, SIZE)
    level = 0.0 if magnitudes is None else float(magnitudes[magnitude])
    images = smooth(4) if name in MOVES else noise(4)

    def apply(number: float) -> torch.Tensor:
        result: torch.Tensor = reference._apply_image_or_video_transform(
            images, name, number, reference.interpolation, reference._fill
        )
        return result

    for sign in (-1, 1):
        number = level * (sign if signed else 1)
        expected = apply(number).float()
        if name.startswith("Translate"):  # torchvision shifts by whole pixels
            share = abs(number) % 1
            expected = (1 - share) * expected + share * apply(number + sign).float()
        difference = (operated(images, [name], magnitude, sign) - expected).abs()
        if name in MOVES:
            assert difference.mean() < 1
        else:  # torchvision rounds down where there are fractions
            assert difference.max() <= 1
            assert not difference.any() or name in (*RANDAUGMENT_OPS[6:10], "AutoContrast")


def test_contrast_does_not_depend_on_the_number_of_threads() -> None:
    images = torch.nn.functional.interpolate(noise(1).float(), (700, 700)).to(torch.uint8)
    threads = torch.get_num_threads()
    results = []
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        results.append(operated(images, ["Contrast"], 9, 1))
    torch.set_num_threads(threads)
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_all_operations_and_signs_are_drawn() -> None:
    image = noise(1)
    single_operation = Strong(SIZE, num_ops=1, least=1, flip=0, cutout=0)
    produced = {single_operation(image[0], key).numpy().tobytes() for key in range(300)}
    expected = {operated(image, [name], 9, sign).numpy().tobytes() for name in RANDAUGMENT_OPS for sign in (-1, 1)}
    assert produced == expected


@pytest.mark.parametrize(
    "view",
    [
        Weak(SIZE, least=1.0),
        Varied(SIZE),
        Strong(SIZE, least=1.0, flip=0.0),
        Strong(SIZE, least=1.0, flip=0.0, cutout=1.0, num_ops=0),
        Strong(SIZE, least=1.0, flip=0.0, num_ops=10, magnitude=30),
    ],
)
def test_without_a_crop_a_batch_on_the_device_is_that_of_the_cpu(view: Weak) -> None:
    images, keys = smooth(40), keys_for(40)
    assert torch.equal(make_view(view, images, keys), one_by_one(view, images, keys))


@pytest.mark.parametrize("view", [Varied(SIZE), Strong(SIZE, magnitude=6), Strong(SIZE)], ids=str)
def test_a_view_depends_on_its_key_alone_not_on_its_batch(view: Weak) -> None:
    images, keys = smooth(12), keys_for(12)
    batch = make_view(view, images, keys)
    assert all(torch.equal(batch[i : i + 1], make_view(view, images[i : i + 1], keys[i : i + 1])) for i in range(12))
    assert not torch.equal(batch, make_view(view, images, keys_for(12, seed=3)))


def on_device(count: int, size: int = SIZE, device: str = "cpu", bad: list[int] | None = None) -> DeviceViews:
    views = {"plain": Plain(size), "weak": Weak(size, least=1.0), "strong": Strong(size)}
    source = Arrays(smooth(count)[:, :, :size, :size], Names([f"image {i}" for i in range(count)]), views)
    source.bad = bad or []  # type: ignore[attr-defined]
    return DeviceViews(source, device).hold()


def test_views_made_from_held_images_are_those_made_from_images_brought_to_the_device() -> None:
    held = on_device(6)
    brought = DeviceViews(held.whole, "cpu")
    plan = [np.array([3, 2, 0]), np.array([5, 1])]
    for one, other in zip(held.fetch(plan, ("weak", "strong")), brought.fetch(plan, ("weak", "strong")), strict=True):
        assert all(torch.equal(view, same) for view, same in zip(one.views, other.views, strict=True))


def test_held_images_give_the_requested_views() -> None:
    source = on_device(6, bad=[2])
    plan = [np.array([3, 2, 0]), np.array([5]), np.array([2])]
    fetched = list(source.fetch(plan, ("plain", "weak", "strong"), seed=1, epoch=2))
    assert [f.images.tolist() for f in fetched] == [[3, 0], [5], []]
    assert fetched[2].views == ()
    (same,) = source.whole.fetch([np.array([5])], ("plain", "weak"), seed=1, epoch=2)
    assert all(torch.equal(a, b) for a, b in zip(fetched[1].views, same.views, strict=False))
    assert fetched[0].views[2].dtype == torch.uint8
    assert fetched[0].views[2].shape == (2, 3, SIZE, SIZE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
def test_prefetched_batches_are_not_overwritten(view: str) -> None:
    """Each batch is read late, on a busy stream, and dropped at once: memory freed too early would show."""
    source = on_device(256, device="cuda")
    plan = [np.arange(first, first + 16) for first in range(0, 256, 16)]
    busy = torch.randn(2048, 2048, device="cuda")
    held = source.held
    assert held is not None
    expected = [make_view(source.views[view], held[i], view_keys(0, 0, source.hashes[i], 1)[:, 0]) for i in plan]
    results = []
    for _, actual in source.fetch(plan, (view,)):
        for _ in range(20):
            busy = busy @ busy / 50
        results.append(actual[0].float() * 2)
        del actual
    for result, expected_view in zip(results, expected, strict=True):
        assert torch.equal(result, expected_view.float() * 2)
