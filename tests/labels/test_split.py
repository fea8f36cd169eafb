"""Stratified splits: sizes, class shares, groups, and independence of order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table

# Shared machines stall: a deadline would measure them instead of the code.
quick = settings(deadline=None, max_examples=40)
SHARES = (0.8, 0.1, 0.1)
# Positive shares of the 20 classes of a well-known data set of photographs: one common class, many rare ones.
FREQUENCIES = np.array([58, 48, 66, 44, 61, 37, 102, 94, 97, 26, 47, 112, 42, 46, 362, 46, 28, 44, 47, 50]) / 1000


def photographs(images: int = 3000) -> Table:
    """Fully labelled, at least one positive each."""
    random = np.random.default_rng(1)
    present = random.random((images, 20)) < FREQUENCIES
    present[np.arange(images), random.choice(20, images, p=FREQUENCIES / FREQUENCIES.sum())] = True
    return Table.from_dense(np.where(present, 1, -1), [f"2008_{i:06d}" for i in range(images)])


def counts(table: Table, part: NDArray[np.int8], parts: int = 3) -> NDArray[np.int64]:
    """Known positives and negatives of each class in each part: (P, 2C)."""
    dense = table.dense()
    return np.array([[*(dense[part == p] > 0).sum(0), *(dense[part == p] < 0).sum(0)] for p in range(parts)])


def distance(table: Table, part: NDArray[np.int8]) -> float:
    """How far the parts' class counts are from their shares, in labels, on average."""
    result = counts(table, part)
    return float(np.abs(result - np.outer(SHARES, result.sum(0))).mean())


VIEWS = {
    "full": lambda: photographs(),
    "partial": lambda: drop.partial(photographs(), 0.1),
    "single positive": lambda: drop.single_positive(photographs()),
    "half unlabelled": lambda: drop.semi_supervised(photographs(), share=0.5),
}


@pytest.mark.parametrize("view", VIEWS)
def test_sizes_and_class_shares_and_better_than_chance(view: str) -> None:
    table = VIEWS[view]()
    part = assign_parts(table, SHARES)
    assert part.dtype == np.int8
    np.testing.assert_allclose(np.bincount(part) / len(table), SHARES, rtol=0.02)
    positives = counts(table, part)[:, :20]
    np.testing.assert_allclose(positives, np.outer(SHARES, positives.sum(0)), rtol=0.05, atol=4)
    random = np.random.default_rng(0)
    chance = [distance(table, random.permutation(part)) for _ in range(5)]
    assert distance(table, part) < 0.4 * min(chance)


def test_rare_classes_reach_every_part() -> None:
    labels = np.full((100, 3), -1)
    labels[:10, 0] = 1
    labels[5:45, 1] = 1
    for seed in range(20):
        result = counts(Table.from_dense(labels), assign_parts(Table.from_dense(labels), SHARES, seed=seed))
        assert result[:, 0].tolist() == [8, 1, 1]
        assert result[:, 1].tolist() == [32, 4, 4]


@quick
@given(
    arrays(np.int8, st.tuples(st.integers(0, 25), st.integers(1, 5)), elements=st.integers(-1, 1)),
    st.integers(0, 9),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_order_of_images_and_classes_does_not_matter(
    labels: NDArray[np.int8], seed: int, shuffle: object, grouped: bool
) -> None:
    table = Table.from_dense(labels)
    images, classes = (np.arange(size) for size in table.shape)
    shuffle.shuffle(images)  # type: ignore[attr-defined]
    shuffle.shuffle(classes)  # type: ignore[attr-defined]
    groups = np.arange(len(table)) // 3 if grouped else None
    part = assign_parts(table, SHARES, groups=groups, seed=seed)
    moved = assign_parts(
        table.subset(images, classes), SHARES, groups=None if groups is None else (-groups)[images], seed=seed
    )
    np.testing.assert_array_equal(part[images], moved)
    assert len(part) == len(table)
    assert np.all((part >= 0) & (part < 3))


@quick
@given(
    arrays(np.int8, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.integers(-1, 1)),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_sizes_without_groups_are_as_asked(labels: NDArray[np.int8], weights: list[int]) -> None:
    shares = np.array(weights) / sum(weights)
    size = np.bincount(assign_parts(Table.from_dense(labels), shares.tolist()), minlength=len(shares))
    assert size.sum() == len(labels)
    # Each stratum rounds to whole images at most once per part.
    assert np.all(np.abs(size - shares * len(labels)) <= 1 + 2 * labels.shape[1])


@pytest.mark.parametrize(
    ("groups", "expected"), [(None, "002101112120022000002100"), (np.arange(24) // 2, "002200110011002211002200")]
)
def test_parts_never_change(groups: NDArray[np.int64] | None, expected: str) -> None:
    image, column = np.indices((24, 4))
    labels = np.array([1, -1, 0, 1, -1])[(3 * image * image + 2 * column + image * column) % 5]
    table = Table.from_dense(labels, [f"{i:02d}.jpg" for i in range(24)], ["a", "b", "c", "d"])
    assert "".join(map(str, assign_parts(table, (0.5, 0.25, 0.25), groups=groups, seed=7))) == expected


@pytest.mark.parametrize("kind", ["numbers", "texts", "objects"])
def test_groups_stay_together(kind: str) -> None:
    table = photographs()
    number = np.random.default_rng(2).integers(0, 600, len(table))
    groups = {
        "numbers": number,
        "texts": [f"video {n}" for n in number],
        "objects": [("video", int(n)) for n in number],
    }
    part = assign_parts(table, SHARES, groups=groups[kind])
    for group in np.unique(number):
        assert len(set(part[number == group])) == 1
    np.testing.assert_allclose(np.bincount(part) / len(table), SHARES, atol=0.02)
    random = [distance(table, np.random.default_rng(s).choice(3, 600, p=SHARES)[number]) for s in range(5)]
    assert distance(table, part) < 0.7 * float(np.median(random))
    np.testing.assert_array_equal(part, assign_parts(table, SHARES, groups=groups["numbers"]))


def test_no_group_means_an_image_by_itself() -> None:
    table = photographs(200)
    np.testing.assert_array_equal(assign_parts(table, SHARES, groups=[None] * 200), assign_parts(table, SHARES))
    some = ["a" if i < 100 else None for i in range(200)]
    part = assign_parts(table, (0.5, 0.5), groups=some)
    assert len(set(part[:100])) == 1
    assert np.bincount(part).tolist() == [100, 100]


def test_no_labels_and_no_images() -> None:
    part = assign_parts(Table.from_dense(np.zeros((10, 2))), (0.5, 0.3, 0.2))
    assert np.bincount(part).tolist() == [5, 3, 2]
    assert assign_parts(Table.from_dense(np.zeros((0, 2))), (0.5, 0.5)).shape == (0,)
    assert assign_parts(photographs(20), [1.0]).tolist() == [0] * 20


@pytest.mark.parametrize(
    "shares", [(0.5, 0.4), (0.8, 0.3), (1.2, -0.2), (1.0, 0.0), (), (float("nan"), 1.0), [[0.5, 0.5]]]
)
def test_shares_must_make_a_whole(shares: tuple[float, ...]) -> None:
    with pytest.raises(UserError) as caught:
        assign_parts(photographs(10), shares)
    assert caught.value.fix


@pytest.mark.parametrize("groups", [[1] * 9, [[1]] * 10], ids=["too few", "not hashable"])
def test_bad_groups(groups: list[object]) -> None:
    with pytest.raises(UserError, match="groups"):
        assign_parts(photographs(10), SHARES, groups=groups)
