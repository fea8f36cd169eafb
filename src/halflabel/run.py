"""The run directory: everything a training run leaves behind. The only file that knows its paths."""

from __future__ import annotations

import csv
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.files import plain, replacing, write_json

if TYPE_CHECKING:
    from halflabel.labels.rows import Rows
    from halflabel.labels.table import LabelTable

__all__ = ["Run"]


_RESULTS = (
    "best.safetensors",
    "log.jsonl",
    "log.csv",
    "metrics.json",
    "per_label.csv",
    "predictions.parquet",
    "thresholds.json",
    "calibration.json",
    "bad_images.csv",
    "model_card.md",
    "repro.sh",
    "report.html",
    "scores.parquet",
    "truth.parquet",
)


class Run:
    """A folder with the settings, the log, the weights and the results of one training run.

    config.yaml     every setting, resolved                 log.jsonl, log.csv   one line per epoch
    env.json        versions and device                     metrics.json         what was measured, on what
    labels.parquet  the labels trained on, data.hash their digest
    truth.parquet   hidden labels, for the log alone
    split.parquet   which image was held out                per_label.csv        the same, per class
                                                            predictions.parquet  scores of the held-out images
    best.safetensors  the weights to use                    thresholds.json      per class, best F1 on known labels
    last/           checkpoints to resume from              calibration.json     logits to probabilities
    bad_images.csv  what could not be read                  plots/, model_card.md, report.html, repro.sh
    answers.sqlite  what people said, kept for ever         scores.parquet       scores to ask by
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def weights(self) -> Path:
        return self / "best.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self / "last"

    @property
    def plots(self) -> Path:
        return self / "plots"

    @classmethod
    def create(cls, folder: str | Path, *, force: bool = False) -> Run:
        """A new run; a folder that already holds one is refused, unless it may be overwritten. Writes nothing yet."""
        run = cls(folder)
        if run.folder.exists() and not run.folder.is_dir():
            raise UserError(f"{run.folder} is a file", "name a folder for the run with --out")
        if (run / "config.yaml").exists() and not force:
            raise UserError(
                f"{run.folder} already holds a run",
                "choose another --out, go on with --resume, or add --force to start it again",
            )
        return run

    def start(self, table: LabelTable, config: Mapping[str, Any], truth: LabelTable | None = None) -> None:
        """Clear what an earlier run left here, then write labels and settings: from now on it can be resumed."""
        import shutil

        (self / "config.yaml").unlink(missing_ok=True)
        for folder in (self.checkpoints, self.plots):
            shutil.rmtree(folder, ignore_errors=True)
        for name in _RESULTS:
            (self / name).unlink(missing_ok=True)
        self.write_labels(table)
        if truth is not None:
            from halflabel.labels import formats

            formats.write(truth, self / "truth.parquet")
        self.write_config(config)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run, or an error that says what is missing."""
        run = cls(folder)
        if not (run / "config.yaml").exists():
            raise UserError(f"{run.folder} holds no run (no config.yaml)", "name the folder that `train --out` wrote")
        return run

    def read_config(self) -> dict[str, Any]:
        import yaml

        try:
            config = yaml.safe_load((self / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{self / 'config.yaml'} cannot be read ({reason})", "train again") from None
        if not isinstance(config, dict):
            raise UserError(f"{self / 'config.yaml'} holds no settings", "train again")
        return config

    def write_config(self, config: Mapping[str, Any]) -> None:
        import yaml

        with replacing(self / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True), encoding="utf-8")

    def write_json(self, name: str, content: Any) -> None:
        write_json(self / name, content)

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{self / name} is missing or damaged", "finish the run with `train --resume`") from None

    def write_text(self, name: str, text: str) -> None:
        with replacing(self / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_env(self, device: str) -> None:
        from importlib.metadata import PackageNotFoundError, version

        versions = {}
        for package in ("halflabel", "torch", "torchvision", "timm", "accelerate", "numpy"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                versions[package] = "not installed"
        self.write_json(
            "env.json",
            {"python": sys.version.split()[0], "system": platform.platform(), "device": device, **versions},
        )

    def write_log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """The whole log, as JSON lines and as CSV."""
        self.write_text("log.jsonl", "".join(json.dumps(plain(dict(line))) + "\n" for line in lines))
        columns = list(dict.fromkeys(key for line in lines for key in line))
        self.write_csv("log.csv", columns, [[line.get(key, "") for key in columns] for line in lines])

    def read_log(self) -> list[dict[str, Any]]:
        path = self / "log.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def write_csv(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        with replacing(self / name) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows([plain(cell) for cell in row] for row in rows)

    def write_labels(self, table: LabelTable) -> None:
        """The labels trained on: a run can be resumed whatever becomes of the file they came from."""
        from halflabel.labels import formats

        formats.write(table, self / "labels.parquet")
        self.write_text("data.hash", table.digest() + "\n")

    def read_labels(self) -> LabelTable:
        """The labels trained on, checked against their digest."""
        from halflabel.labels import formats

        table = formats.read(self / "labels.parquet", format="long").table()
        if (self / "data.hash").read_text().strip() != table.digest():
            raise UserError(f"{self / 'labels.parquet'} is not what was trained on", "start a new run")
        return table

    def read_rows(self) -> Rows:
        """The labels trained on as rows, to append others to."""
        from halflabel.labels import formats

        return formats.read(self / "labels.parquet", format="long").rows

    def read_truth(self) -> LabelTable | None:
        """The hidden labels that the log compares guesses with, where they were given."""
        from halflabel.labels import formats

        path = self / "truth.parquet"
        return formats.read(path, format="long").table() if path.exists() else None

    def write_split(self, images: Sequence[str], part: NDArray[Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = np.array(["train", "validation"])[part]
        with replacing(self / "split.parquet") as temporary:
            pq.write_table(pa.table({"image": images, "part": pa.array(kind).dictionary_encode()}), temporary)

    def read_split(self) -> dict[str, int]:
        """0 for images that were trained on, 1 for those held out, by name."""
        import pyarrow.parquet as pq

        columns = pq.read_table(self / "split.parquet").to_pydict()
        return {image: int(part == "validation") for image, part in zip(*columns.values(), strict=True)}

    def write_predictions(self, images: Sequence[str], classes: Sequence[str], scores: NDArray[np.float32]) -> None:
        """One row per image with a list of C scores; the class names stand in the file's metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(np.ascontiguousarray(scores, dtype=np.float32).reshape(-1))
        table = pa.table({"image": images, "scores": pa.FixedSizeListArray.from_arrays(flat, len(classes))})
        table = table.replace_schema_metadata({"classes": json.dumps(list(classes))})
        with replacing(self / "predictions.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
