"""The commands `evaluate` and `predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import (
    Engine,
    ExcelSafe,
    ImageFolder,
    LabelFile,
    ModelArgument,
    PositivesPerImage,
    ReadLabels,
    SharedOptions,
    Threshold,
    check_free,
    check_image_folder,
    read_grouped,
    takes_label_options,
)
from halflabel.cli.progress import Bar
from halflabel.cli.terminal import (
    console,
    first_names,
    plain_table,
    show_audit,
    show_error,
    show_evaluation,
    show_next,
    show_written,
)
from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.runs import model as models
from halflabel.runs import predict as predict_files
from halflabel.system import distributed
from halflabel.system.files import atomic_write, read_json, write_json
from halflabel.system.format import counted, printable
from halflabel.system.format import excel_safe as excel_safe_cell
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import SILENT, Reporter

OutputFormat = StrEnum("OutputFormat", ["table", "json", "csv", "parquet"])


@app.command(cls=SharedOptions)
@takes_label_options
def evaluate(
    run: ModelArgument,
    labels: LabelFile,
    images: ImageFolder,
    read: ReadLabels,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="One threshold of the calibrated probability for all classes, such as 0.5, for F1, precision and "
            "recall.",
            min=0,
            max=1,
            show_default="the run's threshold of each class",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Images that belong together, as in train: intervals never separate them."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the metrics to this JSON file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out even if it is not an evaluation.")] = False,
    engine: Engine = "local",
) -> None:
    """Evaluate a trained run on other labels: metrics over known entries, with confidence intervals.

    Example: halflabel evaluate runs/first test.csv photos/
    """
    run_folder.model_kind(run)
    check_image_folder(images)
    if out is not None and out.exists() and not force and not _is_evaluation(out):
        raise UserError(
            f"{out} exists and is not an evaluation", "choose another --out, or add --force to overwrite it"
        )
    label_import, group = read_grouped(read, labels, group)
    table = label_import.table()
    predictor = models.Model.open(run)
    show_audit(label_import.audit, table)
    with Bar("scores") as bar, use_engine(engine):
        result = predictor.evaluate(
            label_import.rows, images, Reporter(bar), labels_name=str(labels), threshold=threshold, group=group
        )
    named = set(table.classes)
    if unnamed := [name for name in predictor.classes if name not in named]:
        missing = f"{len(unnamed)} of the run's {len(predictor.classes)} classes: {first_names(unnamed)}"
        console.print(
            f"\n{labels} has no row on {missing}",
            markup=False,
        )
    show_evaluation(result)
    if out is not None and distributed.is_main():
        shared_threshold = {} if threshold is None else {"threshold": threshold}
        content = {
            "protocol": result.protocol,
            "scored": result.images,
            **shared_threshold,
            **result.overall,
            "per_class": result.per_class,
        }
        write_json(out, content)
        show_written(out)
    if predictor.run is not None:
        show_next("report", run, "--images", images, why="which labels it gets wrong")


def _is_evaluation(path: Path) -> bool:
    try:
        content = read_json(path, "")
    except UserError:
        return False
    return isinstance(content, dict) and {"protocol", "per_class"} <= content.keys()


@app.command()
def predict(
    run: ModelArgument,
    images: Annotated[
        list[Path],
        typer.Argument(help="Image files and folders, or a folder of features; - reads file names from stdin."),
    ],
    output_format: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="Output format.", show_default="the ending of --out, or table"),
    ] = None,
    top: Annotated[int, typer.Option(help="Show at least this many labels per image.", min=0)] = 3,
    all_scores: Annotated[bool, typer.Option("--all", help="Show all classes, not only likely ones.")] = False,
    items: Annotated[
        bool, typer.Option("--items", help="Each folder is one item of several images, such as views of a product.")
    ] = False,
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    excel_safe: ExcelSafe = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write this file instead, such as predictions.csv; or, for a name without an ending, Parquet files "
            "into a folder, with --all a list of probabilities per image; the same command continues if interrupted."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace other predictions in --out.")] = False,
    engine: Engine = "local",
) -> None:
    """Predict the labels of images, with probabilities.

    Labels above their threshold are marked. JSON and CSV are written image by image. The exit code is 1 if a file is
    missing; the others are predicted all the same.

    Example: halflabel predict runs/first photo.jpg holiday/ --out predictions.csv
    """
    output_format = _format_of(out, output_format)
    is_parquet = output_format is OutputFormat.parquet
    if out is not None and (out.suffix or not is_parquet):  # a folder of Parquet files may be continued
        check_free(out, force)
    run_folder.model_kind(run)
    predictor = models.Model.open(run).deciding(threshold=threshold, positives_per_image=positives_per_image)
    files = predict_files.list_files(images, (line.rstrip("\n") for line in sys.stdin), items=items)
    options: dict[str, Any] = {"top": top, "all_scores": all_scores, "items": items}
    with Bar("scores") as bar, use_engine(engine):
        if is_parquet:
            assert out is not None
            count, bad = predict_files.predict_to_parquet(
                predictor, files, out, force=force, **options, reporter=Reporter(bar)
            )
        else:
            # Lines of output would break a progress bar on the same screen.
            is_shown = out is None and sys.stdout.isatty() and output_format is not OutputFormat.table
            counts = {"count": 0, "bad": 0}
            stream = predict_files.stream_predictions(
                predictor, files, **options, reporter=SILENT if is_shown else Reporter(bar)
            )
            _write(_count(stream, counts), output_format, out, excel_safe_cell if excel_safe else str)
            count, bad = counts["count"], counts["bad"]
    if predictor.calibration.assumption and output_format is OutputFormat.table:
        console.print(f"[bright_black]Probabilities assume that {escape(predictor.calibration.assumption)}.[/]")
    if out is not None:
        show_written(out, f": {counted(count, 'image')}, {bad} of them unreadable")
    elif output_format is OutputFormat.table:
        show_next("predict", run, "PHOTOS", "--out", "predictions.csv", why="a whole folder, for a spreadsheet")
    if bad and (missing := files.missing):
        show_error(
            UserError(f"{counted(len(missing), 'file')} of {count} missing: {first_names(missing)}", "check the paths")
        )
        raise typer.Exit(1)
    if count == bad:
        raise UserError("no image could be read", "check the paths")


def _format_of(out: Path | None, stated: OutputFormat | None) -> OutputFormat:
    """Return the stated format, or that of the ending of the file to write."""
    if out is None:
        if stated is OutputFormat.parquet:
            raise UserError("--format parquet is for files", "add --out FOLDER")
        return stated or OutputFormat.table
    by_ending = {f".{name}": name for name in OutputFormat if name is not OutputFormat.table}
    output_format = stated or by_ending.get(out.suffix, None if out.suffix else OutputFormat.parquet)
    if output_format in (None, OutputFormat.table):
        raise UserError(f"the ending of {out} is no format", "add --format csv, --format json or --format parquet")
    return output_format


def _write(
    predictions: Iterable[predict_files.Prediction],
    output_format: OutputFormat,
    out: Path | None,
    cell: Callable[[str], str],
) -> None:
    """Write predictions to a file or to the standard output, each as soon as it is there."""
    if output_format is OutputFormat.table:
        _print_table(predictions)
        return
    with ExitStack() as stack:
        file, plain = sys.stdout, printable if out is None and sys.stdout.isatty() else str
        if out is not None:
            file = stack.enter_context(open(stack.enter_context(atomic_write(out)), "w", encoding="utf-8", newline=""))
        if output_format is OutputFormat.csv:  # in files names stay as they are
            writer = csv.writer(file, lineterminator="\n")
            rows = predict_files.csv_rows(predictions)
            writer.writerows([plain(cell(text)) for text in row] for row in rows)
            return
        separator = "["
        for item in predictions:
            element = json.dumps(item._asdict(), indent=1, ensure_ascii=False)
            file.write(printable(separator + "\n " + element.replace("\n", "\n ")))
            separator = ","
        file.write("\n]\n")


def _count(
    predictions: Iterable[predict_files.Prediction], counts: dict[str, int]
) -> Iterator[predict_files.Prediction]:
    for item in predictions:
        counts["count"] += 1
        counts["bad"] += bool(item.error)
        yield item


def _print_table(predictions: Iterable[predict_files.Prediction]) -> None:
    rows = plain_table("image", "labels (*: above the threshold)")
    for item in predictions:
        if item.error:
            rows.add_row(escape(item.image), f"[red]{escape(item.error)}[/]")
            continue
        parts = [
            f"[bold]{escape(label['class'])} {label['probability']:.2f}*[/]"
            if label["present"]
            else f"[bright_black]{escape(label['class'])} {label['probability']:.2f}[/]"
            for label in item.labels
        ]
        rows.add_row(escape(item.image), "  ".join(parts))
    console.print(rows)
