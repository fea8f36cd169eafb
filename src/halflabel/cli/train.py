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

from halflabel.cli import show
from halflabel.cli.fill import fill_words
from halflabel.cli.options import (
    Engine,
    LabelReader,
    check_image_folder,
    check_needs,
    command,
    is_given,
    label_parameters,
    panel,
)
from halflabel.cli.progress import Bar, TrainingBar
from halflabel.cli.show import console, warnings_in_a_line
from halflabel.errors import UserError
from halflabel.evaluation.registry import has_too_few
from halflabel.fitting import advice as method_advice
from halflabel.fitting import assembly as assemblies
from halflabel.fitting import auto, callbacks
from halflabel.fitting.config import COMMON, Config
from halflabel.images import sources
from halflabel.methods import base
from halflabel.questions import choose
from halflabel.runs import folder as run_folder
from halflabel.runs import from_nothing, new_run
from halflabel.runs import train as runs_train
from halflabel.system import distributed, gpu_memory, signals
from halflabel.system.files import absolute_path, read_yaml
from halflabel.system.format import counted
from halflabel.system.ray_engine import use_engine
from halflabel.system.remote import local_path
from halflabel.system.reporter import Reporter
from halflabel.system.validate import one_of

EARLIER_RUNS, LOGGING = "Start from an earlier run", "Logging"


@command()
def train(
    ctx: typer.Context,
    read: LabelReader,
    training: dict[str, Any],
    labels: Annotated[Path | None, typer.Argument(help="A label file or folder of any known format.")] = None,
    images: Annotated[Path | None, typer.Argument(help="Image folder, pack, or features of `embed`.")] = None,
    method: str = panel(COMMON, "auto", "A method of `halflabel methods`; auto: one that suits the labels."),
    out: Path | None = panel(COMMON, None, "The run folder (default: runs/METHOD)."),
    force: bool = panel(COMMON, False, "Replace a run that the folder already holds.", "--force"),
    dry_run: bool = panel(COMMON, False, "Show what would be trained; write nothing.", "--dry-run"),
    classes: str | None = panel(COMMON, None, "Train IMAGES by class names alone, with commas or in a file."),
    config_file: Path | None = panel(
        COMMON, None, "The config.yaml of a run; options win.", "--config", metavar="FILE"
    ),
    resume: Path | None = panel(EARLIER_RUNS, None, "Resume an interrupted run.", metavar="RUN"),
    finished: Path | None = panel(
        EARLIER_RUNS,
        None,
        "Start a new run (default: RUN-2) from the labels and settings of a finished run and the answers of "
        "`review`; in batches also from its weights.",
        "--continue",
        metavar="RUN",
    ),
    answers: Path | None = panel(
        EARLIER_RUNS, None, "With --continue: more labels (default: the answers of `review`)."
    ),
    truth: Path | None = panel(LOGGING, None, "Hidden labels: the log says how many guesses are right."),
    log: str = panel(LOGGING, "", "Also log to tensorboard, mlflow or wandb, separated by commas."),
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
        moved = _moved_images(ctx, labels, images, "--resume", {"resume"})
        job = new_run.resume_training(run_folder.RunFolder.open(resume), moved)
    elif finished is not None:
        of_answers = set() if answers is None else {each.name for each in label_parameters()}
        moved = _moved_images(ctx, labels, images, "--continue", {"finished", "answers", "out", "force"} | of_answers)
        job = _continue(run_folder.RunFolder.open(finished), moved, read, answers, out, force)
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
        earlier = None if config_file is None else read_yaml(config_file, "name the config.yaml of a run")
        if earlier is not None and not is_given(ctx, "method"):
            method = str(earlier.get("method"))
        if method != "auto":
            base.recipe(method)  # torch is imported only where a method is named
        names = None if classes is None else from_nothing.read_class_names(classes)
        place = out or Path("runs") / (method if names is None else "names")
        run = distributed.run_on_main(lambda: run_folder.RunFolder.create(place, force=force))
        if names is not None:
            rows = from_nothing.without_labels(images, names)
            choice = auto.choose(rows.training.stats, method=from_nothing.FROM_NOTHING)
            of_method = training.pop("options")
            training = {"workers": 2, "names": "on", **training}
            config = new_run.make_config(choice, training, of_method, absolute_path(images))
            job = runs_train.TrainingJob(rows, images, replace(config, from_nothing=True), run)
        else:
            assert labels is not None
            job = _new_job(read, labels, images, method, run, training, earlier)
            job = replace(job, truth=None if truth is None else read(truth).table())
        if dry_run:
            _show_job(job, images)
            return
    _run_job(job, loggers, engine)


def _new_job(
    read: LabelReader,
    labels: Path,
    images: Path,
    method: str,
    run: run_folder.RunFolder,
    training: dict[str, Any],
    earlier: dict[str, Any] | None,
) -> runs_train.TrainingJob:
    """Read the labels and choose the configuration of a new run, `earlier` with changes if given."""
    label_import, training["group"] = read.grouped(labels, training.get("group"))
    table = label_import.table()
    show.audit(label_import.audit, table)
    choice = new_run.choose_for(table.stats, training, None if method == "auto" else method)
    if method == "auto":
        show.paragraph(method_advice.describe_labels(table.stats))
        if choice.candidates:
            show.choice(list(map(str, choice.candidates)))
        else:
            show.paragraph(f"Method: [bold]{choice.method}[/]: it {choice.why}.")
    texts, chosen = training.pop("options"), base.recipe(choice.method)
    new_run.check_options(chosen, texts)
    options, place = chosen.parse(texts), absolute_path(images)
    if earlier is None:
        training = {"workers": 2, **training}
        config = new_run.make_config(choice, training, options, place)
    else:
        given = {name: value for name, value in training.items() if value is not None}
        config = new_run.change_config(Config.from_dict(earlier), choice.method, given, options, place)
    assemblies.Assembly(config).check_fit(training, table)
    return runs_train.TrainingJob(label_import.rows, images, config, run)


def _show_job(job: runs_train.TrainingJob, images: Path) -> None:
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


def _continue(
    finished: run_folder.RunFolder,
    images: Path | None,
    read: LabelReader,
    answers: Path | None,
    out: Path | None,
    force: bool,
) -> runs_train.TrainingJob:
    """Return the training of a new run that starts from a finished one, with more labels."""
    target = out or run_folder.next_run_folder(finished.folder)
    run = distributed.run_on_main(lambda: run_folder.RunFolder.create(target, force=force))
    rows = finished.read_answers()
    if answers is not None:
        rows = choose.weigh_answers(read(answers).rows, finished.asked, finished.control)
    if rows is not None:
        present, absent = (int((rows.value == value).sum()) for value in (1, -1))
        console.print(
            f"Added {counted(present + absent, 'answer')} from {escape(str(answers or finished.answers))}: "
            f"{present} present, {absent} absent"
        )
    return new_run.continue_training(finished, run, answers=rows, images=images)


def _run_job(job: runs_train.TrainingJob, loggers: list[str], engine: str) -> None:
    """Train with progress bars, then print the evaluation and the next step."""
    epoch_bar, images = TrainingBar(), job.images
    assert isinstance(images, Path)
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
    with use_engine(engine), _resumable(run), warnings_in_a_line(), epoch_bar, features, fits:
        evaluation = job.start(Reporter(features, show.message, callback, fits=fits))
    begun = run_folder.RunFolder(Path(config.begin_from)).read_rows() if config.begin_from else None
    if evaluation is not None:
        show.evaluation(evaluation, of_training=True)
        if has_too_few(evaluation.overall):
            words = ("next", run.folder, images, "--count", "30", "--control", "1")
            show.next_command(*words, title="Too few to say: answer 30 random questions")
        if begun is not None and (added := int((job.labels.weight > 0).sum()) - int((begun.weight > 0).sum())):
            change = "now count here too" if job.labels.is_asked else "may have corrected the probabilities"
            before = escape(Path(config.begin_from or "").name)
            console.print(f"Not comparable with the figures of {before}: {counted(added, 'random answer')} {change}.")
    show.written(run.address)
    if run.store is not None:
        return
    if begun is not None:
        show.next_command(*fill_words(run.folder, images, len(job.labels.images) > len(begun.images)))
    elif not len(job.labels):  # a review asks for the first ones
        show.next_command("review", run.folder, images)
    else:
        show.next_command("report", run.folder, "--images", images)


def _moved_images(
    ctx: typer.Context, labels: Path | None, images: Path | None, flag: str, allowed: Set[str]
) -> Path | None:
    """The image folder, which --resume and --continue take as their only argument, with few options.

    The run has its own labels, and its settings cannot be changed.
    """
    allowed = {"images", "labels", "engine", "log"} | allowed
    for parameter in ctx.command.get_params(ctx):
        if parameter.name not in allowed and is_given(ctx, parameter.name or ""):
            other = parameter.opts[0]
            raise UserError(f"{other} cannot be used with {flag}", f"leave {other} out, or start a new run")
    if images is not None:
        raise UserError(f"{flag} takes no LABELS: the run has its own", "name only the image folder")
    if labels is not None and not local_path(labels).is_dir():
        raise UserError(f"{labels} is not a folder", f"with {flag}, name only the image folder, or nothing")
    return labels


def _resume_hint(run: run_folder.RunFolder) -> str:
    command = f"resume with:  halflabel train --resume {shlex.quote(run.address)}"
    return command if run.is_started else "nothing was written"


@contextmanager
def _resumable(run: run_folder.RunFolder) -> Iterator[None]:
    """Say how to resume after Ctrl-C, SIGTERM, the end of another process or too little memory."""
    try:
        with signals.handle_signals():
            yield
    except KeyboardInterrupt as stopped:
        if distributed.claim("error"):  # a signal may reach several processes
            typer.echo(f"Stopped; {_resume_hint(run)}", err=True)
        number = stopped.number if isinstance(stopped, signals.Stopped) else signal.SIGINT
        raise typer.Exit(128 + number) from None
    except (RuntimeError, UserError) as error:
        if (explained := _explain(error, run)) is None:
            raise
        if distributed.is_distributed():  # torchrun may terminate all processes before the message is printed
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise explained from None


def _explain(error: RuntimeError | UserError, run: run_folder.RunFolder) -> UserError | None:
    """Return the end of another process, and too little memory, as a UserError; None for faults of this package."""
    if isinstance(error, UserError):
        return error
    if type(error).__name__ == "OutOfMemoryError":  # torch's, where smaller batches do not help
        return gpu_memory.out_of_gpu_memory("for this model")
    if "DataLoader worker" in str(error):
        reason = "a worker process that decodes images was killed, probably because memory ran out"
        return UserError(reason, f"{_resume_hint(run)}  (or start again with fewer --workers)")
    lost = distributed.lost_connection(error)
    return UserError(f"another process of this job ended ({lost})", _resume_hint(run)) if lost else None
