"""ONNX export and import: one file from decoded images to calibrated probabilities.

Input `images` (B, 3, S, S) uint8, RGB, already resized, or (B, 3, H, W) with `--resize keep`; outputs `logits` and
`probabilities` (B, C) float32. The normalisation and the calibration are inside the graph; the classes, the thresholds
and the resizing are in `metadata_props`, each value as JSON.
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.errors import UserError, error_summary
from halflabel.evaluation.calibration import Calibration
from halflabel.features.heads import Head, NormalisedLinear
from halflabel.features.heads import Model as Network
from halflabel.features.onnx_features import parity_images, quiet_exporter, run_session
from halflabel.images.views import ImageList, Plain, kept_shapes
from halflabel.methods.base import recipe
from halflabel.runs.export.metadata import describe
from halflabel.system.files import atomic_write
from halflabel.types import Output

if TYPE_CHECKING:
    from halflabel.runs.model import Model


TOLERANCE = 1e-4
_BATCH_SIZES = (1, 3)
_OUTPUTS = ["logits", "probabilities"]


class Parity(NamedTuple):
    """The largest difference between ONNX Runtime and PyTorch on the same images."""

    logits: float  # |x − y| / max(1, |x|)
    probabilities: float  # |p − q|
    images: int


class ExportedGraph(nn.Module):
    """The computation in the file: (B, 3, S, S) uint8 -> logits x and probabilities σ(slope · x + offset), (B, C)."""

    def __init__(self, model: Network, calibration: Calibration) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(images).logits
        return logits, self.calibration.scores(logits)


class OnnxHead(Head):
    """Runs an exported file with ONNX Runtime: images (B, 3, S, S) uint8 -> logits (B, C).

    `Network(None, OnnxHead(…))` is scored like any other model.
    """

    def __init__(self, session: Any, path: Path) -> None:
        super().__init__()
        self.session, self.path = session, path

    def __reduce__(self) -> Any:
        return OnnxHead.open, (self.path,)

    @classmethod
    def open(cls, path: Path) -> OnnxHead:
        runtime = require_package("onnxruntime")
        try:
            return cls(runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), path)
        except Exception as error:  # the runtime has one exception type per fault
            reason = error_summary(error)
            raise UserError(f"{path} cannot be opened as ONNX ({reason})", "export the run again") from None

    @property
    def description(self) -> dict[str, Any]:
        """The metadata that `write_onnx` stored in the file."""
        properties, values = self.session.get_modelmeta().custom_metadata_map, {}
        for key, value in properties.items():
            with suppress(ValueError, RecursionError):
                values[key] = json.loads(value)
        return values

    def forward(self, features: Tensor | ImageList) -> Output:
        if isinstance(features, ImageList):
            logits = features.apply(lambda images: self(images).logits)
            return Output(logits, torch.zeros(len(features), 0))
        try:
            (logits,) = run_session(self.session, ["logits"], "images", features.numpy())
            return Output(torch.from_numpy(logits).reshape(len(features), -1), torch.zeros(len(features), 0))
        except Exception as error:  # the runtime's exceptions, or an output that is not logits
            reason = error_summary(error)
            raise UserError(f"{self.path} cannot score images ({reason})", "export the run again") from None


def export_onnx(predictor: Model, path: Path, *, tolerance: float = TOLERANCE) -> Parity:
    """Write a trained model to an .onnx file if ONNX Runtime and PyTorch agree; returns their difference."""
    if isinstance(predictor.network.head, OnnxHead):
        raise UserError("this is an ONNX file already", "name the run, or the folder that was exported for the Hub")
    if predictor.config.channels != 3:
        raise UserError(
            f"a model of {predictor.config.channels} bands cannot be exported to ONNX",
            "export it with halflabel export hub",
        )
    if not isinstance(predictor.network.head, NormalisedLinear):  # which L-BFGS fits, whatever the method
        method = recipe(predictor.config.method)
        if method.no_onnx:
            raise UserError(
                f"the method {method.name!r} does not support export to ONNX: {method.no_onnx}",
                "export it with halflabel export hub",
            )
    return write_onnx(predictor, path, tolerance=tolerance)


def write_onnx(predictor: Model, path: Path, *, tolerance: float = TOLERANCE) -> Parity:
    """Write a model with its description to one file, atomically; one that computes something else is not written."""
    if path.suffix != ".onnx":
        raise UserError(f"{path.name} does not end in .onnx", "name the file model.onnx")
    onnx = require_package("onnx")
    require_package("onnxscript")
    require_package("onnxruntime")
    # A copy, because the caller's model may be on a GPU and in another memory layout.
    plain = copy.deepcopy(predictor.network).cpu().float().to(memory_format=torch.contiguous_format)
    graph = ExportedGraph(plain, predictor.calibration).eval()
    view: Any = predictor.views["plain"]
    proto = _translate(graph, view)
    _name_batch(proto)
    onnx.helper.set_model_props(proto, {key: json.dumps(value) for key, value in describe(predictor).items()})
    with atomic_write(path) as temporary:
        try:
            onnx.checker.check_model(proto)
            temporary.write_bytes(proto.SerializeToString())
        except ValueError as error:  # the limit of protobuf is 2 GB
            raise UserError(f"the model is too large for one ONNX file ({error})", "use a smaller backbone") from None
        parity = _compare(graph, temporary, view)
        if not max(parity.logits, parity.probabilities) <= tolerance:  # also refuses NaN
            raise UserError(
                f"ONNX Runtime differs from PyTorch by {parity.logits:.2g} in the logits and "
                f"{parity.probabilities:.2g} in the probabilities, over {tolerance:g}: {path} was not written",
                "update onnx, onnxscript and onnxruntime, or export for the Hub instead",
            )
    return parity


def require_package(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        fix = f"pip install {package}"
        raise UserError(f"ONNX needs the package {package}, which is not installed ({error})", fix) from None


def _translate(graph: ExportedGraph, view: Plain) -> Any:
    """Return the model as an ONNX graph with a dynamic batch size, and with dynamic sides if views differ in shape.

    For dynamic sides the exporter based on TorchScript takes seconds, that based on torch.export minutes: it reasons
    about the padding of every convolution.
    """
    example = (torch.zeros(2, 3, *_shapes(view)[-1], dtype=torch.uint8),)
    reason = ""
    # The non-strict trace is faster; the strict one also follows code that reads the batch size.
    for strict in (False, True):
        try:
            with torch.no_grad(), quiet_exporter():
                return _trace(graph, example) if view.resize == "keep" else _export(graph, example, strict=strict)
        # The exporter and the tracer raise many unrelated types; for the user they all mean the same.
        except Exception as error:
            reason = error_summary(error)
    raise UserError(
        f"{type(graph.model.head).__name__} on this backbone cannot be exported to ONNX ({reason[:200]})",
        "export for the Hub instead: halflabel export hub",
    )


def _export(graph: ExportedGraph, example: tuple[Tensor], *, strict: bool) -> Any:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(graph, example, dynamic_shapes=shapes, strict=strict)
    exported = torch.onnx.export(program, input_names=["images"], output_names=_OUTPUTS, dynamo=True, verbose=False)
    assert exported is not None
    return exported.model_proto


def _trace(graph: ExportedGraph, example: tuple[Tensor]) -> Any:
    axes = {"images": {0: "batch", 2: "height", 3: "width"}} | {name: {0: "batch"} for name in _OUTPUTS}
    names: dict[str, Any] = {"input_names": ["images"], "output_names": _OUTPUTS, "dynamic_axes": axes}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "traced.onnx"
        torch.onnx.export(graph, example, str(file), dynamo=False, **names)
        return require_package("onnx").load(str(file))


def _name_batch(proto: Any) -> None:
    """Rename the dynamic dimension, which the tracer calls s77 or similar, to "batch"."""
    graph = proto.graph
    traced_name = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if traced_name and dim.dim_param == traced_name:
                dim.dim_param = "batch"


def _shapes(view: Plain) -> list[tuple[int, int]]:
    """Return the shapes on which the exported file is compared."""
    return kept_shapes(view.size) if view.resize == "keep" else [(view.size, view.size)]


def _compare(graph: ExportedGraph, path: Path, view: Plain) -> Parity:
    runtime = require_package("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logit_difference = score_difference = 0.0
    count = 0
    for batch, shape in product(_BATCH_SIZES, _shapes(view)):
        for images in parity_images(shape, batch).values():
            with torch.no_grad():
                logits, scores = (tensor.numpy() for tensor in graph(images))
            try:
                onnx_logits, onnx_scores = session.run(_OUTPUTS, {"images": images.numpy()})
            except Exception as error:  # the runtime has one exception type per fault
                fix = "export for the Hub instead: halflabel export hub"
                raise UserError(
                    f"ONNX Runtime cannot run {batch} images at a time ({error_summary(error)})", fix
                ) from None
            relative = np.abs(logits - onnx_logits) / np.maximum(1, np.abs(logits))
            # np.maximum keeps NaN, where max would drop it.
            logit_difference = float(np.maximum(logit_difference, relative.max()))
            score_difference = float(np.maximum(score_difference, np.abs(scores - onnx_scores).max()))
            count += batch
    return Parity(logit_difference, score_difference, count)
