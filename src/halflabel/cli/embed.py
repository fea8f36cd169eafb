"""The command `embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from halflabel.cli import app
from halflabel.cli.options import Engine, ImageFolder, SharedOptions, check_image_folder, takes_training_options
from halflabel.cli.progress import Bar
from halflabel.cli.terminal import show_message, show_next, show_written
from halflabel.errors import UserError
from halflabel.features import embed as feature_files
from halflabel.fitting import assembly as assemblies
from halflabel.fitting.config import Config
from halflabel.images import decode, sources
from halflabel.labels import names as label_names
from halflabel.system.files import is_utf8
from halflabel.system.format import counted
from halflabel.system.ray_engine import use_engine
from halflabel.system.remote import local_folder
from halflabel.system.reporter import Reporter


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
