"""Hugging Face Hub: a folder with weights, settings and a model card; uploaded only when asked for."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halflabel.errors import UserError
from halflabel.runs.folder import RunFolder
from halflabel.system.files import replacing, write_json
from halflabel.system.format import points
from halflabel.system.html import decimal

if TYPE_CHECKING:
    from halflabel.runs.export.about import About

__all__ = ["FILES", "card", "export_hub", "push"]

FILES = ("model.safetensors", "config.json", "README.md")

_SHOWN = 60  # classes in the card's table


def export_hub(run: RunFolder, folder: Path, *, force: bool = False) -> Path:
    """Write model.safetensors, config.json and README.md; nothing is sent anywhere."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "name a folder with --out")
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run", "name another folder with --out")
    if any((folder / name).exists() for name in FILES) and not force:
        raise UserError(f"{folder} holds a model already", "name another --out, or add --force to overwrite it")
    run.check_finished()

    from halflabel.runs.export.about import About
    from halflabel.runs.predictor import Predictor  # torch comes along: not before all that can be refused is

    about = About.of(Predictor(run))  # also the check that the run is whole
    with replacing(folder / FILES[0]) as temporary:
        shutil.copyfile(run.weights, temporary)
    write_json(folder / FILES[1], about.as_dict())
    with replacing(folder / FILES[2]) as temporary:
        temporary.write_text(card(run, about), encoding="utf-8")
    return folder


def card(run: RunFolder, about: About) -> str:
    """The model card: front matter for the Hub, then what the run measured, and what it did not."""
    import yaml

    measured = run.read_json("metrics.json") if (run / "metrics.json").exists() else {}
    front = yaml.safe_dump(_front_matter(about, measured), sort_keys=False, allow_unicode=True)
    own = run / "model_card.md"
    if own.exists():
        body = own.read_text(encoding="utf-8").strip()
    else:
        body = (
            f"# {about.backbone}, trained by `{about.method}`\n\nMulti-label classifier for {len(about.classes)} "
            "classes. **Nothing was measured**: no images were held out. The thresholds are 0.5 and the probabilities "
            "are not calibrated."
        )
    parts = [f"---\n{front}---\n", body, *_per_class(run), _usage(about), _LICENCE]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def push(folder: Path, repo: str, *, private: bool = False, api: Any = None) -> str:
    """Upload the folder's model to the Hub as `user/name`; returns the address. The only line to the outside here."""
    owner, _, name = repo.partition("/")
    if not owner or not name or "/" in name:
        raise UserError(f"{repo!r} is no repository of the Hub", "write --push user/name")
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise UserError(f"{folder} has no {missing[0]}", "export the run again")
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    try:
        made = api.create_repo(repo, private=private, repo_type="model", exist_ok=True)
        # Only these: whatever else lies in the folder is the user's own.
        api.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=list(FILES), commit_message="Upload model by halflabel"
        )
    # The hub's client and the network raise many unrelated types, and each of them means the same to the user.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        fix = f"log in with `hf auth login`, check the name and the network; the model itself is in {folder}"
        raise UserError(f"the Hub did not take {repo} ({reason})", fix) from None
    return str(made)


def _front_matter(about: About, measured: Mapping[str, Any]) -> dict[str, Any]:
    """What the Hub reads. Of the results only mAP: F1 was measured on the labels that the thresholds were chosen on."""
    front: dict[str, Any] = {
        "library_name": "halflabel",
        "pipeline_tag": "image-classification",
        "tags": ["halflabel", "multi-label-classification", "partial-labels", about.backbone, about.method],
    }
    if measured.get("mAP") is not None:
        result = {
            "task": {"type": "image-classification", "name": "Multi-label image classification"},
            "dataset": {"type": "held-out", "name": "held-out images of the training data"},
            "metrics": [
                {
                    "type": "mAP",
                    "value": round(float(measured["mAP"]), 6),
                    "name": "mAP on known labels",
                    "verified": False,
                }
            ],
        }
        front["model-index"] = [{"name": f"{about.backbone} by {about.method}", "results": [result]}]
    return front


def _per_class(run: RunFolder) -> list[str]:
    """The classes with their evidence, as a table."""
    if not (run / "per_label.csv").exists():
        return []
    with open(run / "per_label.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "## Classes",
        "",
        "| class | AP (95 % interval) | threshold | known present | known absent |",
        "|---|---|---|---|---|",
    ]
    for row in rows[:_SHOWN]:
        value, low, high, cut = (_number(row.get(key)) for key in ("AP", "AP_low", "AP_high", "threshold"))
        shown = points(value) if value != value else f"{points(value)} ({points(low)} – {points(high)})"
        name = row["class"].replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {shown} | {decimal(cut)} | {row['present']} | {row['absent']} |")
    if len(rows) > _SHOWN:
        lines.append(f"\n{len(rows) - _SHOWN} more classes are in config.json.")
    return ["\n".join(lines)]


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _usage(about: About) -> str:
    view = about.view
    how = "squashed" if view.resize == "squash" else f"centre square, {view.crop_pct:g} of the shorter side,"
    return f"""## Use

    pip install halflabel
    hf download USER/NAME --local-dir model
    halflabel predict model photo.jpg

Or in Python:

```python
from halflabel.predictor import open_predictor
from halflabel.predict import predict_files

print(predict_files(open_predictor("model"), ["photo.jpg"], []))
```

Images are {how} to {view.size} × {view.size} pixels ({view.interpolation}, antialiased). A label is said to be present
where its calibrated probability reaches the threshold of its class; both stand in config.json. Labels that were unknown
in training stay unmeasured: a class without known positives and negatives has no evidence behind its score."""


_LICENCE = """## Licence

None was stated. Before you publish, choose one that fits the images, the labels and the backbone's weights, and add
`license: …` to the lines at the top."""
