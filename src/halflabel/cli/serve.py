"""The command `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel import serve as server
from halflabel.cli import app
from halflabel.cli.options import PositivesPerImage, Threshold, check_image_folder
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.runs import predictor as predictors
from halflabel.system.format import counted
from halflabel.system.sockets import is_loopback, open_socket

_SHORTEST_TOKEN = 16


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder, an exported folder or an .onnx file.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all networks of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="Answer only requests with this token: Authorization: Bearer TOKEN, or the password in a browser.",
            envvar="HALFLABEL_TOKEN",
            show_envvar=True,
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="The folder with the images of a Label Studio project: the server is then its ML backend."),
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
        predictor = predictors.open_model(model).deciding(threshold=threshold, positives_per_image=positives_per_image)
        predictions = server.make_app(predictor, model.resolve().name, images=images)
        address, free_port = listening.getsockname()[:2]
        _show_address(model, len(predictor.classes), address, free_port, has_token=token is not None)
        guarded = server.AccessCheck(predictions, host=host, port=free_port, token=token)
        server.serve(guarded, listening)
    console.print("Stopped.")


def _show_address(model: Path, classes: int, address: str, port: int, *, has_token: bool) -> None:
    """Print where the server listens, who can reach it and how to try it."""
    url = f"http://{escape(f'[{address}]' if ':' in address else address)}:{port}"
    console.print(
        f"Serving [bold]{escape(str(model))}[/], {counted(classes, 'class', 'classes')}, at {url}",
        highlight=False,
    )
    if not is_loopback(address.partition("%")[0]):
        lacks = "no encryption" if has_token else "no password and no encryption"
        console.print(f"[yellow]Other machines can reach it[/]: there is {lacks}.")
    password = "-u :TOKEN " if has_token else ""
    console.print(f"Try:  curl {password}-F files=@photo.jpg {url}/predict")
    console.print("Ctrl-C stops the server.")
