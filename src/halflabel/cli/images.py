"""The commands `pack`, `embed` and `cache`."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import (
    Engine,
    ImageFolder,
    ReadLabels,
    SharedOptions,
    check_image_folder,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.progress import Bar
from halflabel.cli.terminal import console, show_message, show_next, show_written
from halflabel.errors import UserError
from halflabel.features import embed as feature_files
from halflabel.features import vector_store
from halflabel.fitting import assembly as assemblies
from halflabel.fitting.config import Config
from halflabel.images import decode, sources
from halflabel.images.pack import parquet
from halflabel.images.pack import read as pack_read
from halflabel.images.pack import write as pack_write
from halflabel.labels import names as label_names
from halflabel.system.files import is_utf8
from halflabel.system.format import counted
from halflabel.system.ray_engine import use_engine
from halflabel.system.remote import local_folder
from halflabel.system.reporter import Reporter

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

    Example: halflabel train labels.csv photos.pack --tune all
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


@app.command(cls=SharedOptions)
@takes_training_options("embed")
def embed(
    training: dict[str, Any],
    images: ImageFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the Parquet files.")],
    force: Annotated[bool, typer.Option("--force", help="Replace other features in OUT.")] = False,
    engine: Engine = "local",
) -> None:
    """Compute the features of images once, and write them to Parquet files, for many trainings or other programs.

    `train`, `evaluate`, `predict` and `fill` take the folder in place of the images, and need no labels of all of them.
    Features of another program can be used in the same way: Parquet files with a column of image names and a column of
    lists of floats. The same command resumes after an interruption.

    Example: halflabel embed photos/ features/ --engine ray

    Example: halflabel train labels.csv features/
    """
    check_image_folder(images)
    config = Config.from_options({"workers": 2, **training})
    assembly = assemblies.Assembly(config)
    backbone = assembly.make_backbone()
    size = config.size or backbone.preprocess.size
    folder = local_folder(images)
    found = {path.relative_to(folder).as_posix(): path for path in decode.find_images(folder)}
    paths = {name: path for name, path in found.items() if is_utf8(name)}
    if not paths:
        raise UserError(f"{images} holds no images", "name the folder with the image files, or a pack")
    if len(paths) < len(found):
        example = ascii(next(name for name in found if name not in paths))
        show_message(f"{len(found) - len(paths)} images left out, whose names are not UTF-8, such as {example}")
    names = label_names.Names(paths)
    source = sources.Images(list(paths.values()), names, config.views(backbone), workers=config.workers, max_bad=1.0)
    made_by = {"backbone": config.backbone, "size": size, "resize": config.resize, "channels": config.channels}
    with Bar("features") as bar, use_engine(engine):
        reporter = Reporter(bar, show_message)
        options: dict[str, Any] = {"device": assembly.device, "force": force, "reporter": reporter}
        count, bad = feature_files.write_features(backbone, source, out, made_by, **options)
    show_written(
        out, f": {counted(count, 'image')}, {bad} of them unreadable; {backbone.width(maps=False)} numbers each"
    )
    show_next("train", "labels.csv", out)


@app.command()
def cache(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with the runs, one run, or the cache itself.")
    ] = Path("runs"),
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="older: all but the last used cache of the same images; all; or one cache by a part of its name.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """List or remove cached features, with their origin, size and time of last use.

    The features of a frozen backbone are cached in the folder "cache" beside the runs. Other weights, another view or
    changed photos get a new cache; old caches stay until you remove them. A removed cache is computed again when a
    command needs it. Folders with other files in them, and caches that a job is building, are never removed.

    Example: halflabel cache runs

    Example: halflabel cache runs --remove older
    """
    caches = vector_store.find_stores(folder)
    selected = caches if remove is None else vector_store.select_stores(caches, remove)
    if not selected:
        console.print(f"No {'older ' * (remove == 'older')}caches in {escape(str(folder))}")
        return
    for info in selected:
        _print_cache(info)
    total = f"{counted(len(selected), 'cache')}, {_format_bytes(sum(info.disk_bytes for info in selected))}"
    if remove is None:
        older = len(vector_store.select_stores(caches, "older"))
        console.print(f"\n{total}" + (f"; {older} older than another of the same images" if older else ""))
        which = "older" if older else "all"
        show_next("cache", folder, "--remove", which, why="frees disk space; computed again when needed")
        return
    if not yes and not typer.confirm(f"Remove {total}?"):
        console.print("Nothing was removed")
        return
    for info in selected:
        info.remove()
    console.print(f"Removed {total}")
    if len(selected) < len(caches):
        show_next("cache", folder, why="what is left")


def _print_cache(info: vector_store.VectorStore) -> None:
    state = "being built" if info.is_being_built() else "interrupted: the next job continues it"
    is_complete = info.noted_rows == info.rows
    console.print(f"[bold]{escape(info.folder.name)}[/]" + ("" if is_complete else f"  [yellow]{state}[/]"))
    parts = [
        counted(info.rows, "image"),
        _format_bytes(info.disk_bytes),
        f"last used {datetime.fromtimestamp(info.last_used):%Y-%m-%d %H:%M}",
        f"{info.about.get('backbone')}, weights {str(info.key.get('weights'))[:8]}",
        f"{info.about.get('size')} px, {info.about.get('kind')}",
    ]
    strong_views = sum(path.is_dir() for path in info.folder.iterdir())
    parts += [counted(strong_views, "strong view")] * bool(strong_views)
    for line in (parts[:3], parts[3:]):
        console.print("    " + escape(" · ".join(line)))


def _format_bytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
