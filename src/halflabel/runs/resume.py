"""Training that starts from an earlier run: resume an interrupted run, or continue a finished one with more labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from halflabel.evaluation.evaluate import Evaluation
from halflabel.fitting.callbacks import Callback
from halflabel.fitting.config import Config
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.from_nothing import learn_from_answers
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
    """
    config = Config.from_dict(finished.read_config())
    folder = images or Path(config.images)
    config = dataclasses.replace(config, begin_from=str(finished.folder.absolute()), images=absolute_path(folder))
    rows = finished.read_rows()
    answers = finished.read_answers() if answers is None else answers
    labels = rows if answers is None else rows.append(answers)
    if not len(rows) and len(labels):
        config = learn_from_answers(config, labels.training)
    return TrainingJob(labels, folder, config, run)
