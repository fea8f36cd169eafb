"""Training that starts from an earlier run: resume an interrupted run, or continue a finished one with more labels."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from halflabel.evaluation.evaluate import Evaluation
from halflabel.fitting.callbacks import Callback
from halflabel.fitting.config import Config
from halflabel.labels.labels import CONTROL_SOURCE, Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train
from halflabel.system.files import absolute_path
from halflabel.system.reporter import SILENT, Reporter


class TrainingJob(NamedTuple):
    """The arguments of one training."""

    labels: Labels
    images: Path
    config: Config
    run: RunFolder
    truth: Table | None = None
    resume: bool = False

    def start(self, reporter: Reporter = SILENT, init_callback: Callback | None = None) -> Evaluation | None:
        """Train, and return the evaluation on the held-out images, if there are any."""
        evaluation = train(**self._asdict(), reporter=reporter, init_callback=init_callback)
        if self.config.begin_from:
            self.run.inherit_fill_options(RunFolder(self.config.begin_from))
        return evaluation


def resume_training(run: RunFolder, images: Path | None = None) -> TrainingJob:
    """The rest of an interrupted run, with its labels and settings; `images` if the image folder has moved."""
    config = Config.from_dict(run.read_config())
    return TrainingJob(run.read_rows(), images or Path(config.images), config, run, run.read_truth(), resume=True)


def continue_training(
    finished: RunFolder, run: RunFolder, *, answers: Labels | None = None, images: Path | None = None
) -> TrainingJob:
    """A training in the folder `run` that starts from the weights, labels and settings of a finished run.

    `answers` are more labels, such as `halflabel review` exports, by default the answers of `review` in the finished
    run; they replace earlier labels of the same entries.
    Those that name no source and answer the control questions of the finished run count as drawn at random.
    """
    config = Config.from_dict(finished.read_config())
    folder = images or Path(config.images)
    config = dataclasses.replace(config, begin_from=str(finished.folder.absolute()), images=absolute_path(folder))
    rows = finished.read_rows()
    answers = finished.read_answers() if answers is None else answers
    if answers is not None:
        rows = rows.append(_mark_control(answers, finished))
    return TrainingJob(rows, folder, config, run)


def _mark_control(answers: Labels, run: RunFolder) -> Labels:
    """Give the source of control answers to answers without a source about the control questions of a run."""
    if not run.control.exists():
        return answers
    with run.control.open(newline="", encoding="utf-8") as file:
        control_entries = {(row["image"], row["class"]) for row in csv.DictReader(file)}
    entries = zip(answers.image.tolist(), answers.column.tolist(), strict=True)
    is_control = np.array([(answers.images[i], answers.classes[c]) in control_entries for i, c in entries], bool)
    is_control &= np.array([name in ("", "person") for name in answers.sources], bool)[answers.source]
    source = np.where(is_control, len(answers.sources), answers.source).astype(np.int16)
    return dataclasses.replace(answers, source=source, sources=(*answers.sources, CONTROL_SOURCE))
