"""HTML pages from Jinja2 templates, and elements of SVG and HTML that escape their text."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from halflabel.system.format import decimal, group_digits, markdown, points, shorten

Html = Markup  # text that is safe to put on a page; other text is escaped
SCRIPTS = ("sort", "tips", "photos", "thresholds", "classes")  # of the reports
_VOID = {"br", "hr", "img", "input", "meta"}
# Control characters are not valid in HTML. Those that reverse the writing direction could disguise one name as another.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_PAGE_SIZE = Html("\u0000size\u0000")  # `render_page` replaces it by the size of the page


def render(template: str, **values: Any) -> Html:
    """Return a template of the package with these values, such as "report/page.html.j2"; HTML escapes them."""
    return Html(_environment().get_template(template).render(**values))


def render_page(template: str, *, scripts: Sequence[str] = SCRIPTS, served: bool = False, **values: Any) -> str:
    """Return a page that extends system/page.html.j2, with a policy that forbids everything from elsewhere.

    `scripts` are names of files in scripts/; a `served` page may call its server and show photos that the browser has.
    """
    style = _read_asset("page.css")
    code = '"use strict";\n' + "".join(f"{{\n{_read_asset(f'scripts/{name}.js')}}}\n" for name in scripts)
    rules = f"default-src 'none'; img-src data:{' blob:' if served else ''}; style-src {_csp_hash(style)}; "
    rules += f"script-src {_csp_hash(code)}; "
    rules += "connect-src 'self'; " if served else ""
    shell = {"policy": f"{rules}base-uri 'none'; form-action 'none'", "style": Html(style), "script": Html(code)}
    page = render(template, **shell, page_size=_PAGE_SIZE, **values)
    return str(page).replace(_PAGE_SIZE, f"{len(page.encode()) / 1000:.0f} kB")


def el(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; children and attributes are escaped unless they are Html; None and False are left out.

    Attribute names: `class_` means class, `data_v` means data-v; names with capitals, such as viewBox, stay unchanged.

    >>> print(el("td", "<script>", class_="name", hidden=True, title=None))
    <td class="name" hidden>&lt;script&gt;</td>
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


def join(children: Iterable[object]) -> Html:
    """Concatenate; text that is not Html is escaped, None is left out."""
    return Html(
        "".join(child if isinstance(child, Html) else _escape(child) for child in children if child is not None)
    )


def _escape(value: object) -> str:
    return html.escape(_CONTROL.sub("\ufffd", str(value)), quote=True)


def _printable(value: object) -> object:
    """Return what a template writes of a value, before it is escaped."""
    return value if isinstance(value, Html) else "" if value is None else _CONTROL.sub("\ufffd", str(value))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("halflabel", "."),
        autoescape=select_autoescape(["html.j2"]),
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(count=group_digits, shorten=shorten, markdown=markdown, points=points, decimal=decimal)
    environment.tests["finite"] = math.isfinite
    return environment


def _read_asset(name: str) -> str:
    return files("halflabel.system").joinpath(name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    """Return the hash by which the page's security policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
