"""The table of the demo: three readings of the same photos, evaluated on photos whose labels were never used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from halflabel.cli.demo_data import DemoData, hide_labels
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.scores import Scores
from halflabel.features.heads import Head
from halflabel.fitting.assembly import Assembly, pooled_features
from halflabel.fitting.auto import choose
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import open_images
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.new_run import make_config
from halflabel.runs.predictor import Predictor
from halflabel.system.reporter import SILENT, Reporter

NAIVE = "not labelled = absent"
AUTO = "halflabel: not labelled = unknown"
COMPLETE = "all labels known (the limit)"


class Result(NamedTuple):
    """Metrics on the test photos."""

    mAP: float
    f1: float  # micro F1: all decisions together


@dataclass(frozen=True)
class TestBench:
    """Cached features of training and test photos, by which heads are fitted and evaluated in seconds."""

    data: DemoData
    training: Inputs
    test: Tensor  # (M, D)

    @classmethod
    def open(cls, data: DemoData, config: Config, cache: Path, reporter: Reporter = SILENT) -> TestBench:
        """Read the features that a run uses from its cache; compute those that the cache does not have."""
        assembly = Assembly(config)
        backbone = assembly.make_backbone()
        views = config.views(backbone)
        training, test = (
            assembly.features(
                backbone, open_images(table.images, data.photos, views), len(table.classes), cache, reporter=reporter
            )
            for table in (data.truth, data.test)
        )
        return cls(data, Inputs(lambda: training, backbone), pooled_features(test))

    def measure(self, reading: str, seed: int) -> Result:
        """Fit a head as `halflabel train` does, to the labels that a reading takes for known, and evaluate it."""
        table = self.data.truth if reading == COMPLETE else hide_labels(self.data.truth, seed=seed)
        if reading == NAIVE:
            table = _unknown_as_absent(table)
        config = make_config(choose(table.stats), {"solver": "auto", "seed": seed}, {}, "")
        fitted = fit(Labels.of(table), self.training, config)
        assert fitted.scores is not None
        return self._evaluate(fitted.model.head, evaluate(fitted.scores, table, resamples=0)[0])

    def evaluate_run(self, predictor: Predictor) -> Result:
        """Evaluate a run on the test photos, as `halflabel evaluate` does."""
        return self._evaluate(predictor.model.head, Decisions(predictor.calibration, predictor.thresholds))

    @torch.no_grad()
    def test_scores(self, predictor: Predictor) -> Tensor:
        """Return the calibrated probabilities (M, C) of the test photos."""
        logits: Tensor = predictor.model.head(self.test).logits
        return predictor.calibration.scores(logits)

    @torch.no_grad()
    def _evaluate(self, head: Head, decisions: Decisions) -> Result:
        test = self.data.test
        scores = Scores.held_out(test.images, test.classes, head(self.test).logits.numpy())
        overall = evaluate(scores, test, decisions=decisions, resamples=0)[1].overall
        return Result(overall["mAP"], overall["micro_f1"])


def _unknown_as_absent(table: Table) -> Table:
    values = np.where(table.dense() > 0, 1, -1).astype(np.int8)
    return Table.from_dense(values, table.images, table.classes)
