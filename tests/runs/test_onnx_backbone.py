"""An image encoder in an .onnx file as the backbone."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from run_examples import HEAD, TABLE, paint
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features import onnx_features
from halflabel.features.backbones import build_backbone, fingerprint
from halflabel.features.onnx_features import quiet_exporter
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

PREPROCESS = {"size": 32, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear", "crop_pct": 0.9}


class Encoder(nn.Module):
    def __init__(self, output: str = "vectors", seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.output = nn.Conv2d(3, 12, 4, stride=4), output

    def forward(self, images: Tensor, *others: Tensor) -> Tensor:
        maps = self.layer(images.float()).relu()
        maps = maps + sum(other.sum() for other in others)
        return {"vectors": maps.mean((2, 3)), "maps": maps, "tokens": maps.flatten(2)}[self.output]


def write(
    path: Path,
    encoder: Encoder,
    preprocess: Any = PREPROCESS,
    *,
    dynamic: tuple[int, ...] = (0,),
    images: tuple[Tensor, ...] = (torch.zeros(1, 3, 32, 32),),
) -> Path:
    names = [f"input{number}" for number in range(len(images))]
    with quiet_exporter():
        axes = {"input0": {axis: f"axis{axis}" for axis in dynamic}}
        torch.onnx.export(encoder, images, str(path), input_names=names, dynamic_axes=axes, dynamo=False)
    model = onnx.load(path)
    if preprocess is not None:
        onnx.helper.set_model_props(model, {"preprocess": json.dumps(preprocess)})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("output", ["vectors", "maps"])
def test_features_are_those_of_the_network(tmp_path: Path, output: str) -> None:
    encoder = Encoder(output)
    backbone = build_backbone(str(write(tmp_path / "encoder.onnx", encoder)))
    images = paint(5)[0][:, :, :32, :32]
    mean, std = (torch.tensor(PREPROCESS[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = encoder((images / 255 - mean) / std)
    pooled = expected if output == "vectors" else expected.mean((2, 3))
    torch.testing.assert_close(backbone.pooled(images), pooled, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copy.deepcopy(backbone).pooled(images), pooled, rtol=1e-4, atol=1e-5)
    assert (backbone.channels, backbone.width(maps=False), backbone.name) == (12, 12, "encoder.onnx")
    assert (backbone.preprocess.size, backbone.preprocess.interpolation, backbone.preprocess.crop_pct) == (
        32,
        "bilinear",
        0.9,
    )
    if output == "maps":
        torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(UserError, match="returns vectors, and this needs maps"):
            backbone(images)


def test_bytes_need_no_normalisation_and_a_dynamic_size_is_stated(tmp_path: Path) -> None:
    encoder = Encoder()
    given = (torch.zeros(1, 3, 32, 32, dtype=torch.uint8),)
    path = write(tmp_path / "encoder.onnx", encoder, None, dynamic=(0, 2, 3), images=given)
    backbone = build_backbone(str(path), size=48)
    images = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(backbone.pooled(images), encoder(images), rtol=1e-4, atol=1e-3)
    with pytest.raises(UserError, match="does not say the size of its images") as raised:
        build_backbone(str(path))
    assert raised.value.fix == "add ‹size›, such as 224"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"preprocess": None}, "does not say how its images are normalised"),
        ({"preprocess": {**PREPROCESS, "mean": "white"}}, "damaged entry `preprocess`"),
        ({"preprocess": {**PREPROCESS, "size": "wide"}, "dynamic": (0, 2, 3)}, "damaged entry `preprocess`"),
        ({"preprocess": [1]}, "damaged entry `preprocess`"),
        ({"dynamic": ()}, r"does not take images \(2, 3, 32, 32\)"),
        ({"images": (torch.zeros(1, 3, 32, 32), torch.zeros(4))}, "has 2 inputs"),
        ({"images": (torch.zeros(1, 3, 32, 32, dtype=torch.int64),)}, r"takes tensor\(int64\)"),
        ({"images": (torch.zeros(1, 3, 32, 64),)}, "takes images of 32 x 64 pixels"),
        ({"encoder": Encoder("tokens")}, r"returns \(2, 12, 64\) for 2 images"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "encoder.onnx", **{"encoder": Encoder(), **how})
    with pytest.raises(UserError, match=message) as raised:
        build_backbone(str(path))
    assert "\n" not in str(raised.value)
    assert raised.value.fix


def test_a_head_is_trained_and_used_with_the_same_file(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "encoder.onnx", Encoder())
    config = dataclasses.replace(HEAD, method="bce", backbone=str(path), size=None, fit="auto")
    run = RunFolder(tmp_path / "run")
    evaluation = train(TABLE, folder, config, run)
    assert evaluation is not None
    assert evaluation.overall["mAP"] > 0.8
    predictor = Model.open(run)
    assert predictor.evaluate(TABLE, folder).overall["mAP"] > 0.8
    for export in (lambda: export_onnx(predictor, tmp_path / "out.onnx"), lambda: export_hub(run, tmp_path / "hub")):
        with pytest.raises(UserError, match="cannot be exported"):
            export()
    before = fingerprint(build_backbone(str(path)))
    write(path, Encoder(seed=1))
    assert fingerprint(build_backbone(str(path))) != before
    with pytest.raises(UserError, match="is not the file of the training"):
        Model.open(run)


def test_a_network_that_does_not_end_and_huge_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of 2⁶² turns: a crafted file must not hold the process for ever."""
    helper, types = onnx.helper, onnx.TensorProto
    images = helper.make_tensor_value_info("images", types.UINT8, ["n", 3, "s", "s"])
    vectors = helper.make_tensor_value_info("vectors", types.FLOAT, ["n", 3])
    count, flag, table = (types.INT64, []), (types.BOOL, []), (types.FLOAT, ["n", 3])
    kinds = {"turn": count, "go": flag, "before": table, "go_on": flag, "after": table}
    values = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    steps = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Sin", ["before"], ["after"])]
    body = helper.make_graph(steps, "body", values[:3], values[3:])
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=types.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["means"], keepdims=0),
        helper.make_node("Loop", ["turns", "", "means"], ["vectors"], body=body),
    ]
    constants = [
        helper.make_tensor("axes", types.INT64, [2], [2, 3]),
        helper.make_tensor("turns", types.INT64, [], [1 << 62]),
    ]
    graph = helper.make_graph(nodes, "endless", [images], [vectors], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {"preprocess": json.dumps(PREPROCESS)})
    onnx.save(model, tmp_path / "endless.onnx")
    monkeypatch.setattr(onnx_features, "SECONDS_PER_IMAGE", 0.3)
    with pytest.raises(UserError, match=r"does not take images.*terminate"):
        build_backbone(str(tmp_path / "endless.onnx"))
    helper.set_model_props(model, {"preprocess": json.dumps(PREPROCESS | {"size": 8192})})
    onnx.save(model, tmp_path / "huge.onnx")
    with pytest.raises(UserError, match="8192 pixels, over the limit"):
        build_backbone(str(tmp_path / "huge.onnx"))
