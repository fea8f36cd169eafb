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
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.runs.export.hub import FILES, export_hub, push
from halflabel.runs.export.metadata import ModelMetadata
from halflabel.runs.export.onnx import OnnxHead, export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.predict import predict_files
from halflabel.runs.predictor import Predictor, open_model
from halflabel.runs.train import train
from halflabel.training.config import Config


@pytest.fixture(scope="module")
def folder(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model, read only; written with every way to the network closed."""
    out = tmp_path_factory.mktemp("hub") / "model"

    def closed(*given: Any, **more: Any) -> Any:
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


def test_the_folder_holds_what_is_needed_and_no_more(run: RunFolder, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["classes"] == ["red", "green", "büé|x"]
    assert config["backbone"] == "tiny"
    assert config["method"] == "bn-bce"
    assert config["preprocess"]["resize"] == "crop"
    assert ModelMetadata.from_dict(config, "x") == ModelMetadata.of(Predictor.from_run(run))
    for path in folder.iterdir():  # where it was trained is nobody's business
        assert str(run.folder.parent).encode() not in path.read_bytes()
        assert Predictor.from_run(run).config.images.encode() not in path.read_bytes()


def test_the_card_says_what_was_measured(run: RunFolder, folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    measured = run.read_json("metrics.json")
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


def test_a_run_that_measured_nothing_says_so(pictures: Path, table: LabelTable, run: RunFolder, tmp_path: Path) -> None:
    config: Config = dataclasses.replace(Predictor.from_run(run).config, held_out=0.0)
    bare = RunFolder(tmp_path / "bare")
    train(table, pictures, config, bare)
    text = (export_hub(bare, tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    assert "Nothing was measured" in text
    assert "model-index" not in text
    assert not ModelCard(text).data.eval_results


def test_all_three_kinds_predict_the_same(
    run: RunFolder, folder: Path, exported: Path, pictures: Path, table: LabelTable, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    files = [*sorted(pictures.iterdir())[:19], broken]  # more than a batch, and one that cannot be read
    predictors = [open_model(path) for path in (run.folder, folder, exported)]
    assert [isinstance(predictor.model.head, OnnxHead) for predictor in predictors] == [False, False, True]
    first, *others = (predict_files(predictor, files, [], all_scores=True) for predictor in predictors)
    assert first[-1].error
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert (mine.image, mine.error) == (theirs.image, theirs.error)
            assert [label["class"] for label in mine.labels] == [label["class"] for label in theirs.labels]
            assert [label["present"] for label in mine.labels] == [label["present"] for label in theirs.labels]
            for a, b in zip(mine.labels, theirs.labels, strict=True):
                assert a["probability"] == pytest.approx(b["probability"], abs=1e-5)
    wanted = predictors[0].evaluate(table, pictures).overall
    for predictor in predictors[1:]:
        assert predictor.evaluate(table, pictures).overall == pytest.approx(wanted, abs=1e-4, nan_ok=True)


def test_mirror_images_are_scored_where_the_run_scored_them(run: RunFolder, copied: Path, pictures: Path) -> None:
    own, config = Predictor.from_run(run), copied / "config.json"
    plain = predict_files(open_model(copied), [pictures], [])
    own.config = dataclasses.replace(own.config, mirror=True)
    wanted = predict_files(own, [pictures], [])
    config.write_text(json.dumps(ModelMetadata.of(own).as_dict()))
    assert predict_files(open_model(copied), [pictures], []) == wanted != plain
    before = ModelMetadata.of(own).as_dict()
    del before["mirror"]  # as exports were when mirror images were not scored yet
    config.write_text(json.dumps(before))
    assert predict_files(open_model(copied), [pictures], []) == plain


def test_the_hub_folder_exports_to_onnx(
    run: RunFolder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model and the same About arrive at the writer; the writer itself is tested elsewhere."""
    seen: list[Any] = []
    monkeypatch.setattr(
        "halflabel.runs.export.onnx.write_onnx", lambda model, about, path, **more: seen.append((model, about))
    )
    for predictor in (open_model(run.folder), open_model(folder)):
        export_onnx(predictor, tmp_path / "m.onnx")
    (mine, about), (theirs, their_about) = seen
    assert about == their_about
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))


def test_the_normalisation_of_training_is_used(run: RunFolder, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    config["preprocess"]["mean"] = [0.1, 0.2, 0.3]
    (copied / "config.json").write_text(json.dumps(config), encoding="utf-8")
    images = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    backbone: Any = open_model(copied).model.backbone
    assert backbone.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    original: Any = Predictor.from_run(run).model.backbone
    with torch.no_grad():
        assert not torch.allclose(backbone(images), original(images))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"halflabel": None}, "not exported by halflabel"),
        ({"halflabel": {"layout": 99}}, "layout 99"),
        ({"classes": ["red"]}, "is inconsistent"),
        ({"thresholds": ["high", 1, 2]}, "damaged"),
        ({"calibration": {"slope": None}}, "damaged"),
        ({"preprocess": {}}, "is incomplete"),
        ({"method": "no-such-method"}, "no method is called"),
        ({"options": {"evil": 1}}, "no option 'evil'"),
        ({"backbone": "resnet_nine"}, "no backbone called"),
        ({"classes": list("abcd"), "thresholds": [0.5] * 4}, "does not fit config.json"),
    ],
)
def test_a_damaged_config_is_explained(change: dict[str, Any], message: str, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    (copied / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        open_model(copied)
    assert caught.value.fix


def test_damaged_files_are_explained(copied: Path, tmp_path: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(UserError, match="does not fit"):
        open_model(copied)
    weights.unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        open_model(copied)
    (copied / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        open_model(copied)
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(UserError, match="is not a model"):
        open_model(tmp_path / "x.pt")
    with pytest.raises(UserError, match="is not a run"):
        open_model(tmp_path)


def test_nothing_is_overwritten_unasked(run: RunFolder, copied: Path) -> None:
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
    """Keeps what would have been sent."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fault = fault

    def create_repo(self, repo: str, **given: Any) -> str:
        if self.fault is not None:
            raise self.fault
        self.calls.append(("create", {"repo": repo, **given}))
        return f"https://huggingface.co/{repo}"

    def upload_folder(self, **given: Any) -> None:
        self.calls.append(("upload", given))


def test_push_sends_the_three_files(folder: Path) -> None:
    api = FakeApi()
    assert push(folder, "me/birds", private=True, api=api) == "https://huggingface.co/me/birds"
    (_, actual), (_, sent) = api.calls
    assert actual == {"repo": "me/birds", "private": True, "repo_type": "model", "exist_ok": True}
    assert (sent["repo_id"], sent["folder_path"], sent["allow_patterns"]) == ("me/birds", folder, list(FILES))


def test_push_explains_itself(run: RunFolder, folder: Path, tmp_path: Path) -> None:
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
def secretive(pictures: Path, table: LabelTable, run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with label vectors from a file that began with the weights of another; read only."""
    place = tmp_path_factory.mktemp("a secret place")
    words = place / "glove.txt"
    words.write_text("".join(f"{name} {number} 0.5\n" for number, name in enumerate(table.classes)), encoding="utf-8")
    config = dataclasses.replace(
        Predictor.from_run(run).config, method="gcn-ml", options={"vectors": str(words), "vector_size": 2}
    )
    first, second = RunFolder(place / "first"), RunFolder(place / "second")
    train(table, pictures, config, first)
    train(table, pictures, dataclasses.replace(config, begin_from=str(first.folder)), second)
    words.unlink()  # whoever gets the model has not got the file either
    return second


@pytest.mark.parametrize("kind", ["hub", "onnx"])
def test_only_the_file_name_of_paths_is_exported(
    secretive: RunFolder, pictures: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / ("model" if kind == "hub" else "model.onnx")
    result = CliRunner().invoke(app, ["export", kind, str(secretive.folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    for path in out.iterdir() if kind == "hub" else [out]:
        assert b"a secret place" not in path.read_bytes()
    opened = open_model(out)
    assert opened.config.options == {"vectors": "glove.txt", "vector_size": 2}
    assert opened.config.begin_from is None
    photo = pictures / "00.png"
    (ours,), (theirs,) = (predict_files(one, [photo], [], top=3) for one in (Predictor.from_run(secretive), opened))
    assert [label["class"] for label in ours.labels] == [label["class"] for label in theirs.labels]
    assert [label["probability"] for label in ours.labels] == pytest.approx(
        [label["probability"] for label in theirs.labels], abs=1e-4
    )


def test_a_run_of_the_solver(solver_run: Any, tmp_path: Path) -> None:
    folder = export_hub(solver_run.run, tmp_path / "hub")
    assert "out-of-fold scores" in (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(solver_run.images.iterdir())[:5]
    first, other = (
        predict_files(open_model(path), files, [], all_scores=True) for path in (solver_run.run.folder, folder)
    )
    assert first == other
