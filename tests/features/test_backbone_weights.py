"""Backbone weights from a file, and the fingerprint of a backbone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from backbone_examples import noise
from safetensors.torch import save_file
from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.backbones import Backbone, build_backbone, fingerprint


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """One thread: with small tensors, several threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Weights from a file


def other_weights(name: str = "test_resnet") -> dict[str, Tensor]:
    """A state dict unlike the untrained one, classifier included."""
    torch.manual_seed(7)
    return dict(timm.create_model(name).state_dict())


def write(state: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def assert_loaded(backbone: Backbone, state: dict[str, Tensor]) -> None:
    loaded = backbone.model.state_dict()
    assert loaded
    assert all(torch.equal(tensor, state[key]) for key, tensor in loaded.items())


@pytest.mark.parametrize(
    ("file", "prefix"),
    [
        ("w.safetensors", ""),
        ("w.pth", "module."),
        ("w.pt", "model."),
        ("w.bin", "backbone."),
        ("W.PTH", "module.backbone."),
    ],
)
def test_files_and_prefixes(tmp_path: Path, file: str, prefix: str) -> None:
    state = other_weights()
    path = write({prefix + key: tensor for key, tensor in state.items()}, tmp_path / file)
    assert_loaded(build_backbone("test_resnet", weights=path), state)


@pytest.mark.parametrize("nest", [("state_dict",), ("model",), ("model", "state_dict")])
def test_nested_state_dicts_are_unwrapped(tmp_path: Path, nest: tuple[str, ...]) -> None:
    state = other_weights()
    content: Any = state
    for key in nest:
        content = {key: content, "epoch": 3, "optimizer": {"lr": 0.1}}
    assert_loaded(build_backbone("test_resnet", weights=write(content, tmp_path / "w.pth")), state)


@pytest.mark.parametrize("name", ["tiny", "test_vit", "efficientnet-lite0"])
def test_a_backbone_can_be_saved_and_loaded(tmp_path: Path, name: str) -> None:
    saved = build_backbone(name, pretrained=False)
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(0.01)
    path = write(saved.state_dict(), tmp_path / "w.safetensors")
    loaded = build_backbone(name, weights=path)
    assert fingerprint(loaded) == fingerprint(saved) != fingerprint(build_backbone(name, pretrained=False))


def test_position_embeddings_are_resized(tmp_path: Path) -> None:
    path = write(other_weights("test_vit"), tmp_path / "w.safetensors")
    backbone = build_backbone("test_vit", weights=path, size=96)
    assert backbone(noise(1, 3, 96, 96)).shape == (1, backbone.channels, 6, 6)


def test_the_image_encoder_of_an_openclip_file_is_loaded(tmp_path: Path) -> None:
    name = "vit_xsmall_patch16_clip_224.tinyclip_yfcc15m"
    expected = timm.create_model(name, num_classes=0).state_dict()
    layers = [
        "blocks transformer.resblocks",
        "norm ln_",
        "mlp.fc1 mlp.c_fc",
        "mlp.fc2 mlp.c_proj",
        "attn.proj attn.out_proj",
    ]
    layers += ["attn.qkv. attn.in_proj_", "patch_embed.proj conv1", "ln__pre ln_pre", "ln_. ln_post."]

    def renamed(key: str) -> str:
        for ours, theirs in map(str.split, layers):
            key = key.replace(ours, theirs)
        return f"visual.{key}"

    state = {renamed(key): tensor for key, tensor in expected.items() if key not in ("cls_token", "pos_embed")}
    state |= {
        "visual.class_embedding": expected["cls_token"][0, 0],
        "visual.positional_embedding": expected["pos_embed"][0],
    }
    state |= {"visual.proj": torch.zeros(256, 512), "text_projection": torch.zeros(8, 8), "logit_scale": torch.ones(())}
    backbone = build_backbone(name, weights=write(state, tmp_path / "open_clip_pytorch_model.bin"))
    assert_loaded(backbone, expected)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    state = other_weights()
    del state["layer1.0.conv1.weight"]
    with pytest.raises(
        UserError, match=r"does not fit the backbone 'test_resnet': 1 missing \(layer1.0.conv1.weight\)"
    ):
        build_backbone("test_resnet", weights=write(state, tmp_path / "w.pth"))


def test_weights_of_a_deeper_model_are_refused(tmp_path: Path) -> None:
    state = other_weights()
    deeper = {key.replace("layer1.0.", "layer1.7."): tensor for key, tensor in state.items()} | state
    with pytest.raises(UserError, match=r"unknown to it \(layer1.7.conv1.weight, ") as caught:
        build_backbone("test_resnet", weights=write(deeper, tmp_path / "w.pth"))
    assert "name the backbone" in caught.value.fix


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "tiny"])
def test_weights_of_another_architecture_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="does not fit the backbone"):
        build_backbone(name, weights=write(other_weights(), tmp_path / "w.pth"))


@pytest.mark.parametrize("content", [torch.zeros(3), [1, 2], {"epoch": 3}, {"state_dict": {}}])
def test_files_without_a_state_dict_are_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UserError, match="holds no state dict"):
        build_backbone("tiny", weights=write(content, tmp_path / "w.pth"))


def test_two_models_in_one_file_are_refused(tmp_path: Path) -> None:
    state = other_weights()
    two_models = {f"module.{key}": tensor for key, tensor in state.items()} | state
    with pytest.raises(UserError, match="holds several models"):
        build_backbone("test_resnet", weights=write(two_models, tmp_path / "w.pth"))


@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 cut short"])
def test_damaged_files_are_refused(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=r"w\.\w+ (cannot be read as weights|holds more than weights)"):
        build_backbone("tiny", weights=tmp_path / file)


def test_missing_files_and_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no weights file"):
        build_backbone("tiny", weights=tmp_path / "nowhere.pth")
    with pytest.raises(UserError, match="there is no weights file"):
        build_backbone("tiny", weights=tmp_path)
    (tmp_path / "w.h5").write_bytes(b"")
    with pytest.raises(UserError, match="is not a weights file") as caught:
        build_backbone("tiny", weights=tmp_path / "w.h5")
    assert ".safetensors" in caught.value.fix


class Intruder:
    """When unpickled without protection, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("by_torch", [True, False])
def test_code_in_a_pickle_does_not_run(tmp_path: Path, protocol: int, by_torch: bool) -> None:
    path, mark = tmp_path / "w.pth", tmp_path / "mark"
    content = {"weight": Intruder(mark)}
    if by_torch:
        torch.save(content, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(UserError, match="could run code") as caught:
        build_backbone("tiny", weights=path)
    assert "state_dict" in caught.value.fix
    assert not mark.exists()
    # The file is dangerous indeed: a careless load runs it.
    torch.load(path, weights_only=False) if by_torch else pickle.loads(path.read_bytes())
    assert mark.exists()


# The key of the feature cache


def test_fingerprint_depends_on_weights_name_and_preprocessing() -> None:
    def altered(change: Callable[[Backbone], Any]) -> str:
        backbone = build_backbone("test_resnet", pretrained=False)
        with torch.no_grad():
            change(backbone)
        return fingerprint(backbone)

    def half(backbone: Backbone) -> None:
        backbone.half()

    def statistics(backbone: Backbone) -> None:
        key = next(key for key in backbone.state_dict() if key.endswith("running_mean"))
        backbone.state_dict()[key][0] += 1e-3

    def one_weight(backbone: Backbone) -> None:
        next(backbone.parameters()).view(-1)[0] += 1e-3

    def name(backbone: Backbone) -> None:
        backbone.name = "other"

    def preprocess(**changes: Any) -> Callable[[Backbone], Any]:
        return lambda backbone: setattr(backbone, "preprocess", replace(backbone.preprocess, **changes))

    changes = [
        lambda backbone: None,
        half,
        statistics,
        one_weight,
        name,
        preprocess(size=96),
        preprocess(mean=(0.5, 0.5, 0.4)),
        preprocess(std=(0.5, 0.5, 0.4)),
        preprocess(interpolation="bicubic"),
        preprocess(crop_pct=1.0),
    ]
    assert len({altered(change) for change in changes}) == len(changes)


def test_fingerprint_ignores_batch_counters() -> None:
    backbone = build_backbone("test_resnet", pretrained=False)
    before = fingerprint(backbone)
    for key, tensor in backbone.state_dict().items():
        if key.endswith("num_batches_tracked"):
            tensor += 5
    assert fingerprint(backbone) == before
