"""The sizes of gates.toml: a count may fall, and rises at most to its goal; a record follows the count down."""

from __future__ import annotations

import pytest
from counts import COUNTERS, read_gates

GATES = read_gates()
MOST_SHOWN = 30  # places


def test_every_gate_is_counted():
    assert GATES.keys() == COUNTERS.keys()


@pytest.mark.parametrize("name", GATES)
def test_gate(name):
    counted, gate = COUNTERS[name](), GATES[name]
    count, places = (counted, []) if isinstance(counted, int) else (len(counted), counted)
    shown = "".join(f"\n  {place}" for place in places) if len(places) <= MOST_SHOWN else ""
    most = max(gate.recorded, gate.goal)
    assert count <= most, f"{name}: {count}, but at most {most} by tests/gates/gates.toml{shown}"
    is_stale = gate.recorded > gate.goal and count < gate.recorded - gate.slack
    assert not is_stale, f"{name}: lower the record to {count} in tests/gates/gates.toml"
