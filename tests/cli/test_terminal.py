"""What reaches the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command_line import done

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


def test_the_first_steps_name_the_labels_and_the_photos_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("image,class,value\n1.jpg,dog,1\n")
    for folder, count in (("icons", 1), ("my photos", 3), ("notes", 0)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / f"{number}.jpg").touch()
    assert "halflabel train labels.csv 'my photos' --out runs/first" in done()
