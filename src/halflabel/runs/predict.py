"""Predictions of image files and folders, one after the other or written to a folder of Parquet files."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.images.decode import find_images
from halflabel.images.file_identity import digest_contents
from halflabel.images.items import Items
from halflabel.images.pack.read import find_packed_image
from halflabel.images.sources import Images
from halflabel.images.stored_features import StoredFeatures, holds_features, stored_names
from halflabel.labels.formats._sheets import parquet_files
from halflabel.labels.formats.unsupported import PREDICTION_COLUMNS
from halflabel.labels.names import Names
from halflabel.system import distributed
from halflabel.system.files import atomic_write, file_crc32
from halflabel.system.part_files import PART, PartFiles
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from halflabel.runs.model import Model

_PART_ENTRIES = 1 << 24  # probabilities of a file
_FEWEST_FOR_WORKERS = 100  # images; with fewer, starting processes that decode takes longer than it saves


class Prediction(NamedTuple):
    """The labels of one image, most likely first; or the reason why it could not be read."""

    image: str
    labels: list[dict[str, Any]]  # class, probability, present (over its threshold)
    error: str = ""

    def __repr__(self) -> str:
        labels = (f"{each['class']} {each['probability']:.2f}{'*' * each['present']}" for each in self.labels)
        return f"<{self.image}: {self.error or ', '.join(labels)}>"


def csv_rows(item: Prediction) -> Iterator[Sequence[str]]:
    """Yield one row for each label, or one for an image that could not be read."""
    for label in item.labels:
        yield item.image, label["class"], f"{label['probability']:.6f}", str(int(label["present"])), ""
    if item.error:
        yield item.image, "", "", "", item.error


class FileList(NamedTuple):
    """The images to predict."""

    paths: list[Path] | Names
    features: Path | None = None  # a folder of features in place of the images, whose names are `paths`

    @property
    def missing(self) -> list[str]:
        """The named files that do not exist."""
        named = () if self.features is not None else map(Path, self.paths)
        return [_name(path) for path in named if not path.exists() and find_packed_image(path) is None]


def list_files(images: Sequence[str | Path], stdin: Iterable[str] = (), *, items: bool = False) -> FileList:
    """List image files and the images of folders, or of one folder of features.

    The path "-" stands for the file names in `stdin`, one per line.
    With `items` each folder is one item, whose images are scored together.
    """

    def find() -> FileList:
        paths = list[Path]()
        if len(images) == 1 and str(images[0]) != "-" and holds_features(images[0]):
            return FileList(stored_names(folder := local_path(images[0])), folder)
        for path in map(Path, images):
            if str(path) == "-":
                paths.extend(Path(line.rstrip("\r\n")) for line in stdin if line.strip())
            elif (path := local_path(path)).is_dir() and not items:
                paths.extend(find_images(path))
            else:
                paths.append(path)
        return FileList(paths)

    files = distributed.run_on_main(find)  # only one of several processes may read standard input
    if not len(files.paths):
        raise UserError("there are no images", "name image files, or folders with images")
    return files


def stream_predictions(
    model: Model,
    files: FileList,
    *,
    top: int = 3,
    all_scores: bool = False,
    items: bool = False,
    reporter: Reporter = SILENT,
) -> Iterator[Prediction]:
    """Yield the predictions of the images, as they are scored."""
    for names, scores, errors in _score(model, files, first=0, items=items, reporter=reporter):
        for number, (name, row) in enumerate(zip(names, scores, strict=True)):
            error = errors.get(number, "")
            labels = [] if error else model.labels(row, top=top, every=all_scores)
            yield Prediction(name, labels, error)


class _Block(NamedTuple):
    """The probabilities (B, C) of some images, NaN for unreadable ones; and by number, why these cannot be read."""

    names: list[str]
    scores: Tensor
    errors: dict[int, str]


def _score(model: Model, files: FileList, *, first: int, items: bool, reporter: Reporter) -> Iterator[_Block]:
    """Yield the probabilities of the images from the number `first` on, block by block."""
    options: dict[str, Any] = {"max_bad": 1.0}
    source: Images
    if files.features is not None:
        assert isinstance(files.paths, Names)
        names = files.paths.take(np.arange(first, len(files.paths)))
        source = StoredFeatures(names, files.features, model.views, **options)
    else:
        paths = [*islice(map(Path, files.paths), first, None)]
        names = Names.numbered(len(paths))
        if items:
            images = [find_images(path) if path.is_dir() else [path] for path in paths]
            source = Items(images, names, model.views, **options)
        else:
            options["workers"] = model.config.workers if len(paths) >= _FEWEST_FOR_WORKERS else 0
            source = Images(paths, names, model.views, **options)
    listed: Iterable[Path | str] = files.paths
    written, number = map(_name, islice(listed, first, None)), 0
    try:
        for scores in model.stream(source, reporter, of=len(files.paths)) if len(source) else ():
            for rows in torch.split(scores, PART):
                errors = {k: source.bad[number + k][2] for k in range(len(rows)) if number + k in source.bad}
                number += len(rows)
                yield _Block([*islice(written, len(rows))], rows, errors)
    except UserError:
        if number or len(source.bad) < len(source):
            raise
        scores = torch.full((len(source), len(model.classes)), math.nan)
        yield _Block([*written], scores, {number: reason for number, (_, _, reason) in source.bad.items()})


def _name(path: Path | str) -> str:
    """Return a path as text; bytes that are not UTF-8 are escaped, so that any file can hold it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def predict_to_parquet(
    model: Model,
    files: FileList,
    out: Path,
    *,
    top: int = 3,
    all_scores: bool = False,
    items: bool = False,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> tuple[int, int]:
    """Write predictions to part-00000.parquet, … in a folder; return the number of images and of unreadable ones.

    The columns are those of the CSV. With `all_scores` there is one row per image instead, with image, probabilities (a
    list of C float32 in the order of the classes, null for an unreadable image) and error; classes and thresholds are
    JSON lists in the metadata of each file. The same call continues after an interruption; other predictions in the
    folder are only replaced with `force`. A name that ends in .parquet is one file, written as a whole.
    """
    as_table = partial(_wide_table, model) if all_scores else partial(_long_table, model, top)

    def blocks(first: int) -> Iterator[_Block]:
        scored = _score(model, files, first=first, items=items, reporter=reporter)
        largest = min(PART, max(1, _PART_ENTRIES // len(model.classes)))
        while part := _take(scored, largest):
            yield part

    if out.suffix == ".parquet":
        count = bad = 0
        with atomic_write(out) as temporary, ExitStack() as stack:
            for part in blocks(0):
                table = as_table(part)
                if not count:
                    writer = stack.enter_context(pq.ParquetWriter(temporary, table.schema))
                writer.write_table(table)
                count, bad = count + len(part.names), bad + len(part.errors)
        return count, bad
    made_of = _made_of(model, files, {"top": top, "all_scores": all_scores, "items": items})
    parts = PartFiles(out, "predictions", made_of, force=force)
    for part in blocks(parts.images):
        parts.add(as_table(part), len(part.names), len(part.errors))
    return parts.images, parts.bad


def _take(blocks: Iterator[_Block], images: int) -> _Block | None:
    """Join the next blocks until they have so many images; None after the last."""
    names, scores, errors = list[str](), list[Tensor](), dict[int, str]()
    while len(names) < images and (block := next(blocks, None)) is not None:
        errors |= {len(names) + number: error for number, error in block.errors.items()}
        names += block.names
        scores.append(block.scores)
    return _Block(names, torch.cat(scores), errors) if names else None


def _made_of(model: Model, files: FileList, options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the predictions: the model, the options, and the names and contents of the images."""
    digest = hashlib.sha256(json.dumps([*model.calibration, model.thresholds.tolist()]).encode())
    for name, tensor in sorted(model.network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if (file := getattr(model.network.head, "path", None)) is not None:  # an exported ONNX file
        digest.update(str(file_crc32(file)).encode())
    names = [str(path) for path in files.paths]
    if files.features is not None:
        read = [str(path) for path in parquet_files(files.features)]
    else:  # in place of images in a pack, its index, which holds their checksums
        read = names + sorted({os.path.join(os.path.dirname(name), "index.arrow") for name in names})
    images = hashlib.sha256("\0".join([*names, digest_contents(read)]).encode("utf-8", "surrogateescape"))
    return {"model": digest.hexdigest()[:16], "images": images.hexdigest()[:16], "part": PART, **options}


def _wide_table(model: Model, block: _Block) -> pa.Table:
    """Return the probabilities of all classes, one row per image."""
    errors = [block.errors.get(number, "") for number in range(len(block.names))]
    flat = pa.array(block.scores.contiguous().numpy().reshape(-1))
    is_bad = pa.array([bool(error) for error in errors], pa.bool_())
    lists = pa.FixedSizeListArray.from_arrays(flat, len(model.classes), mask=is_bad)
    columns = {"image": block.names, "probabilities": lists, "error": errors}
    metadata = {"classes": json.dumps([*model.classes]), "thresholds": json.dumps(model.thresholds.tolist())}
    return pa.table(columns).replace_schema_metadata(metadata)


def _long_table(model: Model, top: int, block: _Block) -> pa.Table:
    """Return the likely labels of each image, most likely first, as `Model.labels`; one row per label."""
    order = torch.argsort(block.scores, descending=True, stable=True)
    present = (block.scores >= model.thresholds).gather(1, order)
    is_shown = present | (torch.arange(order.shape[1]) < top)
    bad = list(block.errors)
    is_shown[bad] = False
    is_shown[bad, 0] = True  # the row of the error
    image, rank = np.nonzero(is_shown.numpy())
    errors = pa.array([block.errors.get(number, "") for number in range(len(block.names))], pa.string()).take(image)
    is_bad = np.isin(image, bad)
    columns = (
        pa.array(block.names, pa.string()).take(image),
        model.classes.array.take(pa.array(order[image, rank].numpy(), mask=is_bad)),
        pa.array(block.scores.gather(1, order)[image, rank].numpy(), mask=is_bad),
        pa.array(present[image, rank].numpy(), mask=is_bad),
        errors,
    )
    return pa.table(columns, names=list(PREDICTION_COLUMNS))
