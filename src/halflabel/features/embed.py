"""Features in Parquet files: written by `halflabel embed`, and checked against the backbone of a head (`Assembly`)."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from halflabel.errors import UserError
from halflabel.features.backbones import Backbone, fingerprint
from halflabel.features.feature_cache import cache_features
from halflabel.images.sources import Features, Images, sequential_plan
from halflabel.images.stored_features import METADATA, StoredFeatures, describe_features, holds_features
from halflabel.system.part_files import PART, PartFiles
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter


def options_of_features(images: str | Path) -> dict[str, Any]:
    """Return the options that features in place of images decide: backbone, size, resize, channels; none for images."""
    if not images or not holds_features(images):
        return {}
    about = describe_features(local_path(images))
    return dict(about.get("config") or {"backbone": f"features-{about['dimensions']}"})


def checked_features(source: StoredFeatures, backbone: Backbone) -> Features:
    """Return the features of a source; a UserError if this backbone has not made them."""
    about, folder = source.about, source.folder
    if "config" not in about:
        if backbone.name != (name := f"features-{about['dimensions']}"):
            raise UserError(f"{folder} does not say that {backbone.name} made its features", f"add ‹backbone={name}›")
    elif about["fingerprint"] != fingerprint(backbone) or about["view"] != source.views["plain"].describe():
        raise UserError(
            f"the features in {folder} are not those of this {backbone.name}: backbone, weights or image size differ",
            f"use the options of `embed`: {', '.join(f'{name} {value}' for name, value in about['config'].items())}",
        )
    return source.features


def write_features(
    backbone: Backbone,
    source: Images,
    folder: Path,
    config: dict[str, Any],
    *,
    device: torch.device | str = "cpu",
    force: bool = False,
    reporter: Reporter = SILENT,
) -> tuple[int, int]:
    """Write the features of all images to part-00000.parquet, …; return the number of images and of unreadable ones.

    The columns are image, features (a list of D float16, null for an unreadable image), error, and the digest of the
    content of the image. `config` holds the options that decide the features. They are first cached in the folder, so
    that the same call continues after an interruption.
    """
    view = source.views["plain"].describe()
    about: dict[str, Any] = {"config": config, "fingerprint": fingerprint(backbone), "view": view}
    images = hashlib.sha256(source.hashes.tobytes() + source.digest().encode()).hexdigest()[:16]
    parts = PartFiles(folder, "features", {**about, "images": images}, force=force)
    if parts.images < len(source):
        about["dimensions"] = backbone.width(maps=False)
        cache = folder / "_unfinished"
        features = cache_features(backbone, source, cache, device=device, reporter=reporter)
        for rows in sequential_plan(len(source), PART)[parts.images // PART :]:
            errors = {number: source.bad[int(row)][2] for number, row in enumerate(rows) if int(row) in source.bad}
            table = _as_table(source.names.take(rows).array, np.asarray(features.values[rows]), errors, about)
            table = table.append_column("digest", pa.array(source.digests[rows]))
            parts.add(table, len(rows), len(errors))
        shutil.rmtree(cache)
    return parts.images, parts.bad


def _as_table(names: Any, values: np.ndarray[Any, Any], bad: dict[int, str], about: dict[str, Any]) -> Any:
    is_bad = np.zeros(len(values), np.bool_)
    is_bad[list(bad)] = True
    flat = pa.array(values.reshape(-1), pa.float16())
    features = pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(is_bad))
    errors = pa.array([bad.get(number, "") for number in range(len(values))], pa.string())
    table = pa.table({"image": names.cast(pa.string()), "features": features, "error": errors})
    return table.replace_schema_metadata({METADATA: json.dumps(about)})
