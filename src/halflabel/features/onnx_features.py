"""Pooled features on a CPU by ONNX Runtime: of a frozen backbone, and of an image encoder that is given as a file.

The runtime runs convolutions about twice as fast as torch. Both ways agree within `TOLERANCE`, which is checked each
time a network is opened, so their features share one cache.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import math
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halflabel.errors import UserError, error_summary
from halflabel.features.backbones import Backbone, Preprocess, fingerprint
from halflabel.images.views import MOST_PIXELS, View
from halflabel.system.files import atomic_write
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.threads import free_cores

TOLERANCE = 1e-4  # largest |x − y| allowed between ONNX Runtime and torch, as a share of the largest |x|
FEWEST_IMAGES = 100  # with fewer images, torch is done before the network is exported, opened and checked
SECONDS_PER_IMAGE = 30.0  # that a network in a file may take; the largest ones take 5

_SILENT = 4  # the runtime's log level
_BYTES, _FLOATS = "tensor(uint8)", "tensor(float)"


Shape = tuple[int, int]  # height and width


class OnnxBackbone(nn.Module):
    """Map images (B, 3, H, W) uint8 to pooled features (B, D) float32, on the CPU.

    Each shape has a network of its own, which is quicker than one for all: from `folder`, or `backbone` is exported
    when the first such image is met; torch runs what cannot be exported.
    """

    def __init__(self, backbone: Backbone, folder: Path | None = None, contents: Mapping[Shape, bytes] = {}) -> None:
        super().__init__()
        self.backbone, self.folder, self.contents = backbone, folder, dict(contents)
        self.sessions: dict[Shape, Any] = {shape: _start_session(content) for shape, content in contents.items()}

    def __reduce__(self) -> Any:
        return OnnxBackbone, (self.backbone, self.folder, self.contents)

    def add_shape(self, shape: Shape) -> None:
        self.contents[shape] = _load(self.backbone, shape, self.folder)
        self.sessions[shape] = _start_session(self.contents[shape])

    def pooled(self, images: Tensor) -> Tensor:
        """Return the pooled vectors of images."""
        height, width = images.shape[-2:]
        if (height, width) not in self.sessions:
            try:
                self.add_shape((height, width))
            except Exception:  # as in `find_onnx_backbone`
                self.sessions[height, width] = None
        session = self.sessions[height, width]
        return self.backbone.pooled(images) if session is None else _run(session, images)


def _run(session: Any, images: Tensor) -> Tensor:
    (features,) = session.run(None, {"images": images.contiguous().numpy()})
    return torch.from_numpy(features)


def _start_session(content: bytes) -> Any:
    """Open the content of an .onnx file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(torch.get_num_threads(), free_cores())
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # decoding needs the cores meanwhile
    options.log_severity_level = _SILENT
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, outputs: list[str], name: str, images: NDArray[Any]) -> list[Any]:
    """Run a network on images, for a limited time: that in a crafted file may loop for ever."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    timer = threading.Timer(SECONDS_PER_IMAGE * max(len(images), 1), setattr, (options, "terminate", True))
    timer.start()
    try:
        results: list[Any] = session.run(outputs, {name: images}, options)
    finally:
        timer.cancel()
    return results


class OnnxEncoder(Backbone):
    """The image encoder in an .onnx file, run by ONNX Runtime on the CPU: it can be neither tuned nor exported.

    Its first output is vectors (B, D) or maps (B, D, h, w) of images (B, 3, H, W). For a float input, `preprocess` in
    the metadata states mean and std. `digest` is part of the state, so that a trained head is used with the same file
    only.
    """

    digest: Tensor

    def __init__(self, path: Path, size: int | None = None) -> None:
        try:
            content = path.read_bytes()
            session = _start_session(content)
        except ImportError:
            raise UserError(f"{path} needs the package onnxruntime", "pip install onnxruntime") from None
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror})", "put it there, or correct ‹backbone›"
            ) from None
        except Exception as error:  # the runtime has one exception type per fault
            reason = error_summary(error)
            raise UserError(
                f"{path} cannot be opened as ONNX ({reason})", "save it as one file, weights included"
            ) from None
        super().__init__(path.name, nn.Identity(), 0, _read_preprocess(session, path, size))
        self.path, self.session = path, session
        self.register_buffer("digest", torch.frombuffer(bytearray(hashlib.sha256(content).digest()), dtype=torch.uint8))
        side = self.preprocess.size
        example = self._raw(torch.zeros(2, 3, side, side, dtype=torch.uint8))
        if example.ndim not in (2, 4) or len(example) != 2:
            raise UserError(
                f"{path} returns {tuple(example.shape)} for 2 images, neither vectors (2, D) nor maps (2, D, h, w)",
                "export the image encoder with its pooling, for batches of any size",
            )
        self.channels, self.blocks = example.shape[1], (example.shape[1],)

    @property
    def needs_squares(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        return OnnxEncoder, (self.path, self.preprocess.size)

    def _raw(self, images: Tensor) -> Tensor:
        (given,) = self.session.get_inputs()
        images = images.cpu()
        if given.type == _BYTES:
            x = images.to(torch.uint8)
        else:
            x = (images.float() / 255 - self.mean.cpu()) / self.std.cpu()
        try:
            output = self.session.get_outputs()[0].name
            (features,) = run_session(self.session, [output], given.name, x.contiguous().numpy())
            return torch.from_numpy(features).float().to(self.mean.device)
        except Exception as error:  # as above
            shape, reason = tuple(x.shape), error_summary(error)
            raise UserError(
                f"{self.path} does not take images {shape} ({reason})", "export it for batches of any size"
            ) from None

    def _pool(self, raw: Tensor, images: Tensor) -> Tensor:
        return raw if raw.ndim == 2 else raw.mean((2, 3))

    def _maps(self, raw: Tensor, images: Tensor) -> Tensor:
        if raw.ndim == 2:
            raise UserError(f"{self.path} returns vectors, and this needs maps", "use another method or ‹backbone›")
        return raw

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        if f"{prefix}digest" in state and not torch.equal(state[f"{prefix}digest"].cpu(), self.digest.cpu()):
            raise UserError(f"{self.path} is not the file of the training", "put that file back, or train again")
        super()._load_from_state_dict(state, prefix, *args)


def _read_preprocess(session: Any, path: Path, size: int | None) -> Preprocess:
    """Return size and normalisation of the one input: from its shape, from the metadata, or the stated `size`."""
    inputs, fix = session.get_inputs(), "export the image encoder alone"
    if len(inputs) != 1:
        raise UserError(f"{path} has {len(inputs)} inputs, and an image encoder has one", fix)
    shape, kind = inputs[0].shape, inputs[0].type
    is_image = len(shape) == 4 and (shape[1] == 3 or not isinstance(shape[1], int))
    if not is_image or kind not in (_BYTES, _FLOATS):
        raise UserError(f"{path} takes {kind} {shape}, not images (N, 3, H, W) of float or uint8", fix)
    fixed = [side for side in shape[2:] if isinstance(side, int)]
    unneeded = [0.5] * 3 if kind == _BYTES else []  # the file normalises bytes itself
    try:
        stated = json.loads(session.get_modelmeta().custom_metadata_map.get("preprocess", "{}"))
        side = int(fixed[0] if fixed else size or stated.get("size", 0))
        mean, std = (tuple(map(float, stated.get(key, unneeded))) for key in ("mean", "std"))
        crop = float(stated.get("crop_pct", 1))
        is_valid = len(mean) == len(std) == 3 and 0 < crop <= 1 and all(map(math.isfinite, (*mean, *std))) and all(std)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path} has a damaged entry `preprocess` ({error})", "correct its metadata") from None
    if side > MOST_PIXELS:
        raise UserError(f"{path} takes images of {side} pixels, over the limit of {MOST_PIXELS}", fix)
    if not side:
        raise UserError(f"{path} does not say the size of its images", "add ‹size›, such as 224")
    if not is_valid:
        fix = "write it into its metadata, see docs/backbones.md"
        raise UserError(f"{path} does not say how its images are normalised", fix)
    if {*fixed, size or side} != {side}:
        pixels = " x ".join(map(str, fixed))
        raise UserError(f"{path} takes images of {pixels} pixels", "leave ‹size› out; sides must be equal")
    return Preprocess(side, mean, std, "bilinear" if stated.get("interpolation") == "bilinear" else "bicubic", crop)


class _Pooled(nn.Module):
    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.pooled(images)


def find_onnx_backbone(
    backbone: Backbone,
    view: View,
    folder: Path | None = None,
    *,
    images: int,
    device: torch.device | str = "cpu",
    reporter: Reporter = SILENT,
) -> OnnxBackbone | None:
    """The backbone for images of a plain `view`, run by ONNX Runtime; None where torch is to be used.

    That is on a GPU, for few `images`, for images that are not RGB, and for networks that are not mostly convolutions,
    which gain nothing; and, with a message, without the packages or where the exported network computes something else.
    The exported file is kept in `folder` under a digest of weights and preprocessing.
    """
    is_rgb = len(backbone.mean) == 3
    if torch.device(device).type != "cpu" or images < FEWEST_IMAGES or not is_rgb or not _is_convolutional(backbone):
        return None
    try:
        network = OnnxBackbone(copy.deepcopy(backbone).to(memory_format=torch.contiguous_format), folder)
        network.add_shape((view.size, view.size))
        return network
    except ImportError as error:
        reason = f"the package {error.name} is not installed"
    # Exporter and runtime raise many unrelated types, which all mean the same: torch can do it too.
    except Exception as error:
        reason = f"ONNX Runtime cannot run {backbone.name}: {str(error).strip().partition(chr(10))[0][:120]}"
    reporter.message(f"features are computed by torch, slower than by ONNX Runtime ({reason})")
    return None


def _is_convolutional(backbone: Backbone) -> bool:
    """Whether convolutions hold at least half of the weights."""
    layers = [layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)]
    in_convolutions = sum(layer.weight.numel() for layer in layers)
    return 0 < sum(parameter.numel() for parameter in backbone.parameters()) <= 2 * in_convolutions


def network_file(backbone: Backbone, weights: str, shape: Shape) -> str:
    """Return the name of the file that keeps the exported network; `weights` is its fingerprint."""
    height, width = shape
    pixels = f"{width}px" if height == width else f"{width}x{height}px"
    return f"{backbone.name.replace('/', '_')}-{pixels}-{weights}.onnx"


def _load(backbone: Backbone, shape: Shape, folder: Path | None) -> bytes:
    """Read the network in `folder`; it is exported if the file is missing, damaged or of another network."""
    name = network_file(backbone, fingerprint(backbone), shape)
    if folder is not None:
        with contextlib.suppress(Exception):  # the runtime has one exception type per fault
            return _checked((folder / name).read_bytes(), backbone, shape)
    try:
        content = _checked(_export(backbone, shape, simplified=True), backbone, shape)
    except Exception:  # its simplified graph works for one batch size only
        content = _checked(_export(backbone, shape, simplified=False), backbone, shape)
    if folder is not None:
        with contextlib.suppress(UserError), atomic_write(folder / name) as temporary:  # a read-only or full disk
            temporary.write_bytes(content)
    return content


def _export(backbone: Backbone, shape: Shape, *, simplified: bool) -> bytes:
    """The network as the content of an .onnx file, by the exporter based on TorchScript: one second instead of ten.

    With `simplified`, ONNX Runtime simplifies the graph for one fixed shape, so that paddings computed from the image
    size become constants, and the batch is made variable afterwards. Networks that reshape by the batch do not allow
    that.
    """
    import onnx
    import onnxruntime

    # A copy, because the caller's network may be in another memory layout.
    plain = copy.deepcopy(_Pooled(backbone)).eval().cpu().float().to(memory_format=torch.contiguous_format)
    variable = {} if simplified else {"images": {0: "batch"}, "features": {0: "batch"}}
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "exported.onnx")
        with torch.no_grad(), quiet_exporter():
            torch.onnx.export(
                plain,
                (torch.zeros(1, 3, *shape, dtype=torch.uint8),),
                file,
                input_names=["images"],
                output_names=["features"],
                dynamic_axes=variable,
                dynamo=False,
            )
        if simplified:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.log_severity_level = _SILENT
            options.optimized_model_filepath = file
            onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        proto = onnx.load(file)
    del proto.graph.value_info[:]
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    content: bytes = proto.SerializeToString()
    return content


def _checked(content: bytes, backbone: Backbone, shape: Shape) -> bytes:
    """Return the content of an exported network; a ValueError if its features differ from torch's."""
    session = _start_session(content)
    for images in (parity_images(shape, 1)["noise"], parity_images(shape, 3)["scene"]):
        with torch.inference_mode():
            expected = backbone.pooled(images)
            difference = float((_run(session, images) - expected).abs().max() / expected.abs().max())
        if not difference <= TOLERANCE:  # also refuses NaN
            raise ValueError(f"its features differ by {difference:.2g} of their largest value")
    return content


def parity_images(shape: Shape, batch: int) -> dict[str, Tensor]:
    """Return images to compare on: noise, which excites every channel, and smooth shapes with edges, as in photos."""
    generator = torch.Generator().manual_seed(batch)
    noise = torch.randint(0, 256, (batch, 3, *shape), generator=generator, dtype=torch.uint8)
    coarse = torch.rand(batch, 3, 5, 5, generator=generator) * 255
    scene = nn.functional.interpolate(coarse, shape, mode="bicubic", align_corners=False)
    height, width = shape
    scene[:, :, height // 4 : height // 2, width // 2 :] = coarse[:, :, :1, :1]
    return {"noise": noise, "scene": scene.round().clamp(0, 255).to(torch.uint8)}


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's log messages and warnings, which a user cannot act on."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous_level)
