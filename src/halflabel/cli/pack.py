"""The command `pack`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import ReadLabels, SharedOptions, check_image_folder, takes_label_options
from halflabel.cli.progress import Bar
from halflabel.cli.terminal import console, show_next, show_written
from halflabel.errors import UserError
from halflabel.images.pack import parquet
from halflabel.images.pack import read as pack_read
from halflabel.images.pack import write as pack_write
from halflabel.system.format import counted

Resize = StrEnum("Resize", ["short", "squash"])

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@app.command(cls=SharedOptions)
@takes_label_options
def pack(
    read: ReadLabels,
    images: Annotated[
        Path,
        typer.Argument(metavar="IMAGES", help="The folder with image files, tars or Parquet files."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the pack.")],
    size: Annotated[int, typer.Option(help="Pixels of the shorter side; smaller images keep their size.", min=8)] = 448,
    resize: Annotated[
        Resize, typer.Option(help="short: keep the aspect ratio; squash: a square of SIZE × SIZE.")
    ] = Resize.short,
    quality: Annotated[int, typer.Option(help="JPEG quality.", min=1, max=100)] = 90,
    file_size: Annotated[str, typer.Option(help="Bytes per file, such as 256M or 1G.", metavar="BYTES")] = "256M",
    labels: Annotated[
        Path | None, typer.Option(help="Pack only the images of this label file, and store their labels in KEY.json.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that decode and encode images.", min=0)] = 2,
    max_bad: Annotated[
        float, typer.Option(help="Stop if more than this share of the images cannot be read.", min=0, max=1)
    ] = 0.01,
    force: Annotated[bool, typer.Option("--force", help="Replace a pack that the folder already holds.")] = False,
) -> None:
    """Resize images once and store them in WebDataset tars with an index, so that later passes over them are faster.

    Every command that takes an image folder also takes a pack; the names of the images stay the same. Choose --size as
    large as the largest --size you will train with, and a seventh larger for `train --resize crop`. With --labels,
    images without labels are left out, and other programs find the labels in the tars.

    Parquet files of Hugging Face datasets are unpacked to a temporary folder beside OUT first, with their labels.

    The same command resumes an interrupted packing. The original images are not changed.

    Example: halflabel pack photos/ photos.pack --size 448 --workers 8

    Example: halflabel train labels.csv photos.pack --tune all --size 448 --views-on device
    """
    check_image_folder(images)
    shard_bytes = _bytes(file_size)
    stored = pack_read.PackSettings(size=size, resize="squash" if resize is Resize.squash else "short", quality=quality)
    rows = None if labels is None else read(labels).rows
    try:
        with Bar("packing") as bar, parquet.unpacked_parquet(images, out) as (folder, parquet_rows):
            about = pack_write.pack_images(
                folder,
                out,
                stored,
                labels=parquet_rows if rows is None else rows,
                shard_bytes=shard_bytes,
                workers=workers,
                max_bad=max_bad,
                force=force,
                progress=bar,
            )
    except KeyboardInterrupt:
        typer.echo("Stopped; the same command resumes.", err=True)
        raise typer.Exit(130) from None
    count, bad = about["images"], about["bad"]
    per_image = about["bytes"] / count / 1e3
    content = f"{counted(count, 'image')} in {counted(about['shards'], 'file')}"
    content += f", {about['bytes'] / 1e6:,.1f} MB, {per_image:,.1f} kB per image"
    if about.get("was_finished"):
        text = f"{out} is finished: {content}; --force packs the images again, as they are now"
        console.print(text, markup=False)
    else:
        show_written(out, f": {content}")
    if rows is not None and count + bad < len(rows.images):
        lacking = counted(len(rows.images) - count - bad, "labelled image has", "labelled images have")
        console.print(f"{lacking} no file in {escape(str(images))}")
    if bad:
        console.print(f"{counted(bad, 'image')} could not be read: see {escape(str(out / 'bad_images.csv'))}")
    show_next("train", labels or "labels.csv", out)


def _bytes(text: str) -> int:
    """256M, 1G or 100000 as a number of bytes."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise UserError(f"--file-size {text!r} is not a number of bytes", "write it as 256M or 1G")
    return int(match[1]) * _UNITS[match[2]]
