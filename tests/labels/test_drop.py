"""Drop protocols: their guarantees, nesting, independence of order, and labels that never change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.system.rng import bits, hash_names

# Shared machines stall: a deadline would measure them instead of the code.
quick = settings(deadline=None, max_examples=25)
shares = st.floats(0, 1)

# Every protocol with arguments that make it do something.
CALLS: dict[str, Callable[[Table, int], Table]] = {
    "partial": lambda table, seed: drop.partial(table, 0.3, seed=seed),
    "partial, independent": lambda table, seed: drop.partial(table, 0.3, exact=False, seed=seed),
    "noisy": lambda table, seed: drop.noisy(table, 0.3, seed=seed),
    "noisy, independent": lambda table, seed: drop.noisy(table, 0.3, exact=False, seed=seed),
    "noisy+": lambda table, seed: drop.noisy_plus(table, seed=seed),
    "single-positive": lambda table, seed: drop.single_positive(table, seed=seed),
    "positives, share": lambda table, seed: drop.positives(table, share=0.6, seed=seed),
    "positives, number": lambda table, seed: drop.positives(table, number=2, keep_negatives=True, seed=seed),
    "1-positive+negatives": lambda table, seed: drop.one_positive_all_negatives(table, seed=seed),
    "dense": lambda table, seed: drop.dense(table, 0.4, seed=seed),
    "per-class": lambda table, seed: drop.per_class(table, positives=3, negatives=2, seed=seed),
    "corrupt": lambda table, seed: drop.corrupt(table, 0.5, seed=seed),
    "corrupt, some": lambda table, seed: drop.corrupt(table, 0.5, labelled=0.4, seed=seed),
    "semi-supervised": lambda table, seed: drop.semi_supervised(table, share=0.3, seed=seed),
}
WHOLE_TABLE = {"dense", "per-class", "corrupt", "corrupt, some", "semi-supervised"}

DIGESTS = {
    "partial": "5e6c7620ed12a3d7fac9322b43b5ce30c41d67dff15bf28debcb80835c653d79",
    "partial, independent": "39dfa1f2a95e317980922e9df5d4abc7bdc0d06c1bdf5d0fe77575bc67e2225e",
    "noisy": "112ea2e7b8075c3cab142c12c40cc441be9354233a06ece832d79898688869aa",
    "noisy, independent": "c3d1f79b0c0c1852bad25841e9dd84d2f47125d8e11f506014c8f7107653999a",
    "noisy+": "18ca8fb148eaf9f6a190e6fa5a4e0093d039686a5792c7f76f93d5a2f54cca7f",
    "single-positive": "2a92ba948d3642d593abafd423df86d02aa45351f23272d08e8f4ea52e7d62cc",
    "positives, share": "d8fbeb1156644024e53ca5a60ad8ac2f48665b87de132743ca0aac895cdeacb2",
    "positives, number": "cd086c86086b6e7055698ee9f766edafab1cddd8ab41f1617ab82380ec9ab484",
    "1-positive+negatives": "0da9ca479f2e87d80452009238f987afe3457044cd82dde252c194232cd147fb",
    "dense": "623b31af69a5fab75e2b9030b6b4f0ca418c12686d457c5b678b8a7c57ac04cf",
    "per-class": "4bca2a2959237730250dd39bf9511a4e62da6d17b063b185057ea078c88bcd1e",
    "corrupt": "6f6adac552cd397b10f2326c369681cf9a4766920846a50c25d01e6787269e6e",
    "corrupt, some": "da737a51304944b9a55fc3984f22d7f932e941ce624fb594cf7255f7ca1e7741",
    "semi-supervised": "a79e479fd47db24c4adca0c48a516712e1e62099749764d052e52883aeab67f3",
}


def fixed_table() -> Table:
    """40 images × 6 classes with all three values, the same for ever."""
    image, column = np.indices((40, 6))
    labels = np.array([1, -1, 1, 0, -1, 1, 1])[(3 * image * image + 5 * column + image * column) % 7]
    return Table.from_dense(labels, [f"{i:03d}.jpg" for i in range(40)], ["cat", "dog", "cow", "car", "bus", "狗"])


def full_table(images: int, classes: int) -> Table:
    image, column = np.indices((images, classes))
    return Table.from_dense(np.where((image * 31 + column * 17 + image // 7 * column) % 4 == 0, 1, -1))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 6)))
    labels = draw(arrays(np.int8, shape, elements=st.integers(-1, 1)))
    assume((labels > 0).any())
    return Table.from_dense(labels, [f"image {i}" for i in range(shape[0])], [f"class {c}" for c in range(shape[1])])


def contained(first: Table, other: Table) -> bool:
    """Every label of `first` is a label of `other`."""
    mine = first.dense()
    return bool(np.all((mine == 0) | (mine == other.dense())))


def order_of(table: Table, image: int, classes: list[int], tag: str, seed: int) -> list[int]:
    """The slow reference: an image's classes in the order in which they are kept."""
    key = {
        c: int(
            bits(seed, int(hash_names([tag])[0]), hash_names([table.images[image]]), hash_names([table.classes[c]]))[0]
        )
        for c in classes
    }
    return sorted(classes, key=key.__getitem__)


class TestAll:
    @pytest.mark.parametrize("name", CALLS)
    def test_labels_never_change(self, name: str) -> None:
        assert CALLS[name](fixed_table(), 7).digest() == DIGESTS[name]

    @pytest.mark.parametrize("name", CALLS)
    def test_seed_matters_and_the_input_does_not_change(self, name: str) -> None:
        table = fixed_table()
        before = table.digest()
        assert CALLS[name](table, 1) == CALLS[name](table, 1)
        assert CALLS[name](table, 1) != CALLS[name](table, 2)
        assert CALLS[name](table, 1) != table
        assert table.digest() == before

    @pytest.mark.parametrize("name", CALLS)
    def test_order_of_images_and_classes_does_not_matter(self, name: str) -> None:
        table = fixed_table()
        images, classes = np.random.default_rng(0).permutation(40), np.array([3, 0, 5, 1, 4, 2])
        assert CALLS[name](table.subset(images, classes), 3) == CALLS[name](table, 3).subset(images, classes)

    @pytest.mark.parametrize("name", [name for name in CALLS if name not in WHOLE_TABLE])
    @quick
    @given(table=tables(), data=st.data())
    def test_subset_then_drop_is_drop_then_subset(self, name: str, table: Table, data: st.DataObject) -> None:
        images = data.draw(st.lists(st.integers(0, len(table) - 1), unique=True, min_size=1))
        part = table.subset(images)
        assume((part.value > 0).any())
        assert CALLS[name](part, 5) == CALLS[name](table, 5).subset(images)

    @pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith(("noisy", "corrupt"))])
    @quick
    @given(table=tables())
    def test_hiding_never_invents_a_label(self, name: str, table: Table) -> None:
        assert contained(CALLS[name](table, 0), table)

    def test_every_protocol_is_listed_and_described(self) -> None:
        assert set(drop.PROTOCOLS) == {name.split(",")[0] for name in CALLS}
        for sentence in (str(protocol.__doc__).splitlines()[0] for protocol in drop.PROTOCOLS.values()):
            assert sentence.endswith(".")
            assert sentence[0].isupper()


class TestPartial:
    @pytest.mark.parametrize(
        ("share", "known", "remaining"),
        [(0.1, 20, 2), (0.15, 20, 3), (0.29, 100, 29), (1 / 3, 3, 1), (0.7, 10, 7), (0.0, 20, 0), (1.0, 20, 20)],
    )
    def test_exact_counts_in_spite_of_float_error(self, share: float, known: int, remaining: int) -> None:
        table = full_table(200, known)
        assert set(np.diff(drop.partial(table, share).start)) == {remaining}

    def test_fractions_are_made_up_by_chance(self) -> None:
        remaining = np.diff(drop.partial(full_table(4000, 5), 0.3).start)
        assert set(remaining) == {1, 2}
        assert abs(remaining.mean() - 1.5) < 0.03  # standard error 0.008

    def test_independent_share(self) -> None:
        table = full_table(2000, 50)
        remaining = drop.partial(table, 0.1, exact=False)
        assert abs(remaining.known / table.known - 0.1) < 0.004  # standard error 0.001
        assert len(set(np.diff(remaining.start))) > 5
        assert drop.partial(table, 1.0, exact=False) == table
        assert drop.partial(table, 0.0, exact=False).known == 0

    @quick
    @given(tables(), shares, shares, st.booleans())
    def test_shares_are_nested(self, table: Table, first: float, other: float, exact: bool) -> None:
        small, large = sorted((first, other))
        less = drop.partial(table, small, exact=exact, seed=2)
        assert contained(less, drop.partial(table, large, exact=exact, seed=2))

    @quick
    @given(tables(), shares)
    def test_slow_reference(self, table: Table, share: float) -> None:
        remaining = drop.partial(table, share, seed=9).dense()
        for i, row in enumerate(table.dense()):
            order = order_of(table, i, np.flatnonzero(row).tolist(), "partial", 9)
            count = np.count_nonzero(remaining[i])
            assert abs(count - share * len(order)) < 1
            assert set(np.flatnonzero(remaining[i])) == set(order[:count])


class TestDense:
    @quick
    @given(tables(), shares, shares)
    def test_whole_images_exactly_counted_and_nested(self, table: Table, first: float, other: float) -> None:
        small, large = sorted((first, other))
        remaining, known = np.diff(drop.dense(table, small).start), np.diff(table.start)
        labelled = np.count_nonzero(known)
        assert np.all((remaining == 0) | (remaining == known))
        assert abs(np.count_nonzero(remaining) - small * labelled) <= 0.5 + 1e-9
        assert contained(drop.dense(table, small), drop.dense(table, large))


class TestNoisy:
    def test_exactly_a_share_is_wrong_and_nothing_hidden(self) -> None:
        table = full_table(100, 20)
        wrong = drop.noisy(table, 0.15).dense() == -table.dense()
        assert set(wrong.sum(1)) == {3}
        assert set((drop.noisy(table, 0.15).dense() == table.dense()).sum(1)) == {17}

    @quick
    @given(tables(), shares, shares, st.booleans())
    def test_flips_are_nested(self, table: Table, first: float, other: float, exact: bool) -> None:
        small, large = (drop.noisy(table, share, exact=exact).dense() for share in sorted((first, other)))
        labels = table.dense()
        assert np.all(np.abs(small) == np.abs(labels))
        assert np.all((small == labels) | (large == -labels))


class TestPositives:
    @quick
    @given(tables())
    def test_single_positive_by_the_slow_reference(self, table: Table) -> None:
        remaining = drop.single_positive(table, seed=4).dense()
        for i, row in enumerate(table.dense()):
            order = order_of(table, i, np.flatnonzero(row > 0).tolist(), "positive", 4)
            assert np.flatnonzero(remaining[i]).tolist() == order[:1]
            assert np.all(remaining[i] >= 0)

    @quick
    @given(tables())
    def test_all_protocols_keep_the_same_positive(self, table: Table) -> None:
        labels, single = table.dense(), drop.single_positive(table).dense()
        negatives = np.minimum(labels, 0)
        np.testing.assert_array_equal(drop.one_positive_all_negatives(table).dense(), single + negatives)
        np.testing.assert_array_equal(drop.noisy_plus(table).dense(), np.where(single > 0, 1, -np.abs(labels)))
        assert contained(drop.single_positive(table), drop.positives(table, number=2))

    def test_single_positive_is_uniform(self) -> None:
        table = Table.from_dense(np.ones((6000, 6), np.int8))
        counts = np.bincount(drop.single_positive(table).column, minlength=6)
        assert counts.sum() == 6000
        assert 0.2 < ((counts - 1000) ** 2 / 1000).sum() < 20  # chi-square, 5 degrees of freedom: p ≈ 0.999 … 0.001

    @quick
    @given(tables(), st.integers(1, 7), st.booleans())
    def test_number(self, table: Table, number: int, keep_negatives: bool) -> None:
        labels, remaining = table.dense(), drop.positives(table, number=number, keep_negatives=keep_negatives).dense()
        np.testing.assert_array_equal((remaining > 0).sum(1), np.minimum((labels > 0).sum(1), number))
        np.testing.assert_array_equal(remaining < 0, (labels < 0) & keep_negatives)

    @quick
    @given(tables(), shares, shares)
    def test_share(self, table: Table, first: float, other: float) -> None:
        small, large = sorted((first, other))
        remaining = drop.positives(table, share=small)
        assert np.all(np.abs((remaining.dense() > 0).sum(1) - small * (table.dense() > 0).sum(1)) < 1)
        assert contained(remaining, drop.positives(table, share=large))


class TestPerClass:
    @quick
    @given(tables(), st.integers(0, 4), st.integers(1, 4))
    def test_counts_and_nesting(self, table: Table, positives: int, negatives: int) -> None:
        remaining = drop.per_class(table, positives=positives, negatives=negatives)
        for sign, number in ((1, positives), (-1, negatives)):
            available = (table.dense() == sign).sum(0)
            np.testing.assert_array_equal((remaining.dense() == sign).sum(0), np.minimum(available, number))
        assert contained(remaining, drop.per_class(table, positives=positives + 1, negatives=negatives + 2))


class TestCorrupt:
    @pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
    def test_class_counts_stay_and_exactly_a_share_of_images_is_wrong(self, share: float) -> None:
        table = Table.from_dense(np.where(np.arange(10) == np.arange(1000)[:, None] % 10, 1, -1))
        corrupted = drop.corrupt(table, share).dense()
        for sign in (-1, 1):
            np.testing.assert_array_equal((corrupted == sign).sum(0), (table.dense() == sign).sum(0))
        assert (corrupted != table.dense()).any(1).sum() == 1000 * share
        assert np.unique(corrupted, axis=0).shape[0] == 10

    @quick
    @given(tables(), st.lists(st.floats(0.2, 1), min_size=2, max_size=2))
    def test_rows_change_places(self, table: Table, both: list[float]) -> None:
        assume(np.count_nonzero(np.diff(table.start)) >= 8)
        small, large = (drop.corrupt(table, share) for share in sorted(both))
        assert sorted(small.dense().tolist()) == sorted(table.dense().tolist())
        assert small.images == table.images
        unlabelled = ~table.dense().any(1)
        assert not large.dense()[unlabelled].any()

    @quick
    @given(arrays(np.int8, st.integers(2, 30), elements=st.integers(0, 4)), st.integers(0, 99))
    def test_as_many_differ_as_can(self, kind: NDArray[np.int8], seed: int) -> None:
        table = Table.from_dense(np.where(np.arange(5) == kind[:, None], 1, -1))
        same = (drop.corrupt(table, 1.0, seed=seed).dense() == table.dense()).all(1).sum()
        most = np.bincount(kind).max()
        assert same == max(0, 2 * most - len(kind))


class TestSemiSupervised:
    @quick
    @given(tables(), st.integers(0, 12))
    def test_number(self, table: Table, number: int) -> None:
        known = np.diff(table.start)
        assume(number <= np.count_nonzero(known))
        remaining = np.diff(drop.semi_supervised(table, number=number).start)
        assert np.count_nonzero(known) - np.count_nonzero(remaining) == number
        assert np.all((remaining == 0) | (remaining == known))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t: drop.partial(t, 1.1), "share"),
        (lambda t: drop.partial(t, -0.1), "share"),
        (lambda t: drop.partial(t, float("nan")), "share"),
        (lambda t: drop.noisy(t, 2), "share"),
        (lambda t: drop.dense(t, 10), "share"),
        (lambda t: drop.corrupt(t, 50), "share"),
        (lambda t: drop.corrupt(t, 0.02), "only one image"),
        (lambda t: drop.positives(t), "either share or number"),
        (lambda t: drop.positives(t, share=0.1, number=1), "either share or number"),
        (lambda t: drop.positives(t, number=0), "number"),
        (lambda t: drop.positives(t, share=1.5), "share"),
        (lambda t: drop.per_class(t, positives=-1, negatives=1), "positives"),
        (lambda t: drop.per_class(t, positives=0, negatives=0), "nothing"),
        (lambda t: drop.semi_supervised(t), "either share or number"),
        (lambda t: drop.semi_supervised(t, number=41), "41 images"),
        (lambda t: drop.semi_supervised(t, share=-1), "share"),
    ],
)
def test_bad_arguments(call: Callable[[Table], Table], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        call(fixed_table())
    assert caught.value.fix


@pytest.mark.parametrize("name", CALLS)
def test_nothing_to_drop(name: str) -> None:
    empty = Table.from_dense(np.zeros((20, 3), np.int8))
    with pytest.raises(UserError, match="there are no known"):
        CALLS[name](empty, 0)
