"""ONNX export: parity with PyTorch for any batch size, metadata, and refused files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_transform import FeatureTransform, principal_components
from halflabel.features.heads import Head, NormalisedLinear
from halflabel.features.heads import Model as Network
from halflabel.features.similar_images import SimilarImages
from halflabel.fitting.config import Config
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.runs.export.onnx import (
    ExportedGraph,
    export_onnx,
    require_package,
    write_onnx,
)
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.types import Output

CLASSES = ("a", "b", "c", "d")


def predictor_of(network: Network, size: int) -> Model:
    preprocess: Any = network.backbone.preprocess  # type: ignore[union-attr]
    view = Plain(size, "squash", preprocess.interpolation, preprocess.crop_pct)
    config, cuts = Config(backbone="tiny"), torch.tensor([0.1, 0.2, 0.3, 0.4])
    return Model(network, config, Names(CLASSES), {"plain": view}, Calibration(1.5, -0.25, 9), cuts)


def spread(head: Head) -> Head:
    """Enlarge the weights: initial ones are small, and a wrong file would hardly differ."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def run_file(path: Path, images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logits, scores = session.run(None, {"images": images.numpy()})
    return logits, scores


def test_the_metadata_of_the_file(run: RunFolder, exported: Path) -> None:
    proto = onnx.load(exported)
    metadata = {prop.key: json.loads(prop.value) for prop in proto.metadata_props}
    predictor = Model.open(run)
    assert metadata["classes"] == ["red", "green", "büé|x"]
    assert metadata["thresholds"] == pytest.approx(predictor.thresholds.tolist())
    calibration = predictor.calibration.as_json()
    assert metadata["calibration"].keys() == calibration.keys()
    for name, value in calibration.items():
        expected = list(value) if isinstance(value, tuple) else value
        assert metadata["calibration"][name] == pytest.approx(expected), name
    assert metadata["calibration"]["known"] > 0
    assert metadata["preprocess"]["size"] == 32
    assert metadata["preprocess"]["resize"] == "crop"
    assert len(metadata["preprocess"]["mean"]) == 3
    assert str(run.folder.parent) not in exported.read_bytes().decode("latin-1")
    session = onnxruntime.InferenceSession(str(exported), providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    assert (images.name, images.shape, images.type) == ("images", ["batch", 3, 32, 32], "tensor(uint8)")
    assert [(out.name, out.shape) for out in session.get_outputs()] == [
        ("logits", ["batch", 3]),
        ("probabilities", ["batch", 3]),
    ]


def test_the_file_computes_the_logits_and_probabilities_of_the_run(run: RunFolder, exported: Path) -> None:
    """From pixels to calibrated probabilities, by plain numpy around the file: what a user would write."""
    predictor = Model.open(run)
    for batch in (1, 2, 5):
        images = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8)
        with torch.no_grad():
            expected = predictor.network(images).logits
        logits, scores = run_file(exported, images)
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)
        np.testing.assert_allclose(scores, predictor.calibration.scores(expected).numpy(), atol=1e-5)


def test_a_head_with_similar_images(solver_run: Any, tmp_path: Path) -> None:
    predictor = Model.open(solver_run.run)
    assert isinstance(predictor.network.head, NormalisedLinear)
    assert predictor.network.head.similar is not None
    parity = export_onnx(predictor, tmp_path / "m.onnx")
    assert max(parity.logits, parity.probabilities) < 1e-4
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected = predictor.network(images).logits
    np.testing.assert_allclose(run_file(tmp_path / "m.onnx", images)[0], expected.numpy(), atol=1e-4, rtol=1e-4)


def test_similar_images_agree_near_probability_0_and_1(tmp_path: Path) -> None:
    """Certain scores and certain guesses: the digits of 1 − p must not be lost."""
    torch.manual_seed(0)
    backbone = build_backbone("tiny", size=32)
    features = torch.rand(30, 64)
    head = NormalisedLinear(FeatureTransform.fit(features), 4)
    guesses = (torch.rand(30, 1) > 0.5).float() * torch.tensor([1.0, 1.0, 0.0, 0.0]) + torch.tensor([0.0, 0, 0, 1])
    projection, _ = principal_components(head.transform(features), 30)
    keys = head.transform(features) @ projection
    head.similar = SimilarImages.build(projection, keys, guesses, weight=0.5, count=10, sharpness=5.0)
    with torch.no_grad():
        head.linear.bias.copy_(torch.tensor([-13.0, 13.0, -13.0, 13.0]))
    model = Network(backbone, head).eval()
    parity = write_onnx(predictor_of(model, 32), tmp_path / "m.onnx")
    assert max(parity.logits, parity.probabilities) < 1e-4


def test_a_file_that_computes_something_else_is_refused(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same graph with one bias changed: no new file is left, and an old one is kept."""
    import halflabel.runs.export.onnx as module

    predictor = Model.open(run)
    original = module._translate(
        ExportedGraph(predictor.network.float(), predictor.calibration).eval(), predictor.views["plain"]
    )

    def changed_bias(*arguments: Any) -> Any:
        proto = onnx.ModelProto()
        proto.CopyFrom(original)
        initializer = next(
            item for item in proto.graph.initializer if "head" in item.name and item.name.endswith("bias")
        )
        bias = onnx.numpy_helper.to_array(initializer) + np.float32(3e-4)
        initializer.CopyFrom(onnx.numpy_helper.from_array(bias, initializer.name))
        return proto

    monkeypatch.setattr(module, "_translate", changed_bias)
    path = tmp_path / "m.onnx"
    with pytest.raises(UserError, match=r"differs from PyTorch by 0\.0003") as caught:
        export_onnx(Model.open(run), path)
    assert caught.value.fix
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"older")
    with pytest.raises(UserError, match="was not written"):
        export_onnx(Model.open(run), path)
    assert path.read_bytes() == b"older"
    assert export_onnx(Model.open(run), path, tolerance=1e-3).logits == pytest.approx(3e-4, rel=0.2)


def _smallest() -> bytes:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["n"])],
        [value("y", onnx.TensorProto.FLOAT, ["n"])],
    )
    return bytes(
        onnx.helper.make_model(
            graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]
        ).SerializeToString()
    )


_EMPTY = _smallest()


class DataDependent(Head):
    """A head that no tracer can follow."""

    def forward(self, features: Tensor) -> Output:
        if float(features.sum()) > 0:
            return Output(features.mean((2, 3))[:, :4], features.mean((2, 3)))
        return Output(features.amax((2, 3))[:, :4], features.mean((2, 3)))


def test_a_head_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    model = Network(build_backbone("tiny"), DataDependent()).eval()
    with pytest.raises(UserError, match="DataDependent on this backbone cannot be exported to ONNX") as caught:
        write_onnx(predictor_of(model, 32), tmp_path / "m.onnx")
    assert "hub" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(run: RunFolder, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.onnx"):
        export_onnx(Model.open(run), tmp_path / "model.pt")
    with pytest.raises(UserError, match="an ONNX file already"):
        export_onnx(Model.open(exported), tmp_path / "again.onnx")
    with pytest.raises(UserError, match="no_such_package") as caught:
        require_package("no_such_package")
    assert caught.value.fix == "pip install no_such_package"
    result = CliRunner().invoke(app, ["export", "onnx", str(run.folder), "--out", str(exported)])
    assert result.exit_code == 2


def test_a_foreign_onnx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(_EMPTY)
    with pytest.raises(UserError, match="not exported by halflabel"):
        Model.open(path)
    path.write_bytes(b"no onnx at all")
    with pytest.raises(UserError, match="cannot be opened as ONNX"):
        Model.open(path)
