"""Protocols that hide or corrupt labels, to simulate partly labelled data: Table -> Table, pure and seeded.

Every choice is a function of (seed, image name, class name), so the same call gives the same labels on every machine
and for any order of the images. `dense`, `per_class`, `corrupt` and `semi_supervised` keep exact counts over the whole
table; the others commute with taking a subset of the images. With the same seed, larger shares and numbers contain the
smaller ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.system.rng import bits, hash_names, uniform

Mask = NDArray[np.bool_]

_SWAPS = 8  # rounds of random swaps in `_derangement`


def partial(table: Table, share: float, *, exact: bool = True, seed: int = 0) -> Table:
    """Keep a random share of every image's known labels.

    With `exact`, an image with n known labels keeps ⌊share·n⌋ of them, and one more with probability share·n −
    ⌊share·n⌋, so 0.1 of 20 is always 2. Without it, each is kept independently. (Durand 2019, §4.1.)
    """
    return table.keep(_choose(table, "partial", seed, share=share, exact=exact))


def dense(table: Table, share: float, *, seed: int = 0) -> Table:
    """Keep all labels of a random share of the images and none of the others.

    Of the N images with a known label exactly ⌊share·N + ½⌋ keep all their labels. (Durand 2019, §4.1.)
    """
    order = _shuffled_images(table, seed)
    return _keep_images(table, order[: _round_share(share, len(order))])


def noisy(table: Table, share: float, *, exact: bool = True, seed: int = 0) -> Table:
    """Flip a random share of every image's known labels and keep all of them.

    They are chosen as in `partial`. (Durand 2019, §4.1: "80 % clean" is share = 0.2.)
    """
    wrong = _choose(table, "noisy", seed, share=share, exact=exact)
    return _with_values(table, np.where(wrong, -table.value, table.value))


def noisy_plus(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image and turn the others into negatives.

    The positive is the one `single_positive` keeps. Known negatives stay; unknown stays unknown. (Durand 2019, §4.1.)
    """
    chosen = _choose(table, "positive", seed, number=1)
    return _with_values(table, np.where(chosen, 1, -1).astype(np.int8))


def single_positive(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image, chosen uniformly; all other labels become unknown.

    (Zhou 2022.)
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
    check_options("positives", [name for name, given in (("share", share), ("number", number)) if given is not None])
    if number is not None:
        _check_number(number, "number", least=1)
    chosen = _choose(table, "positive", seed, share=share, number=number)
    return table.keep(chosen | (table.value < 0) if keep_negatives else chosen)


def one_positive_all_negatives(table: Table, *, seed: int = 0) -> Table:
    """Keep one known positive per image and all known negatives; the other positives become unknown.

    The positive is the one `single_positive` keeps. (Zhou 2022, "1 positive + all negatives".)
    """
    return positives(table, number=1, keep_negatives=True, seed=seed)


def per_class(table: Table, *, positives: int, negatives: int, seed: int = 0) -> Table:
    """Keep a fixed number of known positives and known negatives per class; all other labels become unknown.

    A class with fewer keeps all of them.
    """
    _check_number(positives, "positives")
    _check_number(negatives, "negatives")
    _check_any(table.known, "known labels")
    if positives == negatives == 0:
        raise UserError("per-class would keep nothing", "ask for at least one positive or negative per class")
    stratum = table.column + len(table.classes) * (table.value < 0)
    quota = np.repeat([positives, negatives], len(table.classes))
    return table.keep(_lowest(stratum, _draws(table, "per-class", seed)[1], quota))


def corrupt(table: Table, share: float, *, labelled: float = 1.0, seed: int = 0) -> Table:
    """Exchange the labels of a random share of the images, so that all class counts stay the same.

    Of the N images with a known label exactly ⌊share·N + ½⌋ are chosen, and their label rows permuted at random: each
    gets the row of another one, different from its old row (unless more than half of the chosen rows are equal: then
    some cannot change). No label is hidden, and co-occurrences of the classes stay the same, too. With `labelled` below
    1, all other images first lose their labels, as by `semi_supervised`. (Cevikalp 2019, §3.3: labels of a random
    subset are "altered stochastically, while maintaining the class frequencies"; whole rows are our interpretation.)
    """
    if labelled != 1:
        table = semi_supervised(table, share=1 - labelled, seed=seed)
    order = _shuffled_images(table, seed)
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
    given = [name for name, option in (("share", share), ("number", number)) if option is not None]
    check_options("semi-supervised", given)
    order = _shuffled_images(table, seed)
    number = _round_share(share, len(order)) if share is not None else number or 0
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


def parse_protocol(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a protocol, checked.

    >>> parse_protocol("per-class:positives=20:negatives=30")
    ('per-class', {'positives': 20, 'negatives': 30})
    """
    name, texts = split_options(text)
    takes = _options_of(name)
    check_options(name, texts)
    try:
        return name, {key: TypeAdapter(takes[key].annotation).validate_python(text) for key, text in texts.items()}
    except ValidationError:
        raise UserError(f"{text!r} has a wrong value", "give a number, or true or false") from None


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """The parts of "name:key=value:key=value"."""
    name, *pairs = text.strip().split(":")
    texts = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair!r} in {text!r} is not an option", "write NAME:option=value, such as em:alpha=0.05")
        texts[key.strip().replace("-", "_")] = value.strip()
    return name, texts


def _options_of(protocol: str) -> dict[str, inspect.Parameter]:
    """The options of a protocol besides its seed, by name."""
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol is called {protocol!r}", f"use one of: {', '.join(PROTOCOLS)}")
    parameters = inspect.signature(PROTOCOLS[protocol], eval_str=True).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in ("table", "seed")}


def check_options(protocol: str, given: Collection[str]) -> None:
    """Raise UserError for an option that is wrong or missing."""
    options = _options_of(protocol)
    for name in given:
        if name not in options:
            takes = ", ".join(options) or "only a seed"
            raise UserError(f"{protocol} takes no {name}", f"leave it out; {protocol} takes {takes}")
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in given:
            raise UserError(f"{protocol} needs {name}", f"write {protocol}:{name}={_EXAMPLES[name]}, or another value")
    if {"share", "number"} <= options.keys() and ("share" in given) == ("number" in given):
        raise UserError(
            f"{protocol} needs either share or number", f"write {protocol}:share=0.1, or {protocol}:number=2"
        )


def apply(protocol: str, table: Table, *, seed: int = 0, **options: Any) -> Table:
    """Run a protocol by name with its options; the error names an option that is wrong or missing."""
    check_options(protocol, options)
    return PROTOCOLS[protocol](table, seed=seed, **options)


def _check_number(number: int, name: str, least: int = 0) -> None:
    if int(number) != number or number < least:
        raise UserError(f"{name} is {number}", f"give a whole number, {least} or more")


def _check_any(count: int, kind: str) -> None:
    if count == 0:
        raise UserError(f"there are no {kind} to choose from", f"check that the label file was read with {kind}")


def _tag(name: str) -> int:
    return int(hash_names([name])[0])


def _part(share: float, count: Any) -> NDArray[np.float64]:
    """share·count without float errors: 0.29 of 100 is 29."""
    if not 0.0 <= share <= 1.0:
        raise UserError(f"the share {share:g} is not between 0 and 1", "give a part of the whole, such as 0.1 for 10 %")
    return np.round(np.asarray(count) * share, 9)


def _round_share(share: float, count: int) -> int:
    return int(_part(share, count) + 0.5)


def _draws(table: Table, tag: str, seed: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """The image of each known entry, and 64 random bits from the names of its image and class."""
    image = np.repeat(np.arange(len(table), dtype=np.int32), np.diff(table.start))
    image_hash, class_hash = hash_names(table.images.array), hash_names(table.classes.array)
    return image, bits(seed, _tag(tag), image_hash[image], class_hash[table.column])


def _lowest(group: NDArray[Any], draw: NDArray[np.uint64], quota: NDArray[np.int64]) -> Mask:
    """True for the `quota[g]` lowest draws of each group g."""
    size = np.bincount(group, minlength=len(quota))
    order = np.lexsort((draw, group))
    count = np.minimum(quota, size)
    skipped = np.cumsum(size - count) - (size - count)  # entries of the groups before that are not chosen
    mask = np.zeros(len(group), np.bool_)
    mask[order[np.arange(count.sum()) + np.repeat(skipped, count)]] = True
    return mask


def _choose(
    table: Table, tag: str, seed: int, *, share: float | None = None, number: int | None = None, exact: bool = True
) -> Mask:
    """Choose a share or a number of each image's known labels; for the tag "positive" of its known positives.

    All protocols that choose positives use the same tag, so they keep the same ones.
    """
    among = table.value > 0 if tag == "positive" else slice(None)
    image, draw = _draws(table, tag, seed)
    image, draw = image[among], draw[among]
    _check_any(len(image), "known positives" if tag == "positive" else "known labels")
    mask = np.zeros(table.known, np.bool_)
    quota = np.full(len(table), number or 0)
    if share is not None:
        part = _part(share, np.bincount(image, minlength=len(table)))
        chance = uniform(seed, _tag(f"{tag}, one more"), hash_names(table.images.array))
        quota = (part + (chance < np.round(part % 1, 9))).astype(np.int64)
    # The upper 53 bits are the number that `uniform` returns; it is below 1, so share 1 keeps everything.
    mask[among] = _lowest(image, draw, quota) if exact else (draw >> np.uint64(11)) * 2.0**-53 < (share or 0.0)
    return mask


def _shuffled_images(table: Table, seed: int) -> NDArray[np.int64]:
    """The images with a known label, in a random order that depends only on their names and the seed."""
    images = np.flatnonzero(np.diff(table.start))
    _check_any(len(images), "known labels")
    return images[np.argsort(bits(seed, _tag("image"), hash_names(table.images.array)[images]), kind="stable")]


def _keep_images(table: Table, images: NDArray[np.int64]) -> Table:
    return table.keep(np.repeat(np.isin(np.arange(len(table)), images), np.diff(table.start)))


def _with_values(table: Table, value: NDArray[np.int8]) -> Table:
    values = table.values.copy()
    values.data = value
    return replace(table, values=values)


def _hash_rows(table: Table) -> NDArray[np.uint64]:
    """One hash per image, equal for images with the same known labels in any order of the classes."""
    class_hash = hash_names(table.classes.array)
    of_value = np.concatenate([bits(0, class_hash, value) for value in (-1, 1)])
    labelled = np.flatnonzero(np.diff(table.start))
    out = np.zeros(len(table), np.uint64)
    entry_hash = of_value[table.column + len(table.classes) * (table.value > 0)]
    out[labelled] = np.add.reduceat(entry_hash, table.start[labelled])
    return out


def _derangement(row: NDArray[np.uint64], name: NDArray[np.uint64], seed: int) -> NDArray[np.int64]:
    """A permutation of rows that are in random order; no image gets a row equal to its own, unless most are equal."""
    source = np.roll(np.arange(len(row)), -1)

    def swap(stuck: Mask, free: Mask, attempt: int) -> None:
        """Exchange the rows of images that are stuck with those of random free ones, where that leaves none equal."""
        positions = np.flatnonzero(free)
        order = np.argsort(bits(seed, _tag("exchange"), attempt, name[positions]), kind="stable")
        here, there = np.flatnonzero(stuck)[: len(positions)], positions[order[: np.count_nonzero(stuck)]]
        good = (row[source[there]] != row[here]) & (row[source[here]] != row[there])
        source[here[good]], source[there[good]] = source[there[good]], source[here[good]]

    # Random swaps, for all rows at once, resolve nearly all images that still have an equal row.
    for attempt in range(_SWAPS):
        same = row[source] == row
        swap(same, ~same, attempt)
    # Resolve the rest one distinct row at a time: if s images are stuck with a row, there are at least s partners that
    # neither had nor got that row, as long as it makes up no more than half of all rows.
    for kind in np.unique(row[row[source] == row]):
        swap((row == kind) & (row[source] == kind), (row != kind) & (row[source] != kind), _SWAPS)
    return source
