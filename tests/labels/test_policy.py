"""Policy: the meaning of raw values, and errors for values without a stated meaning."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from halflabel.cli.show import in_shell
from halflabel.errors import UserError, alternatives, write_alternative
from halflabel.labels import formats
from halflabel.labels.policy import (
    Policy,
    UndecidedValue,
    combine_stated,
    keep_stated,
    policy_file,
    read_stated,
    read_value,
)

BINARY = frozenset({"0", "1"})
TERNARY = frozenset({"-1", "0", "1"})


@pytest.mark.parametrize(
    ("meaning", "raw"),
    [
        *(("present", raw) for raw in ("1", "1.0", "+1", " 1 ", "true", "TRUE", "T", "yes", "Y", "present", "x", "X")),
        *(("absent", raw) for raw in ("0", "0.0", "-0.0", "false", "F", "no", "n", "Absent")),
        *(("unknown", raw) for raw in ("", "  ", "?", "nan", "NaN", "NA", "n/a", "null", "None", "unknown")),
    ],
)
def test_words_have_their_meaning(meaning: str, raw: str) -> None:
    assert read_value(raw, Policy(), BINARY) == meaning


@pytest.mark.parametrize("raw", ["-1", "-1.0", "−1", " -1"])
def test_minus_one_is_never_guessed(raw: str) -> None:
    with pytest.raises(UndecidedValue) as caught:
        read_value(raw, Policy(), TERNARY)
    assert "‹minus_one" in caught.value.fix
    assert read_value(raw, Policy(minus_one="absent"), TERNARY) == "absent"
    assert read_value(raw, Policy(minus_one="unknown"), TERNARY) == "unknown"


@pytest.mark.parametrize("policy", [Policy(minus_one="absent"), Policy(values={"-1": "absent"})])
def test_zero_beside_an_absent_minus_one_has_to_be_stated(policy: Policy) -> None:
    with pytest.raises(UndecidedValue) as caught:
        read_value("0", policy, TERNARY)
    assert "‹zero" in caught.value.fix
    assert read_value("0", policy, BINARY) == "absent"


def test_zero_as_stated() -> None:
    assert read_value("0", Policy(zero="unknown"), BINARY) == "unknown"
    assert read_value("0.0", Policy(minus_one="absent", zero="unknown"), TERNARY) == "unknown"
    assert read_value("0", Policy(minus_one="unknown"), TERNARY) == "absent"


def test_further_values_come_first() -> None:
    policy = Policy(values={"maybe": "unknown", "1": "absent"})
    assert read_value("maybe ", policy, BINARY) == "unknown"
    assert read_value("1", policy, BINARY) == "absent"
    with pytest.raises(UndecidedValue) as caught:
        read_value("perhaps", policy, BINARY)
    assert "'perhaps'" in caught.value.message
    assert "‹values=perhaps=present›" in caught.value.fix


@pytest.mark.parametrize("text", ["dog, cat", "it's", "a & b", "$HOME", "x;y|z", "-", "café"])
def test_what_is_suggested_can_be_copied_into_a_shell(text: str) -> None:
    with pytest.raises(UndecidedValue) as caught:
        read_value(text, Policy(), BINARY)
    meanings = ("unknown", "present", "absent")
    options = [in_shell(write_alternative(options)) for options, _ in alternatives(caught.value.fix)]
    assert [shlex.split(option) for option in options] == [["--value", f"{text}={meaning}"] for meaning in meanings]


@pytest.mark.parametrize("raw", ["2", "0.5", "-2", "11", "cat"])
def test_other_values_are_no_labels(raw: str) -> None:
    with pytest.raises(UndecidedValue, match="is not a label"):
        read_value(raw, Policy(), BINARY)


def test_what_means_nothing_for_a_format_is_refused() -> None:
    Policy(split="train").check(("split",), "voc")
    Policy().check((), "voc")
    for policy, name in (
        (Policy(minus_one="absent"), "minus_one"),
        (Policy(ignore=("age",)), "ignore"),
        (Policy(values={"a": "absent"}), "values"),
        (Policy(machine=0.0), "machine"),
    ):
        with pytest.raises(UserError, match="means nothing for the format 'voc'") as caught:
            policy.check(("split",), "voc")
        assert caught.value.message.startswith(f"‹{name}› ")
        assert caught.value.fix == f"leave ‹{name}› out"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    (tmp_path / "labels.csv").write_text("image,age,dog,cat\na.jpg,3,1,-1\nb.jpg,4,-1,0\n")
    return tmp_path / "labels.csv"


STATED = {"minus_one": "absent", "zero": "unknown", "ignore": ("age",)}


def test_what_is_stated_is_kept_beside_the_file_and_read_again(labels: Path) -> None:
    assert read_stated(labels) == {}
    assert str(policy_file(labels)) in keep_stated(labels, {**STATED, "where": {"age": "3"}, "format": "wide"})
    assert read_stated(labels) == {**STATED, "format": "wide"}
    assert keep_stated(labels, {"zero": "unknown"}) == ""
    assert formats.read(labels).table() == formats.read(labels, Policy(**STATED)).table()  # type: ignore[arg-type]
    assert formats.read(labels, values={"-1": "absent"}).table().known == 3


def test_a_contradiction_names_both_ways_out(labels: Path) -> None:
    keep_stated(labels, {**STATED, "values": {"x": "absent"}})
    for given in ({"zero": "absent"}, {"values": {"x": "unknown"}}):
        with pytest.raises(UserError, match="contradicts") as caught:
            formats.read(labels, **given)
        assert f"leave ‹{next(iter(given))}› out" in caught.value.fix
        assert "‹forget_policy›" in caught.value.fix
    combined = combine_stated(labels, {"ignore": ("sex",), "values": {"y": "unknown"}})
    assert combined["ignore"] == ("age", "sex")
    assert combined["values"] == {"x": "absent", "y": "unknown"}


@pytest.mark.parametrize("text", ["- 1", "minus_one: maybe", "colour: red", "ignore: age", "values: [1]", "{"])
def test_a_damaged_policy_is_an_error(labels: Path, text: str) -> None:
    policy_file(labels).write_text(text)
    with pytest.raises(UserError, match=r"labels\.csv\.policy\.yaml") as caught:
        formats.read(labels)
    assert "remove it" in caught.value.fix


def test_nothing_is_kept_in_a_folder_that_cannot_be_written(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert "cannot be written" in keep_stated(labels, STATED)
    assert not policy_file(labels).exists()


def test_a_written_file_has_no_policy_of_an_earlier_one(labels: Path) -> None:
    keep_stated(labels, STATED)
    rows = formats.read(labels).rows
    formats.write(rows, labels)
    assert not policy_file(labels).exists()
    assert formats.read(labels).table() == rows.training
