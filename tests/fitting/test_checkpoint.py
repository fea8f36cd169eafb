"""Checkpoint files: atomic, with a checksum, only the last two kept, never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.fitting import checkpoint
from halflabel.fitting.checkpoint import Checkpoint


def make_checkpoint(number: int) -> Checkpoint:
    return Checkpoint({"model.w": torch.full((3,), float(number)), "model.n": torch.tensor(number)}, {"epoch": number})


def stems(folder: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*{suffix}"))


def test_the_newest_is_loaded_and_the_last_two_are_kept(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none") is None
    for number in (1, 2, 10, 9):
        checkpoint.save(tmp_path, number, make_checkpoint(number))
    assert stems(tmp_path, ".json") == stems(tmp_path, ".safetensors") == [9, 10]
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 10}
    assert loaded.tensors.keys() == {"model.w", "model.n"}
    assert torch.equal(loaded.tensors["model.w"], torch.full((3,), 10.0))
    assert loaded.tensors["model.n"].shape == ()
    assert loaded.tensors["model.n"].dtype == torch.int64


def damage_bytes(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("0000000002.safetensors", damage_bytes),
        ("0000000002.safetensors", lambda path: path.write_bytes(path.read_bytes()[:40])),
        ("0000000002.safetensors", lambda path: path.unlink()),
        ("0000000002.json", lambda path: path.write_text('{"sha256": "abc')),
        ("0000000002.json", lambda path: path.write_text("[]")),
        ("0000000002.json", lambda path: path.write_text("{}")),
        ("0000000002.json", lambda path: path.write_bytes(b"\xff\xfe\x00")),
    ],
    ids=["one bit", "cut off", "gone", "half a JSON", "a list", "no checksum", "no text"],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, name: str, harm: object) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, make_checkpoint(number))
    harm(tmp_path / name)  # type: ignore[operator]
    with pytest.warns(UserWarning, match="checkpoint 0000000002 is skipped"):
        loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, make_checkpoint(number))
        damage_bytes(tmp_path / f"{number:010d}.safetensors")
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(UserError, match="start again without resume"):
        checkpoint.load_newest(tmp_path)


def test_files_of_a_killed_writer_are_ignored(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, make_checkpoint(1))
    stale = tmp_path / ".0000000002.safetensors.x7.tmp"
    stale.write_bytes(b"half")
    (tmp_path / "0000000002.safetensors").write_bytes(b"whole, but its JSON was never written")
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}
    checkpoint.save(tmp_path, 2, make_checkpoint(2))
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 2}
    assert not stale.exists()


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, make_checkpoint(1))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(UserError, match="No space left"):
            checkpoint.save(tmp_path, 2, make_checkpoint(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000001.json", "0000000001.safetensors"]
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}


def test_clear_removes_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    checkpoint.clear(tmp_path / "none")
    checkpoint.save(tmp_path, 1, make_checkpoint(1))
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_shared_and_strided_tensors_can_be_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    values = torch.arange(6.0)
    tensors = {"a": values, "same": values, "part": values[2:4], "turned": values.view(2, 3).T, "empty": torch.zeros(0)}
    checkpoint.save_tensors(tensors, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)


def test_the_json_is_readable_and_names_the_checksum(tmp_path: Path) -> None:
    import hashlib

    checkpoint.save(tmp_path, 3, make_checkpoint(3))
    meta = json.loads((tmp_path / "0000000003.json").read_text())
    assert meta["sha256"] == hashlib.sha256((tmp_path / "0000000003.safetensors").read_bytes()).hexdigest()


def test_flatten_and_restore_are_inverse() -> None:
    state = {"w": torch.ones(2), "deep.er": torch.zeros(1), "text": "left out"}
    tensors = checkpoint.flatten("model", state) | checkpoint.flatten("model2", {"w": torch.zeros(3)})
    assert checkpoint.restore("model", tensors).keys() == {"w", "deep.er"}
    assert checkpoint.restore("model2", tensors)["w"].shape == (3,)


@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)],
    ids=["adamw", "adam", "rmsprop", "sgd"],
)
def test_a_loaded_optimizer_continues_exactly(make: object) -> None:
    def fresh() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer, make([{"params": layer.weight}, {"params": layer.bias, "lr": 0.3}])  # type: ignore[operator]

    def step(layer: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        layer(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()

    layer, optimizer = fresh()
    for seed in range(3):
        step(layer, optimizer, seed)
    tensors, groups = checkpoint.pack_optimizer(optimizer)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # as a file has its own
    loaded_layer, loaded_optimizer = fresh()
    loaded_layer.load_state_dict(layer.state_dict())
    checkpoint.unpack_optimizer(loaded_optimizer, tensors, json.loads(json.dumps(groups)))
    for seed in (7, 8):
        step(layer, optimizer, seed)
        step(loaded_layer, loaded_optimizer, seed)
    assert torch.equal(layer.weight, loaded_layer.weight)
    assert torch.equal(layer.bias, loaded_layer.bias)


def test_loaded_optimizer_state_has_the_layout_of_the_weights(tmp_path: Path) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        return layer, torch.optim.AdamW(layer.parameters())

    layer, optimizer = fresh()
    layer(torch.randn(2, 4, 5, 5)).sum().backward()
    optimizer.step()
    tensors, groups = checkpoint.pack_optimizer(optimizer)
    checkpoint.save(tmp_path, 1, Checkpoint(tensors, {"groups": groups}))
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    loaded_layer, loaded_optimizer = fresh()
    checkpoint.unpack_optimizer(loaded_optimizer, loaded.tensors, loaded.meta["groups"])
    (weight, _), (loaded_weight, _) = layer.parameters(), loaded_layer.parameters()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(loaded_optimizer.state[loaded_weight][name], optimizer.state[weight][name])
        assert loaded_optimizer.state[loaded_weight][name].stride() == loaded_weight.stride() == weight.stride()
