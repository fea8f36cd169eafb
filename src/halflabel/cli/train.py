"""The command `train`: a new run, an interrupted one (`--resume`), or one that starts from another (`--continue`)."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.options import (
    Engine,
    GroupedCommand,
    ReadLabels,
    check_image_folder,
    check_needs,
    is_given,
    label_parameters,
    panel,
    read_grouped,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.progress import Bar, TrainingBar
from halflabel.cli.sequence import after_train, join_command
from halflabel.cli.terminal import (
    console,
    show_audit,
    show_choice,
    show_command,
    show_evaluation,
    show_message,
    show_paragraph,
    show_written,
    warnings_in_a_line,
)
from halflabel.errors import UserError
from halflabel.evaluation.registry import has_too_few
from halflabel.fitting import advice as method_advice
from halflabel.fitting import assembly as assemblies
from halflabel.fitting import auto, callbacks
from halflabel.fitting.config import COMMON, Config
from halflabel.images import sources
from halflabel.labels import labels as label_rows
from halflabel.methods import base
from halflabel.questions.choose import weigh_answers
from halflabel.runs import folder as run_folder
from halflabel.runs import from_nothing, new_run
from halflabel.system import distributed, gpu_memory, signals
from halflabel.system.files import absolute_path, read_yaml
from halflabel.system.format import counted
from halflabel.system.ray_engine import use_engine
from halflabel.system.remote import local_path
from halflabel.system.reporter import Reporter
from halflabel.system.validate import one_of

EARLIER_RUNS = "Start from an earlier run"


@app.command(cls=GroupedCommand)
@takes_label_options
@takes_training_options("train")
def train(
    ctx: typer.Context,
    read: ReadLabels,
    training: dict[str, Any],
    labels: Annotated[Path | None, typer.Argument(help="A label file or folder of any known format.")] = None,
    images: Annotated[Path | None, typer.Argument(help="Image folder, pack, or features of `embed`.")] = None,
    method: Annotated[
        str,
        panel(COMMON, "The training method; auto chooses one that suits the labels. `halflabel methods` lists all."),
    ] = "auto",
    out: Annotated[Path | None, panel(COMMON, "The run folder (default: runs/METHOD).", show_default=False)] = None,
    force: Annotated[bool, panel(COMMON, "Replace a run that the folder already holds.", "--force")] = False,
    dry_run: Annotated[
        bool, panel(COMMON, "Show what would be trained, and on how many images; write nothing.", "--dry-run")
    ] = False,
    classes: Annotated[
        str | None,
        panel(
            COMMON,
            "Train IMAGES without labels, by class names alone: separated by commas, or a file with one per line.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        panel(
            COMMON, "Take options from the config.yaml of a run; options given here win.", "--config", metavar="FILE"
        ),
    ] = None,
    resume: Annotated[Path | None, panel(EARLIER_RUNS, "Resume an interrupted run.", metavar="RUN")] = None,
    finished: Annotated[
        Path | None,
        panel(
            EARLIER_RUNS,
            "Start a new run (default: RUN-2) from the labels and settings of a finished run and the answers of "
            "`review`; in batches also from its weights.",
            "--continue",
            metavar="RUN",
        ),
    ] = None,
    answers: Annotated[
        Path | None, panel(EARLIER_RUNS, "With --continue: a file with more labels (default: the answers of `review`).")
    ] = None,
    truth: Annotated[
        Path | None,
        panel(
            "Logging",
            "Hidden labels. They are never trained on: the log reports how many of the method's guesses are right.",
        ),
    ] = None,
    log: Annotated[str, panel("Logging", "Also log to tensorboard, mlflow or wandb, separated by commas.")] = "",
    engine: Engine = "local",
) -> None:
    """Train a classifier from partly known labels, and evaluate it on known labels it did not see.

    All other options of training and of the method are set by name, such as --set clip=1 --set alpha=0.2;
    `halflabel train --set help` and `halflabel methods NAME` list them.

    Example: halflabel train labels.csv photos/ --method an --out runs/first
    """
    # Importing torch takes seconds: mistakes that can be found without it are reported first.
    for name in (loggers := log.split(",") if log else []):
        one_of(("tensorboard", "mlflow", "wandb"), log=name)
    if resume is not None:
        _resume(ctx, resume, _moved_images(labels, images, "--resume"), loggers, engine)
    elif finished is not None:
        moved = _moved_images(labels, images, "--continue")
        _continue(ctx, finished, moved, read, answers, out, force, loggers, engine)
    else:
        check_needs("--continue RUN", {"--answers": answers is not None})
        if classes is not None:
            if images is not None or labels is None or is_given(ctx, "method"):
                fix = "halflabel train photos/ --classes cat,dog"
                raise UserError("--classes takes only IMAGES: there are no labels that a method could learn from", fix)
            images = labels
        elif labels is None or images is None:
            raise UserError("LABELS and IMAGES are missing", "halflabel train labels.csv photos/")
        check_image_folder(images)
        if method != "auto":
            _refuse_unknown_method(method)
        if classes is not None:
            job = _job_of_names(from_nothing.read_class_names(classes), images, out, force, training)
        else:
            job = _new_job(ctx, read, labels, images, method, out, force, truth, training, config_file)
        if dry_run:
            _show_job(job, images)
        else:
            _run_job(job, loggers, engine)


def _new_job(
    ctx: typer.Context,
    read: ReadLabels,
    labels: Path,
    images: Path,
    method: str,
    out: Path | None,
    force: bool,
    truth: Path | None,
    training: dict[str, Any],
    config_file: Path | None,
) -> new_run.TrainingJob:
    """Read the labels and choose the configuration of a new run; nothing is written."""
    earlier = None if config_file is None else read_yaml(config_file, "name the config.yaml of a run")
    if earlier is not None and not is_given(ctx, "method"):
        method = str(earlier.get("method"))
        _refuse_unknown_method(method)
    run = distributed.run_on_main(lambda: run_folder.RunFolder.create(out or Path("runs") / method, force=force))
    label_import, training["group"] = read_grouped(read, labels, training.get("group"))
    table = label_import.table()
    show_audit(label_import.audit, table)
    choice = new_run.choose_for(table.stats, training, None if method == "auto" else method)
    if method == "auto":
        show_paragraph(method_advice.describe_labels(table.stats))
        if choice.candidates:
            show_choice(list(map(str, choice.candidates)))
        else:
            show_paragraph(f"Method: [bold]{choice.method}[/]: it {choice.why}.")
    texts, chosen = training.pop("options"), base.recipe(choice.method)
    new_run.check_options(chosen, texts)
    options = chosen.parse(texts)
    if earlier is None:
        training = {"workers": 2, **training}
        config = new_run.make_config(choice, training, options, absolute_path(images))
    else:
        given = {name: value for name, value in training.items() if value is not None}
        config = new_run.change_config(Config.from_dict(earlier), choice.method, given, options, absolute_path(images))
    assemblies.Assembly(config).check_fit(training, table)
    true_labels = read(truth).table() if truth is not None else None
    return new_run.TrainingJob(label_import.rows, images, config, run, true_labels)


def _job_of_names(
    classes: list[str], images: Path, out: Path | None, force: bool, training: dict[str, Any]
) -> new_run.TrainingJob:
    """Return the training of a run without labels, by class names alone."""
    method = from_nothing.FROM_NOTHING
    run = distributed.run_on_main(lambda: run_folder.RunFolder.create(out or Path("runs") / "names", force=force))
    rows = from_nothing.without_labels(images, classes)
    training = {"workers": 2, "names": "on", **training}
    choice = auto.choose(rows.training.stats, method=method)
    config = new_run.make_config(choice, training, training.pop("options"), absolute_path(images))
    return new_run.TrainingJob(rows, images, replace(config, from_nothing=True), run)


def _show_job(job: new_run.TrainingJob, images: Path) -> None:
    """Print what a training would do, and the command that does it."""
    config, run = job.config, job.run
    table = job.labels.training
    source = sources.open_images(table.images, images, {}, max_bad=1.0)
    missing = f"; {counted(len(source.bad), 'image')} not found" if source.bad else ""
    console.print(f"\nImages: {counted(len(source) - len(source.bad), 'image')} found{missing}")
    console.print(f"Training: {assemblies.Assembly(config).describe(table)}", markup=False)
    console.print(f"Backbone: {config.backbone}, on {assemblies.Assembly(config).device}")
    for name, value in config.options.items():
        console.print(f"  {name}={value}", markup=False)
    console.print(f"Nothing was written. Without --dry-run, the run would be in {escape(str(run.folder))}")


def _resume(ctx: typer.Context, folder: Path, images: Path | None, loggers: list[str], engine: str) -> None:
    """Resume an interrupted run."""
    _check_no_other_options(ctx, "--resume", {"resume", "images", "labels", "engine", "log"})
    run = run_folder.RunFolder.open(folder)
    _run_job(new_run.resume_training(run, images), loggers, engine)


def _continue(
    ctx: typer.Context,
    folder: Path,
    images: Path | None,
    read: ReadLabels,
    answers: Path | None,
    out: Path | None,
    force: bool,
    loggers: list[str],
    engine: str,
) -> None:
    """Start a new run from a finished one, with more labels."""
    allowed = {"finished", "answers", "images", "labels", "out", "force", "engine", "log"}
    _check_no_other_options(
        ctx, "--continue", allowed if answers is None else allowed | {each.name for each in label_parameters()}
    )
    finished = run_folder.RunFolder.open(folder)
    target = out or run_folder.next_run_folder(folder)
    run = distributed.run_on_main(lambda: run_folder.RunFolder.create(target, force=force))
    rows = finished.read_answers()
    if answers is not None:
        rows = weigh_answers(read(answers).rows, finished.asked, finished.control)
    job = new_run.continue_training(finished, run, answers=rows, images=images)
    if rows is not None:
        present, absent = (int((rows.value == value).sum()) for value in (1, -1))
        console.print(
            f"Added {counted(present + absent, 'answer')} from {escape(str(answers or finished.answers))}: "
            f"{present} present, {absent} absent"
        )
    _run_job(job, loggers, engine)


def _run_job(job: new_run.TrainingJob, loggers: list[str], engine: str) -> None:
    """Train with progress bars, then print the evaluation and the next step."""
    epoch_bar, head_bar = TrainingBar(), TrainingBar("head")
    callback: callbacks.Callback = epoch_bar
    run, config = job.run, job.config
    if loggers and distributed.is_main():
        run.folder.mkdir(parents=True, exist_ok=True)
        callback = callbacks.CallbackList(
            epoch_bar,
            *callbacks.make_loggers(loggers, run.folder.name, config.as_dict(), run.folder, resume=job.resume),
        )
    trained = "the head on cached features of" if config.tune == "head" else "all of"
    method = "auto" if config.candidates else config.method
    console.print(f"\nTraining {trained} {config.backbone} by [bold]{method}[/] in {escape(run.address)}")

    features, fits = Bar("features"), Bar("fits", "fits")
    with use_engine(engine), _resumable(run), warnings_in_a_line(), epoch_bar, head_bar, features, fits:
        evaluation = job.start(Reporter(features, show_message, callback, fits=fits), init_callback=head_bar)
    if evaluation is not None:
        show_evaluation(evaluation, of_training=True)
        if has_too_few(evaluation.overall):
            question_command = ("next", run.folder, job.images, "--count", "30", "--control", "1")
            show_command(join_command(*question_command), "Too few to say: answer 30 random questions")
        _show_random_answers(job)
    show_written(run.address)
    if run.store is None:
        further = bool(config.begin_from) and len(job.labels.images) > len(_labels_before(job).images)
        about = {"is_continued": bool(config.begin_from), "all_photos": further, "has_labels": len(job.labels) > 0}
        show_command(after_train(run.folder, job.images, **about))


def _labels_before(job: new_run.TrainingJob) -> label_rows.Labels:
    """The labels of the run that a continued run began from."""
    return run_folder.RunFolder(Path(job.config.begin_from or "")).read_rows()


def _show_random_answers(job: new_run.TrainingJob) -> None:
    """Say why the figures of a continued run differ from those of the run before, where random answers came in."""
    if not job.config.begin_from:
        return

    change = "now count here too" if job.labels.is_asked else "may have corrected the probabilities"
    if added := int((job.labels.weight > 0).sum()) - int((_labels_before(job).weight > 0).sum()):
        before = Path(job.config.begin_from).name
        console.print(
            f"Not comparable with the figures of {escape(before)}: {counted(added, 'random answer')} {change}."
        )


def _moved_images(labels: Path | None, images: Path | None, flag: str) -> Path | None:
    """The image folder, which --resume and --continue take as their only argument: the run has its own labels."""
    if images is not None:
        raise UserError(f"{flag} takes no LABELS: the run has its own", "name only the image folder")
    if labels is not None and not local_path(labels).is_dir():
        raise UserError(f"{labels} is not a folder", f"with {flag}, name only the image folder, or nothing")
    return labels


def _check_no_other_options(ctx: typer.Context, flag: str, allowed: Set[str]) -> None:
    """Refuse options other than the allowed ones: the settings of an earlier run cannot be changed."""
    for parameter in ctx.command.get_params(ctx):
        name = parameter.name or ""
        if name not in allowed and is_given(ctx, name):
            other = parameter.opts[0]
            raise UserError(f"{other} cannot be used with {flag}", f"leave {other} out, or start a new run")


def _resume_hint(run: run_folder.RunFolder) -> str:
    command = f"resume with:  halflabel train --resume {shlex.quote(run.address)}"
    return command if run.is_started else "nothing was written"


@contextmanager
def _lost_processes(run: run_folder.RunFolder) -> Iterator[None]:
    """Turn the end of another process, and too little memory, into a UserError that says how to resume."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, where smaller batches do not help
            raise gpu_memory.out_of_gpu_memory("for this model") from None
        if "DataLoader worker" in str(error):
            raise UserError(
                "a worker process that decodes images was killed, probably because memory ran out",
                f"{_resume_hint(run)}  (or start again with fewer --workers)",
            ) from None
        if not (reason := distributed.lost_connection(error)):
            raise
        raise UserError(f"another process of this job ended ({reason})", _resume_hint(run)) from None


@contextmanager
def _resumable(run: run_folder.RunFolder) -> Iterator[None]:
    """On Ctrl-C and SIGTERM, print one line on how to resume, and exit with the usual code."""
    try:
        with signals.handle_signals(), _lost_processes(run):
            yield
    except KeyboardInterrupt as stopped:
        if distributed.claim("error"):  # a signal may reach several processes
            typer.echo(f"Stopped; {_resume_hint(run)}", err=True)
        number = stopped.number if isinstance(stopped, signals.Stopped) else signal.SIGINT
        raise typer.Exit(128 + number) from None
    except UserError:
        if distributed.is_distributed():  # torchrun may terminate all processes before the message is printed
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise


def _refuse_unknown_method(method: str) -> None:
    """Raise if no method has this name; torch is imported only where a method is named."""
    base.recipe(method)
