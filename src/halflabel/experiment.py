"""From labels and images to a finished run: the steps behind `halflabel train`, `evaluate` and `predict`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import metrics, processes
from halflabel.backbones import Backbone, build
from halflabel.calibrate import Platt, fit_platt
from halflabel.checkpoint import newest, save_tensors
from halflabel.data.cache import cache_features, copies_for
from halflabel.data.decode import Quarantine, TooManyBad, find_images, locate
from halflabel.data.packed import OnDevice, open_packed
from halflabel.data.resident import load_images
from halflabel.data.shards import is_pack
from halflabel.data.sources import Arrays, Images, Part, Source
from halflabel.data.views import Plain, Strong, View, Weak
from halflabel.errors import UserError
from halflabel.evaluate import Evaluation, Judge, evaluate
from halflabel.files import check_fields
from halflabel.heads import Head, Model
from halflabel.labels.names import Names
from halflabel.labels.rows import Rows
from halflabel.labels.split import assign
from halflabel.labels.table import LabelTable
from halflabel.method import recipe, seeded
from halflabel.provenance import tables
from halflabel.run import Run
from halflabel.score import score
from halflabel.train import Epoch, Settings, Watch, fit

__all__ = ["Config", "Prediction", "Predictor", "open_images", "predict_files", "train"]


@dataclass(frozen=True)
class Config:
    """What to train and how; written to config.yaml with every default filled in."""

    method: str = "bce"
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "efficientnet-lite0"
    weights: str | None = None
    begin_from: str | None = None  # a finished run whose weights training starts from
    size: int | None = None  # pixels; None = what the backbone was trained on
    resize: Literal["squash", "crop"] = "squash"
    tune: Literal["head", "all"] = "head"  # head: frozen backbone, cached features
    linear_init: int = 0  # epochs of the head alone on frozen features before all is tuned
    linear_lr: float | None = None  # their learning rate; None = that of all
    crop: float = 0.8  # the least share of an image that a random crop shows; 1 = mirror images only
    held_out: float = 0.2  # the share of images kept for validation
    max_bad: float = 0.01  # the share of unreadable images that is too much
    workers: int = 0
    hold: Literal["files", "device"] = "files"  # where images are kept when all is tuned: decoded once, on the device
    views_on: Literal["workers", "device"] = "workers"  # where views are made of images that are not held there
    decode_on: Literal["workers", "device"] = "workers"  # where the JPEGs of a pack are decoded
    mirror: bool = False  # score the mirror image too, and take the mean
    copies: int = 4  # cached strong views per image, for methods that ask for them on a frozen backbone
    settings: Settings = field(default_factory=Settings)
    images: str = ""  # the folder, for resuming

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Config:
        try:
            check_fields(Settings, found["settings"])
            check_fields(cls, {name: value for name, value in found.items() if name != "settings"})
            return cls(**{**found, "settings": Settings(**found["settings"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(f"the run's config.yaml does not fit this version ({error})", "train again") from None


def make_views(size: int, resize: Literal["squash", "crop"], backbone: Backbone, crop: float = 0.8) -> dict[str, View]:
    how = backbone.preprocess.interpolation
    return {
        "plain": Plain(size, resize, how, backbone.preprocess.crop_pct),
        "weak": Weak(size, resize, how, least=crop),
        "strong": Strong(size, resize, how, least=crop),
    }


def open_images(
    names: Names, folder: Path, views: Mapping[str, View], config: Config, *, bad_images: Path | None = None
) -> Images:
    """The image files of a label table, or its images in a pack. One that is not there is unreadable, as if broken.

    Too many of these are an error at once; `bad_images` is then written to list them.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", "name the folder with the images")
    more: dict[str, Any] = {
        "workers": config.workers,
        "max_bad": config.max_bad,
        "quarantine": Quarantine(bad_images),
    }
    if is_pack(folder):
        packed = open_packed(names, folder, views, **more)
        packed.put_missing_aside(np.flatnonzero(packed.at < 0).tolist(), folder, "not in the pack")
        return packed
    listed = list(names)
    paths = locate(listed, folder)
    missing = [number for number, path in enumerate(paths) if path is None]
    if len(missing) == len(listed):
        raise UserError(
            f"none of the {len(listed)} images of the label file is in {folder} (first: {listed[0]!r})",
            "check the folder; names may leave out the ending, such as .jpg",
        )
    files = [path if path is not None else folder / name for name, path in zip(listed, paths, strict=True)]
    source = Images(files, names, views, **more)
    source.put_missing_aside(missing, folder)
    return source


def train(
    labels: LabelTable | Rows,
    images: Path | Tensor,
    config: Config,
    run: Run,
    *,
    watch: Watch | None = None,
    init_watch: Watch | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
    cache: Path | None = None,
    truth: LabelTable | None = None,
    resume: bool = False,
) -> Evaluation | None:
    """Train one classifier on a folder of images, or on (N, 3, H, W) uint8 ones, and write the run directory.

    Of rows, those that a model made are trained on, but held-out images are judged by the others alone.
    `truth` holds labels of the same images that the method must not see: the log says how true its guesses are.
    `init_watch` is told of the epochs of the linear init, in the place of `watch`.
    Returns the evaluation on the held-out images, if any. Of several processes the first one writes."""
    table, judged = tables(labels)
    if made := table.known - judged.known:
        say(f"{made} of {table.known} labels were made by a model: it trains on them, but judges by the others alone")
    how = recipe(config.method)
    # Some methods have weights of their own: they are the seed's too, whatever this process did before.
    method = seeded(config.settings.seed, lambda: how.make(**config.options))
    how.check_regime(table.stats().regime)
    device = _device(config.settings)

    backbone = build(config.backbone, weights=Path(config.weights) if config.weights else None, size=config.size)
    size = config.size or backbone.preprocess.size
    views = make_views(size, config.resize, backbone, config.crop)
    raw: Images | Arrays
    if isinstance(images, Tensor):
        raw = Arrays(images, table.images, views)
    else:
        # An older run that may not start after all stays as it is.
        own = run.bad_images if resume or not run.begun else None
        raw = open_images(table.images, images, views, config, bad_images=own)
        raw.quarantine.place = run.bad_images

    # Dealt by the labels that judge: each class is to have its share of them on either side.
    shares = (1 - config.held_out, config.held_out)
    part = assign(judged, shares, seed=config.settings.seed) if config.held_out else None
    if part is not None and config.begin_from is not None:
        part = _keep_split(Run.open(config.begin_from), table.images, part)
    inside = np.arange(len(table)) if part is None else np.flatnonzero(part == 0)
    outside = np.arange(0) if part is None else np.flatnonzero(part == 1)
    known, hidden = table.subset(inside), judged.subset(outside)
    if config.held_out and not len(outside):
        say("too few images to hold any out: nothing is measured")

    if not resume:  # what is wrong with the settings or the images has been said by now
        truth = _align(truth, table) if truth is not None else None
        run.start(labels, {**config.as_dict(), "size": size}, truth)
    run.tidy()
    run.write_env(device)
    run.write_split(table.images.array, part if part is not None else np.zeros(len(table), np.int8))

    def make_head() -> Head:
        return method.head(backbone.channels, len(table.classes))

    head = seeded(config.settings.seed, make_head)
    if config.begin_from is not None:
        _start_from(Run.open(config.begin_from), Model(backbone, head), table.classes)
    place = cache if cache is not None else run.folder.parent / "cache"
    settings = config.settings
    judge = Judge(torch.from_numpy(hidden.dense())) if len(outside) else None

    def tune(
        model: Model, source: Source, settings: Settings, folder: Path, watch: Watch | None = watch
    ) -> list[Epoch]:
        return fit(
            model,
            method,
            Part(source, inside),
            known,
            settings,
            validation=Part(source, outside) if judge is not None else None,
            judge=judge,
            watch=_LogWatch(run, watch),
            truth=truth.subset(inside) if truth is not None else None,
            folder=folder,
            resume=resume,
        ).log

    def features() -> Source:
        return cache_features(
            backbone,
            raw,
            place,
            maps=head.needs_maps,
            copies=copies_for(method.views, config.copies),
            device=device,
            batch_size=128 if device == "cuda" else 16,
            progress=progress,
            say=say,
        )

    try:
        if config.tune == "head":
            source: Source = features()
            tuned = Model(None, head)
            log = tune(tuned, source, settings, run.checkpoints / "head")
        else:
            source, tuned = raw, Model(backbone, head)
            if config.hold == "device" and isinstance(raw, Images):
                source = load_images(raw, device, progress)
            elif config.views_on == "device" and isinstance(raw, Images):
                source = OnDevice(raw, device, decode=config.decode_on == "device")
            begun = processes.on_first(lambda: newest(run.checkpoints / "all") is not None)
            if config.linear_init and not begun:
                say(f"linear init: {config.linear_init} epochs of the head on frozen features")
                rate = settings.lr if config.linear_lr is None else config.linear_lr
                first = dataclasses.replace(settings, epochs=config.linear_init, lr=rate, compile="no")
                with warnings.catch_warnings():  # what begins later has the epochs after these
                    warnings.filterwarnings("ignore", ".* never starts in ")
                    tune(Model(None, head), features(), first, run.checkpoints / "head", init_watch or watch)
            log = tune(tuned, source, settings, run.checkpoints / "all")
    except TooManyBad:
        if not (resume or run.read_log()):
            run.withdraw()  # so that the same command with other options starts it
        raise
    finally:  # also when there are too many of them
        if isinstance(raw, Images) and processes.is_first():
            raw.quarantine.write(run.bad_images)
    if isinstance(raw, Images) and len(raw.quarantine):
        say(f"{len(raw.quarantine)} of {len(raw)} images could not be read: see {run.bad_images}")
    run.write_log(log)
    if processes.is_first():
        _write_model(run, Model(backbone, head), table.classes, config, size)
    run.write_script(_repro(run, config, str(images) if isinstance(images, Path) else config.images))
    run.write_made()
    if not len(outside):
        return None
    if config.mirror:  # features of mirror images are not cached
        tuned, source = Model(backbone.to(device), head), source if config.tune == "all" else raw
    logits = score(tuned, Part(source, outside), device=device, mirror=config.mirror).logits
    left_out = table.subset(outside).known - hidden.known
    return processes.on_first(lambda: _finish(run, logits, hidden, log, config, _annotations(known), left_out))


def _start_from(run: Run, model: Model, classes: Names) -> None:
    """Put the weights of a finished run into a model for the same classes."""
    before = Predictor(run)
    if list(before.classes) != list(classes):
        raise UserError(
            f"{run.folder} was trained on other classes", "go on with the same classes in the same order, or start anew"
        )
    try:
        model.load_state_dict(before.model.state_dict())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{run.folder} has another model ({reason})", "use its backbone, method and options, or start anew"
        ) from None


def _keep_split(run: Run, images: Names, part: NDArray[np.int8]) -> NDArray[np.int8]:
    """What a run trained on must not be held out from the next: its images stay where they were."""
    before = run.parts(images)
    return np.where(before < 0, part, before)


def _align(truth: LabelTable, table: LabelTable) -> LabelTable:
    """The rows and columns of `truth` in the order of `table`, by name."""
    images, classes = truth.images.index(table.images.array), truth.classes.index(table.classes.array)
    for kind, names, at in (("image", table.images, images), ("class", table.classes, classes)):
        if (at < 0).any():
            missing = names[int(np.flatnonzero(at < 0)[0])]
            raise UserError(f"the hidden labels have no {kind} {missing!r}", "give hidden labels of the same images")
    return truth.subset(images, classes)


def _over(table: LabelTable, classes: Names) -> LabelTable:
    """The labels of a table over other classes, by name: of those that it does not have nothing is known."""
    at = classes.index(table.classes.array)
    image, column, value = table.entries()
    stays = at[column] >= 0
    return LabelTable.from_entries(table.images, classes, image[stays], at[column[stays]], value[stays])


def _annotations(table: LabelTable) -> NDArray[np.int64]:
    """Known labels per class."""
    stats = table.stats()
    return stats.positives + stats.negatives


def _finish(
    run: Run,
    logits: Tensor,
    hidden: LabelTable,
    log: list[Epoch],
    config: Config,
    annotations: NDArray[np.int64],
    left_out: int,
) -> Evaluation:
    """Thresholds, calibration and metrics from the held-out images, written to the run."""
    labels = torch.from_numpy(hidden.dense())
    readable = ~torch.isnan(logits).any(1)
    platt = fit_platt(logits, labels)
    scores = platt.scores(logits)
    if bool((labels < 0).any()):
        thresholds = metrics.best_thresholds(scores[readable], labels[readable]).float()
    else:
        thresholds = torch.full((len(hidden.classes),), 0.5)
    found = evaluate(logits, labels, hidden.classes, thresholds=thresholds, platt=platt, annotations=annotations)
    found = _with_note(found, left_out)
    run.write_calibration(platt, dict(zip(hidden.classes, thresholds.tolist(), strict=True)))
    run.write_metrics({"protocol": f"held-out images; {found.protocol}", **found.overall}, found.per_class)
    run.write_predictions(hidden.images.array, list(hidden.classes), scores.numpy())
    from halflabel.report.relabelling import draw_relabelling
    from halflabel.report.training import draw_run, model_card

    draw_run(log, found, run.plots)
    draw_relabelling(log, run.plots / "relabelling.png")
    run.write_card(model_card(config.as_dict(), found, hidden))
    return found


def _with_note(found: Evaluation, left_out: int) -> Evaluation:
    """The same evaluation, whose protocol says how many labels of models did not count."""
    note = f"; {left_out} labels that a model made are not counted" if left_out else ""
    return dataclasses.replace(found, protocol=found.protocol + note)


def _write_model(run: Run, model: Model, classes: Names, config: Config, size: int) -> None:
    about = {"classes": list(classes), "method": config.method, "size": size}
    # One entry: safetensors writes several in any order, and equal models are to be equal files.
    save_tensors(model.state_dict(), run.weights, {"halflabel": json.dumps(about)})


def _repro(run: Run, config: Config, images: str) -> str:
    """A shell script that trains the same again, from the labels that the run keeps; it may be called from anywhere."""
    given = {**config.as_dict(), **dataclasses.asdict(config.settings)}
    options, _, _ = given.pop("options"), given.pop("settings"), given.pop("images")
    for name in ("weights", "begin_from"):
        given[name] = os.path.abspath(given[name]) if given[name] else None
    words = [os.path.abspath(images) if images else ""]  # of images in memory there is no folder to name
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    command = f'halflabel train "$here"/{run.labels.name} {shlex.join(words)} --out "$here"-again'
    return f'#!/bin/sh\nhere=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit\n{command}\n'


def _device(settings: Settings) -> str:
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise UserError("there is no CUDA device here", "use --device cpu")
    return "cuda" if has_gpu and settings.device != "cpu" else "cpu"


class _LogWatch:
    """Writes the log after each epoch, then tells the other watch."""

    def __init__(self, run: Run, other: Watch | None) -> None:
        self.run, self.other = run, other
        self.lines: list[Epoch] = []

    def _written(self) -> list[dict[str, Any]]:
        try:
            return self.run.read_log()
        except UserError:  # a damaged log: checkpoints hold another, which replaces it at the end
            return []

    def epoch_starts(self, epoch: int, images: int) -> None:
        if self.other is not None:
            self.other.epoch_starts(epoch, images)

    def step_done(self, images: int, loss: float | None) -> None:
        if self.other is not None:
            self.other.step_done(images, loss)

    def epoch_ends(self, line: Epoch) -> None:
        if not self.lines:
            self.lines = [Epoch(old) for old in self._written() if old.get("epoch", math.inf) < line["epoch"]]
        self.lines.append(line)
        self.run.write_log(self.lines)
        if self.other is not None:
            self.other.epoch_ends(line)


class Prediction(NamedTuple):
    """The labels of one image, most likely first; or why it could not be read."""

    image: str
    labels: list[dict[str, Any]]  # class, probability, present (over its threshold)
    error: str = ""


class Predictor:
    """A trained run, ready to score images."""

    run: Run | None = None  # None for what was exported

    def __init__(self, run: Run) -> None:
        """Load the weights, the class names, the thresholds and the calibration of a run."""
        from safetensors import SafetensorError, safe_open

        self.run = run
        self.config = Config.from_dict(run.read_config())
        run.check_finished()
        try:
            with safe_open(run.weights, "pt") as file:
                about = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        except SafetensorError as error:
            raise UserError(f"{run.weights} is damaged ({error})", "train again, or resume the run") from None
        try:
            self.classes = Names(json.loads(about["halflabel"])["classes"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(f"{run.weights} does not say its classes", "train again") from None
        backbone = build(self.config.backbone, pretrained=False, size=self.config.size)
        try:
            method = recipe(self.config.method).make(**self.config.options)
            self.model = Model(backbone, method.head(backbone.channels, len(self.classes)))
            self.model.load_state_dict(state)
        except (RuntimeError, TypeError, ValueError) as error:  # options of other kinds fail in their own ways
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{run.weights} is of another model ({reason})", "train again") from None
        # A run that was trained on a GPU serves on a machine without one.
        self.device = _device(self.config.settings) if self.config.settings.device != "cuda" else _device(Settings())
        self.model.to(self.device).to(memory_format=torch.channels_last).eval()
        size = self.config.size or backbone.preprocess.size
        self.views = make_views(size, self.config.resize, backbone, self.config.crop)
        self.platt, self.thresholds = Platt(), torch.full((len(self.classes),), 0.5)
        if run.judged:
            self.platt = run.read_calibration()
            cuts = run.read_thresholds()
            if missing := [name for name in self.classes if cuts.get(name) is None]:
                raise UserError(f"{run.folder} has no threshold for the class {missing[0]!r}", "train again")
            self.thresholds = torch.tensor([cuts[name] for name in self.classes])

    @cached_property
    def annotations(self) -> NDArray[np.int64] | None:
        """Known training labels per class (C,), where the labels are there; read when they are first asked for."""
        if self.run is None or not self.run.labels.exists():
            return None
        return _annotations(self.run.read_labels())

    def logits(self, source: Source, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Logits of every image of a source (N, C); NaN for unreadable ones."""
        return score(
            self.model,
            source,
            device=self.device,
            batch_size=32,
            mirror=self.config.mirror,
            progress=progress,
            features=False,
        ).logits

    def scores(self, source: Source, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Calibrated probabilities (N, C); NaN for unreadable images."""
        return self.platt.scores(self.logits(source, progress))

    def labels(self, scores: Tensor, *, top: int = 3, every: bool = False) -> list[dict[str, Any]]:
        """What the scores (C,) of an image say, most likely first: class, probability, present (over its threshold).

        Given are the classes that are present and the `top` most likely, or every one.
        """
        present = scores >= self.thresholds
        order = torch.argsort(scores, descending=True, stable=True)
        shown = order if every else order[(torch.arange(len(order)) < min(top, len(order))) | present[order]]
        columns = (self.classes.take(shown.numpy()), scores[shown].tolist(), present[shown].tolist())
        keys = ("class", "probability", "present")
        return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]

    def evaluate(
        self,
        labels: LabelTable | Rows,
        images: Path,
        progress: Callable[[int, int], None] | None = None,
        *,
        called: str = "the label table",
    ) -> Evaluation:
        """Measure the run on other labels, less those that a model made; classes are matched by name.

        Of a class that the labels do not name, nothing is known. `called` is what an error calls the labels.
        """
        every, table = tables(labels)
        if every.known and not table.known:
            raise UserError(
                f"all {every.known} labels were made by a model, so there is nothing to measure by",
                "have some of them checked: halflabel review",
            )
        if (table.classes.index(self.classes.array) < 0).all():
            theirs, own = (", ".join(map(repr, list(names)[:3])) for names in (table.classes, self.classes))
            raise UserError(
                f"{called} names none of the run's {len(self.classes)} classes: it has {theirs} …, the run {own} …",
                "use the same class names",
            )
        table, every = _over(table, self.classes), _over(every, self.classes)
        left_out = every.known - table.known
        annotations = self.annotations  # before the work of scoring: the run's labels may be damaged
        source = open_images(table.images, images, self.views, dataclasses.replace(self.config, max_bad=1.0))
        truth = torch.from_numpy(table.dense())
        logits = self.logits(source, progress)
        found = processes.on_first(
            lambda: evaluate(
                logits,
                truth,
                table.classes,
                thresholds=self.thresholds,
                platt=self.platt,
                annotations=annotations,
            )
        )
        return _with_note(found, left_out)


def predict_files(
    predictor: Predictor,
    given: Sequence[Path],
    stdin: Iterable[str],
    *,
    top: int = 3,
    all_scores: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Score files and the images of folders; the path "-" stands for names that come line by line."""

    def listed() -> list[Path]:
        paths: list[Path] = []
        for path in given:
            if str(path) == "-":
                paths += [Path(line) for line in stdin if line.strip()]
            elif path.is_dir():
                paths += find_images(path)
            else:
                paths.append(path)
        return paths

    paths = processes.on_first(listed)  # of several processes one alone reads the lines
    if not paths:
        raise UserError("there is no image to look at", "name image files, or folders that hold some")
    source = Images(paths, Names.numbered(len(paths)), predictor.views, max_bad=1.0)
    try:
        scores = predictor.scores(source, progress)
    except UserError:
        if len(source.bad) < len(paths):
            raise
        scores = torch.full((len(paths), len(predictor.classes)), torch.nan)
    reasons = {int(number): reason for number, _, reason in source.quarantine.rows}
    found = []
    for number, path in enumerate(paths):
        if number in reasons:
            found.append(Prediction(str(path), [], reasons[number]))
            continue
        found.append(Prediction(str(path), predictor.labels(scores[number], top=top, every=all_scores)))
    return found
