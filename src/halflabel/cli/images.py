"""The commands `pack`, `embed` and `cache`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.options import (
    Engine,
    Force,
    ImageFolder,
    LabelReader,
    argument,
    check_image_folder,
    command,
    option,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import console
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


@command()
def pack(
    read: LabelReader,
    images: Annotated[Path, argument("IMAGES", "The folder with image files, tars or Parquet files.")],
    out: Annotated[Path, argument("OUT", "The folder for the pack.")],
    size: int = option(448, "Pixels of the shorter side; smaller images keep their size.", min=8),
    labels: Path | None = option(None, "Pack only the images of this label file, and store their labels in KEY.json."),
    workers: int = option(2, "Processes that decode and encode images.", min=0),
    max_bad: float = option(0.01, "Stop if more than this share of the images cannot be read.", min=0, max=1),
    force: Force = False,
) -> None:
    """Resize images once and store them in WebDataset tars with an index, so that later passes over them are faster.

    A pack takes the place of a folder of images, with the same names. Choose --size as large as you will train with, a
    seventh larger for `train --resize crop`. Parquet files of Hugging Face datasets are unpacked beside OUT first, with
    their labels. The same command resumes; the original images are not changed.

    Example: halflabel pack photos/ photos.pack --size 448 --workers 8
    """
    check_image_folder(images)
    stored = pack_read.PackSettings(size)
    rows = None if labels is None else read(labels).rows
    try:
        with Bar("packing") as bar, parquet.unpacked_parquet(images, out) as (folder, parquet_rows):
            packed = parquet_rows if rows is None else rows
            how: dict[str, Any] = {"workers": workers, "max_bad": max_bad, "force": force, "progress": bar}
            about = pack_write.pack_images(folder, out, stored, labels=packed, **how)
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
        show.written(out, f": {content}")
    if rows is not None and count + bad < len(rows.images):
        lacking = counted(len(rows.images) - count - bad, "labelled image has", "labelled images have")
        console.print(f"{lacking} no file in {escape(str(images))}")
    if bad:
        console.print(f"{counted(bad, 'image')} could not be read: see {escape(str(out / 'bad_images.csv'))}")
    show.next_command("train", labels or "labels.csv", out)


@command()
def embed(
    training: dict[str, Any],
    images: ImageFolder,
    out: Annotated[Path, argument("OUT", "The folder for the Parquet files.")],
    force: Force = False,
    engine: Engine = "local",
) -> None:
    """Compute the features of images once, and write them to Parquet files, for many trainings or other programs.

    `train`, `evaluate`, `predict` and `fill` take the folder, or such files of another program, in place of the images:
    a column of image names and a column of lists of floats. The same command resumes after an interruption.

    Example: halflabel embed photos/ features/ --engine ray
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
    if odd := [ascii(name) for name in found if name not in paths]:
        show.message(f"{len(odd)} images left out, whose names are not UTF-8, such as {odd[0]}")
    names = label_names.Names(paths)
    source = sources.Images(list(paths.values()), names, config.views(backbone), workers=config.workers, max_bad=1.0)
    made_by = {"backbone": config.backbone, "size": size, "resize": config.resize, "channels": config.channels}
    with Bar("features") as bar, use_engine(engine):
        reporter = Reporter(bar, show.message)
        options: dict[str, Any] = {"device": assembly.device, "force": force, "reporter": reporter}
        count, bad = feature_files.write_features(backbone, source, out, made_by, **options)
    show.written(
        out, f": {counted(count, 'image')}, {bad} of them unreadable; {backbone.width(maps=False)} numbers each"
    )
    show.next_command("train", "labels.csv", out)


@command()
def cache(
    folder: Annotated[Path, argument("FOLDER", "The folder with the runs, one run, or the cache itself.")] = Path(
        "runs"
    ),
    remove: str | None = option(
        None, "older: all but the last used of the same images; all; or a name.", metavar="WHICH"
    ),
    yes: bool = option(False, "Remove without asking.", "--yes"),
) -> None:
    """List or remove cached features, with their origin, size and time of last use.

    Other weights, another view or changed photos get a new cache in the folder "cache" beside the runs. A removed cache
    is computed again when needed; folders with other files, and caches that a job is building, are never removed.

    Example: halflabel cache runs --remove older
    """
    caches = vector_store.find_stores(folder)
    selected = caches if remove is None else vector_store.select_stores(caches, remove)
    if not selected:
        console.print(f"No {'older ' * (remove == 'older')}caches in {escape(str(folder))}")
        return
    for info in selected:
        _print_cache(info)
    total = f"{counted(len(selected), 'cache')}, {decimal(sum(info.disk_bytes for info in selected))}"
    if remove is None:
        older = len(vector_store.select_stores(caches, "older"))
        console.print(f"\n{total}" + (f"; {older} older than another of the same images" if older else ""))
        which = "older" if older else "all"
        show.next_command("cache", folder, "--remove", which, why="frees disk space; computed again when needed")
        return
    if not yes and not typer.confirm(f"Remove {total}?"):
        console.print("Nothing was removed")
        return
    for info in selected:
        info.remove()
    console.print(f"Removed {total}")
    if len(selected) < len(caches):
        show.next_command("cache", folder, why="what is left")


def _print_cache(info: vector_store.VectorStore) -> None:
    state = "being built" if info.is_being_built() else "interrupted: the next job continues it"
    is_complete = info.noted_rows == info.rows
    console.print(f"[bold]{escape(info.folder.name)}[/]" + ("" if is_complete else f"  [yellow]{state}[/]"))
    size, last_used = decimal(info.disk_bytes), datetime.fromtimestamp(info.last_used)
    strong_views = sum(path.is_dir() for path in info.folder.iterdir())
    views = f" · {counted(strong_views, 'strong view')}" if strong_views else ""
    weights = str(info.key.get("weights"))[:8]
    console.print(f"    {counted(info.rows, 'image')} · {size} · last used {last_used:%Y-%m-%d %H:%M}")
    origin = f"{info.about.get('backbone')}, weights {weights} · {info.about.get('size')} px, {info.about.get('kind')}"
    console.print(f"    {escape(origin)}{views}")
