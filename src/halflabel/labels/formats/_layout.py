"""What each column of a table holds, judged by its first rows, and how the table is to be read.

Only where things are is taken from the values. What changes the meaning of a label is left open, so the readers ask.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from halflabel.errors import LabelError, UserError, alternatives, write_alternative
from halflabel.labels.formats import tags
from halflabel.labels.formats._csv import FILE_CELL, IMAGE_COLUMNS, IMAGE_NAME, number_of, read_beginning
from halflabel.labels.formats._sheets import SCORE_NAMES, CsvTable
from halflabel.labels.formats.long import MOST_COLUMNS, find_roles, has_values
from halflabel.labels.policy import MINUS_ONE, ONE, VALUE_WORDS, ZERO, Policy, shorten_cell


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MOST_CELLS = 200_000  # of the beginning of a table that are looked at
_MOST_ROWS = 2_000
_MARKS = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))
_MEANINGS = {**VALUE_WORDS, **dict.fromkeys((*ZERO, *MINUS_ONE), "absent")}
_NUMBER_MARKS = frozenset((*ONE, *ZERO, *MINUS_ONE))
_MOST_ODD_MARKS = 2  # other values of a column of marks
_MOST_COUNT, _SMALL = 50, 10  # of objects in an image

_IMAGE_WORDS = _words("image img images photo photos picture pic file filename filepath path imagename imageid url")
_ID_WORDS = _words("id ids uuid guid key index name sample item asset")
_LABEL_WORDS = _words(
    "tag tags label labels class classes category categories keyword keywords hashtag hashtags genre genres species "
    "target targets attribute attributes finding findings diagnosis diagnoses concept concepts object objects topic "
    "topics taxon dx scientific vernacular common breed disease diseases classname labelname pathology condition "
    "defect emotion scene animal animals variety annotation annotations instances choice choices "
)
_NOT_LABEL_WORDS = _words(
    "source score confidence conf prob count counts time date by user url file path set split shape group "
    "annotator annotators rater annotated prediction predictions predicted pred"
)
_TEXT_WORDS = _words("caption description comment comments note notes title text remark remarks summary prompt")
_SPLITS = _words("train training val valid validate validation dev test testing holdout eval unassigned trainval")
_SPLIT_FLAGS = _words("is train training test valid validation val")
_ABOUT = _words("sex gender delete")  # what is never a class
_COUNTERS = _words("id ids number nr idx index")
_SPLIT_WORDS = _words("split subset partition fold phase usage set")
_COORDINATES = _words("x y w h x1 y1 x2 y2 xmin ymin xmax ymax cx cy left top right bottom xcenter ycenter")
_SIZES = _words("width height depth area rotation angle lat lon lng latitude longitude altitude bbox")
_OUTLINES = _words("bbox box boxes mask masks rle pixels polygon polygons segmentation points prediction clicks")
_PARTS = _words("mask masks crop cropped roi thumbnail thumb")  # of an image, in files of their own
_ZOONIVERSE = _words("annotations subject_data")
_VECTOR = re.compile(r"\[\s*-?[01](?:[ ,]+-?[01])+\s*\]")
_BOXES = re.compile(r"-?[\d.]+(?:,-?[\d.]+){3,}(?: -?[\d.]+(?:,-?[\d.]+){3,})*")
_ANY_DIGIT = re.compile(r"\d")
_DATE = re.compile(r"\d{4}[-/:.]\d\d?[-/:.]\d\d?\b.*|\d\d?[-/.]\d\d?[-/.]\d{2,4}\b.*|\d\d?:\d\d(:\d\d)?.*")


@dataclass(frozen=True, eq=False)
class Column:
    name: str
    cells: Sequence[str]  # stripped
    in_box: bool = True  # whether other columns are coordinates too: else left, top and x may be classes

    @cached_property
    def filled(self) -> list[str]:
        return [cell for cell in self.cells if cell]

    @cached_property
    def distinct(self) -> Counter[str]:
        return Counter(self.filled)

    @cached_property
    def words(self) -> set[str]:
        """The words of the name, in lower case: imageName, image_name and "Image name" have the same."""
        spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", self.name)
        return {word.lower().rstrip("0123456789") or word for word in re.findall(r"[^\W_]+", spaced)}

    @cached_property
    def kind(self) -> str:
        """The word for what the cells are."""
        lower = {cell.lower() for cell in self.distinct}
        if not lower:
            return "nothing"
        if sum(map(is_image_name, self.filled)) > 0.8 * len(self.filled):
            return "files"
        if all(map(FILE_CELL.fullmatch, self.distinct)):
            return "addresses"
        if lower <= _SPLITS and (self.words & _SPLIT_WORDS or len(lower & {"train", "training", "test"})):
            return "splits"
        if self.words <= _SPLIT_FLAGS and lower <= _MARKS and "is" in self.words:
            return "splits"
        if self.words & _ABOUT:
            return "text"
        if (self.is_coordinate and (self.in_box or not lower <= _MARKS)) or self._is_outline():
            return "coordinates"
        if self.is_counter and None not in map(number_of, self.distinct):
            return "numbers"
        if all(map(_VECTOR.fullmatch, lower)):
            return "a number per class"
        if lower <= _MARKS:
            return "marks"
        numbers = [number_of(cell) for cell in self.distinct]
        odd = lower - _MARKS
        if None not in numbers:
            is_count = all(n == int(n) and 0 <= n <= _MOST_COUNT for n in numbers) and not lower.isdisjoint(ZERO)  # type: ignore[arg-type]
            return "counts" if is_count else "numbers"
        is_word = any(len(cell) > 1 and _MEANINGS.get(cell) in ("present", "absent") for cell in lower)
        is_marked = not lower.isdisjoint(_NUMBER_MARKS) or (is_word and not self.is_label_named)
        if len(odd) <= _MOST_ODD_MARKS and is_marked and not any(re.search("[,;|]", cell) for cell in odd):
            return "marks"
        if all(map(_DATE.fullmatch, self.distinct)):
            return "dates"
        if all(cell[0] in "[({#" for cell in self.distinct):
            return "lists"
        if self.words & _TEXT_WORDS or self.is_prose:
            return "text"
        return "lists" if self.is_list else "words"

    @cached_property
    def is_coordinate(self) -> bool:
        bare = re.sub(r"[^a-z0-9]", "", self.name.lower())
        return bare.removeprefix("bbox").removeprefix("box") in _COORDINATES or bool(self.words & _SIZES)

    @cached_property
    def is_counter(self) -> bool:
        """Whether the name is that of a number of something else, such as project_id and comment_number."""
        if self.words <= _COUNTERS:
            return len(self.distinct) == len(self.filled) > 1
        return bool(self.words & _COUNTERS) and not self.words & (_IMAGE_WORDS | _LABEL_WORDS)

    @cached_property
    def is_label_named(self) -> bool:
        return bool(self.words & _LABEL_WORDS) and not self.words & _NOT_LABEL_WORDS

    @cached_property
    def is_score(self) -> bool:
        return any(word in self.name.lower() for word in SCORE_NAMES)

    @cached_property
    def is_list(self) -> bool:
        """Whether cells hold several classes."""
        try:
            split = tags.detect_splitting(pa.array(self.filled, pa.string()), Policy())
        except UserError:  # the reader asks
            return True
        return bool(split.separator) or split.is_bracketed or split.is_json

    @cached_property
    def is_whole(self) -> bool:
        """Whether all cells are whole numbers, such as those of classes."""
        return all(number is not None and number == int(number) for number in map(number_of, self.distinct))

    @cached_property
    def is_name(self) -> bool:
        """Whether every row has a cell of its own, by which it can be found."""
        has_digits = all(_ANY_DIGIT.search(cell) and " " not in cell for cell in self.distinct)
        is_unique = len(self.distinct) == len(self.filled) > 1
        return is_unique and (self.words <= _ID_WORDS or (has_digits and not self.is_label_named and not self.is_list))

    @cached_property
    def may_be_marks(self) -> bool:
        """Whether numbers may be marks: fractions beside 0 or 1, as where a class is not certain in some images."""
        numbers = [number for number in map(number_of, self.distinct) if number is not None]
        has_marks = not _NUMBER_MARKS.isdisjoint(self.distinct)
        return has_marks and not self.is_score and all(0 <= number <= 1 for number in numbers)

    @cached_property
    def may_be_counts(self) -> bool:
        """Whether numbers may count objects, beside other columns of counts."""
        return self.is_whole and not self.is_counter and all(0 <= float(cell) <= _SMALL for cell in self.distinct)

    @cached_property
    def is_sure(self) -> bool:
        """Whether every cell is a mark, and both present and absent occur."""
        meanings = {_MEANINGS.get(cell.lower()) for cell in self.distinct}
        return len(self.filled) == len(self.cells) and meanings == {"present", "absent"}

    def _is_outline(self) -> bool:
        """Whether cells are lists of coordinates: fractions, runs of pixels, or more numbers than words."""
        if all(map(_BOXES.fullmatch, self.distinct)):
            return True
        lists = [re.findall(r"[^\s,;()\[\]]+", cell) for cell in self.distinct]
        tokens = [token for each in lists for token in each]
        numbers = [token for token in tokens if number_of(token) is not None]
        if len(tokens) < 2 * len(lists) or 2 * len(numbers) < len(tokens) or self.is_label_named or self.is_score:
            return False
        if self.words & _OUTLINES or len(tokens) > len(numbers):
            return 2 * len(numbers) > len(tokens) + len(lists)
        starts = [list(map(float, each[::2])) for each in lists]
        are_runs = all(len(each) % 2 == 0 for each in lists) and all(each == sorted(set(each)) for each in starts)
        return any("." in token for token in tokens) or (are_runs and 2 * len({*tokens}) > len(tokens) > 6)

    @cached_property
    def is_prose(self) -> bool:
        """Whether the cells are sentences: long, nearly all different, and not lists of a few words that repeat."""
        if len(self.filled) < 4 or len(self.distinct) < 0.9 * len(self.filled):
            return False
        if not any(" " in cell for cell in self.filled):
            return False
        words = Counter(word for cell in self.filled for word in re.split(r"[\s,;|]+", cell))
        return words.total() > 3 * len(self.filled) and 4 * sum(n == 1 for n in words.values()) > len(words)


def is_image_name(text: str) -> bool:
    return IMAGE_NAME.fullmatch(text.partition("?")[0]) is not None


TABLES = ("long", "tags", "wide")
_MOST_ANSWERS = 8


@dataclass(frozen=True)
class Reading:
    """A plausible reading of a table: its format, its policy, and the options that choose it, in words too."""

    format: str
    policy: Policy
    stated: tuple[tuple[str, str | None], ...] = ()
    words: str = ""

    def but(self, words: str, *stated: tuple[str, str], **changes: Any) -> Reading:
        both = "; ".join(filter(None, (self.words, words)))
        return replace(self, policy=replace(self.policy, **changes), stated=(*self.stated, *stated), words=both)


def choose_reading(
    path: Path, policy: Policy, format: str, is_stated: bool, read: Callable[[str, Path, Policy], object]
) -> Reading:
    """The only plausible reading of a table; if there are several, LabelError with the options of each."""
    layout = Layout(path, policy)
    readings = layout.readings(format if is_stated else "auto")
    if len(readings) < 2:
        return readings[0] if readings else Reading(format, policy)
    answers, previews, faults = [], [], []
    for reading in readings:
        try:
            read(reading.format, path, reading.policy)
            answers.append(((*reading.stated,), reading.words))
        except UserError as error:
            faults.append(error)
            preview = error.message.removeprefix(str(path)).lstrip(":, ")
            previews += [preview] * (preview not in previews)
            for options, why in alternatives(error.fix):
                stated = [each for each in reading.stated if each[0] != "format" or "tag_column" not in dict(options)]
                answers.append(((*stated, *options), "; ".join(filter(None, (reading.words, why)))))
    if not answers:
        raise faults[0]
    offers = (write_alternative(options) + f" ({words})" for options, words in answers[:_MOST_ANSWERS])
    forms = {(each.format, each.policy.tag_column, each.policy.separator) for each in readings}
    message = "; ".join(("several readings of this table are plausible", *previews[: min(2, len(forms))]))
    raise LabelError(message, f"add {' or '.join(offers)}", path)


def table_form(path: Path, encoding: str | None = None) -> str:
    """The format of a table, by its columns; "wide" where they do not say."""
    forms: set[str] = set()
    for each in (encoding, "latin-1"):  # names of formats do not depend on the encoding
        with suppress(UserError):  # the reader says why
            forms = forms or {reading.format for reading in Layout(path, Policy(encoding=each)).readings("auto")}
    return forms.pop() if len(forms) == 1 else "wide"


class Layout:
    """The columns of a table by their kind, and the readings that they allow."""

    def __init__(self, path: Path, policy: Policy) -> None:
        beginning = read_beginning(path, policy.encoding, _MOST_ROWS)
        self.path, self.policy, self.header = path, policy, beginning.header
        self.has_header, self.is_short, self.is_indexed = beginning[4:7]
        rows = beginning.rows[: max(10, _MOST_CELLS // max(len(self.header), 1))]
        cells = list(zip(*(row for row in rows if len(row) == len(self.header)), strict=True))
        columns = [Column(name, list(map(str.strip, each))) for name, each in zip(self.header, cells, strict=False)]
        coordinates = [c for c in columns if c.is_coordinate]
        if len(coordinates) < 4 and all(set(c.filled) <= _MARKS for c in coordinates):
            columns = [replace(c, in_box=False) for c in columns]
        self.columns = [c for c in columns[beginning.is_indexed :] if c.name or c.filled]

    @cached_property
    def image(self) -> str:
        """The column that names the image: stated, with names of files, or by its own name."""
        if self.policy.image_column is not None:
            return self.policy.image_column
        usual = {name: rank for rank, name in enumerate(IMAGE_COLUMNS)}

        def rank(column: Column) -> tuple[int | bool, ...]:
            is_file = column.kind in ("files", "addresses")
            return (
                column.name == self.policy.tag_column,
                bool(column.words & _PARTS) or column.kind == "coordinates",
                column.kind != "files",
                column.kind != "addresses",
                -len(column.distinct) * is_file,  # files of the same name are in several folders
                usual.get(column.name.lower(), len(usual)),
                not column.words & _IMAGE_WORDS,
                not column.words & _ID_WORDS or column.is_label_named,
                column.kind in ("marks", "lists", "splits", "nothing"),
                -len(column.distinct),
            )

        return min(self.columns, key=rank).name

    @cached_property
    def others(self) -> list[Column]:
        left_out = {self.image, *self.policy.ignore, *self.policy.where}
        return [column for column in self.columns if column.name not in left_out]

    @cached_property
    def marks(self) -> list[Column]:
        """The columns of classes; a blank one is a class beside others."""
        accepted = {"marks"}
        if not any(c.kind == "marks" and _NUMBER_MARKS.isdisjoint(c.distinct) for c in self.others):
            accepted.add("counts")
        kinds = {c.kind for c in self.others}
        if accepted & kinds or all(c.kind == "nothing" and not c.is_label_named for c in self.others):
            accepted.add("nothing")
        numbers = [c for c in self.others if c.kind == "numbers"]  # of which the reader asks
        asked = [c for c in numbers if "counts" in kinds and c.may_be_counts]
        asked += [c for c in numbers if "marks" in kinds and c.may_be_marks]
        marks = [c for c in self.others if c.kind in accepted or c in asked]
        words = [c for c in self.others if c.kind == "words"]
        ticks = [c for c in words if len(c.distinct) == 1 and len(c.filled) < len(c.cells)]
        if not marks and len(ticks) > 1 and len({*itertools.chain(*(c.distinct for c in ticks))}) == 1:
            return ticks  # such as *, of which the reader asks
        return marks

    @cached_property
    def listed(self) -> list[Column]:
        """The columns that name classes: those with a usual name, else lists, else any that repeats words."""
        words = [c for c in self.others if c.kind in ("lists", "words") and not c.words & _NOT_LABEL_WORDS]
        words = [c for c in words if not c.is_name]
        words.sort(key=_likeness)
        words = [c for c in words if not c.words & _COUNTERS or c.kind == "lists"] or words
        lists = [c for c in words if c.kind == "lists"]
        is_only = not self.has_header and len(self.others) == 1  # then the lines are images and classes
        numbers = [c for c in self.others if c.kind in ("counts", "numbers") and c.is_whole]
        numbers = [c for c in numbers if c.is_label_named or is_only]
        blank = [c for c in self.others if c.kind == "nothing" and c.is_label_named and not self.marks]
        return _without_codes([c for c in words if c.is_label_named] or blank or lists or words or numbers)

    def readings(self, format: str) -> list[Reading]:
        """Each plausible reading; `format` is "auto" or stated."""
        if not self.columns:
            return []
        if self.header[2:] and self.others and all(is_image_name(c.name) for c in self.others):
            message = f"the columns are images, such as {self.others[0].name!r}, and the lines are classes"
            raise LabelError(message, "exchange lines and columns: one line per image", self.path, line=1)
        if format in ("long", "wide") or (format == "auto" and has_values(self.header)):
            name = "long" if format == "auto" else format
            return [Reading(name, self.policy if name == "long" else self._policy(()))]
        if self.policy.tag_column is not None:
            listed = [column for column in self.columns if column.name == self.policy.tag_column]
        else:
            listed = self.listed
        marks = self.marks if format == "auto" and self.policy.tag_column is None else []
        self._refuse_classes_in_names()
        if listed and marks:
            listed, marks = self._choose_form(listed, marks)
        self._refuse_scores(listed)
        if (not listed and not marks) or set(self.header) >= _ZOONIVERSE:
            if format == "tags":
                return [Reading("tags", self.policy)]
            raise self._no_labels()
        several = len(listed) + bool(marks) > 1
        readings = []
        unused = [c.name for c in marks if c.kind != "nothing"]
        if marks:
            names = ", ".join(c.name for c in marks[:3]) + ", …" * (len(marks) > 3)
            among = set(marks)
            ignored = [c.name for c in self.others if c not in among and not c.is_score and c.kind != "splits"]
            stated = [("format", "wide"), *(("ignore", name) for name in ignored)] if listed else []
            readings.append(Reading("wide", self._policy(ignored)).but(f"classes {names}" * several, *stated))
        lists = [each for column in listed for each in self._list_readings(column, format, several, unused)]
        sure = [c for c in marks if c.is_sure]
        readings = [*readings, *lists] if len(sure) > 1 and 2 * len(sure) >= len(unused) else [*lists, *readings]
        for split in [c for c in self.others if c.kind == "splits"]:
            readings = [each for reading in readings for each in self._split_readings(reading, split.name)]
        return readings

    def _choose_form(self, listed: list[Column], marks: list[Column]) -> tuple[list[Column], list[Column]]:
        """What is left if columns of marks and columns that name classes are in one table."""
        filled = [c for c in marks if c.kind != "nothing"]
        if listed[0].kind in ("counts", "numbers"):  # numbers of classes, if nothing else says what is in the image
            return (listed, []) if set(filled) <= set(listed) else ([], marks)
        named = [c for c in listed if c.is_label_named or c.kind == "lists"]
        said = [c for c in filled if c.is_sure and _NUMBER_MARKS.isdisjoint(c.distinct)]
        image = next((c.cells for c in self.columns if c.name == self.image), ())
        if named and len(said) == 1 and len({*image}) < len({*zip(image, named[0].cells, strict=True)}):
            message = f"{said[0].name!r} says {said[0].filled[0]!r} about the class in {named[0].name!r}, line by line"
            fix = f"call the columns image, class and value, and leave out others than {self.image!r} and these"
            raise LabelError(message, fix, self.path, column=said[0].name)
        if len(filled) == 1 and self._is_long(listed[0]):  # about the row, or its value: the reader asks
            return listed, []
        filled = [c for c in filled if not c.words & _NOT_LABEL_WORDS]
        if named and not any(_MEANINGS.get(cell.lower()) == "present" for c in filled for cell in c.distinct):
            return named, []
        marked = {c.name.lower() for c in marks}
        if not named and not any(len({*c.cells}) > 1 for c in filled):
            return listed, marks
        if not named or any(_classes_of(c) <= marked or _words_of(c) <= marked for c in named):
            return [], marks
        return named, marks

    def _refuse_scores(self, listed: list[Column]) -> None:
        """Raise LabelError for a column of classes beside one of their scores, such as top1 and top1_prob."""
        for column in listed:
            names = [c.name for c in self.others if c.is_score and c.name.lower().startswith(column.name.lower())]
            if names and names[0] not in self.policy.ignore:
                message = f"{names[0]!r} says how sure a model is of {column.name!r}"
                raise LabelError(message, "write a line per label: image,class,score", self.path, column=names[0])

    def _refuse_classes_in_names(self) -> None:
        """Raise LabelError if a line is about an image and a class, both in one name, such as a.jpg_fish."""
        image = next((c for c in self.columns if c.name == self.image), None)
        parts = [name.rpartition("_") for name in image.filled] if image is not None else []
        images, classes = {part[0] for part in parts}, {part[2] for part in parts}
        if not 1 < len(classes) < len(images) * len(classes) == len(parts) or any(map(_ANY_DIGIT.search, classes)):
            return
        message = f"the names in {self.image!r} end with a class: {', '.join(sorted(classes)[:4])}"
        raise LabelError(message, "write the image and the class into columns: image,class,value", self.path)

    def _list_readings(self, column: Column, format: str, several: bool, unused: list[str]) -> list[Reading]:
        ignored = [*(c.name for c in self.others if c.kind == "coordinates" and c.is_coordinate), *unused]
        stated = [("tag_column", column.name)] if several else []
        stated += [("ignore", name) for name in unused]
        words = f"tags in {column.name}" * several
        as_tags = Reading("tags", self._policy(ignored)).but(words, *stated, tag_column=column.name)
        if self.policy.separator is not None or column.kind not in ("lists", "words"):
            return [as_tags]
        cells, marks = list(column.distinct), []
        try:
            split = tags.detect_splitting(pa.array(cells, pa.string()), Policy())
            is_usual = column.name.lower() in tags.LIST_COLUMNS or split.is_bracketed
            if split.separator == "," and not is_usual and not tags.separates(cells, ","):
                parts = Counter(part.strip() for cell in cells for part in {*cell.split(",")})
                marks = [",", "none"] if parts.total() > len(parts) else ["none", ","]
        except UserError as error:
            answers = [dict(options) for options, _ in alternatives(error.fix)]
            marks = [str(answer["separator"]) for answer in answers if "separator" in answer]
        if marks:
            stated = [] if several else [("tag_column", column.name)]
            many = {mark: "one tag per cell" if mark == "none" else "several tags per cell" for mark in marks}
            return [as_tags.but(words, *stated, ("separator", m), separator=m) for m, words in many.items()]
        if format == "auto" and self._is_long(column) and column.kind != "lists":
            return [replace(as_tags, format="long", policy=self._policy(ignored))]
        return [as_tags]

    def _is_long(self, column: Column) -> bool:
        is_usual = find_roles(self.header, self.image).get("class") == column.name
        return self.policy.tag_column is None and is_usual and len(self.header) <= MOST_COLUMNS

    def _split_readings(self, reading: Reading, name: str) -> list[Reading]:
        splits = pc.unique(CsvTable(self.path, encoding=self.policy.encoding).column(name)).to_pylist()
        ignore = (*reading.policy.ignore, name)
        if len(splits) < 2:
            stated = [("ignore", name)] if reading.stated else []
            return [reading.but("", *stated, ignore=ignore)]
        everything = reading.but("all rows", ("ignore", name), ignore=ignore)
        where = self.policy.where
        parts = [reading.but(f"only {s}", ("where", f"{name}={s}"), where={**where, name: s}) for s in splits if s]
        return [everything, *parts]

    def _policy(self, ignored: Iterable[str]) -> Policy:
        return replace(self.policy, image_column=self.image, ignore=(*self.policy.ignore, *ignored))

    def _no_labels(self) -> LabelError:
        kinds = "; ".join(
            f"{shorten_cell(c.name)!r}: {c.kind}"
            + "".join(f" such as {shorten_cell(cell, 30)!r}" for cell in c.filled[:1])
            for c in self.others[:12]
        )
        message = f"no column says which classes an image shows ({kinds or 'there is only ' + repr(self.image)})"
        if set(self.header) >= _ZOONIVERSE:
            message = "this is Zooniverse's export: a row is what one volunteer said about an image"
            return LabelError(message, "combine the answers of the volunteers: a table image,class,value", self.path)
        numbers = [c for c in self.others if c.kind == "numbers" and c.is_whole and len(c.distinct) < len(c.filled)]
        texts = [c.name for c in self.others if c in numbers or (c.kind == "text" and not c.is_prose and not numbers)]
        table = "write a column that names the classes, or a column per class with 1 and 0"
        offers = " or ".join(f"‹tag_column={name}›" for name in texts[:_MOST_ANSWERS])
        fix = f"add {offers} (if it names the classes)" if texts else table
        return LabelError(message, fix, self.path)


def _classes_of(column: Column) -> set[str]:
    """The classes that a column lists, in lower case."""
    cells = pa.array(column.filled, pa.string())
    try:
        items, _ = tags.split_cells(cells, tags.detect_splitting(cells, Policy()))
    except UserError:
        return {""}
    return {item.lower() for item in items.to_pylist()}


def _words_of(column: Column) -> set[str]:
    return {word.lower() for cell in column.distinct for word in re.split(r"[\s,;|]+", cell) if word}


def _likeness(column: Column) -> tuple[bool, ...]:
    """False for what columns of classes usually are; the first of them matters most."""
    return (
        len(column.distinct) == 1 < len(column.filled),
        column.name.lower() not in tags.LIST_COLUMNS,
        column.name.lower() not in (*tags.LIST_COLUMNS, *tags.SINGULAR_NAMES),
        not any(re.match(tags.OBJECTS, cell) for cell in column.filled),
        "name" not in column.words,
    )


def _without_codes(columns: list[Column]) -> list[Column]:
    """The columns without those that say the same as an earlier one, such as codes; finer ones before coarser ones."""
    kept: list[Column] = []
    for column in columns:
        place = len(kept)
        for number, other in enumerate(kept):
            pairs = set(zip(column.cells, other.cells, strict=True))
            if len(pairs) == len({*column.cells}) < len(column.cells):  # one of these words tells the other
                if len(pairs) == len({*other.cells}):
                    break
                place = min(place, number)
        else:
            kept.insert(place, column)
    return kept
