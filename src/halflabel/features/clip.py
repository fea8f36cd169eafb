"""Image towers of CLIP and SigLIP models with the text tower of the same model, by the package open_clip."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halflabel.errors import UserError, error_summary
from halflabel.features.backbones import Backbone, Preprocess, fixed_seed
from halflabel.features.onnx_features import quiet_exporter

PREFIX = "open-clip:"
_PROMPT = "a photo of a {}."
_TEXTS = 256  # encoded at once


class ClipBackbone(Backbone):
    """The image tower of a CLIP model; `projection` (E, D) maps its vectors to those of `encode(texts)`, (N, E)."""

    def __init__(self, name: str, clip: nn.Module, architecture: str, size: int | None) -> None:
        visual: Any = clip.visual
        super().__init__(name, visual, 0, _preprocess(visual, size))
        projection = _take_projection(visual)
        self.encode_texts: Any = partial(_encode, clip, architecture)  # hides the text tower from the module's state
        self.has_own = True
        with torch.no_grad():
            side = self.preprocess.size
            own, maps = self._raw(torch.zeros(1, 3, side, side))
        self.channels = maps.shape[1]
        self.blocks = own.shape[1], self.channels
        self.projection = torch.eye(own.shape[1]) if projection is None else projection

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"encode_texts": None}  # the text tower: worker processes see images only

    @property
    def needs_squares(self) -> bool:
        return True

    def encode(self, texts: Sequence[str]) -> Tensor:
        return self.encode_texts(texts)  # type: ignore[no-any-return]

    def _raw(self, images: Tensor) -> Any:
        found = self.model.forward_intermediates(  # type: ignore[operator]
            self.normalise(images), indices=1, normalize_intermediates=True
        )
        return found["image_features"], found["image_intermediates"][-1]

    def _maps(self, raw: Any, images: Tensor) -> Tensor:
        maps: Tensor = raw[1]
        return maps

    def _pool(self, raw: Any, images: Tensor) -> Tensor:
        own, maps = raw
        return torch.cat([own, maps.mean((2, 3))], 1)


def build_clip(name: str, weights: Path | None, *, pretrained: bool, size: int | None) -> Backbone:
    """Build `open-clip:ARCHITECTURE/TAG`, or `open-clip:hf-hub:OWNER/NAME`, on the CPU and in evaluation mode."""
    try:
        with quiet_exporter():
            import open_clip
    except ImportError:
        raise UserError(f"{name} needs the package open_clip", "pip install 'halflabel[clip]'") from None
    architecture, tag = _split(name, open_clip, needs_tag=pretrained and weights is None)
    source = str(weights) if weights is not None else tag if pretrained else None
    if weights is not None and not Path(weights).is_file():
        raise UserError(f"there is no weights file {weights}", "check the path given to ‹weights›")
    try:
        with quiet_exporter(), fixed_seed():
            clip = open_clip.create_model(
                architecture, source, load_weights=pretrained, force_image_size=size, pretrained_text=False
            )
    # open_clip, the hub and torch raise many unrelated types, which all mean the same to the user.
    except Exception as error:
        fix = "name the architecture that the file was trained with" if weights else "go online, or pass ‹weights=FILE›"
        raise UserError(f"the weights of {name} could not be loaded: {error_summary(error)}", fix) from error
    return ClipBackbone(name, clip.eval(), architecture, size).eval()


def _split(name: str, open_clip: Any, *, needs_tag: bool) -> tuple[str, str | None]:
    """Split a name into architecture and tag of the weights, which are known to the package."""
    rest = name.removeprefix(PREFIX)
    if rest.startswith("hf-hub:"):
        return rest, None
    architecture, _, tag = rest.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        close = ", ".join(get_close_matches(architecture, known, n=3, cutoff=0.3))
        raise UserError(f"open_clip has no architecture {architecture!r}", f"did you mean {close or known[0]}?")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tag and tag not in tags:
        raise UserError(f"open_clip has no weights {tag!r} of {architecture}", f"use one of {', '.join(tags)}")
    if needs_tag and not tag:
        example = f"{PREFIX}{architecture}/{tags[0]}, or " if tags else ""
        raise UserError(f"{name} names no weights", f"write {example}‹weights=FILE›")
    return architecture, tag or None


def _take_projection(visual: Any) -> Tensor | None:
    """Remove the last linear map without bias of an image tower, and return it (E, D); None if it has another end."""
    if isinstance(getattr(visual, "proj", None), nn.Parameter):
        projection: Tensor = visual.proj.detach().T.clone()
        visual.proj = None
        return projection
    layers: list[Any] = [layer for layer in getattr(visual, "head", ()) if not isinstance(layer, nn.Dropout)]
    if len(layers) == 1 and isinstance(layers[0], nn.Linear) and getattr(layers[0], "bias", None) is None:
        visual.head = nn.Identity()
        return layers[0].weight.detach().clone()
    return None


def _preprocess(visual: Any, size: int | None) -> Preprocess:
    from open_clip import get_model_preprocess_cfg

    config = get_model_preprocess_cfg(type("Model", (), {"visual": visual}))
    side = config["size"][0] if isinstance(config["size"], (tuple, list)) else config["size"]
    kind: Literal["bicubic", "bilinear"] = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    return Preprocess(size or side, tuple(config["mean"]), tuple(config["std"]), kind, 1.0)


@torch.no_grad()
def _encode(clip: Any, architecture: str, texts: Sequence[str]) -> Tensor:
    """Return the vectors (N, E) of class names as prompts, and of sentences, which end in a full stop, as they are."""
    import open_clip

    prompts = [text if " " in text and text.endswith(".") else _PROMPT.format(text) for text in texts]
    with quiet_exporter():
        tokens = open_clip.get_tokenizer(architecture)(prompts)
    return torch.cat([clip.encode_text(part).float() for part in torch.split(tokens, _TEXTS)])
