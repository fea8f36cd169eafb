"""Checkpoint files: atomic, with a checksum, only the last two kept, no code in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.fitting import checkpoint


def content(number: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((3,), float(number)), "n": torch.tensor(number)}, "epoch": number}


def newest(folder: Path) -> dict[str, Any]:
    loaded = checkpoint.load_newest(folder)
    assert loaded is not None
    return loaded


def test_the_newest_is_loaded_and_the_last_two_are_kept(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "none") is None
    for number in (1, 2, 10, 9):
        checkpoint.save(tmp_path, number, content(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000009.pt", "0000000010.pt"]
    loaded = newest(tmp_path)
    assert loaded["epoch"] == 10
    assert loaded["model"].keys() == {"w", "n"}
    assert torch.equal(loaded["model"]["w"], torch.full((3,), 10.0))
    assert loaded["model"]["n"].shape == ()
    assert loaded["model"]["n"].dtype == torch.int64


def cut_off(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut off": lambda path: cut_off(path, 400),
    "last byte gone": lambda path: cut_off(path, path.stat().st_size - 1),
    "two bytes": lambda path: cut_off(path, 2),
    "empty": lambda path: cut_off(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "no checkpoint": lambda path: path.write_bytes(b"abc" + bytes.fromhex("352441c2")),  # with a valid checksum
    "a folder": become_a_folder,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path))[1],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, content(number))
    damage(tmp_path / "0000000002.pt")
    with pytest.warns(UserWarning, match="checkpoint 0000000002 is skipped"):
        assert newest(tmp_path)["epoch"] == 1


def flip_bit(path: Path, number: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[number // 8] ^= 1 << (number % 8)
    path.write_bytes(bytes(raw))


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, content(1))
    path = tmp_path / "0000000001.pt"
    checkpoint.load(path)
    for number in range(0, 8 * path.stat().st_size, 97):
        flip_bit(path, number)
        with pytest.raises(ValueError, match="its checksum does not match"):
            checkpoint.load(path)
        flip_bit(path, number)


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, content(number))
        flip_bit(tmp_path / f"{number:010d}.pt", 1000)
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(UserError, match="start again without resume"):
        checkpoint.load_newest(tmp_path)


def test_files_of_a_killed_writer_are_ignored(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, content(1))
    stale = tmp_path / ".0000000002.pt.x7.tmp"
    stale.write_bytes(b"half")
    assert newest(tmp_path)["epoch"] == 1
    checkpoint.save(tmp_path, 2, content(2))
    assert newest(tmp_path)["epoch"] == 2
    assert not stale.exists()


def test_a_disk_that_fills_up_while_tensors_are_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A file on a disk with room for a kilobyte."""

        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 1000

        def write(self, data: Any) -> int:
            self.room -= len(data)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            return int(self.file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: save(content, Full(file)))
    with pytest.raises(UserError, match="No space left"):
        checkpoint.save(tmp_path, 1, content(1))
    assert not list(tmp_path.iterdir())


def test_shared_and_strided_tensors_can_be_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    values = torch.arange(6.0)
    tensors = {"a": values, "same": values, "part": values[2:4], "turned": values.view(2, 3).T, "empty": torch.zeros(0)}
    checkpoint.save_tensors(tensors, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)


@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)],
    ids=["adamw", "adam", "rmsprop", "sgd"],
)
def test_a_loaded_optimizer_continues_exactly(tmp_path: Path, make: Callable[..., torch.optim.Optimizer]) -> None:
    def fresh() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer, make([{"params": layer.weight}, {"params": layer.bias, "lr": 0.3}])

    def step(layer: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        layer(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()

    layer, optimizer = fresh()
    for seed in range(3):
        step(layer, optimizer, seed)
    checkpoint.save(tmp_path, 1, {"model": layer.state_dict(), "optimizer": optimizer.state_dict()})
    loaded_layer, loaded_optimizer = fresh()
    loaded_layer.load_state_dict(newest(tmp_path)["model"])
    loaded_optimizer.load_state_dict(newest(tmp_path)["optimizer"])
    for seed in (7, 8):
        step(layer, optimizer, seed)
        step(loaded_layer, loaded_optimizer, seed)
    assert torch.equal(layer.weight, loaded_layer.weight)
    assert torch.equal(layer.bias, loaded_layer.bias)


def test_loaded_optimizer_state_has_the_layout_of_the_weights(tmp_path: Path) -> None:
    """In another layout, sums could round differently than in the uninterrupted run."""

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        return layer, torch.optim.AdamW(layer.parameters())

    layer, optimizer = fresh()
    layer(torch.randn(2, 4, 5, 5)).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path, 1, {"optimizer": optimizer.state_dict()})
    loaded_layer, loaded_optimizer = fresh()
    loaded_optimizer.load_state_dict(newest(tmp_path)["optimizer"])
    (weight, _), (loaded_weight, _) = layer.parameters(), loaded_layer.parameters()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(loaded_optimizer.state[loaded_weight][name], optimizer.state[weight][name])
        assert loaded_optimizer.state[loaded_weight][name].stride() == loaded_weight.stride() == weight.stride()
