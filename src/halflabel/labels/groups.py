"""Groups of images that belong together, such as those of one patient: never divided between folds or splits.

`--group` states them as a regular expression on the image names, as a column of the label file or as another file;
`suggest_groups` finds names that look as if there were groups.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halflabel.errors import LabelError, UserError

if TYPE_CHECKING:
    from halflabel.labels.names import Names

# A word for those whose images belong together, with its number; then the part of a name before its last folder, number
# or letter: what frames, views and bursts of one thing share.
_PATTERNS = (
    r"((?:patient|subject|participant|case|animal|camera)[_-]?[0-9]+)",
    r"^(.*)/[^/]*$",
    r"^(.*?)[_-][^_/-]*$",
)
_LOOKED_AT = 10_000  # rows of a file, to find the column with the images; and names, to suggest groups
_MOST_IMAGES = 50  # of a group; more are a folder per class or a prefix of all names


def absolute_group(group: str | None) -> str | None:
    """Return the group option with an absolute path, if it names a file."""
    place = _file(group) if group else None
    return group if place is None else ":".join(filter(None, (str(place[0].absolute()), place[1])))


def column_group(group: str | None, labels: Path) -> str | None:
    """Return FILE:COLUMN for an option that names a column of the label file, or of a table in a folder of labels."""
    if not group or _file(group) is not None:
        return group
    return f"{labels}:{group}" if _tables_with(group, labels) else group


def image_groups(
    group: str | None, images: Names, *, required: bool = True, option: str = "group"
) -> list[str | None] | None:
    """Return the group of each image, None for an image that belongs to no other; None if no groups are stated.

    `group` is FILE or FILE:COLUMN, a CSV or Parquet file with the group in the named or second column and the image in
    another one; or a regular expression, which is searched in the name: its first group, or the whole match, is the
    group. Groups of no image at all are refused, unless they are not `required`. Errors name the `option`.
    """
    if not group:
        return None
    place = _file(group)
    groups = [_match(group, name, option) for name in images] if place is None else _read(*place, images)
    if required and len(images) and not any(each is not None for each in groups):
        raise UserError(
            f"‹{option}={group}› finds the group of no image (first: {images[0]!r})",
            "give a CSV file with columns image and group, FILE:COLUMN, or a regular expression such as '^(p[0-9]+)_'",
        )
    if len(images) > 1 and len(set(groups)) == 1 and groups[0] is not None:
        raise UserError(f"‹{option}={group}› puts all images into one group", "state groups that divide the images")
    return groups


def suggest_groups(images: Sequence[str]) -> str | None:
    """Return a regular expression under which at least half of the images share a group with few others, or None.

    >>> suggest_groups(["p1_a.jpg", "p1_b.jpg", "p2_a.jpg", "p2_b.jpg", "p3_a.jpg", "p3_b.jpg"])
    '^(.*?)[_-][^_/-]*$'
    >>> suggest_groups(["a.jpg", "b.jpg", "c.jpg"])
    """
    images = sorted(images)[:_LOOKED_AT]
    for pattern in _PATTERNS:
        sizes = Counter(match[1] for name in images if (match := re.search(pattern, name)))
        together = sum(size for size in sizes.values() if 1 < size <= _MOST_IMAGES)
        if len(sizes) > 2 and 2 * together >= len(images):
            return pattern
    return None


def _file(group: str) -> tuple[Path, str] | None:
    """Return the file and the column that a group option names, or None for a regular expression."""
    if Path(group).is_file():
        return Path(group), ""
    path, _, column = group.rpartition(":")
    return (Path(path), column) if path and (Path(path).is_file() or Path(path).is_dir()) else None


def _match(pattern: str, name: str, option: str) -> str | None:
    try:
        match = re.search(pattern, name)
    except re.error as error:
        raise UserError(
            f"‹{option}={pattern}› is neither a file nor a regular expression ({error})",
            "name an existing CSV file, or a pattern such as '^(p[0-9]+)_'",
        ) from None
    return match and match[min(1, match.re.groups)]


def _read(path: Path, column: str, images: Names) -> list[str | None]:
    """Return the group of each image by a file or a table in a folder: the one with a column that names most images."""
    tables = [_columns(each) for each in (_tables_with(column, path) if path.is_dir() else [path])]
    for table in tables:
        if len(table) < 2 or (column and column not in table):
            missing = f"no column {column!r}" if column else "no second column"
            raise UserError(f"{path} has {missing}", f"its columns: {', '.join(table) or 'none'}")
    places = [(table, name) for table in tables for name in table]
    named = [int((images.index(table[name].slice(0, _LOOKED_AT)) >= 0).sum()) for table, name in places]
    table, name = places[named.index(max(named))]
    cells = (table[name], table[column or list(table)[1]])
    group_of = dict(zip(*(part.to_pylist() for part in cells), strict=True))
    return [group_of.get(name) or None for name in images]


def _tables_with(column: str, labels: Path) -> list[Path]:
    """The CSV files of a folder, or the label file or the folder of Parquet files itself, that have a column."""
    from halflabel.labels.formats._csv import first_line, header_fields
    from halflabel.labels.formats._sheets import parquet_columns, parquet_files

    files = sorted(labels.glob("*.csv")) if labels.is_dir() and not parquet_files(labels) else [labels]
    return [path for path in files if column in (parquet_columns(path) or header_fields(first_line(path)))]


def _columns(path: Path) -> dict[str, Any]:
    """The columns of text and numbers of a table, by name, as Arrow arrays of text."""
    from halflabel.labels.formats._sheets import open_sheet

    table, columns = open_sheet(path), {}
    for name in table.header:
        with suppress(LabelError):  # objects or lists
            columns[name] = table.column(name)
    return columns
