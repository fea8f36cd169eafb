"""The commands `export` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from halflabel.cli import app, show
from halflabel.cli.options import (
    Force,
    PositivesPerImage,
    RunArgument,
    Threshold,
    argument,
    check_free,
    check_image_folder,
    check_needs,
    command,
    option,
)
from halflabel.cli.show import console
from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.runs import model as models
from halflabel.runs.export import hub as hub_export
from halflabel.runs.export import onnx as onnx_export
from halflabel.serve import app as server
from halflabel.serve import guard
from halflabel.system.format import counted
from halflabel.system.sockets import is_loopback, open_socket


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


@command(among=export)
def onnx(
    run: RunArgument,
    out: Annotated[Path, option("The .onnx file to write.")] = Path("model.onnx"),
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
    predictor = models.Model.open(run).deciding(threshold=threshold, positives_per_image=positives_per_image)
    parity = onnx_export.export_onnx(predictor, out)
    view = predictor.views["plain"]
    sides = "height, width" if view.resize == "keep" else f"{view.size}, {view.size}"
    show.written(out, f": images (batch, 3, {sides}) uint8 → logits, probabilities (batch, {len(predictor.classes)})")
    console.print(
        f"Checked against PyTorch on {counted(parity.images, 'image')}: logits within {parity.logits:.1e}, "
        f"probabilities within {parity.probabilities:.1e}"
    )
    show.next_command("predict", out, "PHOTO.jpg")


@command(among=export)
def hub(
    run: RunArgument,
    out: Annotated[Path, option("The folder to write.")],
    push: Annotated[str | None, option("Also upload it to the Hugging Face Hub.", metavar="USER/NAME")] = None,
    private: Annotated[bool, option("With --push: make the repository private.", "--private")] = False,
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
    show.written(out, f": {', '.join(hub_export.FILES)}")
    if push is not None:
        console.print(f"Uploaded to {escape(hub_export.push(out, push, private=private))}")
    else:
        show.next_command("predict", out, "PHOTO.jpg")


_SHORTEST_TOKEN = 16


@command()
def serve(
    model: Annotated[Path, argument("MODEL", "A run folder, an exported folder or an .onnx file.")],
    host: Annotated[
        str, option("Address to listen on; 0.0.0.0 listens on all networks of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 chooses a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        option(
            "Answer only requests with this token: Authorization: Bearer TOKEN, or the password in a browser.",
            envvar="HALFLABEL_TOKEN",
            show_envvar=True,
        ),
    ] = None,
    images: Annotated[
        Path | None, option("The folder with the images of a Label Studio project: the server is then its ML backend.")
    ] = None,
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
) -> None:
    """Serve predictions over HTTP: POST /predict returns labels with calibrated probabilities, as JSON.

    Bad images, and more than 20 MB per file, 16 files or 50 megapixels, get status 400, 413 or 415 with a reason.
    Ctrl-C or SIGTERM finishes running requests, then stops. Without --token there is no password, and there is never
    encryption: use it on this machine only, or behind a server that adds them.

    Example: halflabel serve runs/first

    Example: curl -F files=@photo.jpg http://127.0.0.1:8000/predict
    """
    # Loading torch and the model takes seconds: mistakes are reported before.
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"the token is shorter than {_SHORTEST_TOKEN} characters, or not ASCII",
            "use a random one, such as python -c 'import secrets; print(secrets.token_urlsafe())' prints",
        )
    check_image_folder(images)
    run_folder.model_kind(model)
    with open_socket(host, port) as listening:
        predictor = models.Model.open(model).deciding(threshold=threshold, positives_per_image=positives_per_image)
        predictions = server.make_app(predictor, model.resolve().name, images=images)
        address, free_port = listening.getsockname()[:2]
        url = f"http://{escape(f'[{address}]' if ':' in address else address)}:{free_port}"
        classes = counted(len(predictor.classes), "class", "classes")
        console.print(f"Serving [bold]{escape(str(model))}[/], {classes}, at {url}", highlight=False)
        if not is_loopback(address.partition("%")[0]):
            lacks = "no encryption" if token is not None else "no password and no encryption"
            console.print(f"[yellow]Other machines can reach it[/]: there is {lacks}.")
        password = "-u :TOKEN " if token is not None else ""
        console.print(f"Try:  curl {password}-F files=@photo.jpg {url}/predict")
        console.print("Ctrl-C stops the server.")
        guarded = guard.Guard(predictions, host=host, port=free_port, token=token)
        guard.run_server(guarded, listening, patience=30)
    console.print("Stopped.")
