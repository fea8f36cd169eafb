"""Policy: what the user states about a label file, because the file cannot say it; and the reading of raw values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from halflabel.errors import UserError

__all__ = [
    "LABEL_VALUES",
    "MINUS_ONE",
    "ONE",
    "VALUE_WORDS",
    "ZERO",
    "Meaning",
    "Policy",
    "UndecidedValue",
    "quote_option",
    "read_value",
    "shorten",
]

Meaning = Literal["present", "absent", "unknown"]

LABEL_VALUES: dict[Meaning, int] = {"present": 1, "absent": -1, "unknown": 0}

ONE = ("1", "1.0")
ZERO = ("0", "0.0", "-0.0")
MINUS_ONE = ("-1", "-1.0", "−1")

VALUE_WORDS: dict[str, Meaning] = {
    **dict.fromkeys((*ONE, "+1", "true", "t", "yes", "y", "present", "x"), "present"),
    **dict.fromkeys(("false", "f", "no", "n", "absent"), "absent"),
    **dict.fromkeys(("", "?", "nan", "na", "n/a", "null", "none", "unknown"), "unknown"),
}


class UndecidedValue(Exception):
    """A raw value whose meaning nobody has stated; `message` and `fix` are for the user."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


@dataclass(frozen=True)
class Policy:
    """What a file cannot say of itself. None means "not stated": a reader that needs it then refuses, never guesses.

    unlisted        what it means that a (image, class) pair is not listed: "unknown" or "absent"
    minus_one       what −1 means in a table of values
    zero            what 0 means, where it could be absent or unknown
    values          further raw values and their meaning, such as {"maybe": "unknown"}
    difficult       what an object marked difficult means (Pascal VOC)
    machine         from this confidence on, a machine's unverified guess counts as present (Open Images)
    image_column    the column that names the image
    ignore          columns that are not classes
    where           keep only rows with these column values, such as {"split": "train"}
    separator       what stands between two tags of a cell, such as ";"; also "space", "newline", "#" and "none"
    split           the split to read, where a format has several
    encoding        the text encoding, UTF-8 unless stated
    """

    unlisted: Literal["unknown", "absent"] | None = None
    minus_one: Meaning | None = None
    zero: Meaning | None = None
    values: Mapping[str, Meaning] = field(default_factory=dict)
    difficult: Meaning | None = None
    machine: float | None = None
    image_column: str | None = None
    ignore: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    split: str | None = None
    encoding: str | None = None

    def check(self, uses: Iterable[str], format_name: str) -> None:
        """Refuse what is stated but means nothing for this format, rather than pass over it in silence."""
        blank = Policy()
        for option in fields(self):
            if option.name not in uses and getattr(self, option.name) != getattr(blank, option.name):
                # One --value is given for each of the values.
                flag = "--value" if option.name == "values" else "--" + option.name.replace("_", "-")
                raise UserError(f"{flag} means nothing for the format {format_name!r}", f"leave {flag} out")


def read_value(raw: str, policy: Policy, among: frozenset[str]) -> Meaning:
    """What one raw value means, given all raw values of the file (`among`).

    −1 is absent in one field, unknown in another and "uncertain" in a third, so it is never guessed. 0 is absent,
    except beside a −1 that is absent too: then 0 has to be stated as well.

    >>> read_value("0", Policy(), frozenset({"0", "1"}))
    'absent'
    """
    text = raw.strip()
    if text in policy.values:
        return policy.values[text]
    if text in MINUS_ONE:
        if policy.minus_one is None:
            raise UndecidedValue(
                "value -1 may mean absent, unknown or unsure, and the file does not say which",
                "add --minus-one absent or --minus-one unknown",
            )
        return policy.minus_one
    if text in ZERO:
        if policy.zero is not None:
            return policy.zero
        stripped = {other.strip() for other in among}
        if "absent" in {policy.values.get(other, policy.minus_one) for other in stripped.intersection(MINUS_ONE)}:
            raise UndecidedValue(
                "value 0 stands beside -1 = absent, so it may mean unknown",
                "add --zero unknown or --zero absent",
            )
        return "absent"
    meaning = VALUE_WORDS.get(text.lower())
    if meaning is None:
        fix = "use 1, 0 or blank"
        if shorten(text) == text:
            fix += f", or state what it means: {quote_option('--value', text + '=present')} (or absent, or unknown)"
        raise UndecidedValue(f"value {shorten(text)!r} is not a label", fix)
    return meaning


def shorten(text: str, most: int = 60) -> str:
    """What a cell says; of several lines or a long text the beginning, with … for the rest.

    >>> shown("a cat"), shown("a cat\\nand a dog"), shorten("very long", 5)
    ('a cat', 'a cat…', 'very…')
    """
    beginning = "".join(text.splitlines()[:1])[:most]
    return text if beginning == text else beginning[: most - 1] + "…"


def quote_option(flag: str, text: str) -> str:
    """An option and what it says, as it can be copied into a shell.

    >>> stating("--where", "split=train"), quote_option("--ignore", "my notes")
    ('--where split=train', "--ignore 'my notes'")
    """
    return f"{flag} {shlex.quote(text)}"
