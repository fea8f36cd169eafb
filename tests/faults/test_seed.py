"""Same seed, same result: whatever the process did before."""

from dataclasses import replace
from pathlib import Path

import torch
from digit_scenes import scenes

from halflabel.fitting.config import Config
from halflabel.labels.drop import partial
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train


def test_a_methods_own_weights_are_the_seeds(tmp_path: Path) -> None:
    samples = scenes(16, size=32)
    table = partial(Table.from_dense(samples.labels, Names(samples.names), Names(samples.classes)), 0.5)
    config = Config(
        method="sst", options={"warm": 0}, backbone="tiny", size=32, held_out=0, epochs=1, batch_size=8, device="cpu"
    )
    results = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)  # what other work leaves behind
        run = RunFolder(tmp_path / str(number))
        train(table, samples.images, replace(config, seed=seed), run)
        results.append(run.weights.read_bytes())
    assert results[0] == results[1] != results[2]
