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
from halflabel.system.format import decimal, markdown, points

if TYPE_CHECKING:
    from halflabel.runs.model import Model as Predictor


FILES = ("model.safetensors", "config.json", "README.md")

_MAX_CLASSES = 60  # classes in the table of the card


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
    front = _front_matter(model.config, run.read_object("metrics.json"), run.score_kind)
    front_matter = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    run_card = run / "model_card.md"
    if run_card.exists():
        body = run_card.read_text(encoding="utf-8").strip()
    else:
        body = (
            f"# {model.config.backbone}, trained by `{model.config.method}`\n\n"
            f"Multi-label classifier for {len(model.classes)} classes. **Nothing was measured**: "
            "no images were held out. The thresholds are 0.5 and the probabilities are not calibrated."
        )
    parts = [f"---\n{front_matter}---\n", body, *_per_class(run), _usage(model.views["plain"]), _LICENCE]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


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


def _per_class(run: RunFolder) -> list[str]:
    rows = run.read_csv("per_label.csv")
    if not rows:
        return []
    lines = [
        "## Classes",
        "",
        "| class | AP (95 % interval) | threshold | known present | known absent |",
        "|---|---|---|---|---|",
    ]
    for row in rows[:_MAX_CLASSES]:
        value, low, high, threshold = (_number(row.get(key)) for key in ("AP", "AP_low", "AP_high", "threshold"))
        shown = points(value) if value != value else f"{points(value)} ({points(low)} – {points(high)})"
        lines.append(
            f"| {markdown(row['class'])} | {shown} | {decimal(threshold)} | {row['present']} | {row['absent']} |"
        )
    if len(rows) > _MAX_CLASSES:
        lines.append(f"\n{len(rows) - _MAX_CLASSES} more classes are in config.json.")
    return ["\n".join(lines)]


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _usage(view: Any) -> str:
    resizing = {
        "squash": "squashed to",
        "crop": f"centre square, {view.crop_pct:g} of the shorter side, to",
        "keep": "in about their aspect ratio with as many pixels as",
    }[view.resize]
    return f"""## Use

    pip install halflabel
    hf download USER/NAME --local-dir model
    halflabel predict model photo.jpg

In Python: `halflabel.Model.open("model").predict("photo.jpg")`

Images are {resizing} {view.size} × {view.size} pixels ({view.interpolation}, antialiased). A class counts as
present if its calibrated probability reaches its threshold; calibration and thresholds are in config.json. A class
without known positives and negatives was not evaluated."""


_LICENCE = """## Licence

None was stated. Before you publish, choose one that fits the images, the labels and the backbone's weights, and add
`license: …` to the lines at the top."""
