"""Split images into parts with the same share of each class's known labels (iterative stratification)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.system.rng import bits, hash_names

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def assign_parts(
    table: Table, shares: Sequence[float], *, groups: Sequence[Any] | NDArray[Any] | None = None, seed: int = 0
) -> NDArray[np.int8]:
    """The part of each image, (N,) int8, so that every part has its share of each class's known labels.

    Iterative stratification (Sechidis 2011) over known labels: the known positives of a class are one stratum, its
    known negatives another. Repeatedly, the stratum with the fewest remaining images is distributed completely, to each
    part in proportion to what the part still needs of that stratum (largest remainder; ties go to the part that needs
    most images). A part that has all its images gets no more; images without labels are distributed last.

    Images of one group stay together; a group of None is a group of one image. The result depends on the seed and the
    names only, not on the order of the images or classes.
    """
    share = _check_shares(shares)
    group = group_numbers(groups, len(table.images))
    group = _shuffle_groups(table, group, seed)
    size = np.bincount(group)
    group_counts, stratum_hash = _count_strata(table, group, len(size))
    stratum_members = group_counts.tocsc()

    part = np.full(len(size), -1, np.int8)
    remaining = np.bincount(group_counts.indices, group_counts.data, group_counts.shape[1]).astype(np.int64)
    need = np.outer(share, remaining)
    free_images = share * len(table.images)
    parts = np.arange(len(share))
    while remaining.any():
        stratum = int(np.where(remaining > 0, remaining, np.iinfo(np.int64).max).argmin())
        span = slice(stratum_members.indptr[stratum], stratum_members.indptr[stratum + 1])
        unassigned = part[stratum_members.indices[span]] < 0
        chosen, weight = stratum_members.indices[span][unassigned], stratum_members.data[span][unassigned]
        target = _distribute(weight, need[:, stratum], free_images, bits(seed, stratum_hash[stratum], parts))
        part[chosen] = target
        rows = group_counts[chosen]
        np.subtract.at(need, (np.repeat(target, np.diff(rows.indptr)), rows.indices), rows.data)
        np.subtract.at(remaining, rows.indices, rows.data)
        free_images -= np.bincount(target, size[chosen], len(share))
    leftover = np.flatnonzero(part < 0)
    if len(leftover):
        part[leftover] = _distribute(size[leftover], free_images, free_images, bits(seed, parts))
    return part[group]


def _check_shares(shares: Sequence[float]) -> Floats:
    share = np.asarray(shares, np.float64)
    is_row = share.ndim == 1 and 1 <= len(share) <= np.iinfo(np.int8).max
    if not (is_row and np.all(share > 0) and abs(share.sum() - 1) <= 1e-9):
        raise UserError(f"cannot split into the shares {shares!r}", "give shares above 0 that sum to 1: 0.8, 0.1, 0.1")
    return share


def group_numbers(groups: Sequence[Any] | NDArray[Any] | None, images: int) -> Ints:
    """Group ids of any hashable type as numbers 0 … G−1; without groups each image is one."""
    if groups is None:
        return np.arange(images)
    if len(groups) != images:
        raise UserError(f"there are {len(groups)} groups for {images} images", "give one group per image")
    if isinstance(groups, np.ndarray) and groups.dtype != object:
        return np.asarray(np.unique(groups, return_inverse=True)[1], np.int64).reshape(-1)
    seen: dict[Any, int] = {}
    try:
        keys = ((None, i) if group is None else (group,) for i, group in enumerate(groups))
        return np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.int64, images)
    except TypeError as error:
        raise UserError("the groups cannot be compared", "give the group of each image as text or a number") from error


def join_groups(first: Ints, second: Ints) -> Ints:
    """Return the smallest groups (N,) that separate neither those of `first` nor those of `second`.

    >>> join_groups(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2])).tolist()
    [0, 0, 0, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    images = np.arange(len(first))
    leader = [np.unique(group, return_index=True, return_inverse=True)[1:] for group in (first, second)]
    links = np.concatenate([at[number.reshape(-1)] for at, number in leader])
    ones = np.ones(len(links), np.int8)
    graph = coo_array((ones, (np.tile(images, 2), links)), shape=(len(first), len(first)))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _shuffle_groups(table: Table, group: Ints, seed: int) -> Ints:
    """Renumber the groups in a random order, by a hash of the seed and their smallest image name."""
    import pyarrow.compute as pc

    name_hash = hash_names(table.images.array)
    groups = int(group.max()) + 1 if len(group) else 0
    if groups < len(group):
        by_name = pc.sort_indices(table.images.array).to_numpy()
        name_hash = name_hash[by_name[np.unique(group[by_name], return_index=True)[1]]]
    number = np.empty(groups, np.int64)
    number[np.argsort(bits(seed, name_hash), kind="stable")] = np.arange(groups)
    return number[group]


def _count_strata(table: Table, group: Ints, groups: int) -> tuple[Any, NDArray[np.uint64]]:
    """Count the images of each group in each stratum: sparse (G, 2C) counts, and a hash of each stratum, ascending."""
    from scipy.sparse import coo_array

    stratum_hash = bits(0, hash_names(table.classes.array)[:, None], np.arange(2)).ravel()
    order = np.argsort(stratum_hash, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    stratum = number[2 * table.column.astype(np.int32) + (table.value < 0)]
    row = np.repeat(group.astype(np.int32), np.diff(table.start))
    counts = coo_array((np.ones(table.known, np.int32), (row, stratum)), shape=(groups, len(order))).tocsr()
    return counts, stratum_hash[order]


def _distribute(weight: NDArray[Any], need: Floats, room: Floats, tie_break: NDArray[np.uint64]) -> Ints:
    """The part of each group: consecutive runs whose weights come closest to whole numbers in proportion to `need`."""
    demand = np.where(room > 0, np.maximum(need, 0.0), 0.0)
    if not demand.any():
        demand = np.maximum(room, 0.0)
    total = int(weight.sum())
    quota = total * demand / demand.sum()
    whole = np.floor(quota + 1e-9)
    # Rounded, so that float errors do not break ties.
    order = np.lexsort((tie_break, -np.round(room, 9), -np.round(quota - whole, 9)))
    whole[order[: total - int(whole.sum())]] += 1
    midpoint = np.cumsum(weight) - weight / 2
    return np.searchsorted(np.cumsum(whole), midpoint, side="right")
