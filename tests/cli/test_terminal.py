"""What reaches the terminal."""

from __future__ import annotations

import io

import pytest

from halflabel.cli.show import SafeConsole


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_names_that_are_no_utf8_are_printed_and_do_not_spoil_the_next_line(errors: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
    console = SafeConsole(file=stream, highlight=False)
    console.print("ph\udcff é \x1b[31m")
    console.print("next")
    stream.seek(0)
    name = b"ph\\udcff" if errors == "strict" else b"ph\xff"
    assert stream.buffer.read().split(b"\n") == [name + " é \\u001b[31m".encode(), b"next", b""]
