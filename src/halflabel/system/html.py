"""HTML that is escaped by construction: text stays text, whatever a class or a file is called."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

import numpy as np

__all__ = ["PAGE_SIZE", "Html", "count", "decimal", "document", "el", "join", "percent", "score", "short"]

_VOID = {"br", "hr", "img", "input", "meta"}
# Control characters are no HTML text. Those that turn the direction of writing round could dress up a name as another.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """Markup that is safe to put on a page. Only `el` and `join` make it from other text."""

    __slots__ = ()


PAGE_SIZE = Html("\u0000size\u0000")  # `document` replaces it by the size of the page


def el(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Children and attributes are escaped unless they are Html; None and False are left out.

    Attribute names: `class_` is class, `data_v` is data-v; names with capitals, as viewBox, stay as they are.

    >>> el("td", "<script>", class_="name", hidden=True, title=None)
    '<td class="name" hidden>&lt;script&gt;</td>'
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(f" {attribute}" if value is True else f' {attribute}="{_escape(value)}"')
    parts.append(">")
    if name not in _VOID:
        parts += [join(children), f"</{name}>"]
    return Html("".join(parts))


def document(title: str, body: Sequence[Html], *, script: bool = True, forms: str = "'none'") -> str:
    """Return a complete page with our style sheet and a security policy that forbids everything from elsewhere.

    `script` adds the script that sorts tables; `forms` says where forms may be sent. The placeholder `PAGE_SIZE` in the
    body becomes the size of the page.
    """
    style, code = _read_asset("page.css"), _read_asset("page.js")
    policy = f"default-src 'none'; img-src data:; style-src {_csp_hash(style)}; "
    policy += f"script-src {_csp_hash(code)}; " if script else ""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=f"{policy}base-uri 'none'; form-action {forms}"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{title} · halflabel"),
        el("style", Html(style)),
    )
    whole = el("body", *body, el("script", Html(code)) if script else None)
    page = "<!DOCTYPE html>\n" + el("html", head, whole, lang="en") + "\n"
    return page.replace(PAGE_SIZE, f"{len(page.encode()) / 1000:.0f} kB")


def join(children: Iterable[object]) -> Html:
    """One after the other; what is not Html is escaped, None is nothing."""
    return Html(
        "".join(child if isinstance(child, Html) else _escape(child) for child in children if child is not None)
    )


def short(text: str, most: int) -> str:
    """At most so many characters, the middle left out: the ends of file names tell them apart.

    >>> short("a/very/long/path/to/0001.jpg", 13)
    'a/very…01.jpg'
    """
    head = most // 2
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def count(value: float) -> str:
    """A whole number with its digits in groups of three, kept on one line."""
    return f"{int(value):,}".replace(",", "\u202f")


def decimal(value: float, digits: int = 3) -> str:
    """A number for people: fixed digits, and a dash where there is no value (never 0)."""
    return f"{value:.{digits}f}" if np.isfinite(value) else "—"


def score(value: float) -> str:
    """A probability with three digits; what would round to 0 or 1 says on which side of them it is.

    >>> score(0.25), score(0.00001), score(0.99999)
    ('0.250', '< 0.001', '> 0.999')
    """
    return "< 0.001" if value < 0.0005 else "> 0.999" if value > 0.9995 else decimal(value)


def percent(part: float, whole: float) -> str:
    """A share of something, a dash of nothing."""
    return f"{100 * part / whole:.1f}\u202f%" if whole else "—"


def _escape(value: object) -> str:
    return html.escape(_UNSEEN.sub("\ufffd", str(value)), quote=True)


def _read_asset(name: str) -> str:
    return files("halflabel.system").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    """Return the hash by which the page's security policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
