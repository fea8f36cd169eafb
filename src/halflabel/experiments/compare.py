"""`compare`: the tasks of a grid in turn, skipping what is finished, within a budget."""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.experiments.bench import Bench, DataError, OutOfTime, Select, Trained
from halflabel.experiments.grid import Candidate, Grid, LabelMask, Outcome, Search, Task, parse_budget
from halflabel.experiments.result import Comparison, Failure, LeftOut, summarise
from halflabel.experiments.shared_start import StopAtDeadline
from halflabel.experiments.store import Store
from halflabel.labels.table import LabelTable
from halflabel.methods.auto import epochs_for, short_list
from halflabel.methods.base import recipe
from halflabel.training.callbacks import Callback, CallbackList
from halflabel.training.config import Config

__all__ = ["Progress", "check_rate", "compare", "run_grid"]


class Progress:
    """Passes on how far the features are, and remembers it."""

    def __init__(self, tell: Callable[[int, int], None] | None) -> None:
        self.tell = tell
        self.done, self.total = 0, 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.tell is not None:
            self.tell(done, total)

    @property
    def waiting(self) -> tuple[int, int] | None:
        """Images done, of so many, where not all are."""
        return (self.done, self.total) if self.done < self.total else None


def compare(
    table: LabelTable,
    images: Path | Tensor,
    methods: str | Sequence[str] = "auto",
    *,
    out: Path,
    shares: Sequence[float] = (),
    protocols: Sequence[str] = (),
    seeds: int = 3,
    test: LabelTable | None = None,
    test_images: Path | Tensor | None = None,
    test_share: float = 0.2,
    select: Select = "known",
    search: Search = "small",
    budget: float | str | None = None,
    lr: float | None = None,
    config: Config | None = None,
    cache: Path | None = None,
    force: bool = False,
    callback: Callback | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Train every method with every seed on every share of the labels, and judge all on the same test images.

    `methods` are names, with options as in "em:alpha=0.05"; "auto" stands for a short list that suits the labels.
    `shares` keep a share of each image's labels, `protocols` name others of `halflabel.labels.drop`, as in
    "positives:number=2"; none of either: the labels as they are. `test` are labels of other images (in `test_images`,
    or the same folder); without it `test_share` of the images is set aside. `select="hidden"` chooses epochs and
    settings on the hidden labels, and the result says so. `config` says how all are trained: by default a head on the
    bundled backbone, with epochs by the number of images. Its method, options, lr, weight decay and seed count for
    nothing; `lr` replaces the methods' own rates. `budget`, in seconds or as "30m", limits this call; calling again
    with the same folder `out` goes on. Methods, shares and seeds may be added then, all else has to be as it was.
    """
    started = time.monotonic()
    if config is None:
        config = Config()
        epochs = epochs_for(len(table), config.tune)
        config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, epochs=epochs))
    seconds = parse_budget(budget) if isinstance(budget, str) else budget
    _check(seeds, select, search, test_share, config)
    check_rate(lr)
    label_masks = tuple(dict.fromkeys([*map(LabelMask.parse, protocols), *map(LabelMask.share, shares)])) or (
        LabelMask(),
    )
    if select == "hidden" and not any(label_mask.protocol for label_mask in label_masks):
        raise UserError("no label is hidden, so none can be chosen by", "leave select out, or hide some by --shares")
    features = Progress(progress)
    bench = Bench(
        table,
        images,
        config,
        test=test,
        test_images=test_images,
        test_share=test_share,
        select=select,
        cache=cache if cache is not None else out.parent / "cache",
        deadline=None if seconds is None else started + seconds,
        say=say,
        progress=features,
    )
    candidates, reasons = _candidates(methods, lr, bench, label_masks)
    for name, why in reasons.items():
        say(f"auto: {name}: {why}")
    unfit = _unfit(candidates, label_masks, bench)
    grid = Grid(candidates, label_masks, seeds, search, frozenset(unfit))
    bench.open()
    store = Store(out)
    store.start({"halflabel": __version__, "test_share": test_share, **bench.identity()}, force=force)
    store.write_csv("split.csv", ["image", "part"], _split(bench))
    store.write_test(bench.test)
    try:
        found, left = run_grid(grid, bench, store, callback, bench.deadline)
    finally:
        bad = bench.bad_images()
        if bad:
            store.write_csv("bad_images.csv", ["image", "path", "reason"], bad)
    failures = [Failure(h.name, c.name, "all", reason) for (c, h), reason in unfit.items()]
    failures += [
        Failure(task.label_mask.name, task.candidate.name, task.describe(), outcome.error)
        for task, outcome in found.items()
        if outcome.error
    ]
    about = {"failures": tuple(failures), "left_out": _left_out(left), "chosen_by": reasons}
    result = summarise(grid, found, store, bench, waiting=features.waiting, **about)
    store.write_csv("comparison.csv", result.columns, [list(line.values()) for line in result.table()])
    store.write_json("comparison.json", result.to_json())
    return result


def _check(seeds: int, select: str, search: str, test_share: float, config: Config) -> None:
    if seeds < 1:
        raise UserError(f"{seeds} seeds give no result", "use 1 or more")
    if select not in get_args(Select):
        raise UserError(
            f"nothing can be selected by {select!r}",
            "use known: labels that are left to the validation images; or hidden: their hidden truth, reported as such",
        )
    if search not in get_args(Search):
        raise UserError(f"no search is called {search!r}", "use small or none")
    if not 0 < test_share < 1:
        raise UserError(f"the test share {test_share:g} is not between 0 and 1", "use 0.2")
    if not 0 < config.held_out < 1:
        raise UserError("without validation images nothing can be chosen", "use --held-out 0.2")


def check_rate(lr: float | None) -> None:
    """Refuse a learning rate by which nothing is learned."""
    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"nothing is learned at the rate {lr:g}", "use --lr 0.001, or leave it to the method")


def _candidates(
    methods: str | Sequence[str], lr: float | None, bench: Bench, label_masks: Sequence[LabelMask]
) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """The candidates by name, and why each method of "auto" is among them."""
    names = [methods] if isinstance(methods, str) else list(methods)
    found: dict[str, Candidate] = {}
    reasons: dict[str, str] = {}
    for name in names:
        if name != "auto":
            found.setdefault(name.strip(), Candidate.parse(name, lr=lr))
            continue
        for choice in short_list(*(bench.stats(label_mask) for label_mask in label_masks)):
            options = "".join(f":{option}={value}" for option, value in choice.options.items())
            # Epochs and the like are the same for all: only what is the method's own differs.
            rate = choice.settings.get("lr") if lr is None else lr
            candidate = Candidate.parse(choice.method + options, lr=rate)
            if candidate.name not in found:
                found[candidate.name], reasons[candidate.name] = candidate, choice.why
    if not found:
        raise UserError("no method is named", "use --methods auto, or names such as bce,em")
    return tuple(found.values()), reasons


def _unfit(
    candidates: Iterable[Candidate], label_masks: Iterable[LabelMask], bench: Bench
) -> dict[tuple[Candidate, LabelMask], str]:
    """The pairs whose method would learn nonsense from such labels, with the reason."""
    found = {}
    for label_mask in label_masks:
        regime = bench.stats(label_mask).regime
        for candidate in candidates:
            try:
                recipe(candidate.method).check_regime(regime)
            except UserError as error:
                found[candidate, label_mask] = error.message
    return found


@dataclass
class _Clock:
    """What tasks took, and so what the next is likely to take."""

    found: dict[Task, Outcome]

    def likely(self, task: Task) -> float | None:
        """The mean of the same pair, else of the same candidate, else of all; None before anything is measured."""
        done = [(other, outcome.wall) for other, outcome in self.found.items() if not outcome.error]
        for same in (
            [s for other, s in done if other.pair == task.pair],
            [s for other, s in done if other.candidate == task.candidate],
            [s for _, s in done],
        ):
            if same:
                return sum(same) / len(same)
        return None

    def left(self, grid: Grid) -> float | None:
        """Seconds that the tasks not yet run are likely to take."""
        done = Counter(task.pair for task in self.found)
        total = 0.0
        for candidate, label_mask in grid.pairs:
            likely = self.likely(Task(candidate, label_mask, 0, candidate.lr, candidate.options))
            if likely is None:
                return None
            total += likely * max(grid.runs(candidate) - done[candidate, label_mask], 0)
        return total


def run_grid(
    grid: Grid, bench: Any, store: Store, callback: Callback | None, deadline: float | None
) -> tuple[dict[Task, Outcome], list[Task]]:
    """All tasks in turn: what was found, and the tasks that the deadline left no time for.

    A task that is under way when it comes is given up at the end of the epoch: of a whole network the next call goes on
    from there, a head is begun anew.
    """
    callback = callback or Callback()
    found: dict[Task, Outcome] = {}
    left: list[Task] = []
    clock = _Clock(found)
    shape = bench.test.shape
    stopped = False
    for number, task in enumerate(grid.tasks(found), 1):
        before = store.read(task, shape)
        if before is not None:
            found[task] = before
            continue
        # Tasks after the first that does not fit are not begun either: methods are to stay comparable.
        stopped = stopped or (deadline is not None and time.monotonic() + (clock.likely(task) or 0.0) > deadline)
        if stopped:
            left.append(task)
            continue
        callback.on_task_start(task, number, grid.total, clock.left(grid))
        try:
            outcome, logits = _attempt(task, bench, store, callback, deadline)
        except OutOfTime:
            stopped = True
            left.append(task)
            continue
        store.write(task, outcome, logits)
        found[task] = outcome
        callback.on_task_end(task, outcome, number, grid.total)
    return found, left


def _attempt(task: Task, bench: Any, store: Store, callback: Callback, deadline: float | None) -> tuple[Outcome, Any]:
    """Run a task; whatever keeps it from finishing is its outcome, and the others go on."""
    # A head on cached features is trained again in seconds; a whole network goes on where it was.
    folder = store.unfinished(task) if bench.config.tune == "all" else None
    started = time.perf_counter()
    try:
        trained: Trained = bench.train(task, callback=CallbackList(callback, StopAtDeadline(deadline)), folder=folder)
    except (OutOfTime, DataError):
        raise
    except UserError as error:
        reason = str(error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = f"out of memory ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    except OSError:
        raise  # a full disk or a lost folder concerns all tasks
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
    else:
        return trained
    return Outcome(error=reason, wall=time.perf_counter() - started), None


def _left_out(tasks: Sequence[Task]) -> tuple[LeftOut, ...]:
    found: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        found.setdefault((task.label_mask.name, task.candidate.name), []).append(task)
    return tuple(
        LeftOut(labels, method, len(left), tuple(sorted({task.seed for task in left})))
        for (labels, method), left in found.items()
    )


def _split(bench: Bench) -> list[tuple[str, str]]:
    rows = [(name, "train") for name in bench.rest.images]
    return rows + [(name, "test") for name in bench.test.images]
