"""The commands `evaluate` and `predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.options import (
    Engine,
    ExcelSafe,
    Force,
    ImageFolder,
    LabelFile,
    LabelReader,
    ModelArgument,
    PositivesPerImage,
    Threshold,
    check_free,
    check_image_folder,
    command,
    option,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, first_names, plain_table
from halflabel.errors import UserError
from halflabel.labels.formats.unsupported import PREDICTION_COLUMNS
from halflabel.runs import folder as run_folder
from halflabel.runs import model as models
from halflabel.runs import predict as predict_files
from halflabel.system import distributed
from halflabel.system.files import atomic_write, read_json, write_json
from halflabel.system.format import counted, printable
from halflabel.system.format import excel_safe as excel_safe_cell
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import SILENT, Reporter

OutputFormat = Literal["table", "json", "csv", "parquet"]


@command()
def evaluate(
    run: ModelArgument,
    labels: LabelFile,
    images: ImageFolder,
    read: LabelReader,
    threshold: Annotated[
        float | None,
        option(
            "One threshold of the probability for all classes, for F1, precision and recall.",
            min=0,
            max=1,
            show_default="the run's threshold of each class",
        ),
    ] = None,
    group: Annotated[
        str | None, option("Images that belong together, as in train: intervals never separate them.")
    ] = None,
    out: Annotated[Path | None, option("Also write the metrics to this JSON file.")] = None,
    force: Force = False,
    engine: Engine = "local",
) -> None:
    """Evaluate a trained run on other labels: metrics over known entries, with confidence intervals.

    Example: halflabel evaluate runs/first test.csv photos/
    """
    run_folder.model_kind(run)
    check_image_folder(images)
    if out is not None and not _is_evaluation(out):
        check_free(out, force)
    label_import, group = read.grouped(labels, group)
    predictor = models.Model.open(run)
    show.audit(label_import.audit, table := label_import.table())
    with Bar("scores") as bar, use_engine(engine):
        result = predictor.evaluate(
            label_import.rows, images, Reporter(bar), labels_name=str(labels), threshold=threshold, group=group
        )
    known = set(table.classes)
    if unnamed := [name for name in predictor.classes if name not in known]:
        missing = f"{len(unnamed)} of the run's {len(predictor.classes)} classes: {first_names(unnamed)}"
        console.print(f"\n{labels} has no row on {missing}", markup=False)
    show.evaluation(result)
    if out is not None and distributed.is_main():
        shared = {} if threshold is None else {"threshold": threshold}
        content = {"protocol": result.protocol, "scored": result.images, **shared, **result.overall}
        write_json(out, {**content, "per_class": result.per_class})
        show.written(out)
    if predictor.run is not None:
        show.next_command("report", run, "--images", images, why="which labels it gets wrong")


def _is_evaluation(path: Path) -> bool:
    try:
        content = read_json(path, "")
    except UserError:
        return False
    return isinstance(content, dict) and {"protocol", "per_class"} <= content.keys()


@command()
def predict(
    run: ModelArgument,
    images: Annotated[
        list[Path],
        typer.Argument(help="Image files and folders, or a folder of features; - reads file names from stdin."),
    ],
    output_format: Annotated[
        OutputFormat | None, option("Output format.", "--format", show_default="the ending of --out, or table")
    ] = None,
    top: Annotated[int, option("Show at least this many labels per image.", min=0)] = 3,
    all_scores: Annotated[bool, option("Show all classes, not only likely ones.", "--all")] = False,
    items: Annotated[
        bool, option("Each folder is one item of several images, such as views of a product.", "--items")
    ] = False,
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    excel_safe: ExcelSafe = False,
    out: Annotated[
        Path | None,
        option(
            "Write this file instead, such as predictions.csv; or, for a name without an ending, Parquet files into a "
            "folder, with --all a list of probabilities per image; the same command continues if interrupted."
        ),
    ] = None,
    force: Force = False,
    engine: Engine = "local",
) -> None:
    """Predict the labels of images, with probabilities.

    Labels above their threshold are marked. JSON and CSV are written image by image. The exit code is 1 if a file is
    missing; the others are predicted all the same.

    Example: halflabel predict runs/first photo.jpg holiday/ --out predictions.csv
    """
    output_format = _format_of(out, output_format)
    is_table, is_parquet = output_format == "table", output_format == "parquet"
    if out is not None and (out.suffix or not is_parquet):  # a folder of Parquet files may be continued
        check_free(out, force)
    run_folder.model_kind(run)
    predictor = models.Model.open(run).deciding(threshold=threshold, positives_per_image=positives_per_image)
    files = predict_files.list_files(images, (line.rstrip("\n") for line in sys.stdin), items=items)
    options: dict[str, Any] = {"top": top, "all_scores": all_scores, "items": items}
    with Bar("scores") as bar, use_engine(engine):
        # Lines of output would break a progress bar on the same screen.
        is_shown = out is None and sys.stdout.isatty() and not is_table
        options["reporter"] = SILENT if is_shown else Reporter(bar)
        if out is not None and is_parquet:
            count, bad = predict_files.predict_to_parquet(predictor, files, out, force=force, **options)
        else:
            stream = predict_files.stream_predictions(predictor, files, **options)
            count, bad = _write(stream, output_format, out, excel_safe_cell if excel_safe else str)
    if predictor.calibration.assumption and is_table:
        console.print(f"[bright_black]Probabilities assume that {escape(predictor.calibration.assumption)}.[/]")
    if out is not None:
        show.written(out, f": {counted(count, 'image')}, {bad} of them unreadable")
    elif is_table:
        show.next_command("predict", run, "PHOTOS", "--out", "predictions.csv", why="a whole folder, for a spreadsheet")
    if bad and (missing := files.missing):
        what = f"{counted(len(missing), 'file')} of {count} missing: {first_names(missing)}"
        show.error(UserError(what, "check the paths"))
        raise typer.Exit(1)
    if count == bad:
        raise UserError("no image could be read", "check the paths")


def _format_of(out: Path | None, stated: OutputFormat | None) -> OutputFormat:
    """Return the stated format, or that of the ending of the file to write."""
    if out is None:
        if stated == "parquet":
            raise UserError("--format parquet is for files", "add --out FOLDER")
        return stated or "table"
    by_ending: dict[str, OutputFormat] = {".csv": "csv", ".json": "json", ".parquet": "parquet", "": "parquet"}
    output_format = stated or by_ending.get(out.suffix)
    if output_format is None or output_format == "table":
        raise UserError(f"the ending of {out} is no format", "add --format csv, --format json or --format parquet")
    return output_format


def _write(
    predictions: Iterable[predict_files.Prediction],
    output_format: OutputFormat,
    out: Path | None,
    cell: Callable[[str], str],
) -> tuple[int, int]:
    """Write predictions to a file or to the standard output, each as soon as it is there; count all and bad ones."""
    count = bad = 0
    table = plain_table("image", "labels (*: above the threshold)")
    with ExitStack() as stack:
        file, plain = sys.stdout, printable if out is None and sys.stdout.isatty() else str
        if out is not None:
            file = stack.enter_context(open(stack.enter_context(atomic_write(out)), "w", encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        if output_format == "csv":
            writer.writerow(PREDICTION_COLUMNS)
        for item in predictions:
            if output_format == "table":
                table.add_row(escape(item.image), _describe(item))
            elif output_format == "csv":  # in files names stay as they are
                writer.writerows([plain(cell(text)) for text in row] for row in predict_files.csv_rows(item))
            else:
                element = json.dumps(item._asdict(), indent=1, ensure_ascii=False).replace("\n", "\n ")
                file.write(printable(f"{',' if count else '['}\n {element}"))
            count, bad = count + 1, bad + bool(item.error)
        if output_format == "json":
            file.write("\n]\n")
    if output_format == "table":
        console.print(table)
    return count, bad


def _describe(item: predict_files.Prediction) -> str:
    if item.error:
        return f"[red]{escape(item.error)}[/]"
    texts = ((label["present"], f"{escape(label['class'])} {label['probability']:.2f}") for label in item.labels)
    return "  ".join(f"[bold]{text}*[/]" if is_present else f"[bright_black]{text}[/]" for is_present, text in texts)
