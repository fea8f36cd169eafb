"""Escaping and formatting of HTML."""

from __future__ import annotations

from halflabel.system.format import shorten
from halflabel.system.html import Html, el, join


def test_markup_is_escaped_unless_it_is_markup() -> None:
    assert el("p", "<", Html("<br>"), None, title='"', hidden=False) == '<p title="&quot;">&lt;<br></p>'
    assert el("br") == "<br>"
    assert join(["&", el("i", 3)]) == "&amp;<i>3</i>"

    assert all(len(shorten("x" * n, 9)) == min(n, 9) for n in range(20))
