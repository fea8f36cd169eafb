"""EfficientNet-Lite with the names, the order and the outputs of timm, without importing timm, which takes seconds."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

# Pixels, by variant. Lite2 was trained at 260, but crops of training enlarge things: frozen features are better at 304.
SIZE = (224, 240, 304)
CROP = (0.875, 0.882, 0.89)  # share of the shorter side

_WIDTH, _DEPTH = (1.0, 1.0, 1.1), (1.0, 1.1, 1.2)
# Stages of inverted residuals: blocks, kernel, stride, channels.
_STAGES = ((2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80), (3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320))
_STEM, _HEAD, _EXPANSION = 32, 1280, 6


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite 0, 1 or 2 with a classifier of 1000 classes; `forward_features` returns (B, 1280, h, w)."""

    num_features = _HEAD

    def __init__(self, variant: int) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = _conv(3, _STEM, 3, stride=2), _norm(_STEM)
        channels = _scaled(16, variant)
        stages: list[nn.Module] = [nn.Sequential(_Block(_STEM, channels, 3, 1, expansion=1))]
        for number, (blocks, kernel, stride, width) in enumerate(_STAGES):
            wide = _scaled(width, variant)
            is_last = number == len(_STAGES) - 1
            depth = blocks if is_last else math.ceil(blocks * _DEPTH[variant])
            first = _Block(channels, wide, kernel, stride, expansion=_EXPANSION)
            others = [_Block(wide, wide, kernel, 1, expansion=_EXPANSION) for _ in range(depth - 1)]
            stages.append(nn.Sequential(first, *others))
            channels = wide
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(channels, _HEAD, 1), _norm(_HEAD)
        self.classifier: nn.Module = nn.Linear(_HEAD, 1000)

    def forward_features(self, x: Tensor) -> Tensor:
        x = F.relu6(self.bn1(self.conv_stem(x)), inplace=True)
        return F.relu6(self.bn2(self.conv_head(self.blocks(x))), inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.forward_features(x).mean((2, 3)))
        return logits

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        self.classifier = nn.Linear(_HEAD, num_classes) if num_classes else nn.Identity()


class _Block(nn.Sequential):
    """An inverted residual: widen, convolve each channel, narrow; without `expansion` the first step is left out."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, *, expansion: int) -> None:
        wide = channels * expansion
        # Names and numbers as in timm.
        parts: list[tuple[str, nn.Module]] = [("conv_pw", _conv(channels, wide, 1))] if expansion > 1 else []
        parts.append(("conv_dw", _conv(wide, wide, kernel, stride=stride, groups=wide)))
        parts.append(("conv_pwl" if expansion > 1 else "conv_pw", _conv(wide, out, 1)))
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (name, conv) in enumerate(parts, 1):
            layers |= {name: conv, f"bn{number}": _norm(out if number == len(parts) else wide)}
            if number < len(parts):
                layers[f"act{number}"] = nn.ReLU6(inplace=True)
        super().__init__(layers)
        self.has_skip = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self:
            y = layer(y)
        return x + y if self.has_skip else y


class _SameConv(nn.Conv2d):
    """A strided convolution with the padding of TensorFlow, which may be larger at the right and at the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        # Division of positive numbers: that of ONNX rounds towards zero.
        height, width = (max((side - 1) // stride * stride + kernel - side, 0) for side in x.shape[-2:])
        # ONNX Runtime makes padding a part of the convolution only if the value is stated.
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=0.0)
        return super().forward(x)


def _conv(channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride > 1:
        return _SameConv(channels, out, kernel, stride, groups=groups, bias=False)
    return nn.Conv2d(channels, out, kernel, padding=kernel // 2, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _scaled(channels: int, variant: int) -> int:
    """The width of a variant, a multiple of 8 that is at most a tenth smaller."""
    wanted = channels * _WIDTH[variant]
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
