"""Export to Hugging Face Hub folders, and predictors of all three kinds of models."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.runs.export.hub import FILES, export_hub, push
from halflabel.runs.export.metadata import describe
from halflabel.runs.export.onnx import OnnxHead
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train
from halflabel.system.files import write_json


@pytest.fixture(scope="module")
def folder(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model, read only; written without access to the network."""
    out = tmp_path_factory.mktemp("hub") / "model"

    def closed(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("a connection was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", closed)
        patch.setattr(socket, "create_connection", closed)
        result = CliRunner().invoke(app, ["export", "hub", str(run.folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def test_the_files_of_the_folder(run: RunFolder, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["classes"] == ["red", "green", "büé|x"]
    assert config["backbone"] == "tiny"
    assert config["method"] == "bn-bce"
    assert config["preprocess"]["resize"] == "crop"
    assert config == json.loads(json.dumps(describe(Model.open(run))))
    for path in folder.iterdir():  # where it was trained is nobody's business
        assert str(run.folder.parent).encode() not in path.read_bytes()
        assert Model.open(run).config.images.encode() not in path.read_bytes()


def test_the_card_states_the_measured_values(run: RunFolder, folder: Path, tmp_path: Path) -> None:
    measured = run.read_object("metrics.json")
    assert not ModelCard((folder / "README.md").read_text(encoding="utf-8")).data.eval_results  # by too few labels
    more = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    write_json(more / "metrics.json", measured | {"positives": 100})
    text = (export_hub(more, tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    (result,) = ModelCard(text).data.eval_results
    assert result.metric_type == "mAP"
    assert result.metric_value == pytest.approx(measured["mAP"], abs=1e-6)
    front = yaml.safe_load(text.split("---")[1])
    assert front["library_name"] == "halflabel"
    assert front["pipeline_tag"] == "image-classification"
    assert "license" not in front
    assert "F1" not in json.dumps(front)
    assert (run / "model_card.md").read_text(encoding="utf-8").strip() in text
    rows = [line for line in text.splitlines() if line.startswith(("| red |", "| green |", "| büé\\|x |"))]
    assert len(rows) == 3
    assert "More Information Needed" not in text


def test_the_card_of_a_run_without_evaluation(pictures: Path, table: Table, run: RunFolder, tmp_path: Path) -> None:
    config: Config = dataclasses.replace(Model.open(run).config, held_out=0.0)
    bare = RunFolder(tmp_path / "bare")
    train(table, pictures, config, bare)
    text = (export_hub(bare, tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    assert "Nothing was measured" in text
    assert "model-index" not in text
    assert not ModelCard(text).data.eval_results


def test_all_three_kinds_predict_the_same(
    run: RunFolder, folder: Path, exported: Path, pictures: Path, table: Table, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    files = [*sorted(pictures.iterdir())[:19], broken]  # more than a batch, and one that cannot be read
    predictors = [Model.open(path) for path in (run.folder, folder, exported)]
    assert [isinstance(predictor.network.head, OnnxHead) for predictor in predictors] == [False, False, True]
    run_predictions, *export_predictions = (predictor.predict(files, all_scores=True) for predictor in predictors)
    assert run_predictions[-1].error
    for predictions in export_predictions:
        for expected, actual in zip(run_predictions, predictions, strict=True):
            assert (expected.image, expected.error) == (actual.image, actual.error)
            assert [label["class"] for label in expected.labels] == [label["class"] for label in actual.labels]
            assert [label["present"] for label in expected.labels] == [label["present"] for label in actual.labels]
            for a, b in zip(expected.labels, actual.labels, strict=True):
                assert a["probability"] == pytest.approx(b["probability"], abs=1e-5)
    others = tmp_path / "others"  # the same pixels in other files, which no run has seen
    others.mkdir()
    for path in pictures.iterdir():
        Image.open(path).save(others / path.name, compress_level=1)
    expected_metrics = predictors[0].evaluate(table, others).overall
    for predictor in predictors[1:]:
        assert predictor.evaluate(table, others).overall == pytest.approx(expected_metrics, abs=1e-4, nan_ok=True)


def test_the_normalisation_of_training_is_used(run: RunFolder, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    config["preprocess"]["mean"] = [0.1, 0.2, 0.3]
    (copied / "config.json").write_text(json.dumps(config), encoding="utf-8")
    images = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    backbone: Any = Model.open(copied).network.backbone
    assert backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    original: Any = Model.open(run).network.backbone
    with torch.no_grad():
        assert not torch.allclose(backbone(images), original(images))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"halflabel": None}, "not exported by halflabel"),
        ({"halflabel": {"layout": 99}}, "layout 99"),
        ({"classes": ["red"]}, "does not fit the classes"),
        ({"thresholds": ["high", 1, 2]}, "damaged"),
        ({"calibration": {"slope": None}}, "damaged"),
        ({"preprocess": {}}, "is incomplete"),
        ({"method": "no-such-method"}, "no method is called"),
        ({"options": {"evil": 1}}, "no option 'evil'"),
        ({"backbone": "resnet_nine"}, "no backbone called"),
        ({"classes": list("abcd"), "thresholds": [0.5] * 4}, "does not fit the classes"),
    ],
)
def test_a_damaged_config_is_explained(change: dict[str, Any], message: str, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    (copied / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        Model.open(copied)
    assert caught.value.fix


def test_damaged_files_are_explained(copied: Path, tmp_path: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(UserError, match="is damaged"):
        Model.open(copied)
    weights.unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        Model.open(copied)
    (copied / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        Model.open(copied)
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(UserError, match="is not a model"):
        Model.open(tmp_path / "x.pt")
    with pytest.raises(UserError, match="is not a run"):
        Model.open(tmp_path)


def test_nothing_is_overwritten_without_force(run: RunFolder, copied: Path) -> None:
    with pytest.raises(UserError, match="force"):
        export_hub(run, copied)
    (copied / "notes.txt").write_text("mine")
    export_hub(run, copied, force=True)
    assert (copied / "notes.txt").read_text() == "mine"
    with pytest.raises(UserError, match="holds a run"):
        export_hub(run, run.folder, force=True)
    with pytest.raises(UserError, match="is a file"):
        export_hub(run, copied / "notes.txt")


class FakeApi:
    """Records the calls instead of sending them."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fault = fault

    def create_repo(self, repo: str, **options: Any) -> str:
        if self.fault is not None:
            raise self.fault
        self.calls.append(("create", {"repo": repo, **options}))
        return f"https://huggingface.co/{repo}"

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload", options))


def test_push_sends_the_three_files(folder: Path) -> None:
    api = FakeApi()
    assert push(folder, "me/birds", private=True, api=api) == "https://huggingface.co/me/birds"
    (_, created), (_, sent) = api.calls
    assert created == {"repo": "me/birds", "private": True, "repo_type": "model", "exist_ok": True}
    assert (sent["repo_id"], sent["folder_path"], sent["allow_patterns"]) == ("me/birds", folder, list(FILES))


def test_errors_of_push_have_a_fix(run: RunFolder, folder: Path, tmp_path: Path) -> None:
    for name in ("birds", "/birds", "me/", "a/b/c"):
        with pytest.raises(UserError, match="user/name"):
            push(folder, name, api=FakeApi())
    with pytest.raises(UserError, match="401") as caught:
        push(folder, "me/birds", api=FakeApi(OSError("401 not allowed\n  at all")))
    assert "hf auth login" in caught.value.fix
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        push(tmp_path, "me/birds", api=FakeApi())
    result = CliRunner().invoke(app, ["export", "hub", str(run.folder), "--out", str(tmp_path / "m"), "--private"])
    assert result.exit_code == 2
    assert not (tmp_path / "m").exists()


@pytest.fixture(scope="module")
def run_with_paths(pictures: Path, table: Table, run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with label vectors from a file that began with the weights of another; read only."""
    place = tmp_path_factory.mktemp("a secret place")
    words = place / "glove.txt"
    words.write_text("".join(f"{name} {number} 0.5\n" for number, name in enumerate(table.classes)), encoding="utf-8")
    config = dataclasses.replace(
        Model.open(run).config, method="gcn-ml", options={"vectors": str(words), "vector_size": 2}
    )
    first, second = RunFolder(place / "first"), RunFolder(place / "second")
    train(table, pictures, config, first)
    train(table, pictures, dataclasses.replace(config, begin_from=str(first.folder)), second)
    words.unlink()  # the exported model must not need the file
    return second


@pytest.mark.parametrize("kind", ["hub", "onnx"])
def test_only_the_file_name_of_paths_is_exported(
    run_with_paths: RunFolder, pictures: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / ("model" if kind == "hub" else "model.onnx")
    result = CliRunner().invoke(app, ["export", kind, str(run_with_paths.folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    for path in out.iterdir() if kind == "hub" else [out]:
        assert b"a secret place" not in path.read_bytes()
    opened = Model.open(out)
    assert opened.config.options == {"vectors": "glove.txt", "vector_size": 2}
    assert opened.config.begin_from is None
    photo = pictures / "00.png"
    (expected,), (actual,) = (predictor.predict([photo], top=3) for predictor in (Model.open(run_with_paths), opened))
    assert [label["class"] for label in expected.labels] == [label["class"] for label in actual.labels]
    assert [label["probability"] for label in expected.labels] == pytest.approx(
        [label["probability"] for label in actual.labels], abs=1e-4
    )


def test_a_run_of_the_solver(solver_run: Any, tmp_path: Path) -> None:
    folder = export_hub(solver_run.run, tmp_path / "hub")
    assert "out-of-fold scores" in (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(solver_run.images.iterdir())[:5]
    expected, actual = (Model.open(path).predict(files, all_scores=True) for path in (solver_run.run.folder, folder))
    assert expected == actual
