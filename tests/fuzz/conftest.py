"""Make the modules of this folder importable by name, for the tests here as for benchmarks/fuzz.py."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def limited() -> Iterator[None]:
    """At most 20 s and 400 MiB for a test."""
    import fuzz_cases

    before = fuzz_cases._reset_peak()
    with fuzz_cases.limit(20):
        yield
    assert fuzz_cases._peak() - before < 400 << 20
