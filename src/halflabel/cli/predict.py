"""The commands of a trained model: `evaluate`, `predict`, `export` and `serve`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from halflabel.cli import app, show
from halflabel.cli.options import (
    Engine,
    ExcelSafe,
    Force,
    ImageFolder,
    LabelFile,
    LabelReader,
    ModelArgument,
    PositivesPerImage,
    RunArgument,
    Threshold,
    argument,
    check_free,
    check_image_folder,
    check_needs,
    command,
    option,
    shared,
)
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, first_names, plain_table
from halflabel.errors import UserError
from halflabel.labels.formats.unsupported import PREDICTION_COLUMNS
from halflabel.runs import folder as run_folder
from halflabel.runs import model as models
from halflabel.runs import predict as predict_files
from halflabel.runs.export import hub as hub_export
from halflabel.runs.export import onnx as onnx_export
from halflabel.serve import app as server
from halflabel.serve import guard
from halflabel.system import distributed
from halflabel.system.files import atomic_write, read_json, write_json
from halflabel.system.format import counted, printable
from halflabel.system.format import excel_safe as excel_safe_cell
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.sockets import is_loopback, open_socket

OutputFormat = Literal["table", "json", "csv", "parquet"]


@command()
def evaluate(
    run: ModelArgument,
    labels: LabelFile,
    images: ImageFolder,
    read: LabelReader,
    threshold: float | None = option(
        None,
        "One threshold of the probability for all classes, for F1, precision and recall.",
        min=0,
        max=1,
        show_default="the run's threshold of each class",
    ),
    group: str | None = option(None, "Images that belong together, as in train: intervals never separate them."),
    out: Path | None = option(None, "Also write the metrics to this JSON file."),
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
    with suppress(UserError):
        content = read_json(path, "")
        return isinstance(content, dict) and {"protocol", "per_class"} <= content.keys()
    return False


@command()
def predict(
    run: ModelArgument,
    images: Annotated[
        list[Path],
        typer.Argument(help="Image files and folders, or a folder of features; - reads file names from stdin."),
    ],
    output_format: OutputFormat | None = option(None, "Output format.", "--format", show_default="by --out, or table"),
    top: int = option(3, "Show at least this many labels per image.", min=0),
    all_scores: bool = option(False, "Show all classes, not only likely ones.", "--all"),
    items: bool = option(False, "Each folder is one item of several images, such as views of a product.", "--items"),
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    excel_safe: ExcelSafe = False,
    out: Path | None = option(
        None,
        "Write this file instead, such as predictions.csv; or, for a name without an ending, Parquet files into a "
        "folder, with --all a list of probabilities per image; the same command continues if interrupted.",
    ),
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


export = typer.Typer(
    name="export",
    no_args_is_help=True,
    help="Export a trained model as an ONNX file or for the Hugging Face Hub.",
)
app.add_typer(export)


@command(among=export)
def onnx(
    run: RunArgument,
    out: Path = option(Path("model.onnx"), "The .onnx file to write."),
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    force: Force = False,
) -> None:
    """Export an ONNX model that maps resized uint8 images to calibrated probabilities.

    The metadata of the file hold the classes, the thresholds and the resizing. The file is written only if ONNX Runtime
    and PyTorch give the same results.

    Example: halflabel export onnx runs/first --out birds.onnx
    """
    check_free(out, force)
    if out.suffix != ".onnx":
        raise UserError(f"{out.name} does not end in .onnx", "name the file model.onnx")
    if run_folder.model_kind(run) == "onnx":
        raise UserError("RUN is already an ONNX file", "name the run, or the folder that was exported for the Hub")
    predictor = models.Model.open(run).deciding(threshold=threshold, positives_per_image=positives_per_image)
    parity = onnx_export.export_onnx(predictor, out)
    view = predictor.views["plain"]
    sides = "height, width" if view.resize == "keep" else f"{view.size}, {view.size}"
    show.written(out, f": images (batch, 3, {sides}) uint8 → logits, probabilities (batch, {len(predictor.classes)})")
    console.print(
        f"Checked against PyTorch on {counted(parity.images, 'image')}: logits within {parity.logits:.1e}, "
        f"probabilities within {parity.probabilities:.1e}"
    )
    show.next_command("predict", out, "PHOTO.jpg")


@command(among=export)
def hub(
    run: RunArgument,
    out: Annotated[Path, shared("The folder to write.")],
    push: str | None = option(None, "Also upload it to the Hugging Face Hub.", metavar="USER/NAME"),
    private: bool = option(False, "With --push: make the repository private.", "--private"),
    threshold: Threshold = None,
    positives_per_image: PositivesPerImage = None,
    force: Force = False,
) -> None:
    """Write a folder for the Hugging Face Hub: weights, settings and a model card with the evaluation.

    Nothing is uploaded without --push.

    Example: halflabel export hub runs/first --out birds --push me/birds
    """
    check_needs("--push USER/NAME", {"--private": private and push is None})
    opened = run_folder.RunFolder.open(run)
    hub_export.export_hub(opened, out, force=force, threshold=threshold, positives_per_image=positives_per_image)
    show.written(out, f": {', '.join(hub_export.FILES)}")
    if push is not None:
        console.print(f"Uploaded to {escape(hub_export.push(out, push, private=private))}")
    else:
        show.next_command("predict", out, "PHOTO.jpg")


_SHORTEST_TOKEN = 16


@command()
def serve(
    model: Annotated[Path, argument("MODEL", "A run folder, an exported folder or an .onnx file.")],
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 listens on all networks of this machine."),
    port: int = option(8000, "Port; 0 chooses a free one.", min=0, max=65535),
    token: str | None = option(
        None,
        "Answer only requests with this token: Authorization: Bearer TOKEN, or the password in a browser.",
        envvar="HALFLABEL_TOKEN",
        show_envvar=True,
    ),
    images: Path | None = option(None, "The images of a Label Studio project: the server is then its ML backend."),
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
        predictor = models.Model.open(model).deciding(threshold=threshold, positives_per_image=positives_per_image)
        predictions = server.make_app(predictor, model.resolve().name, images=images)
        address, free_port = listening.getsockname()[:2]
        url = f"http://{escape(f'[{address}]' if ':' in address else address)}:{free_port}"
        classes = counted(len(predictor.classes), "class", "classes")
        console.print(f"Serving [bold]{escape(str(model))}[/], {classes}, at {url}", highlight=False)
        if not is_loopback(address.partition("%")[0]):
            lacks = "no encryption" if token is not None else "no password and no encryption"
            console.print(f"[yellow]Other machines can reach it[/]: there is {lacks}.")
        password = "-u :TOKEN " if token is not None else ""
        console.print(f"Try:  curl {password}-F files=@photo.jpg {url}/predict")
        console.print("Ctrl-C stops the server.")
        guarded = guard.Guard(predictions, host=host, port=free_port, token=token)
        guard.run_server(guarded, listening, patience=30)
    console.print("Stopped.")
