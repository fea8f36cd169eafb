"""Predictors from whatever a model was left as: a run, a folder exported for the Hub, or an ONNX file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halflabel.data.sources import Source, agree_on_bad, sequential
from halflabel.data.views import Plain, View
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.methods.base import recipe
from halflabel.models.backbones import LARGEST, SMALLEST, build_backbone
from halflabel.models.heads import Model
from halflabel.runs.export.about import About
from halflabel.runs.folder import RunFolder, model_kind
from halflabel.runs.predictor import Predictor
from halflabel.system import distributed as processes
from halflabel.system.files import check_fields, read_json
from halflabel.training.config import Config
from halflabel.training.device import choose_device

__all__ = ["HubPredictor", "OnnxPredictor", "open_predictor"]


def open_predictor(path: str | Path) -> Predictor:
    """What `halflabel train` or `halflabel export` wrote, ready to score images."""
    path = Path(path)
    kind = model_kind(path)
    if kind == "onnx":
        return OnnxPredictor(path)
    return HubPredictor(path) if kind == "hub" else Predictor(RunFolder.open(path))


class HubPredictor(Predictor):
    """A model from model.safetensors and config.json. No code is taken from the folder, and nothing is downloaded."""

    def __init__(self, folder: Path) -> None:  # not the parent's: that one reads a run
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        where = folder / "config.json"
        about = About.from_dict(read_json(where, "export the run again"), str(where))
        _adopt(self, about, str(where))
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise UserError(f"{folder} has no model.safetensors", "export the run again, or download the whole folder")
        backbone = build_backbone(about.backbone, pretrained=False, size=about.view.size)
        # What it was trained with, whatever this version of timm takes for right.
        for buffer, values in ((backbone.mean, about.mean), (backbone.std, about.std)):
            buffer.copy_(torch.tensor(values).view(3, 1, 1))
        try:
            method = recipe(about.method).make(**about.options)
            self.model = Model(backbone, method.head(backbone.channels, len(about.classes)))
            self.model.load_state_dict(load_file(weights))
        except (SafetensorError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{weights} does not fit {where.name} ({reason})", "export the run again") from None
        self.device = choose_device("auto")
        self.model.to(self.device).to(memory_format=torch.channels_last).eval()


class OnnxPredictor(Predictor):
    """A model in an ONNX file, run by ONNX Runtime on the CPU; it has no `model` to look into."""

    def __init__(self, path: Path) -> None:  # not the parent's: that one reads a run
        from halflabel.runs.export.onnx import need

        runtime = need("onnxruntime")
        try:
            self.session: Any = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            props = self.session.get_modelmeta().custom_metadata_map
        except Exception as error:  # the runtime's own types, one per kind of fault
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} cannot be opened as ONNX ({reason})", "export the run again") from None
        try:
            content = {key: json.loads(value) for key, value in props.items() if value[:1] in '{["'}
        except (ValueError, RecursionError):
            content = {}
        self.path = path
        _adopt(self, About.from_dict(content, str(path)), str(path))
        self.device = "cpu"

    def logits(self, source: Source, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Logits of every image of a source (N, C); NaN for unreadable ones."""
        processes.start()
        found = torch.full((len(source), len(self.classes)), math.nan)
        plan = sequential(len(source), 16)
        own = plan[processes.rank() :: processes.count()]
        read = 0
        for planned, (images, views) in zip(own, source.fetch(own, ("plain",)), strict=True):
            if progress is not None:
                progress(int(planned[-1]) + 1, len(source))
            if len(images):
                found[torch.from_numpy(images)] = self._run(views[0])
                read += len(images)
        agree_on_bad(source)
        found = processes.merge({"logits": found}, plan)["logits"]
        if not sum(processes.gather(read)):
            raise UserError("not one image could be read", "check the image folder")
        return found

    def _run(self, images: Tensor) -> Tensor:
        try:
            (logits,) = self.session.run(["logits"], {"images": images.numpy()})
            return torch.from_numpy(logits).reshape(len(images), len(self.classes))
        except Exception as error:  # the runtime's own types, or an output that is something else than logits
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{self.path} cannot score images ({reason})", "export the run again") from None


def _adopt(predictor: Predictor, about: About, where: str) -> None:
    """Give a predictor all that an About says; `where` is named if the parts do not fit together."""
    fix = "export the run again"
    try:
        check_fields(Plain, vars(about.view))
        predictor.classes = Names(about.classes)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is damaged ({error})", fix) from None
    if not (SMALLEST <= about.view.size <= LARGEST and 0 < about.view.crop_pct <= 1):
        raise UserError(
            f"{where} asks for images of {about.view.size} pixels, {about.view.crop_pct:g} of them seen", fix
        )
    choices: dict[str, Any] = {"resize": about.view.resize, "tune": about.tune}
    predictor.config = Config(
        method=about.method,
        options=about.options,
        backbone=about.backbone,
        size=about.view.size,
        mirror=about.mirror,
        **choices,
    )
    view: View = about.view
    predictor.views = {"plain": view}
    predictor.platt = about.calibration
    predictor.thresholds = torch.tensor(about.thresholds)
