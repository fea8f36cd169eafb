"""The page of a label table, as `halflabel inspect --plot` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_checks import check, random_run

from halflabel.errors import UserError
from halflabel.report.labels_page import write_labels_page


def test_labels_page(tmp_path: Path) -> None:
    table = random_run(tmp_path / "run").read_labels()
    written = write_labels_page(table, tmp_path / "labels.html")
    text = written.path.read_text(encoding="utf-8")
    page = check(text)
    assert written.size == len(text.encode())
    assert "60 images" in page.text
    assert 'href="#labels"' in text
    assert 'href="#pairs"' in text
    assert "held out" not in page.text
    with pytest.raises(UserError, match=r"end it in \.html"):
        write_labels_page(table, tmp_path / "labels.png")
