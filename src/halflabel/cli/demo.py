"""The command `demo`: the whole job on real photos, with the command for every step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halflabel.cli import app, demo_steps
from halflabel.errors import UserError


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for photos, labels and runs.")] = Path("demo"),
    images: Annotated[int | None, typer.Option(help="Use only this many photos (default: all).", min=100)] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions for the table at the end.", min=1, max=10)] = 3,
) -> None:
    """Show the whole job on real photos: train on few labels, decide, fill, ask, report. Takes about two minutes.

    Every step prints the command that does it. The commands work on the folder afterwards; add --force to repeat one
    that writes a run or a file.

    Example: halflabel demo --out demo
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    demo_steps.show_story(out, most=images, seeds=seeds)
