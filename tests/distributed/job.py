"""The work that two processes do together and the tests do in one; `torchrun job.py FOLDER` writes each one's results.

Tiny networks in double precision, so that a sum taken in another order cannot be seen.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from halflabel import cli
from halflabel.errors import UserError
from halflabel.features.heads import Head, Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.fitting.step import OptimizerStep
from halflabel.images.sources import Arrays, Features
from halflabel.images.views import Plain, Strong, Weak
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, recipes, seeded
from halflabel.system import distributed, memory
from halflabel.types import Output

N, SIDE, D, C = 37, 8, 6, 5
PLAIN = Config(epochs=3, batch_size=12, lr=0.1, optimizer="sgd", schedule="constant", device="cpu")


class Small(nn.Module):
    """A convolution and batch norm: (B, 3, 8, 8) uint8 -> (B, D, 4, 4) in double precision."""

    channels = D

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, D, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(D)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Sequential(nn.Conv2d(D, D, 1))
        self.double()

    def forward(self, view: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.conv(view.to(self.conv.weight.dtype) / 128 - 1)))
        features: Tensor = hidden + F.gelu(self.second(self.dropout(hidden)))
        return features

    pooled = forward


class Widened(nn.Module):
    """A head that computes in double precision."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.needs_maps = head.needs_maps
        self.inner = head.double()

    def forward(self, features: Tensor) -> Output:
        output: Output = self.inner(features.double())
        return output


def labels(kind: str = "partial") -> Table:
    rng = np.random.default_rng(1)
    known = rng.choice([-1, 0, 1], size=(N, C), p=[0.3, 0.4, 0.3])
    if kind == "some images":
        known[::3] = 0
    return Table.from_dense(known)


def images() -> Arrays:
    views = {"plain": Plain(SIDE), "weak": Weak(SIDE), "strong": Strong(SIDE)}
    pixels = np.random.default_rng(0).integers(0, 256, (N, 3, SIDE, SIDE), dtype=np.uint8)
    return Arrays(torch.from_numpy(pixels), labels().images, views)


def features(bad: tuple[int, ...] = ()) -> Features:
    values = np.random.default_rng(2).standard_normal((N, D)).astype(np.float32)
    return Features(values, labels().images, bad)


def model(method: Any, *, backbone: bool = True, dropout: float = 0.0, single: bool = False) -> Model:
    def make() -> nn.Module:
        head: Any = method.head(D, C)
        net = Model(Small(dropout) if backbone else None, head if single else Widened(head))
        return net.float() if single else net

    seeded_model = seeded(4, make)
    assert isinstance(seeded_model, Model)
    return seeded_model


def train(
    name: str,
    options: dict[str, Any] | None = None,
    *,
    frozen: bool = False,
    bad: tuple[int, ...] = (),
    kind: str = "partial",
    folder: Path | None = None,
    resume: bool = False,
    single: bool = False,
    judged: bool = True,
    **settings: Any,
) -> dict[str, Tensor]:
    """The weights, the method's state and the losses after a short training."""
    method = recipe(name).make(**(options or {}))
    table = labels(kind)
    source = features(bad) if frozen else images()
    net = model(method, backbone=not frozen, single=single)
    training_settings = replace(PLAIN, **settings)
    validation = features() if frozen else images()

    validations = 0

    def judge(logits: Tensor) -> dict[str, float]:
        nonlocal validations
        validations += 1  # so that the last epoch is the best
        return {"select": float(validations), "mean": float(logits.mean()), "size": float(len(logits))}

    measures = judge if judged else None
    fitted = fit(
        net,
        method,
        source,
        table,
        training_settings,
        validation=validation,
        judge=measures,
        folder=folder,
        resume=resume,
    )
    result = {f"model.{key}": value for key, value in fitted.weights.items()}
    result |= {f"method.{key}": value for key, value in method.state_dict().items()}
    result["losses"] = torch.tensor([line["loss"] for line in fitted.log], dtype=torch.float64)
    if judged:
        result["measured"] = torch.tensor([[line["mean"], line["size"]] for line in fitted.log], dtype=torch.float64)
    return {key: value.detach().clone().contiguous() for key, value in result.items()}


def sweep() -> dict[str, Tensor]:
    """Scores of all images, with Monte-Carlo dropout passes."""
    method = recipe("plcl").make(dropout=0.5, gnn=False)
    net = model(method, backbone=True)
    return {
        name: value
        for name, value in score_source(net, images(), batch_size=5, passes=4, seed=3)._asdict().items()
        if value is not None
    }


def sweep_of_few() -> dict[str, Tensor]:
    """Scores in scratch files, where the second of two processes can read none of its images."""
    bad = [image for first in range(5, N, 10) for image in range(first, min(first + 5, N))]
    net = model(recipe("bce").make(), backbone=False)
    large, sent = memory._SCRATCH_BYTES, distributed._BLOCK_BYTES
    memory._SCRATCH_BYTES, distributed._BLOCK_BYTES = 1, 50  # two rows of logits at a time
    try:
        scored = score_source(net, features((1, *bad)), batch_size=5)
    finally:
        memory._SCRATCH_BYTES, distributed._BLOCK_BYTES = large, sent
    return {"logits": scored.logits, "features": scored.features}


def dropped() -> dict[str, Tensor]:
    """A network with dropout and a method that draws random numbers: other noise per slice, equal draws in all."""
    method = recipe("ss-rml").make(start=1, every=1)
    table, source = labels("some images"), images()
    # Slices of 7 and 6 images: they take different amounts of noise.
    fitted = fit(model(method, dropout=0.5), method, source, table, replace(PLAIN, batch_size=13))
    losses = torch.tensor([line["loss"] for line in fitted.log], dtype=torch.float64)
    weights = {f"model.{key}": value for key, value in fitted.weights.items()}
    return {**weights, **method.state_dict(), "losses": losses}


# The last batch of 37 images in batches of 12 has one: one process has none of it.
CASES: dict[str, Callable[[], dict[str, Tensor]]] = {
    "bce": lambda: train("bce"),
    "adamw, clipped, averaged": lambda: train("bce", optimizer="adamw", clip=0.05, ema=0.9, lr=1e-3),
    "unreadable": lambda: train("bce", frozen=True, bad=tuple(range(0, N, 3)) + tuple(range(20)), batch_size=4),
    "curriculum": lambda: train("plcl", {"strategy": "a", "theta": 0.01, "dropout": 0.0, "relabel_at": "2,3"}),
    "ensemble": lambda: train("plcl", {"strategy": "d", "theta": 0.01, "dropout": 0.0, "gnn": False}),
    "role": lambda: train("role", kind="some images"),
    "imcl": lambda: train("imcl", {"logistic_share": 0.3, "dictionary": 20, "k": 2}),
    "ss-rml": lambda: train("ss-rml", {"start": 1, "every": 1}, kind="some images"),
    "srcr": lambda: train("srcr", {"k": 2}, batch_size=13),
    "weights charged": lambda: train("l2r", {"strength": 0.01, "of": "weights"}),
    "role, adamw, clipped": lambda: train("role", optimizer="adamw", clip=0.05, lr=1e-3),
    "sweep": sweep,
    "sweep of few": sweep_of_few,
}


def every_method() -> dict[str, Tensor]:
    """One epoch of every method, in single precision, as some methods support no other."""
    results = {}
    for name, method_recipe in recipes().items():
        options = {"dropout": 0.0} if "dropout" in method_recipe.options else {}  # it is drawn for each slice
        if name == "fast0tag":
            options = {}  # a linear map has none
        if "passes" in method_recipe.options:
            options["strategy"] = "a"
        state = train(name, options, epochs=1, lr=0.01, single=True)
        results |= {f"{name}.{key}": value for key, value in state.items()}
    return results


def agreed() -> dict[str, Tensor]:
    """Different tensors become those of the first process, and its UserError is raised in all."""

    def fail() -> None:
        raise UserError("the first fails", "so do all")

    values = {"sum": torch.arange(4.0), "order": torch.tensor([1.0, 2.0]), "same": torch.ones(3, dtype=torch.int64)}
    if distributed.rank() == 1:
        values["sum"][2] += 1e-6
        values["order"] = values["order"].flip(0)
    differed = distributed.synchronize(values.values())
    try:
        distributed.run_on_main(fail)
    except UserError as error:
        message = str(error)
    return {**values, "differed": torch.tensor(differed), "message": torch.tensor(list(message.encode()))}


NOISY = {
    "every method": every_method,
    "dropped": dropped,
    "agreed": agreed,
}


def resumed(folder: Path, epochs: int, resume: bool) -> dict[str, Tensor]:
    """A training with checkpoints, which may be resumed with another number of processes."""
    return train("role", folder=folder / "resumed", epochs=epochs, resume=resume, judged=False)


def commands(folder: Path) -> list[list[str]]:
    """Command lines on the photos and labels in `folder`; one photo cannot be read."""
    data, run = f"{folder}/labels.csv {folder}/photos --minus-one absent", folder / "run"
    lines = (
        f"train {data} --method bce --out {run} --epochs 4 --size 32 {QUICK}",
        f"evaluate {run} {data} --out {folder}/measured.json",
        f"predict {run} {folder}/photos --format csv --all",
        f"fill {run} {folder}/photos --precision 0.6 --confidence 0.6 --out {run}/filled.csv",
    )
    return [line.split() for line in lines]


QUICK = "--max-bad 0.1 --workers 0 --set device=cpu --fit=batches --batch-size 8 --lr=0.01"


def broken_off(folder: Path) -> list[str]:
    """A longer training, on the same cache."""
    data = f"{folder}/labels.csv {folder}/photos --minus-one absent"
    return f"train {data} --method role --out {folder}/broken --epochs 6 --size 32 {QUICK}".split()


def run_command(words: list[str]) -> None:
    sys.argv = ["halflabel", *words]
    with suppress(SystemExit):  # more commands follow
        cli.main()


def make_photos(folder: Path) -> None:
    """Forty photos of three separable classes, one of them not an image, and most of their labels."""
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    rows = ["image,class,value"]
    for number in range(40):
        file = folder / "photos" / f"p{number:02d}.png"
        red, bright, striped = number % 2 == 0, number % 3 == 0, number % 5 < 2
        pixels = np.full((32, 32, 3), 200 if bright else 60)
        pixels[..., 0] = 250 if red else 10
        pixels[:: 4 if striped else 100] = 0
        pixels = (pixels + rng.integers(0, 20, pixels.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file)
        if number == 7:
            file.write_bytes(b"no photo")
        known = {"red": red, "bright": bright, "striped": striped}
        rows += [f"{file.name},{name},{1 if is_so else -1}" for name, is_so in known.items() if rng.random() < 0.7]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def main(folder: Path) -> None:
    """Run all cases; each process writes its own result files. At the end one process is killed."""
    distributed.initialize()
    cases = {**CASES, **NOISY, "resumed": lambda: resumed(folder, 4, True)}
    for name, case in cases.items():
        save_file({key: value.contiguous() for key, value in case().items()}, result(folder, name, distributed.rank()))
    distributed.shut_down = lambda: None  # more commands follow
    for words in commands(folder):
        run_command(words)
    update, updates = OptimizerStep.update, 0

    def update_and_kill(self: Any) -> None:
        nonlocal updates
        update(self)
        updates += 1
        if updates == 10 and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    OptimizerStep.update = update_and_kill  # type: ignore[method-assign]
    run_command(broken_off(folder))


def result(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}.{rank}.safetensors"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
