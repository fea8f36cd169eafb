"""More sources than an int16 can number: refused by everything that makes rows, never mixed up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

MOST = 32_767
WORDS = "different sources are more than the 32,767 there is room for"


def rows_of(count: int, prefix: str = "s") -> Labels:
    number = np.arange(count)
    sources = [f"{prefix}{k}" for k in range(count)]
    return Labels.build(Names.numbered(count), Names(["x"]), number, 0 * number, 0 * number + 1, number, None, sources)


def test_the_largest_number_of_sources_is_read() -> None:
    rows = rows_of(MOST)
    assert [rows.sources[k] for k in rows.source[[0, -1]]] == ["s0", f"s{MOST - 1}"]
    with pytest.raises(UserError, match=f"32768 {WORDS}"):
        rows_of(MOST + 1)


def test_append_counts_the_sources_of_both() -> None:
    half, other = rows_of(20_000), rows_of(20_000, "t")
    with pytest.raises(UserError, match=f"40000 {WORDS}"):
        half.append(other)
    longer = half.append(rows_of(20_001))
    assert len(longer.sources) == 20_001
    assert longer.source.tolist() == [*range(20_000), *range(20_001)]


FILES: dict[str, tuple[str, Callable[[int], str], Policy]] = {
    "long": (
        "x.csv",
        lambda count: "image,class,value,source,score\n" + "".join(f"{k},x,1,s{k},\n" for k in range(count)),
        Policy(),
    ),
    "open-images": (
        "x.csv",
        lambda count: "ImageID,Source,LabelName,Confidence\n" + "".join(f"{k},s{k},x,1\n" for k in range(count)),
        Policy(),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_that_knows_sources_refuses_too_many(name: str, tmp_path: Path) -> None:
    file, content, policy = FILES[name]
    path = tmp_path / file
    path.write_text(content(3))
    rows = formats.read(path, policy).rows
    image_sources = [(rows.images[i], rows.sources[s]) for i, s in zip(rows.image, rows.source, strict=True)]
    assert image_sources == [("0", "s0"), ("1", "s1"), ("2", "s2")]
    path.write_text(content(MOST + 2))
    with pytest.raises(UserError, match=WORDS):
        formats.read(path, policy)
