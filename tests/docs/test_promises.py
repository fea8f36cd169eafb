"""The page of promises names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_has_a_test() -> None:
    lines = (ROOT / "docs/concepts/promises.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and "held by" not in line]
    assert len(rows) > 10
    for row in rows:
        paths = re.findall("`([^`]+)`", row.split(" | ")[-1])
        assert paths
        places = [ROOT / path if path.startswith("benchmarks") else ROOT / "tests" / path for path in paths]
        assert all(place.exists() for place in places), row
