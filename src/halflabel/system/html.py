"""HTML elements that escape their text, and the shell of all HTML pages, with their style sheet and script."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from halflabel.system import format as text_format

SCRIPTS = ("sort", "tips", "photos", "thresholds", "classes")  # of the reports
_NARROW_SPACE = "\u202f"  # lines never break at it
_VOID = {"br", "hr", "img", "input", "meta"}
# Control characters are not valid in HTML. Those that reverse the writing direction could disguise one name as another.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """Markup that is safe to put on a page; made from other text by `el` and `join` only."""

    __slots__ = ()


PAGE_SIZE = Html("\u0000size\u0000")  # `document` replaces it by the size of the page


def el(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Children and attributes are escaped unless they are Html; None and False are left out.

    Attribute names: `class_` means class, `data_v` means data-v; names with capitals, such as viewBox, stay unchanged.

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


def document(title: str, body: Sequence[Html], *, scripts: Sequence[str] = SCRIPTS, served: bool = False) -> str:
    """Return a complete page with our style sheet and a security policy that forbids everything from elsewhere.

    `scripts` are names of files in scripts/; a `served` page may call its server and show photos that the browser has.
    The placeholder `PAGE_SIZE` in the body becomes the size of the page.
    """
    style = _read_asset("page.css")
    code = '"use strict";\n' + "".join(f"{{\n{_read_asset(f'scripts/{name}.js')}}}\n" for name in scripts)
    rules = f"default-src 'none'; img-src data:{' blob:' if served else ''}; style-src {_csp_hash(style)}; "
    rules += f"script-src {_csp_hash(code)}; "
    rules += "connect-src 'self'; " if served else ""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=f"{rules}base-uri 'none'; form-action 'none'"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{title} · halflabel"),
        el("style", Html(style)),
    )
    whole = el("body", *body, el("script", Html(code)))
    page = "<!DOCTYPE html>\n" + el("html", head, whole, lang="en") + "\n"
    return page.replace(PAGE_SIZE, f"{len(page.encode()) / 1000:.0f} kB")


def join(children: Iterable[object]) -> Html:
    """Concatenate; text that is not Html is escaped, None is left out."""
    return Html(
        "".join(child if isinstance(child, Html) else _escape(child) for child in children if child is not None)
    )


def count(value: float) -> str:
    """Format a whole number with its digits in groups of three."""
    return text_format.group_digits(value)


def percent(part: float, whole: float) -> str:
    """Format a share as a percentage, without line breaks; a dash where the whole is 0."""
    return text_format.percent(part, whole, _NARROW_SPACE)


def _escape(value: object) -> str:
    return html.escape(_CONTROL.sub("\ufffd", str(value)), quote=True)


def _read_asset(name: str) -> str:
    return files("halflabel.system").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    """Return the hash by which the page's security policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
