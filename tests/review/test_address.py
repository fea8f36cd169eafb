"""The address of the review page, which is the same after a restart."""

from __future__ import annotations

import stat

import pytest

pytest.importorskip("starlette")

from halflabel.review.server import Address, keep_address, read_address


def test_stored_address_is_read_again_by_its_owner_only(tmp_path) -> None:
    file, address = tmp_path / "answers.address.json", Address("t" * 43, 8765)
    assert read_address(file) is None
    for _ in range(2):
        keep_address(file, address)
        assert read_address(file) == address
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)  # the token is no secret any more
    assert read_address(file) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"token": "short", "port": 1}', f'{{"token": "{"t" * 43}", "port": "x"}}', "\x00"],
)
def test_a_damaged_file_is_no_address(tmp_path, text) -> None:
    file = tmp_path / "answers.address.json"
    file.write_text(text)
    file.chmod(0o600)
    assert read_address(file) is None


def test_a_folder_that_cannot_be_written_to_has_a_new_address_each_time(tmp_path) -> None:
    keep_address(tmp_path / "missing" / "answers.address.json", Address("t" * 43, 8765))
    assert not (tmp_path / "missing").exists()
