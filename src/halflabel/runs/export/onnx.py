"""ONNX: one file that takes images as they come out of a decoder and gives calibrated probabilities.

Input `images` (B, 3, S, S) uint8, RGB, already resized; outputs `logits` and `probabilities` (B, C) float32. The
normalisation and the calibration are inside the graph; the classes, the thresholds and how to resize stand in
`metadata_props`, each value as JSON.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.metrics.calibration import Platt
from halflabel.models.heads import Model
from halflabel.runs.export.about import About
from halflabel.runs.predictor import Predictor
from halflabel.system.files import replacing

__all__ = ["TOLERANCE", "Parity", "Served", "export_onnx", "need", "probes", "write_onnx"]

TOLERANCE = 1e-4
_BATCHES = (1, 3)


class Parity(NamedTuple):
    """How far ONNX Runtime is from PyTorch on the same images, at worst."""

    logits: float  # |x − y| / max(1, |x|)
    probabilities: float  # |p − q|
    images: int


class Served(nn.Module):
    """What goes into the file: (B, 3, S, S) uint8 -> logits x and probabilities σ(slope · x + offset), both (B, C).

    With `mirror`, x is the mean over the image and its mirror image.
    """

    def __init__(self, model: Model, platt: Platt, *, mirror: bool = False) -> None:
        super().__init__()
        self.model = model
        self.platt = platt
        self.mirror = mirror

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(images).logits
        if self.mirror:
            logits = (logits + self.model(images.flip(-1)).logits) / 2
        return logits, self.platt.scores(logits)


def export_onnx(predictor: Predictor, path: Path, *, tolerance: float = TOLERANCE) -> Parity:
    """Write a trained run to an .onnx file, once ONNX Runtime gives what PyTorch gives; returns how close it is."""
    model = getattr(predictor, "model", None)
    if model is None:
        raise UserError("this is an ONNX file already", "name the run, or the folder that was exported for the Hub")
    return write_onnx(model, About.of(predictor), path, tolerance=tolerance)


def write_onnx(model: Model, about: About, path: Path, *, tolerance: float = TOLERANCE) -> Parity:
    """Write model and About to one file, whole or not at all; a file that computes something else is refused."""
    if path.suffix != ".onnx":
        raise UserError(f"{path.name} does not end in .onnx", "name the file model.onnx")
    onnx = need("onnx")
    need("onnxscript")
    need("onnxruntime")
    # A copy: the model itself may be on a GPU, in another memory layout, and is not ours to change.
    plain = copy.deepcopy(model).cpu().float().to(memory_format=torch.contiguous_format)
    served = Served(plain, about.calibration, mirror=about.mirror).eval()
    proto = _translate(served, about.view.size)
    _name_batch(proto)
    onnx.helper.set_model_props(proto, {key: json.dumps(value) for key, value in about.as_dict().items()})
    with replacing(path) as temporary:
        try:
            onnx.checker.check_model(proto)
            temporary.write_bytes(proto.SerializeToString())
        except ValueError as error:  # protobuf holds 2 GB
            raise UserError(f"the model is too large for one ONNX file ({error})", "use a smaller backbone") from None
        parity = _compare(served, temporary, about.view.size)
        if not max(parity.logits, parity.probabilities) <= tolerance:  # NaN is not close either
            raise UserError(
                f"ONNX Runtime differs from PyTorch by {parity.logits:.2g} in the logits and "
                f"{parity.probabilities:.2g} in the probabilities, over {tolerance:g}: {path} was not written",
                "update onnx, onnxscript and onnxruntime, or export for the Hub instead",
            )
    return parity


def probes(size: int, batch: int) -> dict[str, Tensor]:
    """Images to compare on: noise, which excites every channel, and smooth shapes with edges, as photos have."""
    generator = torch.Generator().manual_seed(batch)
    noise = torch.randint(0, 256, (batch, 3, size, size), generator=generator, dtype=torch.uint8)
    coarse = torch.rand(batch, 3, 5, 5, generator=generator) * 255
    scene = nn.functional.interpolate(coarse, (size, size), mode="bicubic", align_corners=False)
    half = size // 2
    scene[:, :, half // 2 : half, half:] = coarse[:, :, :1, :1]
    return {"noise": noise, "scene": scene.round().clamp(0, 255).to(torch.uint8)}


def need(package: str) -> Any:
    """The module, or an error that says how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        fix = "pip install 'halflabel[export]'"
        raise UserError(f"ONNX needs the package {package}, which is not here ({error})", fix) from None


def _translate(served: Served, size: int) -> Any:
    """The model as an ONNX graph whose batch is open."""
    example = (torch.zeros(2, 3, size, size, dtype=torch.uint8),)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    reason = ""
    # The plain trace is quicker; the strict one also follows code that asks for the length of a batch.
    for strict in (False, True):
        try:
            with torch.no_grad(), _quiet():
                program = torch.export.export(served, example, dynamic_shapes=shapes, strict=strict)
                made = torch.onnx.export(
                    program,
                    input_names=["images"],
                    output_names=["logits", "probabilities"],
                    dynamo=True,
                    verbose=False,
                )
        # The exporter and the tracer raise many unrelated types, and each of them means the same to the user.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            continue
        assert made is not None
        return made.model_proto
    raise UserError(
        f"{type(served.model.head).__name__} on this backbone cannot be put into ONNX ({reason[:200]})",
        "export for the Hub instead: halflabel export hub",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's remarks on its own insides are nothing that a user could act on."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _name_batch(proto: Any) -> None:
    """The tracer's own name for the open dimension, such as s77, becomes "batch"."""
    graph = proto.graph
    given = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if given and dim.dim_param == given:
                dim.dim_param = "batch"


def _compare(served: Served, path: Path, size: int) -> Parity:
    runtime = need("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst_logits = worst_scores = 0.0
    images = 0
    for batch in _BATCHES:
        for probe in probes(size, batch).values():
            with torch.no_grad():
                logits, scores = (tensor.numpy() for tensor in served(probe))
            try:
                theirs, their_scores = session.run(["logits", "probabilities"], {"images": probe.numpy()})
            except Exception as error:  # the runtime's own types, one per kind of fault
                reason = str(error).splitlines()[0]
                fix = "export for the Hub instead: halflabel export hub"
                raise UserError(f"ONNX Runtime cannot run {batch} images at a time ({reason})", fix) from None
            apart = np.abs(logits - theirs) / np.maximum(1, np.abs(logits))
            # np.maximum keeps NaN, where max would drop it.
            worst_logits = float(np.maximum(worst_logits, apart.max()))
            worst_scores = float(np.maximum(worst_scores, np.abs(scores - their_scores).max()))
            images += batch
    return Parity(worst_logits, worst_scores, images)
