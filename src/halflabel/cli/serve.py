"""The command that puts a model behind HTTP."""

from __future__ import annotations

import ipaddress
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.format import counted

__all__ = ["serve"]

LIMITS = "Limits"


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder, an exported folder or an .onnx file.")],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is every network of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    max_mb: Annotated[float, typer.Option(help="Megabytes per file.", min=0.001, rich_help_panel=LIMITS)] = 20,
    max_files: Annotated[int, typer.Option(help="Files per request.", min=1, rich_help_panel=LIMITS)] = 16,
    max_megapixels: Annotated[
        float, typer.Option(help="Pixels per image, in millions.", min=0.001, rich_help_panel=LIMITS)
    ] = 50,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds to send a request, and again to be answered.", min=0.1, max=86_400, rich_help_panel=LIMITS
        ),
    ] = 30,
    queue: Annotated[
        int, typer.Option(help="Requests at a time; more get 503 with Retry-After.", min=1, rich_help_panel=LIMITS)
    ] = 64,
    batch: Annotated[int, typer.Option(help="Images that are scored together.", min=1, rich_help_panel=LIMITS)] = 16,
    wait_ms: Annotated[
        float,
        typer.Option(
            help="How long an image waits for others, to be scored together.",
            min=0,
            max=10_000,
            rich_help_panel=LIMITS,
        ),
    ] = 5,
) -> None:
    """Answer over HTTP what is in images: POST /predict gives labels with calibrated probabilities, as JSON.

    Requests that come together are scored together. Bad images are refused with 400, 413 or 415 and a reason. Ctrl-C or
    SIGTERM finishes what is under way, then ends. There is no password and no encryption: keep it on this machine, or
    behind a server that has them.

    Example: halflabel serve runs/first

    Example: curl -F files=@photo.jpg http://127.0.0.1:8000/predict
    """
    from halflabel.runs.folder import model_kind
    from halflabel.system.sockets import open_socket

    # What can be refused is refused before torch and the model are loaded, which takes seconds.
    given = {"--max-mb": max_mb, "--max-megapixels": max_megapixels, "--timeout": timeout, "--wait-ms": wait_ms}
    for flag, value in given.items():
        if not math.isfinite(value):
            raise UserError(f"{flag} {value:g} is no limit", f"use a number, or leave {flag} out")
    model_kind(model)
    with open_socket(host, port) as listening:
        from halflabel.runs import serve as server
        from halflabel.runs.predictor import open_model

        bytes_per_file = int(max_mb * 1e6)
        limits = server.Limits(
            file_bytes=bytes_per_file,
            request_bytes=max(server.Limits.request_bytes, bytes_per_file + 1_000_000),
            files=max_files,
            pixels=int(max_megapixels * 1e6),
            seconds=timeout,
            requests=queue,
            batch=batch,
            wait=wait_ms / 1000,
        )
        predictor = open_model(model)
        made = server.make_app(predictor, model.resolve().name, limits)
        address, taken = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        console.print(
            f"Serving [bold]{escape(str(model))}[/], {counted(len(predictor.classes), 'class', 'classes')}, at http://{escape(shown)}:{taken}",
            soft_wrap=True,
            highlight=False,
        )
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            console.print("[yellow]Others can reach it[/]: there is no password and no encryption.", soft_wrap=True)
        console.print(f"Try:  curl -F files=@photo.jpg http://{escape(shown)}:{taken}/predict", soft_wrap=True)
        console.print("Ctrl-C ends it.")
        server.serve(made, listening, patience=timeout)
    console.print("Stopped.")
