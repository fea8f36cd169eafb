"""The commands `inspect`, `import`, `convert` and `drop`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import (
    ExcelSafe,
    Force,
    LabelFile,
    ReadLabels,
    SharedOptions,
    check_free,
    options_of,
    takes_label_options,
)
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import free_name, option_words
from halflabel.cli.terminal import (
    console,
    in_shell,
    show_advice,
    show_audit,
    show_classes,
    show_counts,
    show_images_and_pairs,
    show_message,
    show_names,
    show_next,
    show_paragraph,
    show_written,
)
from halflabel.errors import UserError
from halflabel.features import near_copies
from halflabel.fitting import advice as method_advice
from halflabel.fitting import assembly as assemblies
from halflabel.fitting import fit as fitting
from halflabel.fitting.config import Config
from halflabel.images import decode, sources
from halflabel.labels import audit, formats, groups
from halflabel.labels import drop as protocols
from halflabel.labels import labels as label_rows
from halflabel.labels import names as label_names
from halflabel.labels import table as tables
from halflabel.report import labels_page
from halflabel.system.files import cache_folder
from halflabel.system.format import counted, excel_safe, printable
from halflabel.system.reporter import Reporter


@app.command(cls=SharedOptions)
@takes_label_options
def inspect(
    labels: LabelFile,
    read: ReadLabels,
    top: Annotated[int | None, typer.Option(help="Number of classes to show.", min=1, show_default="8")] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Also show labels per image, pairs of classes and all suitable methods."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON.")] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            help="Also look in this folder for nearly identical photos, and at what class names alone are worth, by "
            "features that train uses again."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML page with charts of the labels and of which classes occur together."),
    ] = None,
) -> None:
    """Show how many labels are known, per class and per image, and recommend a method.

    Example: halflabel inspect labels.csv --minus-one absent --zero unknown
    """
    label_import = read(labels)
    table = label_import.table()
    stats = table.stats
    advice = method_advice.advise(stats)
    if plot is not None:
        labels_page.write_labels_page(table, plot)
    if as_json:
        typer.echo(printable(json.dumps(_as_json(label_import, advice), indent=1, ensure_ascii=False)))
        return
    show_audit(label_import.audit, table)
    console.print()
    show_classes(stats, most=top or (30 if details else 8))
    if details:
        show_images_and_pairs(stats, tables.top_pairs(table, 10))
    show_advice(advice, all_methods=details)
    if (pattern := groups.suggest_groups(list(table.images))) is not None:
        console.print(
            f"\nImage names suggest groups (patients, cameras, bursts): if so, train with --group '{pattern}', or with "
            "a file of groups, so that scores are not judged by other images of the same group.",
            markup=False,
        )
    if images is not None:
        _show_photos(table, images, details)
    if plot is not None:
        show_written(plot)
    show_next(
        "train", labels, images or "PHOTOS", *option_words(options_of(read)), "--out", free_name(Path("runs/first"))
    )


def _show_photos(table: tables.Table, images: Path, details: bool) -> None:
    """Warn of nearly identical photos, and print what class names say; features are cached where `train` looks."""
    assembly = assemblies.Assembly(config := Config())
    backbone = assembly.make_backbone()
    views = config.views(backbone)
    source = sources.open_images(table.images, images, views, max_bad=1.0)
    cache = cache_folder(Path("runs"))
    with Bar("features") as bar:
        features = assembly.features(backbone, source, len(table.classes), cache, reporter=Reporter(bar))
        likeness = assembly.likeness(backbone, table.classes, cache, Reporter(message=show_message))
    if (warning := near_copies.describe_near_copies(assemblies.pooled_features(features))) is not None:
        show_message(f"\n{warning}")
    alone = fitting.Inputs(lambda: features, backbone, likeness=likeness).measure_names(table)
    if alone is not None and likeness is not None:
        show_message(method_advice.describe_names(alone))
        if details:
            show_names(method_advice.names_rows(alone, likeness))


@app.command("import", cls=SharedOptions)
@takes_label_options
def import_labels(
    labels: LabelFile,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .csv, .parquet or .labels.")],
    read: ReadLabels,
    images: Annotated[Path | None, typer.Option(help="Also check that each image has a file in this folder.")] = None,
    force: Force = False,
) -> None:
    """Convert labels of any format to halflabel's long format, and report how each raw value was read.

    Rows at the end that have only a class or only an image name it: nothing is known of it.

    Example: halflabel import instances_train.json labels.csv --unlisted absent
    """
    check_free(out, force)
    label_import = read(labels)
    table = label_import.table()
    if images is not None:
        decode.require_images(list(table.images), images)
    formats.write(label_import.rows, out)
    show_audit(label_import.audit, table)
    show_written(out, f": {counted(len(label_import.rows), 'row')}")
    show_next("inspect", out)


@app.command(cls=SharedOptions)
@takes_label_options
def convert(
    labels: LabelFile,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or folder to write.")],
    read: ReadLabels,
    to: Annotated[str, typer.Option(help="The format to write; see above. auto: by the extension of OUT.")] = "auto",
    images: Annotated[
        Path | None,
        typer.Option(help="Write the names of the image files in this folder, with their endings, for other tools."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Write a copy of this CSV or Excel table, of tags, with a column per class or a row per label, and "
            "add the labels that it lacks; all else stays."
        ),
    ] = None,
    image_url: Annotated[str | None, typer.Option(help="label-studio: the URL before the image paths.")] = None,
    without_sources: Annotated[
        bool,
        typer.Option("--without-sources", help="Lose sources and scores that the format cannot hold."),
    ] = False,
    without_uncertain: Annotated[
        bool, typer.Option("--without-uncertain", help="Make uncertain labels unknown.")
    ] = False,
    excel_safe: ExcelSafe = False,
    force: Force = False,
) -> None:
    """Convert labels from one format to another; what the format cannot hold is an error, never lost silently.

    Formats: binary (.labels: memory-mapped, for millions of images), long (all other extensions), wide, tags, coco,
    lvis, imagefolder, label-studio, fiftyone, and those of your own in HALFLABEL_PLUGINS. The formats of data sets,
    such as voc and cub, are only read.

    Example: halflabel convert labels.csv labels.json --to lvis
    """
    check_free(out, force)
    if into is not None and (to != "auto" or image_url is not None or excel_safe):
        raise UserError("--into keeps the form of the table", "leave out --to, --image-url and --excel-safe")
    if to == "auto":
        to = formats.default_format(out)
    label_import = read(labels)
    rows = label_import.rows if images is None else _with_file_names(label_import.rows, images)
    options: dict[str, Any] = {"without_sources": without_sources, "without_uncertain": without_uncertain}
    options |= {} if image_url is None else {"image_url": image_url}
    if excel_safe:
        if to not in ("long", "wide", "tags") or out.suffix == ".parquet":
            raise UserError(f"--excel-safe is for CSV files, not for {out.name} as {to}", "leave --excel-safe out")
        rows = _excel_safe(rows)
    if into is not None:
        added = formats.add_to_table(rows, into, out, **options)
        show_audit(label_import.audit, label_import.table())
        show_written(out, f": {'; '.join(added.lines())}")
        return
    formats.write(rows, out, format=to, **options)
    show_audit(label_import.audit, label_import.table())
    show_written(out, f" as {to}")
    if to == "label-studio":
        config = escape(str(out.with_suffix(".config.xml")))
        console.print(f"First paste {config} into the labelling interface of the project, as code.")
    else:
        show_next("inspect", out)


@app.command(cls=SharedOptions)
@takes_label_options
def drop(
    labels: LabelFile,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file for the remaining labels: .csv, .parquet, .labels.")
    ],
    protocol: Annotated[str, typer.Argument(metavar="PROTOCOL", help="How to hide or corrupt labels; see above.")],
    read: ReadLabels,
    seed: Annotated[int, typer.Option(help="Random seed. The same seed gives the same labels.")] = 0,
    force: Force = False,
) -> None:
    """Hide or corrupt known labels by a protocol of the papers, to test methods on the remaining labels.

    Protocols, with their options: partial:share=0.1 keeps a tenth of each image's labels (also exact=false);
    dense:share=0.1 those of a tenth of the images; noisy:share=0.1 and corrupt:share=0.1 make a tenth wrong; noisy+;
    single-positive; positives:share=0.1 (also number=, keep_negatives=true); 1-positive+negatives;
    per-class:positives=20:negatives=20; semi-supervised:share=0.9 hides all labels of most images (also number=).

    Example: halflabel drop labels.csv tenth.csv partial:share=0.1
    """
    name, options = protocols.parse_protocol(protocol)
    check_free(out, force)
    label_import = read(labels)
    before = label_import.table()
    after = protocols.apply(name, before, seed=seed, **options)
    formats.write(label_import.rows.with_labels(after), out)
    show_audit(label_import.audit, before)
    show_paragraph(f"\n{str(protocols.PROTOCOLS[name].__doc__).splitlines()[0]} (seed {seed})")
    show_counts(after)
    show_written(out)
    show_next("inspect", out)


def _excel_safe(rows: label_rows.Labels) -> label_rows.Labels:
    """The rows with names that Excel does not run as formulas."""
    images, classes = (label_names.Names(map(excel_safe, names)) for names in (rows.images, rows.classes))
    return replace(rows, images=images, classes=classes, sources=tuple(map(excel_safe, rows.sources)))


def _with_file_names(rows: label_rows.Labels, folder: Path) -> label_rows.Labels:
    """The rows with each image named by its file, relative to the folder."""
    names = [path.relative_to(folder).as_posix() for path in decode.require_images(list(rows.images), folder)]
    return replace(rows, images=label_names.Names(names))


def _as_json(label_import: audit.LabelImport, advice: Any) -> dict[str, Any]:
    table = label_import.table()
    stats = table.stats
    return {
        "format": label_import.audit.format,
        "images": stats.images,
        "classes": stats.classes,
        "known": stats.known,
        "regime": stats.regime,
        "became": [item._asdict() for item in label_import.audit.value_counts],
        "notes": [in_shell(note) for note in label_import.audit.notes],
        "per_class": {
            name: {"present": int(p), "absent": int(n), "unknown": int(u), "uncertain": int(q)}
            for name, p, n, u, q in zip(
                table.classes, stats.positives, stats.negatives, stats.unknown, stats.uncertain, strict=True
            )
        },
        "positives_per_image": stats.positives_per_image.tolist(),
        "known_per_image": stats.known_per_image.tolist(),
        "advice": [item._asdict() for item in advice.methods],
        "cautions": [item.message for item in advice.cautions],
    }
