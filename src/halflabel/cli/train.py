"""The command `train`."""

from __future__ import annotations

import shlex
import signal
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from halflabel.cli import app
from halflabel.cli.options import (
    READING_OPTIONS,
    Device,
    Hold,
    Optimizer,
    Precision,
    Resize,
    Tune,
    check_method,
    panel,
    takes_policy,
)
from halflabel.cli.terminal import console, show_audit, show_evaluation, warnings_in_a_line
from halflabel.errors import UserError
from halflabel.system import distributed, signals
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.labels.audit import LabelImport
    from halflabel.labels.rows import Rows
    from halflabel.labels.table import LabelTable
    from halflabel.methods.base import Recipe
    from halflabel.runs.folder import RunFolder
    from halflabel.training.config import Config

SCHEDULE, SPEED = "Optimisation", "Speed"

Schedule = StrEnum("Schedule", ["cosine", "step", "plateau", "constant"])
Compile = StrEnum("Compile", ["no", "graph", "inductor", "full"])
Where = StrEnum("Where", ["workers", "device"])


class TrainCommand(TyperCommand):
    """Takes the options of any method: those it does not know, with their values, are left in `ctx.args`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        own: list[str] = []
        rest: list[str] = []
        words = deque(args)
        while words:
            word = words.popleft()
            if not word.startswith("--") or word.partition("=")[0] in known | {"--", "--help"}:
                rest.append(word)
                continue
            own.append(word)
            if "=" not in word and words and not words[0].startswith("--"):
                own.append(words.popleft())
        super().parse_args(ctx, rest)
        ctx.args = [*own, *ctx.args]
        return list(ctx.args)


@app.command(cls=TrainCommand, context_settings={"allow_extra_args": True})
@takes_policy
def train(
    ctx: typer.Context,
    read: Callable[[Path], Any],
    labels: Annotated[Path | None, typer.Argument(help="A label file or folder of any known format.")] = None,
    images: Annotated[Path | None, typer.Argument(help="The folder with the image files, or a pack.")] = None,
    method: Annotated[
        str, typer.Option(help="How to learn: auto picks by the kind of labels; `halflabel methods` lists all.")
    ] = "auto",
    out: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/METHOD).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run.", metavar="RUN")] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--continue", help="Train on from a finished run: its labels, settings and weights.", metavar="RUN"
        ),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="With --continue: more labels, such as `halflabel review` exports.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Hidden labels: how true the method's guesses are goes to the log, no more.")
    ] = None,
    tune: Annotated[Tune, typer.Option(help="head: frozen backbone, features cached, quick on a CPU.")] = Tune.head,
    backbone: Annotated[str, typer.Option(help="efficientnet-lite0 comes with the package; or any timm model.")] = (
        "efficientnet-lite0"
    ),
    weights: Annotated[Path | None, typer.Option(help="A local file with the backbone's weights.")] = None,
    begin_from: Annotated[
        Path | None, typer.Option(help="A finished run whose weights to start from.", metavar="RUN")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Image size in pixels (default: the backbone's own).")] = None,
    resize: Annotated[Resize, typer.Option(help="squash: whole image; crop: centre square.")] = Resize.squash,
    mirror: Annotated[
        bool | None,
        typer.Option(
            "--mirror/--no-mirror",
            help="Score mirror images too and take the mean: twice the time (default: where auto tunes all).",
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the images kept for validation.", min=0, max=0.9)] = 0.2,
    max_bad: Annotated[float, typer.Option(help="Stop above this share of unreadable images.", min=0, max=1)] = 0.01,
    linear_init: Annotated[
        int | None, typer.Option(help="Epochs of the head alone before all is tuned (default: the method's).", min=0)
    ] = None,
    linear_lr: Annotated[
        float | None, typer.Option(help="Learning rate of those epochs (default: --lr).", min=0)
    ] = None,
    crop: Annotated[
        float | None, typer.Option(help="Least share of the image in a random crop (default: 0.8).", min=0.05, max=1)
    ] = None,
    strong_ops: Annotated[
        int, typer.Option(help="Strong views: operations of RandAugment, for methods that use them.", min=0, max=10)
    ] = 2,
    strong_magnitude: Annotated[
        int, typer.Option(help="Strong views: how far each operation goes; 0 is hardly at all.", min=0, max=30)
    ] = 9,
    cutout: Annotated[
        float, typer.Option(help="Strong views: longest side of the grey square, as a share.", min=0, max=1)
    ] = 0.5,
    force: Annotated[bool, typer.Option("--force", help="Start again in a folder that holds a run.")] = False,
    epochs: Annotated[
        int | None, panel(SCHEDULE, "Passes over the training images (default: by their number).", min=1)
    ] = None,
    batch_size: Annotated[int, panel(SCHEDULE, "Images per step.", min=1)] = 32,
    lr: Annotated[float | None, panel(SCHEDULE, "Learning rate of the head (default: the method's).", min=0)] = None,
    backbone_lr: Annotated[
        float | None, panel(SCHEDULE, "The backbone's rate, as a fraction of --lr (default: 0.1).", min=0)
    ] = None,
    optimizer: Annotated[Optimizer, panel(SCHEDULE, "What takes the steps.")] = Optimizer.adamw,
    weight_decay: Annotated[float | None, panel(SCHEDULE, "Weight decay (default: the method's).", min=0)] = None,
    momentum: Annotated[float, panel(SCHEDULE, "Momentum of sgd.", min=0, max=1)] = 0.9,
    schedule: Annotated[Schedule, panel(SCHEDULE, "How the learning rate falls.")] = Schedule.cosine,
    step_epochs: Annotated[int, panel(SCHEDULE, "step: lower the rate after so many epochs.", min=1)] = 10,
    step_factor: Annotated[float, panel(SCHEDULE, "step, plateau: by this factor.", min=0, max=1)] = 0.1,
    warmup: Annotated[float, panel(SCHEDULE, "Epochs of linear warm-up.", min=0)] = 0.0,
    ema: Annotated[
        float | None, panel(SCHEDULE, "Decay of the weight average; 0 = none (default: 0).", min=0, max=1)
    ] = None,
    clip: Annotated[float, panel(SCHEDULE, "Largest gradient norm; 0 = any.", min=0)] = 0.0,
    accumulate: Annotated[int, panel(SCHEDULE, "Batches per step of the optimizer.", min=1)] = 1,
    patience: Annotated[int, panel(SCHEDULE, "Stop after so many epochs without gain; 0 = never.", min=0)] = 0,
    seed: Annotated[int, panel(SCHEDULE, "Same seed, same result.")] = 0,
    device: Annotated[Device, panel(SPEED, "Where to compute.")] = Device.auto,
    precision: Annotated[Precision, panel(SPEED, "no is float32.")] = Precision.no,
    workers: Annotated[int, panel(SPEED, "Processes that decode images.", min=0)] = 2,
    channels_last: Annotated[bool, panel(SPEED, "Memory layout of convolutions, mostly faster.")] = True,
    compile: Annotated[
        Compile,
        panel(SPEED, "graph: replay CUDA graphs, quick for small batches; inductor: torch.compile; full: both."),
    ] = Compile.no,
    shard: Annotated[
        bool, panel(SPEED, "With torchrun: split the weights over the processes, for large backbones.")
    ] = False,
    deterministic: Annotated[
        bool, panel(SPEED, "On a GPU too: the same result each time, more slowly, where torch has a way.")
    ] = False,
    hold: Annotated[
        Hold, panel(SPEED, "device: with --tune all, decode once and keep images on the GPU.")
    ] = Hold.files,
    views_on: Annotated[
        Where, panel(SPEED, "device: with --tune all, workers only decode, and crops and colours are the GPU's work.")
    ] = Where.workers,
    decode_on: Annotated[
        Where, panel(SPEED, "device: with --views-on device, the JPEGs of a pack are decoded on the GPU too.")
    ] = Where.workers,
    copies: Annotated[int, panel(SPEED, "Strong views cached per image, if the method asks for them.", min=1)] = 4,
    save_every: Annotated[int, panel(SPEED, "Steps between checkpoints within an epoch; 0 = none.", min=0)] = 0,
    tensorboard: Annotated[bool, panel(SPEED, "Also log for TensorBoard.", "--tensorboard")] = False,
) -> None:
    """Train a classifier from what is known, and judge it on held-out known labels.

    Options of the method itself are given by name, such as --alpha 0.2; `halflabel methods NAME` lists them.

    Example: halflabel train labels.csv photos/ --method an --out runs/first
    """
    # Whatever can be refused without torch, which takes seconds to import, is refused before.
    from halflabel.runs.folder import RunFolder

    if resume is not None:
        _check_alone(ctx, "--resume", {"resume", "images", "labels", "tensorboard"})
        moved = _images_alone(labels, images, "--resume")
        run = RunFolder.open(resume)
        from halflabel.training.config import Config

        config = Config.from_dict(run.read_config())
        folder = moved or Path(config.images)
        _run_training(run.read_rows(), folder, config, run, tensorboard, run.read_truth(), resume=True)
        return
    if after is not None:
        stays = {"after", "answers", "images", "labels", "out", "force", "tensorboard"}
        _check_alone(ctx, "--continue", stays if answers is None else stays | READING_OPTIONS)
        moved = _images_alone(labels, images, "--continue")
        before = RunFolder.open(after)
        place = out or after.with_name(f"{after.name}-next")
        run = distributed.run_on_main(lambda: RunFolder.create(place, force=force))
        more = read(answers).rows if answers is not None else None
        from halflabel.training.config import Config

        rows = before.read_rows()
        if more is not None:
            rows = rows.append(more)
            present, absent = (int((more.value == kind).sum()) for kind in (1, -1))
            said = (
                f"{counted(present + absent, 'answer')} from {escape(str(answers))}: {present} present, {absent} absent"
            )
            console.print(f"Took {said}", soft_wrap=True)
        config = replace(Config.from_dict(before.read_config()), begin_from=str(after.absolute()))
        folder = moved or Path(config.images)
        config = replace(config, images=str(folder.absolute()))
        _run_training(rows, folder, config, run, tensorboard, None, resume=False)
        return
    if answers is not None:
        raise UserError("--answers means nothing without --continue", "name the run to train on from")
    if labels is None or images is None:
        raise UserError("LABELS and IMAGES are missing", "halflabel train labels.csv photos/")
    if decode_on is Where.device and views_on is not Where.device:
        raise UserError("--decode-on device means nothing without --views-on device", "add --views-on device")
    if not images.is_dir():
        raise UserError(f"{images} is not a folder", "name the folder with the images")
    if method != "auto":
        check_method(method)
    run = distributed.run_on_main(lambda: RunFolder.create(out or Path("runs") / method, force=force))
    found: LabelImport = read(labels)
    table = found.table()
    show_audit(found.audit, table)

    from halflabel.methods.auto import choose
    from halflabel.methods.base import recipe
    from halflabel.training.config import Config, Settings

    picked = choose(table.stats(), tune=tune.value, method=None if method == "auto" else method)
    how = recipe(picked.method)
    if method == "auto":
        console.print(f"Method: [bold]{picked.method}[/] ({picked.why})", soft_wrap=True)
    # What the command line does not say is the choice's, then the method's.
    given = {"epochs": epochs, "lr": lr, "backbone_lr": backbone_lr, "weight_decay": weight_decay, "ema": ema}
    decided = {"lr": how.lr, "weight_decay": how.weight_decay, **picked.settings}
    decided |= {name: value for name, value in given.items() if value is not None}
    asked = {"linear_init": linear_init, "linear_lr": linear_lr, "crop": crop, "mirror": mirror}
    begun = {"linear_init": how.linear_init, **picked.config}
    begun |= {name: value for name, value in asked.items() if value is not None}
    # typer has checked these against their enums; mypy cannot know.
    choices: dict[str, Any] = {"optimizer": optimizer.value, "schedule": schedule.value, "precision": precision.value}
    choices |= {"compile": compile.value, "device": device.value}
    shapes: dict[str, Any] = {"resize": resize.value, "tune": tune.value, "hold": hold.value}
    shapes |= {"views_on": views_on.value, "decode_on": decode_on.value}
    settings = Settings(
        batch_size=batch_size,
        momentum=momentum,
        step_epochs=step_epochs,
        step_factor=step_factor,
        warmup=warmup,
        clip=clip,
        accumulate=accumulate,
        channels_last=channels_last,
        patience=patience,
        save_every=save_every,
        shard=shard,
        deterministic=deterministic,
        seed=seed,
        **choices,
        **decided,
    )
    config = Config(
        method=how.name,
        options={**picked.options, **_method_options(ctx, how)},
        backbone=backbone,
        weights=str(weights.absolute()) if weights else None,
        begin_from=str(begin_from.absolute()) if begin_from else None,
        size=size,
        held_out=held_out,
        max_bad=max_bad,
        workers=workers,
        copies=copies,
        strong_ops=strong_ops,
        strong_magnitude=strong_magnitude,
        cutout=cutout,
        settings=settings,
        images=str(images.absolute()),
        **shapes,
        **begun,
    )
    hidden = read(truth).table() if truth is not None else None
    _run_training(found.rows, images, config, run, tensorboard, hidden, resume=False)


def _run_training(
    labels: Rows,
    images: Path,
    config: Config,
    run: RunFolder,
    tensorboard: bool,
    truth: LabelTable | None,
    *,
    resume: bool,
) -> None:
    from halflabel.cli.progress import Bar, TrainingBar
    from halflabel.runs.train import train as train_run
    from halflabel.training.callbacks import Callback, CallbackList, TensorBoard

    epoch_bar, head_bar = TrainingBar(), TrainingBar("head")
    callback: Callback = epoch_bar
    if tensorboard and distributed.is_main():
        callback = CallbackList(epoch_bar, TensorBoard(run.tensorboard))
    what = "the head on cached features of" if config.tune == "head" else "all of"
    console.print(f"\nTraining {what} {config.backbone} by [bold]{config.method}[/] in {escape(str(run.folder))}")

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    with _resumable(run), warnings_in_a_line(), epoch_bar, head_bar, Bar("features") as bar:
        reporter = Reporter(bar, say, callback)
        found = train_run(
            labels, images, config, run, truth=truth, resume=resume, reporter=reporter, init_callback=head_bar
        )
    if found is not None:
        show_evaluation(found)
    where, named = escape(str(run.folder)), escape(shlex.quote(str(run.folder)))
    console.print(f"Wrote [bold]{where}[/]. Next:  halflabel predict {named} PHOTO.jpg", soft_wrap=True)


def _images_alone(labels: Path | None, images: Path | None, way: str) -> Path | None:
    """The folder of the images, where it is given to a run that goes on: its labels are its own."""
    if images is not None:
        raise UserError(f"LABELS mean nothing with {way}: the run has its own", "name the folder of the images alone")
    if labels is not None and not labels.is_dir():
        raise UserError(f"{labels} is not a folder", f"with {way}, name the folder of the images alone, or nothing")
    return labels


def _check_alone(ctx: typer.Context, way: str, stays: Set[str]) -> None:
    """A run that goes on keeps its settings: whatever else is asked for is refused, not passed over."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if name not in stays and source is not None and source.name == "COMMANDLINE":
            flag = parameter.opts[0]
            raise UserError(f"{flag} means nothing with {way}", f"leave {flag} out, or start a new run")
    if ctx.args:
        raise UserError(f"{ctx.args[0]} means nothing with {way}", "leave it out, or start a new run")


def _how_to_go_on(run: RunFolder) -> str:
    go_on = f"go on with:  halflabel train --resume {shlex.quote(str(run.folder))}"
    return go_on if run.is_started else "nothing was written"


@contextmanager
def _lost_processes(run: RunFolder) -> Iterator[None]:
    """Say how to go on when another process of the job is gone, or when memory does not do."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, where fewer images at once do not help
            from halflabel.system.gpu_memory import out_of_gpu_memory

            raise out_of_gpu_memory("for this model") from None
        if "DataLoader worker" in str(error):
            raise UserError(
                "a process that decodes images was ended from outside, as systems do when memory is short",
                f"{_how_to_go_on(run)}  (or start anew with fewer --workers)",
            ) from None
        if not (why := distributed.lost_connection(error)):
            raise
        raise UserError(f"another process of this job ended ({why})", _how_to_go_on(run)) from None


@contextmanager
def _resumable(run: RunFolder) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end training with one line on how to go on, and with the usual exit codes."""
    try:
        with signals.handle_signals(), _lost_processes(run):
            yield
    except KeyboardInterrupt as stopped:
        if distributed.claim("error"):  # a signal may reach several processes
            typer.echo(f"Stopped; {_how_to_go_on(run)}", err=True)
        number = stopped.number if isinstance(stopped, signals.Stopped) else signal.SIGINT
        raise typer.Exit(128 + number) from None
    except UserError:
        if distributed.is_distributed():  # whoever started them may end all before the message is out
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise


def _method_options(ctx: typer.Context, how: Recipe) -> dict[str, Any]:
    """The options of the method, which the parser left over as "--name value" or "--name=value"."""
    if hidden := sorted({parameter.name for parameter in ctx.command.params} & set(how.options)):
        flag = "--" + str(hidden[0]).replace("_", "-")
        raise UserError(
            f"{flag} is an option of `train`, so that the method {how.name} would never be given its own",
            f"call the option {hidden[0]!r} of {how.name} something else",
        )
    options: dict[str, str] = {}
    rest = deque(ctx.args)
    while rest:
        flag, equals, value = rest.popleft().partition("=")
        if not flag.startswith("--"):
            raise UserError(f"{flag!r} is one argument too many", "options start with --")
        name = flag[2:].replace("-", "_")
        if name not in how.options:
            own = ["--" + option.replace("_", "-") for option in how.options]
            flags = [*own, *(word for parameter in ctx.command.params for word in parameter.opts)]
            close = get_close_matches(flag, flags, 1, cutoff=0.75)
            hint = f"did you mean {close[0]}? " if close else ""
            listed = f"the options of {how.name}: {', '.join(own)}" if own else f"{how.name} has no options of its own"
            raise UserError(f"neither `train` nor the method {how.name} has an option {flag}", hint + listed)
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"the option {flag} has no value", f"write {flag} VALUE")
            value = rest.popleft()
        options[name] = value
    return how.parse(options)
