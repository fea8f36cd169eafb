"""Numbers and names as text for people, in the terminal, on HTML pages and in model cards."""

from __future__ import annotations

import html
import math
import re


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """Format a metric of 0 … 1 in points of 100, as papers write it; a dash for NaN (never 0).

    >>> points(0.8294), points(math.nan), points(-0.00318, 2, signed=True), points(-0.00001, 2, signed=True)
    ('82.9', '—', '−0.32', '0.00')
    """
    if not math.isfinite(value):
        return "—"
    rounded = round(100 * float(value), digits) + 0.0  # + 0.0 turns −0.0 into 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}".replace("-", "−")


def signed_points(value: float) -> str:
    """Format a difference of metrics, with its sign."""
    return points(value, 2, signed=True)


def signed_interval(low: float, high: float) -> str:
    """Format the interval of a difference of metrics."""
    return f"{signed_points(low)} to {signed_points(high)}"


def markdown(name: str) -> str:
    r"""Format a name as plain text in Markdown, also in a cell of a table: no HTML, no link, no emphasis.

    >>> print(markdown("<b>dog|cat</b> ![x](http://y)"))
    &lt;b&gt;dog\|cat&lt;/b&gt; !\[x\](http://y)
    """
    return re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(html.escape(name, quote=False).split()))


def decimal(value: float, digits: int = 3) -> str:
    """Format a number with fixed digits; a dash for NaN (never 0)."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "—"


def probability(value: float) -> str:
    """Format a probability with three digits; one that would round to 0 or 1 is shown as a bound.

    >>> probability(0.25), probability(0.00001), probability(0.99999)
    ('0.250', '< 0.001', '> 0.999')
    """
    return "< 0.001" if value < 0.0005 else "> 0.999" if value > 0.9995 else decimal(value)


def group_digits(value: float) -> str:
    """Format a whole number with its digits in groups of three."""
    return f"{int(value):,}"


def plain_number(value: float) -> str:
    """Format a number that may be a count or a share: whole numbers in groups, others with four digits, no exponent.

    >>> plain_number(10370.0), plain_number(0.012345), plain_number(1234.56), plain_number(math.nan)
    ('10,370', '0.01235', '1,235', '—')
    """
    if not math.isfinite(value):
        return "—"
    if value == int(value) or abs(value) >= 1000:
        return group_digits(round(value))
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def duration(seconds: float) -> str:
    """Format a time in the unit that suits it: "12 s", "3 min", "2.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted(count: int, singular: str, plural: str = "") -> str:
    """Format a number of things; `plural` is for nouns that take more than an s."""
    return f"{group_digits(count)} {singular if count == 1 else plural or singular + 's'}"


def percent(part: float, whole: float, gap: str = " ") -> str:
    """Format a share as a percentage with one digit; a dash where the whole is 0."""
    return f"{100 * part / whole:.1f}{gap}%" if whole else "—"


# Control characters, which terminals obey, and marks that reverse the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text for the terminal: control characters other than tab and line feed become escapes, as JSON writes them.

    >>> printable("\x1b[31mdog"), printable("a dog")
    ('\\\\u001b[31mdog', 'a dog')
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def excel_safe(text: str) -> str:
    """A cell for Excel: one that would be read as a formula gets an apostrophe before it.

    >>> excel_safe("=1+1"), excel_safe("cat")
    ("'=1+1", 'cat')
    """
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def shorten(text: str, length: int) -> str:
    """Cut a text to `length` characters by leaving out the middle: the ends of file names tell them apart."""
    head = length // 2
    return text if len(text) <= length else f"{text[:head]}…{text[len(text) - (length - head - 1) :]}"
