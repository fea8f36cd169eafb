"""Everything that reads what somebody else wrote: good files of each kind, and how they are read.

The only right ends of reading are success and a refusal: a UserError, an image put aside, an answer of status 4xx.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import slow_readers
from fuzz_kit import CLASSES, IMAGES, TESTS, Reader, Rng, gather, load_module, small_table
from fuzz_models import models, pages

from halflabel.errors import UserError

__all__ = ["all_readers"]

GOLDEN = TESTS / "golden"


def all_readers() -> list[Reader]:
    """All readers; their good files are made once, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        readers = [*labels(place), *datasets(place), *pictures(), *lists(place), *models(place), *pages(place)]
    contents = tuple(data[:20_000] for reader in readers for data in reader.files.values())
    return [Reader(r.name, r.files, r.read, r.fixed, contents) for r in readers]


# ---- label files


def labels(place: Path) -> Iterator[Reader]:
    """The golden files of each label format, and the files that its writer makes of a small table."""
    from halflabel.labels import formats

    for name in formats.FORMATS:
        folders: dict[tuple[bytes, ...], Path] = {}  # each content only once
        for folder in _golden(name, place):
            folders.setdefault(tuple(sorted(gather(folder).values())), folder)
        for ending in ("", ".csv", ".json", ".parquet", f".{name}"):
            written_folder = place / f"{name}{ending}-made"
            written_folder.mkdir()
            path = written_folder / ("labels" + ending if name != "imagefolder" or not ending else f"metadata{ending}")
            with contextlib.suppress(UserError):
                formats.write(small_table(), path, format=name)
                if formats.detect_format(path) == name:
                    folders.setdefault(tuple(sorted(gather(written_folder).values())), written_folder)
        for number, folder in enumerate(folders.values()):
            ways = list(_ways(name, folder))
            if ways:
                yield Reader(f"labels {name} {number}", gather(folder), partial(read_labels, name, ways))


def _golden(name: str, place: Path) -> Iterator[Path]:
    """Folders of golden files; for tables, each file in its own folder."""
    golden_folder = GOLDEN / name.replace("-", "_")
    if not golden_folder.is_dir():
        return
    if name in ("long", "wide"):
        for path in sorted(golden_folder.iterdir()):
            (place / f"{name}-{path.name}").mkdir()
            shutil.copy(path, place / f"{name}-{path.name}")
            yield place / f"{name}-{path.name}"
    elif any(path.is_file() for path in golden_folder.iterdir()):
        yield golden_folder
    else:
        yield from (
            [path for path in sorted(golden_folder.iterdir()) if path.is_dir()]
            if name != "nus-wide"
            else [golden_folder]
        )


_POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"unlisted": "unknown"},
    {"unlisted": "absent"},
    {"zero": "unknown", "minus_one": "absent"},
    {"minus_one": "uncertain"},
    {"split": "train"},
    {"split": "trainval"},
    {"split": "Train"},
    {"machine": 0.5},
    {"difficult": "absent", "split": "test"},
    {"encoding": "latin-1", "zero": "absent"},
    {"encoding": "utf-16"},
    {"ignore": ("width",)},
)


def _ways(name: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The paths below a folder that can be read as a format, with the policies that allow it."""
    from halflabel.labels import formats
    from halflabel.labels.policy import Policy

    uses = formats.format_of(name).USES
    choices = [choice for choice in _POLICIES if set(choice) <= set(uses)]
    for path in [folder, *sorted(folder.rglob("*"))]:
        for choice in choices:
            with contextlib.suppress(UserError):
                formats.read(path, Policy(**choice), format=name)
                yield path.relative_to(folder).as_posix(), choice


def read_labels(name: str, ways: list[tuple[str, dict[str, Any]]], folder: Path, rng: Rng) -> None:
    from halflabel.labels import formats
    from halflabel.labels.policy import Policy

    place, policy_options = rng.choice(ways)
    if rng.random() < 0.1:
        place = rng.choice([".", *(path.name for path in sorted(folder.iterdir()))])
    result = formats.read(folder / place, Policy(**policy_options), format=rng.choice((name, name, "auto")))
    table = result.table()
    assert table.stats.known == table.known
    table.digest()
    compare_with_slow_reader(folder / place, result, policy_options)
    texts = [result.audit.notes, result.audit.value_counts, list(table.images), list(table.classes)]
    json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogateescape")


def compare_with_slow_reader(path: Path, result: Any, policy: dict[str, Any]) -> None:
    """What was read must be what an independent reader reads; a file that it refuses must not have been read."""
    from halflabel.labels.formats._csv import first_line
    from halflabel.labels.formats._layout import TABLES, Layout
    from halflabel.labels.formats._unpack import unpack
    from halflabel.labels.policy import Policy

    table = result.table()
    if result.audit.format in TABLES and path.suffix not in (".csv", ".tsv", ".txt"):
        return  # records as a table
    if result.audit.format in TABLES:
        path = unpack(path).path
        layout = Layout(path, Policy(**policy))  # the slow readers do not look for the columns
        names_rows = layout.is_indexed or layout.is_short or layout.header[0] not in first_line(path)
        if not layout.has_header or names_rows or "tags split at blanks" in result.audit.notes:
            return
        unused = [name for name in layout.header if name not in (*table.classes, layout.image)]
        policy = {**policy, "image_column": layout.image, "ignore": unused}
    try:
        expected = slow_readers.labels_of(path, result.audit.format, policy)
    except slow_readers.MustRefuse as error:
        raise AssertionError(f"read, but it must be refused: {error}") from None
    if expected is not None:
        image, column, value = (part.tolist() for part in table.entries())
        labels = {(table.images[i], table.classes[c]): v for i, c, v in zip(image, column, value, strict=True)}
        if table.uncertain is not None:
            at, where = (part.tolist() for part in table.uncertain.nonzero())
            labels |= {(table.images[i], table.classes[c]): 2 for i, c in zip(at, where, strict=True)}
        differing = [pair for pair in labels.keys() | expected.keys() if labels.get(pair) != expected.get(pair)]
        assert not differing, f"{len(differing)} labels differ, such as {min(differing)!r:.200}"


# ---- public data sets


def datasets(place: Path) -> Iterator[Reader]:
    from halflabel.papers.datasets import DATASETS

    dataset_folders = load_module("fuzz_datasets", TESTS / "papers" / "datasets" / "dataset_folders.py")
    writers = {
        "voc2007": partial(dataset_folders.write_voc, year=2007),
        "coco2017": partial(dataset_folders.write_coco, year=2017),
        "nus-wide": dataset_folders.write_nus,
        "cub": dataset_folders.write_cub,
        "open-images": dataset_folders.write_open_images,
        "vg200": dataset_folders.write_vg,
        "cifar10": dataset_folders.write_cifar,
        "stl10": dataset_folders.write_stl,
    }
    for name in DATASETS:
        if name in writers:
            folder = place / "datasets" / name
            writers[name](folder)
            files = gather(folder)
            fixed = tuple(file for file in files if file.endswith((".jpg", ".png")))
            yield Reader(f"dataset {name}", files, partial(read_dataset, name), fixed)


_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "cifar10": ({"batch": 2}, {"labelled": 3, "unlabelled": False}),
    "stl10": ({"fold": 0}, {"unlabelled": True}, {"fold": 9}),
    "cub": ({"certainty": "ignored"},),
    "coco2017": ({"unannotated": "drop"},),
}


def read_dataset(name: str, folder: Path, rng: Rng) -> None:
    from halflabel.papers.datasets import RawImages, open_dataset

    opened = open_dataset(name, folder, **rng.choice(({}, *_OPTIONS.get(name, ()))))
    for split in opened.splits.values():
        assert split.labels.stats.known == split.labels.known
        if isinstance(split.images, RawImages) and len(split):
            split.images.load(split.labels.images)


# ---- images


def pictures() -> Iterator[Reader]:
    from PIL import Image

    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (40, 52, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    images: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "photo.jpg": (colour, "JPEG", {"exif": exif, "quality": 60}),
        "progressive.jpg": (colour, "JPEG", {"progressive": True}),
        "grey.png": (colour.convert("L"), "PNG", {}),
        "deep.png": (Image.fromarray(rng.integers(0, 65536, (20, 20)).astype(np.uint16)), "PNG", {}),
        "clear.png": (colour.convert("RGBA"), "PNG", {}),
        "palette.gif": (colour.convert("P"), "GIF", {"save_all": True, "append_images": [colour.convert("P")]}),
        "lossy.webp": (colour, "WEBP", {}),
        "small.avif": (colour, "AVIF", {}),
        "plain.bmp": (colour, "BMP", {}),
        "packed.tif": (colour, "TIFF", {"compression": "tiff_lzw"}),
        "float.tif": (Image.fromarray(rng.random((16, 16), np.float32)), "TIFF", {}),
        "several.mpo": (colour, "MPO", {"save_all": True, "append_images": [colour]}),
    }
    Image.init()
    for name, (image, image_format, options) in images.items():
        if image_format not in Image.SAVE:  # some builds of Pillow do not support AVIF
            continue
        stream = io.BytesIO()
        image.save(stream, image_format, **options)
        yield Reader(f"image {name}", {name: stream.getvalue()}, partial(read_picture, name))


def read_picture(name: str, folder: Path, rng: Rng) -> None:
    from halflabel.images.decode import find_images, locate_images, read_image
    from halflabel.review.thumbnails import Thumbnails

    find_images(folder)
    locate_images([name, "../x", "", "a\0b", "/etc/passwd"], folder)
    if rng.random() < 0.5:
        image = read_image(folder / name, max_pixels=1_000_000)
        assert image.ndim == 3
        assert image.shape[0] == 3
    else:
        Thumbnails(folder, [name]).jpeg(0, "small")


# ---- small files that name classes


def lists(place: Path) -> Iterator[Reader]:
    from halflabel.labels.answers import Answer, AnswerStore

    graph = 'to,from,weight\ncat,dog,0.5\ndog,cat,\n"büé, x",cat,2\n'
    rules = 'cat,excludes,dog\n"büé, x",implies,dog\n'
    tree = {"LabelName": "x", "Subcategory": [{"LabelName": "dog", "Subcategory": [{"LabelName": "cat"}]}]}
    asked = 'image,class,probability,why,inclusion_weight\na.jpg,cat,0.25,near the threshold,0\n7,"büé, x",,,12.5\n'
    yield Reader("label graph", {"graph.csv": graph.encode()}, read_graph)
    yield Reader("rules", {"rules.csv": rules.encode()}, partial(read_rules_file, "rules.csv"))
    described = b"/m/1,cat\n/m/2,dog\n"
    hierarchy = {"tree.json": json.dumps(tree).encode(), "class-descriptions.csv": described}
    yield Reader("hierarchy", hierarchy, partial(read_rules_file, "tree.json"))
    yield Reader("questions", {"next.csv": asked.encode()}, read_questions_file)
    folder = place / "answers"
    store = AnswerStore(folder / "answers.sqlite")
    store.add(
        [Answer(f"key-{n:08}", IMAGES[n], CLASSES[n % 3], n - 1, 0.5, "near", 2.5 * n) for n in range(3)], "me", "run"
    )
    store.undo(["key-00000001"], "me")
    store.close()
    yield Reader("answers", {"answers.sqlite": (folder / "answers.sqlite").read_bytes()}, read_answers)


def read_graph(folder: Path, rng: Rng) -> None:
    from halflabel.methods.parts.label_graph import from_file

    from_file(folder / "graph.csv", small_table().classes)


def read_rules_file(name: str, folder: Path, rng: Rng) -> None:
    from halflabel.labels.rules import read_rules

    read_rules(folder / name, small_table().classes).consequences(small_table().dense())


def read_questions_file(folder: Path, rng: Rng) -> None:
    from halflabel.questions.choose import read_questions

    read_questions(folder / "next.csv", small_table())


def read_answers(folder: Path, rng: Rng) -> None:
    from halflabel.labels.answers import Answer, AnswerStore, answered_entries

    table = small_table()
    answered_entries(folder / "answers.sqlite", table)
    store = AnswerStore(folder / "answers.sqlite")
    try:
        store.label_rows(table.images, table.classes)
        store.add([Answer("key-new-1", "7", "cat", 1)], "me")
        store.undo(["key-00000000"], "me")
        store.count()
        store.changed_since((0, 0))
    finally:
        store.close()
