"""Policy: what the user states about a label file because the file does not say it; and how raw values are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from halflabel.errors import UserError
from halflabel.system.files import atomic_write, read_yaml
from halflabel.system.validate import FieldError, check_fields

Meaning = Literal["present", "absent", "unknown", "uncertain"]

LABEL_VALUES: dict[Meaning, int] = {"present": 1, "absent": -1, "unknown": 0, "uncertain": 2}

ONE = ("1", "1.0")
ZERO = ("0", "0.0", "-0.0")
MINUS_ONE = ("-1", "-1.0", "−1")

VALUE_WORDS: dict[str, Meaning] = {
    **dict.fromkeys((*ONE, "+1", "true", "t", "yes", "y", "present", "x", "positive", "pos", "✓"), "present"),
    **dict.fromkeys(("ja", "oui", "si", "sí", "sì", "sim", "да", "是", "はい"), "present"),
    **dict.fromkeys(("false", "f", "no", "n", "absent", "negative", "neg", "✗"), "absent"),
    **dict.fromkeys(("nein", "nee", "nej", "nei", "non", "não", "нет", "否", "いいえ"), "absent"),
    **dict.fromkeys(("", "?", "nan", "na", "n/a", "null", "none", "unknown"), "unknown"),
    **dict.fromkeys(("uncertain", "unsure"), "uncertain"),
}


class UndecidedValue(Exception):
    """A raw value whose meaning is not stated; `message` and `fix` are for the user."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


@dataclass(frozen=True)
class Policy:
    """What the user states about a label file, each field with its help and with the word for its value.

    None means "not stated": a reader that needs the option raises an error, it never guesses.
    """

    unlisted: Annotated[Literal["unknown", "absent"] | None, "What it means if an image does not list a label."] = None
    minus_one: Annotated[Meaning | None, "What -1 means, if the file does not define it."] = None
    zero: Annotated[Meaning | None, "What 0 means, where it could be absent or unknown."] = None
    values: Annotated[Mapping[str, Meaning], "What another value means.", "RAW=MEANING"] = field(default_factory=dict)
    difficult: Annotated[Meaning | None, "Pascal VOC: what a difficult object means."] = None
    machine: Annotated[float | None, "Labels by a model with at least this confidence are present."] = None
    repeats: Annotated[
        Literal["present", "last", "unknown"] | None,
        "What counts where the lines of an image disagree: present on any line, the last line, or nothing.",
    ] = None
    image_column: Annotated[str | None, "The column with the image names."] = None
    tag_column: Annotated[str | None, "Lists of tags: the column with the list.", "COLUMN"] = None
    ignore: Annotated[tuple[str, ...], "A column that is not a class.", "COLUMN"] = ()
    where: Annotated[Mapping[str, str], "Read only rows with this value.", "COLUMN=VALUE"] = field(default_factory=dict)
    separator: Annotated[
        str | None, "Lists of tags: the character between two tags; or space, newline, none.", "CHAR"
    ] = None
    merge_names: Annotated[bool | None, "Lists of tags: read tags that differ only in capitals or blanks as one."] = (
        None
    )
    split: Annotated[str | None, "The split to read, if the format has several."] = None
    encoding: Annotated[str | None, "Text encoding (default: UTF-8)."] = None

    def check(self, uses: Iterable[str], format_name: str) -> None:
        """Raise UserError for an option that this format does not use, instead of ignoring it silently."""
        blank = Policy()
        for option in fields(self):
            if option.name not in uses and getattr(self, option.name) != getattr(blank, option.name):
                flag = f"‹{option.name}›"
                may_be_tags = format_name == "wide" and option.name in ("unlisted", "separator")
                fix = f"leave {flag} out" + ", or add ‹format=tags› if a column lists the tags" * may_be_tags
                raise UserError(f"{flag} means nothing for the format {format_name!r}", fix)


def read_value(raw: str, policy: Policy, all_values: frozenset[str]) -> Meaning:
    """The meaning of one raw value; `all_values` are all raw values of the file.

    −1 means absent in some files, unknown in others and "uncertain" in a third kind, so it is never guessed. 0 means
    absent, unless the file also has −1 meaning absent: then the meaning of 0 must be stated too.

    >>> read_value("0", Policy(), frozenset({"0", "1"}))
    'absent'
    """
    text = raw.strip()
    if text in policy.values:
        return policy.values[text]
    if text in MINUS_ONE:
        if policy.minus_one is None:
            raise UndecidedValue(
                "value -1 may mean absent, unknown or uncertain, and the file does not state which",
                "add ‹minus_one=absent›, ‹minus_one=unknown› or ‹minus_one=uncertain›",
            )
        return policy.minus_one
    if text in ZERO:
        if policy.zero is not None:
            return policy.zero
        stripped = {other.strip() for other in all_values}
        if "absent" in {policy.values.get(other, policy.minus_one) for other in stripped.intersection(MINUS_ONE)}:
            raise UndecidedValue(
                "the file also has -1 = absent, so value 0 may mean unknown",
                "add ‹zero=unknown› or ‹zero=absent›",
            )
        return "absent"
    meaning = VALUE_WORDS.get(text.lower())
    if meaning is None:
        order = ("present", "unknown", "absent") if text.isdecimal() else ("unknown", "present", "absent")  # a count
        meanings = order if shorten_cell(text) == text and "›" not in text else ()
        options = " or ".join(f"‹values={text}={meaning}›" for meaning in meanings)
        fix = f"add {options}" if meanings else "use 1, 0 or blank"
        raise UndecidedValue(f"value {shorten_cell(text)!r} is not a label", fix)
    return meaning


def shorten_cell(text: str, limit: int = 60) -> str:
    """The first line of a cell, at most `limit` characters, with … if anything was cut; for error messages."""
    beginning = "".join(text.splitlines()[:1])[:limit]
    return text if beginning == text else beginning[: limit - 1] + "…"


_SELECTIONS = ("where", "split")  # they choose a part of the file: each command states its own


def policy_file(labels: Path) -> Path:
    """The file beside a label file that keeps what was stated about it, for later commands."""
    return labels.with_name(f"{labels.name}.policy.yaml")


def read_stated(labels: Path) -> dict[str, Any]:
    """What was stated about a label file before: fields of its policy, and `format`; empty if nothing was."""
    file = policy_file(labels)
    if not os.path.isfile(file):  # False too where the name is too long
        return {}
    fix = "correct the file, or remove it and state its options again"
    content = read_yaml(file, fix)
    format = content.pop("format", None)
    if isinstance(content.get("ignore"), list):
        content["ignore"] = tuple(content["ignore"])
    try:
        stated = check_fields(Policy, content)
    except FieldError as error:
        raise UserError(f"{file}: {error.message}", fix) from None
    return {**stated, **({} if format is None else {"format": str(format)})}


def combine_stated(labels: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is stated now and was before; a contradiction is an error."""
    before = read_stated(labels)
    combined = {**before, **given}
    for name in before.keys() & given.keys():
        earlier, now = before[name], given[name]
        if name == "ignore":
            combined[name] = tuple(dict.fromkeys((*earlier, *now)))
        elif name == "values" and all(earlier.get(raw, meaning) == meaning for raw, meaning in now.items()):
            combined[name] = {**earlier, **now}
        elif earlier != now:
            raise UserError(
                f"‹{name}› contradicts {policy_file(labels)}, which has {name}: {earlier}",
                f"leave ‹{name}› out; or add ‹forget_policy›, which removes the file, and state all options again",
            )
    return combined


def forget_stated(labels: Path) -> None:
    """Remove what was stated about a label file."""
    with suppress(OSError):
        policy_file(labels).unlink()


def keep_stated(labels: Path, given: Mapping[str, Any]) -> str:
    """Write what is stated beside the label file, if it is new; the note for the user."""
    import yaml

    if not labels.exists():  # an address in an object store
        return ""
    kept = combine_stated(labels, {name: value for name, value in given.items() if name not in _SELECTIONS})
    if kept == read_stated(labels):
        return ""
    content = {name: list(value) if name == "ignore" else value for name, value in kept.items()}
    try:
        with atomic_write(policy_file(labels)) as temporary:
            temporary.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    except UserError:
        return f"{policy_file(labels)} cannot be written: state these options again in later commands"
    return f"later commands read these options from {policy_file(labels)}"
