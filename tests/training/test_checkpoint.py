"""Checkpoint files: atomic, with a checksum, only the last two kept, never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.training import checkpoint
from halflabel.training.checkpoint import Checkpoint


def made(number: int) -> Checkpoint:
    return Checkpoint({"model.w": torch.full((3,), float(number)), "model.n": torch.tensor(number)}, {"epoch": number})


def stems(folder: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*{suffix}"))


def test_what_is_saved_is_what_is_found_and_the_last_two_are_kept(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none") is None
    for number in (1, 2, 10, 9):
        checkpoint.save(tmp_path, number, made(number))
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
def test_a_damaged_newest_is_skipped_with_a_warning(tmp_path: Path, name: str, harm: object) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, made(number))
    harm(tmp_path / name)  # type: ignore[operator]
    with pytest.warns(UserWarning, match="checkpoint 0000000002 is skipped"):
        loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}


def test_when_none_is_whole_the_user_is_told(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, made(number))
        damage_bytes(tmp_path / f"{number:010d}.safetensors")
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(UserError, match="start again without resume"):
        checkpoint.load_newest(tmp_path)


def test_what_a_killed_writer_leaves_does_not_matter(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, made(1))
    stale = tmp_path / ".0000000002.safetensors.x7.tmp"
    stale.write_bytes(b"half")
    (tmp_path / "0000000002.safetensors").write_bytes(b"whole, but its JSON was never written")
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}
    checkpoint.save(tmp_path, 2, made(2))
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 2}
    assert not stale.exists()


def test_a_failing_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, made(1))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(UserError, match="No space left"):
            checkpoint.save(tmp_path, 2, made(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000001.json", "0000000001.safetensors"]
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"epoch": 1}


def test_clear_removes_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    checkpoint.clear(tmp_path / "none")
    checkpoint.save(tmp_path, 1, made(1))
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_shared_and_strided_tensors_can_be_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = torch.arange(6.0)
    tensors = {"a": whole, "same": whole, "part": whole[2:4], "turned": whole.view(2, 3).T, "empty": torch.zeros(0)}
    checkpoint.save_tensors(tensors, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)


def test_the_json_is_readable_and_names_the_checksum(tmp_path: Path) -> None:
    import hashlib

    checkpoint.save(tmp_path, 3, made(3))
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
def test_an_optimizer_goes_on_as_if_nothing_had_happened(make: object) -> None:
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
    other, again = fresh()
    other.load_state_dict(layer.state_dict())
    checkpoint.unpack_optimizer(again, tensors, json.loads(json.dumps(groups)))
    for seed in (7, 8):
        step(layer, optimizer, seed)
        step(other, again, seed)
    assert torch.equal(layer.weight, other.weight)
    assert torch.equal(layer.bias, other.bias)


def test_an_optimizer_gets_its_state_back_in_the_layout_of_its_weights(tmp_path: Path) -> None:
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
    other, again = fresh()
    checkpoint.unpack_optimizer(again, loaded.tensors, loaded.meta["groups"])
    (weight, _), (same, _) = layer.parameters(), other.parameters()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(again.state[same][name], optimizer.state[weight][name])
        assert again.state[same][name].stride() == same.stride() == weight.stride()
