"""Images of three colours, their labels, and short trainings on them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train

N = 24
CLASSES = ["red", "green", "blue"]
HEAD = Config(method="bn-bce", backbone="tiny", size=32, held_out=0.25, epochs=3, batch_size=8, lr=0.05, device="cpu")
ALL = dataclasses.replace(HEAD, tune="all", lr=0.01, save_every=1)


def paint(n: int = N) -> tuple[torch.Tensor, Table]:
    """Pictures whose red, green and blue are bright or not: labels that a network of any kind can learn."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(n, 3))
    labels[:3] = 2 * np.eye(3, dtype=int) - 1
    pictures = np.clip(128 + 80 * labels[:, :, None, None] + rng.normal(0, 40, (n, 3, 36, 40)), 0, 255).astype(np.uint8)
    table = Table.from_dense(labels, [f"{i:02d}.png" for i in range(n)], CLASSES)
    return torch.from_numpy(pictures), table


def write_folder(folder: Path, bad: tuple[int, ...] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(paint()[0]):
        path = folder / f"{number:02d}.png"
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
        if number in bad:
            path.write_bytes(path.read_bytes()[:300])
    return folder


TABLE = paint()[1]


def go(out: Path, images: Path | torch.Tensor, config: Config = HEAD, table: Table = TABLE, **more: Any) -> Any:
    return train(table, images, config, RunFolder(out), **more)


def weights(out: Path) -> bytes:
    return (out / "best.safetensors").read_bytes()


LINEAR_INIT = dataclasses.replace(ALL, linear_init=2)
