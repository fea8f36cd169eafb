"""Label files that are read say what slow, independent readers say; hostile files of known kinds among them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import slow_readers
from fuzz_cases import play
from fuzz_kit import refusals
from fuzz_readers import compare_with_slow_reader, labels

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.policy import Policy

# Pieces of tables in the manner of label files, good and bad.
CELLS = (
    "1",
    "0",
    "-1",
    "",
    "n/a",
    "yes",
    " 1",
    "1.0",
    "true",
    "?",
    "nan",
    "1e0",
    "True",
    "０",
    "2024-01-02",
    "uncertain",
)
NAMES = ("a.jpg", "b.jpg", "b.jpg ", "café.jpg", "cafe\u0301.jpg", "A.JPG", "x,y.jpg", 'q"q.jpg', "dir\\\\a.jpg", "")
CLASSES = ("dog", "cat", "Dog", "dog ", "NA", "1", "a;b", "=1", "\x1b[31m")
SOURCES = ("", "ann", "bob", "model:bce:runs/1", "machine", "Model")
HEADERS = (
    "image,class,value", "image,class,value,source,score", "image,class,value,annotator", "image,label", "id,tag,value",
    "image,dog,cat", "image,tags", "image,tags,absent", "file,dog", "image,class,value,confidence",
    "image,class,value,source,score,inclusion_weight", "image,class,probability,why,inclusion_weight,value",
)  # fmt: skip
POLICIES = (
    {},
    {"unlisted": "unknown"},
    {"unlisted": "absent"},
    {"zero": "absent", "minus_one": "absent"},
    {"zero": "unknown"},
    {"zero": "absent", "minus_one": "uncertain"},
)


def make_table(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A small table that follows one of the headers, with stray quotes and odd line ends now and then."""
    header = rng.choice(HEADERS)
    choices = {"source": SOURCES, "annotator": SOURCES, "class": CLASSES, "label": CLASSES, "tag": CLASSES}
    lines = [header]
    for _ in range(rng.randint(1, 6)):
        cells = []
        for name in header.split(","):
            if name in ("image", "id", "file"):
                cell = rng.choice(NAMES)
            elif name in ("tags", "absent"):
                cell = rng.choice((";", ",", "|", "\n")).join(rng.choices(CLASSES[:5], k=rng.randint(0, 3)))
            elif name in ("score", "confidence", "probability", "inclusion_weight"):
                cell = rng.choice(("", "0.5", "1"))
            else:
                cell = rng.choice(choices.get(name, CELLS[: rng.choice((3, 8, len(CELLS)))]))
            is_special = any(mark in cell for mark in ',;|"\n')
            cells.append('"' + cell.replace('"', '""') + '"' if is_special and rng.random() < 0.9 else cell)
        lines.append(",".join(cells))
    text = rng.choice(("\n", "\n", "\r\n", "\r")).join(lines) + rng.choice(("", "\n"))
    if rng.random() < 0.2:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(('"', ",", "\n", "\0", "\ufeff", " ")) + text[place:]
    return rng.choice((b"", b"", b"\xef\xbb\xbf")) + text.encode(), rng.choice(POLICIES)


def compare(number: int, folder: Path) -> str:
    content, policy = make_table(random.Random(number))
    path = folder / "labels.csv"
    path.write_bytes(content)
    try:
        result = formats.read(path, Policy(**policy))
    except UserError:
        return "refused"
    try:
        compare_with_slow_reader(path, result, policy)
    except AssertionError as error:
        return f"{number}: {error}: {content!r} {policy}"
    return "read"


def check_tables(numbers: range, folder: Path) -> None:
    ends = Counter(compare(number, folder) for number in numbers)
    assert not (wrong := [end for end in ends if end not in ("read", "refused")]), "\n".join(wrong[:5])
    assert min(ends["read"], ends["refused"]) > len(numbers) / 20


def test_tables_say_what_slow_readers_say(tmp_path: Path) -> None:
    check_tables(range(150), tmp_path)


@pytest.mark.slow
def test_many_tables_say_what_slow_readers_say(tmp_path: Path) -> None:
    check_tables(range(150, 8000), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_many_damaged_label_files_say_what_slow_readers_say(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    readers = [reader for reader in labels(tmp_path / "good") if reader.name.split()[1] in slow_readers.READERS]
    wrong = []
    for reader in readers:
        for number in range(300):
            end = play(reader, tmp_path / "case", 23, number, refusals())
            if not end.is_right:
                wrong.append(f"{reader.name} {number}: {end}")
    assert not wrong, "\n".join(wrong[:10])
