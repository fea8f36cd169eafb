"""Split images into parts that agree in what is known of every class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.system.rng import bits, hash_names

__all__ = ["assign_parts"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def assign_parts(
    table: LabelTable, shares: Sequence[float], *, groups: Sequence[Any] | NDArray[Any] | None = None, seed: int = 0
) -> NDArray[np.int8]:
    """The part number of each image, (N,) int8, so that every part has its share of each class's known labels.

    Iterative stratification (Sechidis 2011) by what is known: the known positives of a class are one stratum, its known
    negatives another, and unknown is neither. Again and again the stratum with the fewest images left is dealt out
    whole, to each part in proportion to what it still lacks of that stratum (largest remainder; ties to the part that
    lacks most images); what the dealt images carry counts towards every other stratum. A part that has all its images
    gets no more, and images without labels fill up the parts last. Images of one group stay together; a group of None
    is an image by itself. The order of dealing comes from the seed and the names, so the result does not depend on the
    order of the images or classes.

    Whole groups are dealt, so a part can miss its share by about half the largest group.
    """
    share = _check_shares(shares)
    group = np.arange(len(table.images)) if groups is None else _group_numbers(groups, len(table.images))
    group = _in_dealing_order(table, group, seed)
    size = np.bincount(group)
    carried, stratum_hash = _carried(table, group, len(size))
    members = carried.tocsc()

    part = np.full(len(size), -1, np.int8)
    left = np.bincount(carried.indices, carried.data, carried.shape[1]).astype(np.int64)
    lack = np.outer(share, left)
    room = share * len(table.images)
    parts = np.arange(len(share))
    while left.any():
        stratum = int(np.where(left > 0, left, np.iinfo(np.int64).max).argmin())
        span = slice(members.indptr[stratum], members.indptr[stratum + 1])
        fresh = part[members.indices[span]] < 0
        dealt, weight = members.indices[span][fresh], members.data[span][fresh]
        to = _deal(weight, lack[:, stratum], room, bits(seed, stratum_hash[stratum], parts))
        part[dealt] = to
        rows = carried[dealt]
        np.subtract.at(lack, (np.repeat(to, np.diff(rows.indptr)), rows.indices), rows.data)
        np.subtract.at(left, rows.indices, rows.data)
        room -= np.bincount(to, size[dealt], len(share))
    rest = np.flatnonzero(part < 0)
    if len(rest):
        part[rest] = _deal(size[rest], room, room, bits(seed, parts))
    return part[group]


def _check_shares(shares: Sequence[float]) -> Floats:
    share = np.asarray(shares, np.float64)
    if share.ndim != 1 or not 1 <= len(share) <= np.iinfo(np.int8).max:
        raise UserError(f"cannot split into parts of {shares!r}", "give one share per part, such as 0.8, 0.1, 0.1")
    if not (np.all(share > 0) and abs(share.sum() - 1) <= 1e-9):
        raise UserError(
            f"the shares {', '.join(f'{s:g}' for s in share)} sum to {share.sum():g}",
            "give shares above 0 that sum to 1, such as 0.8, 0.1, 0.1",
        )
    return share


def _group_numbers(groups: Sequence[Any] | NDArray[Any], images: int) -> Ints:
    """Group ids of any hashable kind as numbers 0 … G−1."""
    if len(groups) != images:
        raise UserError(f"{len(groups)} groups are given for {images} images", "give one group per image")
    if isinstance(groups, np.ndarray) and groups.dtype != object:
        return np.asarray(np.unique(groups, return_inverse=True)[1], np.int64).reshape(-1)
    seen: dict[Any, int] = {}
    try:
        keys = ((None, i) if group is None else (group,) for i, group in enumerate(groups))
        return np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.int64, images)
    except TypeError as error:
        raise UserError("groups cannot be told apart", "give each image's group as a text or a number") from error


def _in_dealing_order(table: LabelTable, group: Ints, seed: int) -> Ints:
    """Groups renumbered by a hash of the seed and their smallest image name."""
    import pyarrow.compute as pc

    name_hash = hash_names(table.images.array)
    groups = int(group.max()) + 1 if len(group) else 0
    if groups < len(group):
        by_name = pc.sort_indices(table.images.array).to_numpy()
        name_hash = name_hash[by_name[np.unique(group[by_name], return_index=True)[1]]]
    number = np.empty(groups, np.int64)
    number[np.argsort(bits(seed, name_hash), kind="stable")] = np.arange(groups)
    return number[group]


def _carried(table: LabelTable, group: Ints, groups: int) -> tuple[Any, NDArray[np.uint64]]:
    """How many images of each group lie in each stratum: sparse (G, 2C) counts, and a hash of each stratum.

    Strata are numbered in the order of their hashes, so that the first of equally small ones is the same whatever the
    order of the classes.
    """
    from scipy.sparse import coo_array

    stratum_hash = bits(0, hash_names(table.classes.array)[:, None], np.arange(2)).ravel()
    order = np.argsort(stratum_hash, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    stratum = number[2 * table.column.astype(np.int32) + (table.value < 0)]
    row = np.repeat(group.astype(np.int32), np.diff(table.start))
    counts = coo_array((np.ones(table.known, np.int32), (row, stratum)), shape=(groups, len(order))).tocsr()
    return counts, stratum_hash[order]


def _deal(weight: NDArray[Any], lack: Floats, room: Floats, tie: NDArray[np.uint64]) -> Ints:
    """The part of each group: consecutive runs whose weights come closest to whole numbers in proportion to `lack`."""
    want = np.where(room > 0, np.maximum(lack, 0.0), 0.0)
    if not want.any():
        want = np.maximum(room, 0.0)
    total = int(weight.sum())
    quota = total * want / want.sum()
    whole = np.floor(quota + 1e-9)
    # Rounded, so that ties are ties in spite of float error.
    first = np.lexsort((tie, -np.round(room, 9), -np.round(quota - whole, 9)))
    whole[first[: total - int(whole.sum())]] += 1
    middle = np.cumsum(weight) - weight / 2
    return np.searchsorted(np.cumsum(whole), middle, side="right")
