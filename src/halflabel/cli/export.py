"""The commands `export onnx` and `export hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from halflabel.cli import app
from halflabel.cli.options import Force, PositivesPerImage, RunArgument, Threshold, check_free, check_needs
from halflabel.cli.terminal import console, show_next, show_written
from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.runs import predictor as predictors
from halflabel.runs.export import hub as hub_export
from halflabel.runs.export import onnx as onnx_export
from halflabel.system.format import counted


class _ExportGroup(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and Path(args[0]).exists():
            fix = f"halflabel export onnx {args[0]}, or halflabel export hub {args[0]} --out FOLDER"
            raise UserError("export needs a format, onnx or hub", fix)
        return super().resolve_command(ctx, args)


export = typer.Typer(
    name="export",
    cls=_ExportGroup,
    no_args_is_help=True,
    help="Export a trained model as an ONNX file or for the Hugging Face Hub.",
)
app.add_typer(export)


@export.command()
def onnx(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The .onnx file to write.")] = Path("model.onnx"),
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    force: Force = False,
) -> None:
    """Export an ONNX model that maps resized uint8 images to calibrated probabilities.

    The metadata of the file hold the classes, the thresholds and the resizing. The file is written only if ONNX Runtime
    and PyTorch give the same results.

    Example: halflabel export onnx runs/first --out birds.onnx
    """
    check_free(out, force)
    if out.suffix != ".onnx":
        raise UserError(f"{out.name} does not end in .onnx", "name the file model.onnx")
    if run_folder.model_kind(run) == "onnx":
        raise UserError("RUN is already an ONNX file", "name the run, or the folder that was exported for the Hub")
    predictor = predictors.open_model(run).deciding(threshold=threshold, positives_per_image=positives_per_image)
    parity = onnx_export.export_onnx(predictor, out)
    view = predictor.views["plain"]
    sides = "height, width" if getattr(view, "resize", "") == "keep" else f"{view.size}, {view.size}"
    show_written(out, f": images (batch, 3, {sides}) uint8 → logits, probabilities (batch, {len(predictor.classes)})")
    console.print(
        f"Checked against PyTorch on {counted(parity.images, 'image')}: logits within {parity.logits:.1e}, "
        f"probabilities within {parity.probabilities:.1e}"
    )
    show_next("predict", out, "PHOTO.jpg")


@export.command()
def hub(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    push: Annotated[
        str | None, typer.Option(help="Also upload it to the Hugging Face Hub.", metavar="USER/NAME")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push: make the repository private.")] = False,
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    force: Force = False,
) -> None:
    """Write a folder for the Hugging Face Hub: weights, settings and a model card with the evaluation.

    Nothing is uploaded without --push.

    Example: halflabel export hub runs/first --out birds --push me/birds
    """
    check_needs("--push USER/NAME", {"--private": private and push is None})
    opened = run_folder.RunFolder.open(run)
    hub_export.export_hub(opened, out, force=force, threshold=threshold, positives_per_image=positives_per_image)
    show_written(out, f": {', '.join(hub_export.FILES)}")
    if push is not None:
        console.print(f"Uploaded to {escape(hub_export.push(out, push, private=private))}")
    else:
        show_next("predict", out, "PHOTO.jpg")
