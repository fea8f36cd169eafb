"""Predictions of image files and folders, one after the other or written to a folder of Parquet files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from halflabel.errors import UserError
from halflabel.images.decode import find_images
from halflabel.images.items import Items
from halflabel.images.pack.read import images_not_packed
from halflabel.images.sources import Images
from halflabel.images.stored_features import StoredFeatures, holds_features, stored_names
from halflabel.labels.formats.unsupported import PREDICTION_COLUMNS
from halflabel.labels.names import Names
from halflabel.runs.predictor import Predictor
from halflabel.system import distributed
from halflabel.system.files import file_crc32
from halflabel.system.part_files import PART, PartFiles
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter

_FEWEST_FOR_WORKERS = 100  # images; with fewer, starting processes that decode takes longer than it saves


class Prediction(NamedTuple):
    """The labels of one image, most likely first; or the reason why it could not be read."""

    image: str
    labels: list[dict[str, Any]]  # class, probability, present (over its threshold)
    error: str = ""


def csv_rows(predictions: Iterable[Prediction]) -> Iterator[Sequence[str]]:
    """Yield the header, and one row for each label and for each image that could not be read."""
    yield PREDICTION_COLUMNS
    for item in predictions:
        for label in item.labels:
            yield item.image, label["class"], f"{label['probability']:.6f}", str(int(label["present"])), ""
        if item.error:
            yield item.image, "", "", "", item.error


class FileList(NamedTuple):
    """The images to predict, and the images that a pack could not store, with the reason."""

    paths: list[Path]
    unpacked: dict[str, str]
    features: Path | None = None  # a folder of features in place of the images, whose names are `paths`


def list_files(images: Sequence[str | Path], stdin: Iterable[str] = (), *, items: bool = False) -> FileList:
    """List image files and the images of folders, or of one folder of features.

    The path "-" stands for the file names in `stdin`, one per line.
    With `items` each folder is one item, whose images are scored together.
    """

    def find() -> FileList:
        files = FileList([], {})
        if len(images) == 1 and str(images[0]) != "-" and holds_features(images[0]):
            folder = local_path(images[0])
            return FileList([Path(name) for name in stored_names(folder)], {}, folder)
        for path in map(Path, images):
            if str(path) == "-":
                files.paths.extend(Path(line.rstrip("\r\n")) for line in stdin if line.strip())
            elif (path := local_path(path)).is_dir() and not items:
                files.paths.extend(find_images(path))
                files.unpacked.update(images_not_packed(path))
            else:
                files.paths.append(path)
        return files

    files = distributed.run_on_main(find)  # only one of several processes may read standard input
    if not files.paths:
        raise UserError("there are no images", "name image files, or folders with images")
    return files


def stream_predictions(
    predictor: Predictor,
    files: FileList,
    *,
    first: int = 0,
    top: int = 3,
    all_scores: bool = False,
    items: bool = False,
    reporter: Reporter = SILENT,
) -> Iterator[Prediction]:
    """Yield the predictions of the images from the number `first` on, as they are scored; then the unpacked images."""
    paths = files.paths[first:]
    options: dict[str, Any] = {"max_bad": 1.0}
    options["workers"] = predictor.config.workers if len(paths) >= _FEWEST_FOR_WORKERS else 0
    if items:
        images = [find_images(path) if path.is_dir() else [path] for path in paths]
        source: Images = Items(images, Names.numbered(len(paths)), predictor.views, **options)
    elif files.features is not None and paths:
        source = StoredFeatures(Names(map(str, paths)), files.features, predictor.views, **options)
    else:
        source = Images(paths, Names.numbered(len(paths)), predictor.views, **options)
    number = 0
    try:
        for scores in predictor.stream(source, reporter, of=len(files.paths)) if paths else ():
            for row in scores:
                if number in source.bad:
                    yield Prediction(_name(paths[number]), [], source.bad[number][2])
                else:
                    labels = predictor.labels(row, top=top, every=all_scores)
                    yield Prediction(_name(paths[number]), labels)
                number += 1
    except UserError:
        if number or len(source.bad) < len(paths):
            raise
        for path, bad in zip(paths, (source.bad[number] for number in range(len(paths))), strict=True):
            yield Prediction(_name(path), [], bad[2])
    for name, reason in islice(files.unpacked.items(), max(0, first - len(files.paths)), None):
        yield Prediction(name, [], reason)


def _name(path: Path) -> str:
    """Return a path as text; bytes that are not UTF-8 are escaped, so that any file can hold it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def predict_files(
    predictor: Predictor,
    images: Sequence[str | Path],
    stdin: Iterable[str] = (),
    *,
    items: bool = False,
    **options: Any,
) -> list[Prediction]:
    """Return the predictions of `list_files`; the options are those of `stream_predictions`."""
    return list(stream_predictions(predictor, list_files(images, stdin, items=items), items=items, **options))


def predict_to_parquet(
    predictor: Predictor, files: FileList, folder: Path, *, force: bool = False, **options: Any
) -> tuple[int, int]:
    """Write predictions to part-00000.parquet, … in a folder; return the number of images and of unreadable ones.

    The columns are those of the CSV. Each file holds the predictions of 8,192 images and is complete or not there; its
    checksum is in _predictions.json. The same call continues after an interruption; other predictions in the folder are
    only replaced with `force`.
    """
    parts = PartFiles(folder, "predictions", _made_of(predictor, files, options), force=force)
    predictions = stream_predictions(predictor, files, first=parts.images, **options)
    while parts.images < len(files.paths) + len(files.unpacked):
        part = list(islice(predictions, PART))
        parts.add(_as_table(part), len(part), sum(bool(item.error) for item in part))
        if len(part) < PART:
            break
    return parts.images, parts.bad


def _made_of(predictor: Predictor, files: FileList, options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the predictions: the model, the options and the names of the images."""
    model = hashlib.sha256(json.dumps([*predictor.calibration, predictor.thresholds.tolist()]).encode())
    for name, tensor in sorted(predictor.model.state_dict().items()):
        model.update(name.encode())
        model.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if (file := getattr(predictor.model.head, "path", None)) is not None:  # an exported ONNX file
        model.update(str(file_crc32(file)).encode())
    names = hashlib.sha256("\0".join(map(str, files.paths)).encode("utf-8", "surrogateescape"))
    chosen = {name: value for name, value in options.items() if name != "reporter"}
    return {"model": model.hexdigest()[:16], "images": names.hexdigest()[:16], "part": PART, **chosen}


def _as_table(predictions: list[Prediction]) -> Any:
    """Return the predictions as a pyarrow table."""
    rows: list[tuple[Any, ...]] = []
    for item in predictions:
        rows += [(item.image, each["class"], each["probability"], each["present"], "") for each in item.labels]
        rows += [(item.image, None, None, None, item.error)] if item.error else []
    types = (pa.string(), pa.string(), pa.float32(), pa.bool_(), pa.string())
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(PREDICTION_COLUMNS))
