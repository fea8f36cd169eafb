"""Sources give the views of a plan, in its order, with any number of workers and of broken files."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from halflabel.errors import UserError
from halflabel.images import sources
from halflabel.images.decode import MAX_PIXELS, read_image
from halflabel.images.sources import Arrays, Features, Images, Source, Subset
from halflabel.images.views import Plain, Strong, View, Weak, view_keys
from halflabel.labels.names import Names

VIEWS: dict[str, View] = {"plain": Plain(16), "weak": Weak(16), "strong": Strong(16)}
N = 9


def write_images(folder: Path, n: int = N, bad: tuple[int, ...] = ()) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for number in range(n):
        path = folder / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
        if number in bad:
            path.write_bytes(path.read_bytes()[:200])
        paths.append(path)
    return paths


def images(folder: Path, bad: tuple[int, ...] = (), workers: int = 0, max_bad: float = 1.0, n: int = N) -> Images:
    paths = write_images(folder, n, bad)
    return Images(paths, Names(path.stem for path in paths), VIEWS, workers=workers, max_bad=max_bad)


def arrays(n: int = N) -> Arrays:
    values = np.random.default_rng(1).integers(0, 256, (n, 3, 20, 24), dtype=np.uint8)
    return Arrays(torch.from_numpy(values), Names.numbered(n), VIEWS)


def features(n: int = N, bad: tuple[int, ...] = ()) -> Features:
    return Features(np.arange(n * 4, dtype=np.float16).reshape(n, 4), Names.numbered(n), bad)


PLAN = [np.array([5, 2]), np.array([8]), np.array([0, 1, 7])]


@pytest.mark.parametrize("kind", ["arrays", "features", "images"])
def test_the_order_of_the_plan_is_kept(tmp_path: Path, kind: str) -> None:
    source: Source = {"arrays": arrays, "features": features, "images": lambda: images(tmp_path)}[kind]()
    actual = list(source.fetch(PLAN, ("plain", "plain")))
    assert [batch.images.tolist() for batch in actual] == [[5, 2], [8], [0, 1, 7]]
    assert all(batch.images.dtype == np.int64 for batch in actual)
    one_by_one = {n: v[0] for (n,), (v, _) in source.fetch([np.array([i]) for i in range(N)], ("plain", "plain"))}
    for numbers, views in actual:
        assert len(views) == 2
        for view in views:
            assert torch.equal(view, torch.stack([one_by_one[number] for number in numbers.tolist()]))


@pytest.mark.parametrize("kind", ["arrays", "images"])
def test_views_depend_on_the_key_of_the_image(tmp_path: Path, kind: str) -> None:
    source = arrays() if kind == "arrays" else images(tmp_path)
    ((_, actual),) = source.fetch([np.array([4, 6])], ("weak", "strong"), seed=3, epoch=2)
    keys = view_keys(3, 2, source.hashes[[4, 6]], 2)
    for place, number in enumerate((4, 6)):
        image = source.images[number] if isinstance(source, Arrays) else read_image(source.paths[number])
        for at, name in enumerate(("weak", "strong")):
            assert torch.equal(actual[at][place], VIEWS[name](image, int(keys[place, at])))
    ((_, other_epoch),) = source.fetch([np.array([4, 6])], ("weak", "strong"), seed=3, epoch=3)
    assert not torch.equal(actual[0], other_epoch[0])


def test_batches_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    alone = images(tmp_path, bad=(3,))
    helped = images(tmp_path, bad=(3,), workers=2)
    for epoch, views in ((1, ("weak", "strong")), (1, ("plain",)), (2, ("weak", "strong"))):
        plan = [np.array([8, 1, 3]), np.array([0, 4]), np.array([3]), np.array([2, 6])]
        first, second = (list(source.fetch(plan, views, seed=1, epoch=epoch)) for source in (alone, helped))
        assert len(first) == len(second) == 4
        for expected, actual in zip(first, second, strict=True):
            assert expected.images.tolist() == actual.images.tolist()
            assert len(expected.views) == len(actual.views)
            assert all(torch.equal(a, b) for a, b in zip(expected.views, actual.views, strict=True))
    assert alone.quarantine.rows == helped.quarantine.rows


def test_workers_do_without_shared_memory_where_it_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*given: object) -> None:
        raise RuntimeError("unable to allocate shared memory (shm)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", no_space)  # what torch raises in the worker
    monkeypatch.setattr(sources, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(sources, "_SPARE", 1 << 60)
    alone, helped = images(tmp_path), images(tmp_path, workers=2)
    for expected, actual in zip(alone.fetch(PLAN, ("weak",)), helped.fetch(PLAN, ("weak",)), strict=True):
        assert expected.images.tolist() == actual.images.tolist()
        assert torch.equal(expected.views[0], actual.views[0])


def test_an_unreadable_file_is_quarantined_once(tmp_path: Path) -> None:
    source = images(tmp_path, bad=(2, 6))
    (tmp_path / "7.png").unlink()
    plan = [np.array([1, 2, 3]), np.array([6]), np.array([7, 8])]
    for _ in range(2):
        actual = list(source.fetch(plan, ("plain",)))
        assert [batch.images.tolist() for batch in actual] == [[1, 3], [], [8]]
        assert [len(batch.views) for batch in actual] == [1, 0, 1]
        assert actual[0].views[0].shape == (2, 3, 16, 16)
    assert source.quarantine.rows == [
        ("2", str(tmp_path / "2.png"), "truncated"),
        ("6", str(tmp_path / "6.png"), "truncated"),
        ("7", str(tmp_path / "7.png"), "no such file"),
    ]


def test_too_many_unreadable_files_are_an_error_that_names_one(tmp_path: Path) -> None:
    source = images(tmp_path, bad=(2, 6), max_bad=0.15)
    batches = source.fetch([np.array([0, 2]), np.array([6])], ("plain",))
    assert next(batches).images.tolist() == [0]
    with pytest.raises(UserError, match=r"2 of 9 images \(22.2 %\) cannot be read.*limit of 15 %.*2.png.*max_bad"):
        next(batches)


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path) -> None:
    source = Images(write_images(tmp_path), Names.numbered(N), VIEWS, max_bad=1.0)
    Image.new("1", (MAX_PIXELS // 100 + 1, 100)).save(source.paths[0])
    ((actual, views),) = source.fetch([np.array([0])], ("plain",))
    assert (len(actual), views) == (0, ())
    assert "pixels" in source.quarantine.rows[0][2]


def test_a_subset_has_new_numbers_and_keeps_names_and_keys(tmp_path: Path) -> None:
    source = images(tmp_path, bad=(6,))
    part = Subset(source, np.array([6, 1, 8]))
    assert len(part) == 3
    assert list(part.names) == ["6", "1", "8"]
    actual = list(part.fetch([np.array([2, 0]), np.array([1])], ("weak",), seed=4, epoch=5))
    assert [batch.images.tolist() for batch in actual] == [[2], [1]]
    ((_, (expected,)),) = source.fetch([np.array([8])], ("weak",), seed=4, epoch=5)
    assert torch.equal(actual[0].views[0], expected)
    deeper = Subset(part, np.array([2]))
    ((numbers, (nested,)),) = deeper.fetch([np.array([0])], ("weak",), seed=4, epoch=5)
    assert numbers.tolist() == [0]
    assert torch.equal(nested, expected)


def test_features_are_float32_without_unreadable_images() -> None:
    source = features(bad=(3, 5))
    actual = list(source.fetch([np.array([5, 2, 1]), np.array([3])], ("weak", "plain")))
    assert [batch.images.tolist() for batch in actual] == [[2, 1], []]
    assert actual[0].views[0].dtype == torch.float32
    assert actual[0].views[0].tolist() == [[8, 9, 10, 11], [4, 5, 6, 7]]
    assert actual[0].views[0] is actual[0].views[1]
    assert actual[1].views[0].shape == (0, 4)


def copied(copies: int, bad: tuple[int, ...] = (), kind: str = "array", n: int = N) -> Features:
    """Features whose values state their origin: 100 · (1 + copy) + image, 0 + image for the plain view."""
    plain = np.arange(n, dtype=np.float16)[:, None] + np.zeros(4, np.float16)
    arrays = [plain, *(plain + 100 * (1 + copy) for copy in range(copies))]
    actual = [torch.from_numpy(array) if kind == "tensor" else array for array in arrays]
    return Features(actual[0], Names.numbered(n), bad, strong=actual[1:])


def which_copies(source: Source, seed: int, epoch: int, views: tuple[str, ...] = ("strong",)) -> list[int]:
    """The copy that is the (last) strong view of each image; checks that it is of the same image."""
    ((index, actual),) = source.fetch([np.arange(len(source))], views, seed=seed, epoch=epoch)
    copy, image = actual[-1][:, 0].div(100, rounding_mode="floor") - 1, actual[-1][:, 0] % 100
    assert image.tolist() == index.tolist()
    return copy.int().tolist()


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_strong_view_is_one_of_the_copies_of_the_image_and_others_are_plain(kind: str) -> None:
    source = copied(3, bad=(4,), kind=kind)
    ((index, (weak, strong, plain)),) = source.fetch([np.array([7, 4, 2, 8])], ("weak", "strong", "plain"), seed=1)
    assert index.tolist() == [7, 2, 8]
    assert weak is plain
    assert weak.dtype == strong.dtype == torch.float32
    assert weak[:, 0].tolist() == [7, 2, 8]
    assert (strong % 100).tolist() == weak.tolist()
    assert set((strong[:, 0] // 100).tolist()) <= {1, 2, 3}


def test_the_copy_is_a_function_of_seed_epoch_and_image() -> None:
    source = copied(3, n=90)
    drawn = {(seed, epoch): which_copies(source, seed, epoch) for seed in range(2) for epoch in range(4)}
    assert len({tuple(copies) for copies in drawn.values()}) == 8
    assert drawn[1, 2] == which_copies(copied(3, n=90), 1, 2)
    counts = np.bincount(np.concatenate(list(drawn.values())), minlength=3)
    assert counts.sum() == 720
    assert counts.min() > 190
    # Neither the order nor the batches nor the place in a part matter.
    index = np.random.default_rng(0).permutation(90)
    results = {}
    for images, (strong,) in source.fetch([index[:37], index[37:]], ("strong",), seed=1, epoch=2):
        results |= dict(zip(images.tolist(), strong[:, 0].tolist(), strict=True))
    assert [int(results[image] // 100) - 1 for image in range(90)] == drawn[1, 2]
    ((_, (part,)),) = Subset(source, index).fetch([np.arange(90)], ("strong",), seed=1, epoch=2)
    assert (part[:, 0] // 100 - 1).tolist() == [drawn[1, 2][image] for image in index]
    # It goes with the image's name, not with its number.
    plain, *strong = (array[index] for array in (source.values, *source.strong))
    turned = Features(plain, source.names.take(index), strong=strong)
    ((_, (from_reversed,)),) = turned.fetch([np.arange(90)], ("strong",), seed=1, epoch=2)
    assert torch.equal(from_reversed, part)
    # Two strong views of one step are drawn apart.
    ((_, (first_copy, second_copy)),) = source.fetch([np.arange(90)], ("strong", "strong"), seed=1, epoch=2)
    assert not torch.equal(first_copy, second_copy)


def test_features_without_images_warn_that_views_are_equal() -> None:
    source = features()
    with pytest.warns(UserWarning, match="no strong views"):
        ((_, (weak, strong)),) = source.fetch([np.array([3, 1])], ("weak", "strong"))
    assert weak is strong


def test_strong_views_that_were_not_cached_are_refused() -> None:
    source = copied(0)
    assert len(list(source.fetch([np.array([3, 1])], ("weak", "plain")))) == 1
    for features in (source, Subset(source, np.array([2, 1]))):
        with pytest.raises(UserError, match="strong views, but these features were cached without"):
            list(features.fetch([np.array([1])], ("weak", "strong")))


def test_an_unfinished_fetch_does_not_affect_the_next(tmp_path: Path) -> None:
    source = images(tmp_path, workers=2)
    plan = [np.array([number]) for number in range(N)]
    first = source.fetch(plan, ("plain",))
    next(first)
    first.close()
    assert [batch.images.tolist() for batch in source.fetch(plan[::-1], ("plain",))] == [[n] for n in range(N)][::-1]


def test_a_source_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    source = images(tmp_path, workers=1)
    list(source.fetch(PLAN, ("plain",)))
    reference = weakref.ref(source)
    # Were it part of a cycle, its workers would wait for the garbage collector, then for 5 seconds each.
    gc.disable()
    try:
        del source
        assert reference() is None
    finally:
        gc.enable()
