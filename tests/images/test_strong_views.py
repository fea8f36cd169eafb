"""Options of the strong view: from the command line to the pixels, the caches and the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import done
from digit_scenes import write_folder
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.comparison.bench import Bench
from halflabel.comparison.sources import split_data
from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.fitting.config import STRONG_VIEW_FIELDS, Config
from halflabel.images.views import Strong, make_views
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder

TINY = ["--backbone", "tiny", "--size", "32", "--workers=0", "--set=device=cpu", "--fit=batches", "--batch-size=16"]
SRCR = ["--method", "srcr", "--epochs", "1", "--set", "copies=1"]
GENTLE = ["--set", "strong_ops=1", "--set", "strong_magnitude=3", "--set", "cutout=0.1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_folder(folder, 32)
    return folder


def test_settings_are_those_of_the_view() -> None:
    backbone = build_backbone("tiny", size=32)
    preprocess = backbone.preprocess
    assert Config(size=32).views(backbone) == make_views(32, "keep", preprocess.interpolation, preprocess.crop_pct)
    views = Config(strong_ops=3, strong_magnitude=20, cutout=0.0, crop=0.9, size=32).views(backbone)
    strong = views["strong"]
    assert isinstance(strong, Strong)
    assert (strong.num_ops, strong.magnitude, strong.cutout, strong.least) == (3, 20, 0.0, 0.9)
    assert views["weak"] == Config(crop=0.9, size=32).views(backbone)["weak"]


@pytest.mark.parametrize(("name", "value"), [("strong_ops", -1), ("strong_magnitude", 31), ("cutout", 1.5)])
def test_options_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name) as refused:
        Config(**{name: value}).views(build_backbone("tiny", size=32))  # type: ignore[arg-type]
    assert name in refused.value.fix
    for command in ("train", "compare"):
        result = CliRunner().invoke(app, [command, "labels.csv", ".", "--set", f"{name}={value}"])
        assert result.exit_code == 2
        assert name in result.stderr


@pytest.mark.parametrize(
    "more", [{"num_ops": 0}, {"num_ops": 10}, {"magnitude": 0}, {"magnitude": 30}, {"cutout": 1.0}]
)
def test_the_limits_of_the_options_work_on_cpu_and_device(more: dict[str, Any]) -> None:
    view = Strong(24, **more)
    image = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys = np.arange(40, dtype=np.uint64)
    for result in (
        torch.stack([view(image, int(key)) for key in keys]),
        view.batch(image.expand(40, -1, -1, -1), keys),
    ):
        assert result.shape == (40, 3, 24, 24)
        assert result.dtype == torch.uint8


def test_without_operations_and_cutout_strong_equals_weak() -> None:
    backbone = build_backbone("tiny", size=32)
    views = Config(strong_ops=0, cutout=0.0, size=32).views(backbone)
    image = torch.randint(0, 256, (3, 40, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(views["weak"](image, key), views["strong"](image, key)) for key in range(20))


def test_a_run_stores_the_options_and_caches_are_separate(data: Path, tmp_path: Path) -> None:
    train = ["train", data / "train.csv", data / "images", *SRCR, *TINY]
    usual, gentle = tmp_path / "usual", tmp_path / "gentle"
    done(*train, "--out", usual)
    assert "others beside them" in done(*train, "--out", gentle, *GENTLE)
    assert "others beside them" not in done(*train, "--out", tmp_path / "again", *GENTLE)
    assert [RunFolder(gentle).read_config()[name] for name in STRONG_VIEW_FIELDS] == [1, 3, 0.1]
    assert [RunFolder(usual).read_config()[name] for name in STRONG_VIEW_FIELDS] == [2, 9, 0.5]
    weights = {run: (run / "best.safetensors").read_bytes() for run in (usual, gentle, tmp_path / "again")}
    assert weights[gentle] == weights[tmp_path / "again"] != weights[usual]
    # --resume and --continue keep the options and refuse others.
    done("train", "--resume", gentle)
    assert (gentle / "best.safetensors").read_bytes() == weights[gentle]
    done("train", "--continue", gentle, "--out", tmp_path / "next")
    assert [RunFolder(tmp_path / "next").read_config()[name] for name in STRONG_VIEW_FIELDS] == [1, 3, 0.1]
    assert CliRunner().invoke(app, ["train", "--resume", str(gentle), "--set", "cutout=0.3"]).exit_code == 2


def test_the_options_are_part_of_the_identity_of_a_comparison(tmp_path: Path) -> None:
    images = torch.zeros((8, 3, 32, 32), dtype=torch.uint8)
    table = Table.from_dense([[1, -1], [-1, 1]] * 4)

    def identity(**more: Any) -> dict[str, Any]:
        return Bench(split_data(table, images), Config(backbone="tiny", size=32, **more), cache=tmp_path).identity()

    assert identity(cutout=0.2) == {**identity(), "cutout": 0.2}
