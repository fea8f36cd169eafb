"""The .npy files of the single-positive literature: formatted_<split>_images, _labels and _labels_obs.

`_images` (N,) names the images. `_labels` (N, C) is complete: 1 present, 0 absent. `_labels_obs` (N, C) holds the
observed labels: 1 present, −1 absent, 0 unknown. classes.txt, if it exists, has one class name per line. The layout is
that of Cole et al., "Multi-Label Learning from Single Positive Labels" (CVPR 2021), released code.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halflabel.errors import LabelError, error_summary
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import check_exists, choose_split, distinct_names, existing_path, read_lines
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import Policy

USES = ("split",)

_FIX_IMAGES = "save a different name for each image, with numpy.save: np.array(names, dtype=str)"
_FILE = re.compile(r"formatted_(.+)_(images|labels|labels_obs)\.npy")


def sniff(path: Path) -> bool:
    try:
        return bool(_splits(path)) if path.is_dir() else bool(_FILE.fullmatch(path.name))
    except OSError:
        return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the observed labels if they exist, else the complete ones; or exactly the named file of labels."""
    split, labels_file = _choose_file(path, policy.split)
    folder, observed = labels_file.parent, labels_file.name.endswith("_obs.npy")
    images_file, classes_file = folder / f"formatted_{split}_images.npy", folder / "classes.txt"
    images, labels = _load_images(images_file), _load_labels(labels_file, observed)
    if len(labels) != len(images):
        message = f"there are {len(labels)} rows of labels for the {len(images)} images of {images_file.name}"
        raise LabelError(message, "save images and labels of the same split together", labels_file)
    audit = Audit("single-positive", [str(images_file), str(labels_file)])
    classes = Names.numbered(labels.shape[1])
    if classes_file.is_file():
        audit.files.append(str(classes_file))
        lines = enumerate(read_lines(existing_path(classes_file)), 1)
        named = ((number, name) for number, line in lines if (name := line.rstrip("\r\n")))
        classes = Names(distinct_names(named, classes_file))
        if len(classes) != labels.shape[1]:
            message = f"there are {len(classes)} names for {labels.shape[1]} classes"
            raise LabelError(message, "write one name per line", classes_file)
    else:
        audit.note("there is no classes.txt: the classes are named by their number, from 0")
    full = folder / f"formatted_{split}_labels.npy"
    if observed and full.is_file():
        audit.note(f"the complete labels in {full.name} are not read; name that file to read them instead")
    value = np.where(labels == 1, 1, np.where(labels == (-1 if observed else 0), -1, 0))
    for raw, meaning, number in (("1", "present", 1), ("-1" if observed else "0", "absent", -1), ("0", "unknown", 0)):
        audit.add(raw, meaning, int(np.count_nonzero(value == number)))
    image, column = np.nonzero(value)
    return LabelImport(Labels.build(images, classes, image, column, value[image, column]), audit)


def _splits(folder: Path) -> list[str]:
    names = (_FILE.fullmatch(file.name) for file in folder.glob("formatted_*_images.npy"))
    return sorted(match[1] for match in names if match)


def _choose_file(path: Path, stated_split: str | None) -> tuple[str, Path]:
    check_exists(path)
    folder = path if path.is_dir() else path.parent
    splits = _splits(folder)
    if not splits:
        raise LabelError("there is no formatted_<split>_images.npy here", "name the folder with the images", folder)
    if path.is_file():
        split = _split_of(path.name, splits)
        if split is None or stated_split not in (None, split):
            message = f"this file belongs to none of the splits {', '.join([stated_split] if stated_split else splits)}"
            raise LabelError(message, "name the folder, or leave ‹split› out", path)
        if not path.name.endswith("_images.npy"):
            return split, path
    else:
        split = choose_split(splits, stated_split, path)
    # Later code of the same authors adds the observation scheme: formatted_train_uniform_labels_obs.npy.
    names = sorted(file.name for file in folder.glob("formatted_*_labels_obs.npy"))
    observed = [name for name in names if _split_of(name, splits) == split]
    if len(observed) > 1:
        raise LabelError(f"there are {', '.join(observed)}", "name the file to read, instead of the folder", path)
    return split, folder / (observed[0] if observed else f"formatted_{split}_labels.npy")


def _split_of(name: str, splits: list[str]) -> str | None:
    """The split of a file: the longest split name that its name starts with."""
    fitting = (split for split in splits if name.startswith(f"formatted_{split}_"))
    return max(fitting, key=len, default=None) if _FILE.fullmatch(name) else None


def _load_array(path: Path, dimensions: int, kinds: str, fix: str) -> NDArray[Any]:
    """The array in an .npy file; it is never unpickled and never larger than the file."""
    existing_path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2 can be read too
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a header is Python source: a damaged one raises nearly anything
        raise LabelError(f"cannot be read as .npy ({error_summary(error):.80})", fix, path) from None
    if array.size > path.stat().st_size:  # entries of 0 bytes
        raise LabelError(f"the file cannot hold {array.size} entries", fix, path)
    if array.ndim != dimensions or array.dtype.kind not in kinds:
        raise LabelError(f"this is an array of {array.dtype} with {array.ndim} dimensions", fix, path)
    if not all(array.shape):
        raise LabelError("there are no images or no classes", fix, path)
    return np.asarray(array)


def _load_images(path: Path) -> Names:
    names = _load_array(path, 1, "USiu", _FIX_IMAGES)
    try:
        texts = [name.decode() for name in names.tolist()] if names.dtype.kind == "S" else names.astype(str).tolist()
        array = pa.array(texts, pa.string())
        array.validate(full=True)  # an array may contain code points beyond Unicode
    except (UnicodeError, ValueError, SystemError):  # NumPy raises SystemError for code points far beyond Unicode
        raise LabelError("a name is not Unicode text", "save the names again, as strings", path) from None
    if "" in texts:
        raise LabelError("an image has no name", _FIX_IMAGES, path)
    if (twice := first_duplicate(texts)) is not None:
        raise LabelError(f"two images are called {twice!r}", _FIX_IMAGES, path)
    return Names(array)


def _load_labels(path: Path, observed: bool) -> NDArray[Any]:
    fix = "save one number per image and class, with numpy.save: an array (images, classes)"
    labels = _load_array(path, 2, "biuf", fix)
    with np.errstate(invalid="ignore"):  # NaN is reported below
        is_label = (labels == 0) | (labels == 1) | (observed & (labels == -1))
    if not is_label.all():
        row, column = np.argwhere(~is_label)[0].tolist()
        fix = f"use 1 present, {'-1 absent, 0 unknown' if observed else '0 absent; unknowns are in a _labels_obs.npy'}"
        raise LabelError(f"{labels[row, column]} is not a label", fix, path, column=f"[{row}, {column}]")
    return labels
