"""Export for the Hugging Face Hub: a folder with weights, settings and a model card; upload only on request."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from halflabel.errors import UserError
from halflabel.evaluation.registry import has_too_few
from halflabel.evaluation.scores import MEASURED_ON, Kind
from halflabel.fitting.config import Config
from halflabel.runs.folder import RunFolder
from halflabel.runs.run_files import verify_checksum
from halflabel.system.files import atomic_write, write_json
from halflabel.system.html import render

if TYPE_CHECKING:
    from halflabel.runs.model import Model as Predictor


FILES = ("model.safetensors", "config.json", "README.md")


def export_hub(
    run: RunFolder,
    folder: Path,
    *,
    force: bool = False,
    threshold: float | str | None = None,
    positives_per_image: float | None = None,
) -> Path:
    """Write model.safetensors, config.json and README.md; nothing is uploaded. For decisions see Model.deciding."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "name a folder with ‹out›")
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run", "name another folder with ‹out›")
    if any((folder / name).exists() for name in FILES) and not force:
        raise UserError(f"{folder} holds a model already", "name another ‹out›, or add ‹force› to overwrite it")
    run.check_finished()

    from halflabel.runs.export.metadata import describe
    from halflabel.runs.model import Model  # imports torch, so only after the quick checks

    predictor = Model.open(run)  # also checks that the run is complete
    predictor = predictor.deciding(threshold=threshold, positives_per_image=positives_per_image)
    description = describe(predictor)
    with atomic_write(folder / FILES[0]) as temporary:
        verify_checksum(run.weights)
        shutil.copyfile(run.weights, temporary)
    write_json(folder / FILES[1], description)
    with atomic_write(folder / FILES[2]) as temporary:
        temporary.write_text(card(run, predictor), encoding="utf-8")
    return folder


def card(run: RunFolder, model: Predictor) -> str:
    """Return the model card: front matter for the Hub, then the evaluation of the run."""
    front = _front_matter(model.config, run.read_object("metrics.json"), run.score_kind)
    run_card = run / "model_card.md"
    numbers = ("AP", "AP_low", "AP_high", "threshold")
    return str(
        render(
            "runs/export/hub_card.md.j2",
            front_matter=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
            run_card=run_card.read_text(encoding="utf-8").strip() if run_card.exists() else "",
            config=model.config,
            classes=len(model.classes),
            rows=[row | {key: _number(row.get(key)) for key in numbers} for row in run.read_csv("per_label.csv")],
            view=model.views["plain"],
        )
    )


def push(folder: Path, repo: str, *, private: bool = False, api: Any = None) -> str:
    """Upload the exported folder to the Hub as `user/name`; returns its address. The only network access here."""
    owner, _, name = repo.partition("/")
    if not owner or not name or "/" in name:
        raise UserError(f"{repo!r} is not a repository name of the Hub", "write ‹push=user/name›")
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise UserError(f"{folder} has no {missing[0]}", "export the run again")
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    try:
        address = api.create_repo(repo, private=private, repo_type="model", exist_ok=True)
        # Only these files: the folder may contain others of the user.
        api.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=list(FILES), commit_message="Upload model by halflabel"
        )
    # The Hub's client and the network raise many unrelated types; for the user they all mean the same.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        fix = f"log in with `hf auth login`, check the name and the network; the model itself is in {folder}"
        raise UserError(f"the upload to {repo} failed ({reason})", fix) from None
    return str(address)


def _front_matter(config: Config, metrics: Mapping[str, Any], kind: Kind | None) -> dict[str, Any]:
    """Return the front matter; only mAP, by enough labels: thresholds were chosen on those that measure F1."""
    front: dict[str, Any] = {
        "library_name": "halflabel",
        "pipeline_tag": "image-classification",
        "tags": ["halflabel", "multi-label-classification", "partial-labels", config.backbone, config.method],
    }
    if metrics.get("mAP") is not None and kind is not None and not has_too_few(metrics):
        result = {
            "task": {"type": "image-classification", "name": "Multi-label image classification"},
            "dataset": {"type": "held-out", "name": f"{MEASURED_ON[kind]} of the training data"},
            "metrics": [
                {
                    "type": "mAP",
                    "value": round(float(metrics["mAP"]), 6),
                    "name": "mAP on known labels",
                    "verified": False,
                }
            ],
        }
        front["model-index"] = [{"name": f"{config.backbone} by {config.method}", "results": [result]}]
    return front


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
