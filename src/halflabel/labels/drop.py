"""Protocols that hide or corrupt labels, to simulate partly labelled data: Table -> Table, pure and seeded.

Every choice is a function of (seed, image name, class name), so the same call gives the same labels on every machine
and for any order of the images. Protocols that choose image by image (`partial`, `noisy`, `noisy_plus`,
`single_positive`, `positives`, `one_positive_all_negatives`) commute with taking a subset of the images. `dense`,
`per_class`, `corrupt` and `semi_supervised` keep exact counts over the whole table, so there a subset changes the
choice. With the same seed, larger shares and numbers contain the smaller ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.system.rng import bits, hash_names, uniform

Mask = NDArray[np.bool_]

_NANO = 10**9
_CHUNK = 1 << 22  # entries per chunk: limits working memory to some hundred MB
_SWAPS = 8  # rounds of random swaps in `_derangement`


def partial(table: Table, share: float, *, exact: bool = True, seed: int = 0) -> Table:
    """Keep a random share of every image's known labels.

    With `exact`, an image with n known labels keeps ⌊share·n⌋ of them, and one more with probability share·n −
    ⌊share·n⌋ (drawn per image), so 0.1 of 20 is always 2. Without it, each known label is kept independently with
    probability `share`. With the same seed, partial(0.1) is contained in partial(0.2). (Durand 2019, §4.1.)
    """
    _check_share(share)
    _check_any(table.known, "known labels")
    return table.keep(_choose_entries(table, "partial", share, exact, seed))


def dense(table: Table, share: float, *, seed: int = 0) -> Table:
    """Keep all labels of a random share of the images and none of the others.

    Of the N images with a known label exactly ⌊share·N + ½⌋ keep all their labels. With the same seed, dense(0.1) is
    contained in dense(0.2). (Durand 2019, §4.1.)
    """
    _check_share(share)
    order = _shuffled_labelled_images(table, seed)
    return _keep_images(table, order[: _round_share(share, len(order))])


def noisy(table: Table, share: float, *, exact: bool = True, seed: int = 0) -> Table:
    """Flip a random share of every image's known labels and keep all of them.

    Flipping turns +1 into −1 and −1 into +1. The flipped labels are chosen as in `partial`: ⌊share·n⌋ per image and one
    more by chance, or independently with `exact=False`. The paper says only "some labels are wrong" for a fixed number
    of clean labels. noisy(0.2) flips all labels that noisy(0.1) flips. (Durand 2019, §4.1: "80 % clean" is share =
    0.2.)
    """
    _check_share(share)
    _check_any(table.known, "known labels")
    wrong = _choose_entries(table, "noisy", share, exact, seed)
    return _with_values(table, np.where(wrong, -table.value, table.value))


def noisy_plus(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image and turn the others into negatives.

    The positive is the one `single_positive` keeps. Known negatives stay; unknown stays unknown. (Durand 2019, §4.1.)
    """
    chosen = _choose_positives(table, None, 1, seed)
    return _with_values(table, np.where(chosen, 1, -1).astype(np.int8))


def single_positive(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image, chosen uniformly; all other labels become unknown.

    Images without a known positive lose all labels. (Zhou 2022.)
    """
    return positives(table, number=1, seed=seed)


def positives(
    table: Table,
    *,
    share: float | None = None,
    number: int | None = None,
    keep_negatives: bool = False,
    seed: int = 0,
) -> Table:
    """Keep a share, or a number, of each image's known positives; all other labels become unknown.

    Of n known positives an image keeps ⌊share·n⌋ and one more with probability share·n − ⌊share·n⌋, or min(number, n).
    Known negatives become unknown too, unless `keep_negatives`. (Zhou 2022, the general missing-label setting.)
    """
    if (share is None) == (number is None):
        raise UserError("positives needs a share or a number", "give exactly one of share=0.5 and number=2")
    if share is not None:
        _check_share(share)
    if number is not None:
        _check_number(number, "number", least=1)
    chosen = _choose_positives(table, share, number, seed)
    return table.keep(chosen | (table.value < 0) if keep_negatives else chosen)


def one_positive_all_negatives(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image and all known negatives; the other positives become unknown.

    The positive is the one `single_positive` keeps. (Zhou 2022, "1 positive + all negatives".)
    """
    return positives(table, number=1, keep_negatives=True, seed=seed)


def per_class(table: Table, *, positives: int, negatives: int, seed: int = 0) -> Table:
    """Keep a fixed number of known positives and known negatives per class; all other labels become unknown.

    A class with fewer keeps all of them. With the same seed, larger numbers contain the smaller ones.
    """
    _check_number(positives, "positives")
    _check_number(negatives, "negatives")
    _check_any(table.known, "known labels")
    if positives == negatives == 0:
        raise UserError("per-class would keep nothing", "ask for at least one positive or negative per class")
    quota = np.repeat([positives, negatives], len(table.classes))
    # A label among the n lowest draws of its class is among the n lowest of its chunk too: prune each chunk first.
    entries: list[NDArray[np.int64]] = []
    strata: list[NDArray[np.int64]] = []
    draws: list[NDArray[np.uint64]] = []
    for entry, _, draw in _draws(table, "per-class", seed):
        stratum = table.column[entry] + len(table.classes) * (table.value[entry] < 0).astype(np.int64)
        candidates = np.flatnonzero(_lowest(stratum, draw, quota))
        entries.append(candidates + entry.start)
        strata.append(stratum[candidates])
        draws.append(draw[candidates])
    chosen = np.concatenate(entries)[_lowest(np.concatenate(strata), np.concatenate(draws), quota)]
    mask = np.zeros(table.known, np.bool_)
    mask[chosen] = True
    return table.keep(mask)


def corrupt(table: Table, share: float, *, labelled: float = 1.0, seed: int = 0) -> Table:
    """Exchange the labels of a random share of the images, so that all class counts stay the same.

    Exactly ⌊share·N + ½⌋ of the N images with a known label are chosen, and their whole label rows are permuted at
    random: each chosen image gets the row of another one, different from its old row (unless more than half of the
    chosen rows are equal: then some cannot change). Known positives, known negatives and co-occurrences of the classes
    are exactly the same afterwards, and no label is hidden. With the same seed, the images chosen at 10 % are among
    those at 20 %. (Cevikalp 2019, §3.3: labels of a random subset are "altered stochastically, while maintaining the
    class frequencies"; exchanging whole rows is our interpretation.) With `labelled` below 1, all other images first
    lose their labels, as by `semi_supervised`.
    """
    _check_share(share)
    _check_share(labelled)
    if labelled < 1:
        table = semi_supervised(table, share=1 - labelled, seed=seed)
    order = _shuffled_labelled_images(table, seed)
    order = order[: _round_share(share, len(order))]
    if len(order) == 1:
        raise UserError("only one image would be corrupted", "use a larger share: labels are exchanged between images")
    source = np.arange(len(table.images))
    source[order] = order[_derangement(_hash_rows(table)[order], hash_names(table.images.array)[order], seed)]
    uncertain = None if table.uncertain is None else table.uncertain[source]
    return replace(table, values=table.values[source], uncertain=uncertain)


def semi_supervised(table: Table, *, share: float | None = None, number: int | None = None, seed: int = 0) -> Table:
    """Remove all labels of a share, or a number, of the images; the others keep all their labels.

    Of the N images with a known label exactly `number`, or ⌊share·N + ½⌋, lose all labels. The images that keep their
    labels are those that `dense` keeps for the same count. (Cevikalp 2019, §3.1.)
    """
    if (share is None) == (number is None):
        raise UserError("semi-supervised needs a share or a number", "give exactly one of share=0.9 and number=1000")
    order = _shuffled_labelled_images(table, seed)
    if share is not None:
        _check_share(share)
        number = _round_share(share, len(order))
    assert number is not None
    _check_number(number, "number")
    if number > len(order):
        raise UserError(
            f"cannot hide the labels of {number} images: only {len(order)} have labels", f"use at most {len(order)}"
        )
    return _keep_images(table, order[: len(order) - number])


_EXAMPLES = {"share": "0.1", "positives": "20", "negatives": "20"}  # of required options, for error messages

PROTOCOLS: dict[str, Callable[..., Table]] = {
    "partial": partial,
    "dense": dense,
    "noisy": noisy,
    "noisy+": noisy_plus,
    "single-positive": single_positive,
    "positives": positives,
    "1-positive+negatives": one_positive_all_negatives,
    "per-class": per_class,
    "corrupt": corrupt,
    "semi-supervised": semi_supervised,
}


def protocol_summaries() -> dict[str, str]:
    """The first sentence of each protocol's docstring, by protocol name.

    >>> protocol_summaries()["noisy+"]
    'Keep one known positive per image and turn the others into negatives.'
    """
    return {name: (protocol.__doc__ or "").split("\n", 1)[0] for name, protocol in PROTOCOLS.items()}


def protocol_options(protocol: str) -> dict[str, inspect.Parameter]:
    """The options of a protocol besides its seed, by name."""
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol is called {protocol!r}", f"use one of: {', '.join(PROTOCOLS)}")
    parameters = inspect.signature(PROTOCOLS[protocol], eval_str=True).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in ("table", "seed")}


def check_options(protocol: str, given: Collection[str], spell: Callable[[str], str] = str) -> None:
    """Raise UserError for an option that is wrong or missing; `spell` turns its name into what users write."""
    options = protocol_options(protocol)
    for name in given:
        if name not in options:
            takes = ", ".join(map(spell, options)) or "only a seed"
            raise UserError(f"{spell(name)} cannot be used with {protocol}", f"leave it out; {protocol} takes {takes}")
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in given:
            raise UserError(f"{protocol} needs {spell(name)}", f"add {spell(name)}={_EXAMPLES[name]}, or another value")
    if {"share", "number"} <= options.keys() and ("share" in given) == ("number" in given):
        raise UserError(f"{protocol} needs either {spell('share')} or {spell('number')}", "give exactly one of them")


def apply(protocol: str, table: Table, *, seed: int = 0, **options: Any) -> Table:
    """Run a protocol by name with its options; the error names an option that is wrong or missing."""
    check_options(protocol, options)
    return PROTOCOLS[protocol](table, seed=seed, **options)


def _check_share(share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise UserError(f"the share {share:g} is not between 0 and 1", "give a part of the whole, such as 0.1 for 10 %")


def _check_number(number: int, name: str, least: int = 0) -> None:
    if int(number) != number or number < least:
        raise UserError(f"{name} is {number}", f"give a whole number, {least} or more")


def _check_any(count: int, kind: str) -> None:
    if count == 0:
        raise UserError(f"there are no {kind} to choose from", f"check that the label file was read with {kind}")


def _tag(name: str) -> int:
    return int(hash_names([name])[0])


def _nano(share: float, count: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """share·count in whole billionths: this rounds off float errors, so 0.29 of 100 is 29."""
    return np.rint(np.asarray(count) * share * _NANO).astype(np.int64)


def _round_share(share: float, count: int) -> int:
    return int(_nano(share, count) + _NANO // 2) // _NANO


def _draw_quota(share: float, count: NDArray[np.int64], chance: NDArray[np.float64]) -> NDArray[np.int64]:
    """⌊share·count⌋, plus one where `chance` is below the fractional part."""
    nano = _nano(share, count)
    whole = nano // _NANO
    return whole + (chance < (nano - whole * _NANO) / _NANO)


def _chunks(table: Table) -> Iterator[tuple[int, int]]:
    """Ranges of images with about `_CHUNK` entries each."""
    first = 0
    while first < len(table.images):
        last = int(np.searchsorted(table.start, table.start[first] + _CHUNK, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def _draws(table: Table, tag: str, seed: int) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[np.uint64]]]:
    """Per chunk: the entries, the image index of each, and its random bits."""
    image_hash, class_hash = hash_names(table.images.array), hash_names(table.classes.array)
    for first, last in _chunks(table):
        entry = slice(int(table.start[first]), int(table.start[last]))
        image = np.repeat(np.arange(first, last), np.diff(table.start[first : last + 1]))
        yield entry, image, bits(seed, _tag(tag), image_hash[image], class_hash[table.column[entry]])


def _lowest(group: NDArray[np.int64], draw: NDArray[np.uint64], quota: NDArray[np.int64]) -> Mask:
    """True for the `quota[g]` lowest draws of each group g."""
    order = np.lexsort((draw, group))
    group = group[order]
    group_starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
    rank = np.arange(len(group)) - np.repeat(group_starts, np.diff(np.append(group_starts, len(group))))
    mask = np.zeros(len(group), np.bool_)
    mask[order] = rank < quota[group]
    return mask


def _choose_entries(table: Table, tag: str, share: float, exact: bool, seed: int) -> Mask:
    """Choose a share of the known entries: exactly per image, or each entry independently."""
    mask = np.zeros(table.known, np.bool_)
    if exact:
        chance = uniform(seed, _tag(f"{tag}, one more"), hash_names(table.images.array))
        quota = _draw_quota(share, np.diff(table.start), chance)
    for entry, image, draw in _draws(table, tag, seed):
        # The upper 53 bits are the number that `uniform` returns; it is below 1, so share 1 keeps everything.
        mask[entry] = _lowest(image, draw, quota) if exact else (draw >> np.uint64(11)) * 2.0**-53 < share
    return mask


def _choose_positives(table: Table, share: float | None, number: int | None, seed: int) -> Mask:
    """Choose known positives of each image. All protocols use the same tag, so they keep the same positive."""
    _check_any(int(np.count_nonzero(table.value > 0)), "known positives")
    mask = np.zeros(table.known, np.bool_)
    chance = uniform(seed, _tag("positive, one more"), hash_names(table.images.array))
    quota = np.full(len(table.images), number or 0, np.int64)
    for entry, image, draw in _draws(table, "positive", seed):
        present = np.flatnonzero(table.value[entry] > 0)
        image, draw = image[present], draw[present]
        if share is not None and len(image):
            first, count = int(image[0]), np.bincount(image - image[0])
            images = slice(first, first + len(count))
            quota[images] = _draw_quota(share, count, chance[images])
        mask[present + entry.start] = _lowest(image, draw, quota)
    return mask


def _shuffled_labelled_images(table: Table, seed: int) -> NDArray[np.int64]:
    """The images with a known label, in a random order that depends only on their names and the seed."""
    images = np.flatnonzero(np.diff(table.start))
    _check_any(len(images), "known labels")
    return images[np.argsort(bits(seed, _tag("image"), hash_names(table.images.array)[images]), kind="stable")]


def _keep_images(table: Table, images: NDArray[np.int64]) -> Table:
    is_kept = np.zeros(len(table.images), np.bool_)
    is_kept[images] = True
    return table.keep(np.repeat(is_kept, np.diff(table.start)))


def _with_values(table: Table, value: NDArray[np.int8]) -> Table:
    changed = Table.from_parts(table.images, table.classes, table.start, table.column, value)
    return replace(changed, uncertain=table.uncertain)


def _hash_rows(table: Table) -> NDArray[np.uint64]:
    """One hash per image, equal for images with the same known labels in any order of the classes."""
    class_hash = hash_names(table.classes.array)
    out = np.zeros(len(table.images), np.uint64)
    for first, last in _chunks(table):
        entry = slice(int(table.start[first]), int(table.start[last]))
        entry_hash = bits(0, class_hash[table.column[entry]], table.value[entry])
        total = np.append(np.zeros(1, np.uint64), np.cumsum(entry_hash))
        offsets = table.start[first : last + 1] - table.start[first]
        out[first:last] = total[offsets[1:]] - total[offsets[:-1]]
    return out


def _derangement(row: NDArray[np.uint64], name: NDArray[np.uint64], seed: int) -> NDArray[np.int64]:
    """A permutation of rows that are in random order; no image gets a row equal to its own, unless most are equal."""
    source = np.roll(np.arange(len(row)), -1)

    def swap(stuck: NDArray[np.int64], partner: NDArray[np.int64]) -> None:
        source[stuck], source[partner] = source[partner], source[stuck]

    # Random swaps, for all rows at once, resolve nearly all images that still have an equal row.
    for attempt in range(_SWAPS):
        same = row[source] == row
        stuck, free = np.flatnonzero(same), np.flatnonzero(~same)
        partner = _shuffle(free, name, seed, attempt)[: len(stuck)]
        stuck = stuck[: len(partner)]
        good = (row[source[partner]] != row[stuck]) & (row[source[stuck]] != row[partner])
        swap(stuck[good], partner[good])
    # Resolve the rest one distinct row at a time: if s images are stuck with a row, there are at least s partners that
    # neither had nor got that row, as long as it makes up no more than half of all rows.
    for kind in np.unique(row[row[source] == row]):
        stuck = np.flatnonzero((row == kind) & (row[source] == kind))
        others = np.flatnonzero((row != kind) & (row[source] != kind))
        partner = _shuffle(others, name, seed, _SWAPS)[: len(stuck)]
        swap(stuck[: len(partner)], partner)
    return source


def _shuffle(positions: NDArray[np.int64], name: NDArray[np.uint64], seed: int, attempt: int) -> NDArray[np.int64]:
    return positions[np.argsort(bits(seed, _tag("exchange"), attempt, name[positions]), kind="stable")]
