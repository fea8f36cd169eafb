"""Method: the recipe of one paper; and the registry that finds every recipe by its function's name."""

from __future__ import annotations

import hashlib
import inspect
import math
import pkgutil
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods import NOT_METHODS, OWN, REGIMES, no_method, own_files
from halflabel.methods.parts.losses import Loss, Reduce, over_entries
from halflabel.methods.parts.relabel import Ignore, Relabeler
from halflabel.methods.parts.terms import Term
from halflabel.models.heads import Head, HeadMaker, Linear, Model
from halflabel.system import distributed as processes
from halflabel.types import Batch

__all__ = ["REGIMES", "Method", "Recipe", "Tune", "method", "recipe", "recipes", "seeded"]

M = TypeVar("M", bound=nn.Module)
VIEWS = ("plain", "weak", "strong")  # what sources of images can be asked for
Tune = Mapping[str, Sequence[Any]]  # values to try of an option


class Method(nn.Module):
    """Loss, relabeler, head, terms and views that one paper puts together, and the step that uses them.

    Its parameters and buffers are trained and saved beside the model's. `views` are those of each image that a batch
    holds: "plain", "weak" (crop and mirror image) and "strong" (more besides), each as often as it is named. Override
    `step` only where a paper's step really differs (two views, alternation).
    """

    def __init__(
        self,
        loss: Loss,
        relabel: Relabeler | None = None,
        *,
        head: HeadMaker = Linear,
        terms: Sequence[Term] = (),
        reduce: Reduce = over_entries,
        views: tuple[str, ...] = ("weak",),
    ) -> None:
        super().__init__()
        if other := set(views) - set(VIEWS):
            raise ValueError(f"no view is called {min(other)!r}: there are {', '.join(VIEWS)}")
        if isinstance(head, nn.Module):
            raise UserError(
                f"head= of {type(self).__name__} is a {type(head).__name__}, and must be what makes a head",
                f"give the class, head={type(head).__name__}: it is called with (features per place, classes)",
            )
        self.loss = loss
        self.relabel = relabel if relabel is not None else Ignore()
        self.terms = nn.ModuleList(terms)
        self.make_head = head
        self.reduce = reduce
        self.views = views

    def head(self, channels: int, classes: int) -> Head:
        """A new head, for so many features per place."""
        made = self.make_head(channels, classes)
        if not isinstance(made, Head):
            raise UserError(
                f"head= of {type(self).__name__} makes a {type(made).__name__}, and must make a Head",
                "derive it from halflabel.models.heads.Head",
            )
        return made

    def plan(self, epochs: int) -> None:
        """Called before `start` with the number of epochs to come; warns where they are too few for the method."""
        self.relabel.plan(epochs)
        if processes.is_first() and (idle := self.relabel.idle(epochs)):
            warnings.warn(idle, stacklevel=2)

    def start(self, table: LabelTable) -> None:
        """Called once, before training, with the known training labels."""
        self.relabel.start(table)
        for term in self.terms:
            typing.cast(Term, term).start(table)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What the method itself learns, with the rate for it ("base_lr")."""
        return [{"params": list(self.parameters()), "base_lr": lr}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        """The loss of one batch, a scalar: of an ensemble, the mean of its members'. Epochs count from 1."""
        output = model(batch.views[0])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        if output.members is None:
            charged = self.loss(output.logits, targets)
        else:  # reductions are linear in the loss, so the mean over the members may be taken first
            charged = self.loss(output.members, targets).mean(0)
        loss = self.reduce(charged, targets)
        for term in self.terms:
            loss = loss + term(output, batch, targets)
        return loss


@dataclass(frozen=True)
class Recipe:
    """A registered method: how to build it, what it can learn from, and what to set by default."""

    name: str
    build: Callable[..., Method]
    options: Mapping[str, inspect.Parameter]
    serves: tuple[str, ...]
    paper: str
    lr: float
    weight_decay: float
    linear_init: int = 0
    tune: Tune | Callable[[Mapping[str, Any]], Tune] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> Recipe:
        """Itself, as a function is: it never changes."""
        return self

    def tunes(self, given: Mapping[str, Any]) -> Tune:
        """What `tune` offers beside the options that are given; none that the method would refuse beside them."""
        defaults = {name: option.default for name, option in self.options.items()}
        offered = self.tune({**defaults, **given}) if callable(self.tune) else self.tune
        taken = {name: [v for v in values if self._takes({**given, name: v})] for name, values in offered.items()}
        return {name: values for name, values in taken.items() if values}

    @property
    def page(self) -> str:
        """The method's page of the gallery."""
        return inspect.cleandoc(self.build.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.page.split("\n\n")[0].replace("\n", " ")

    def parse(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Options from text, typed as their defaults are."""
        return {name: self._parse(name, text) for name, text in given.items()}

    def make(self, **options: Any) -> Method:
        for name, value in options.items():
            if name not in self.options:
                raise UserError(f"{self.name} has no option {name!r}", self._hint())
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"the option {name} of {self.name} cannot be {value:g}", "give a finite number")
        made = self.build(**options)
        if not isinstance(made, Method):
            raise TypeError(f"{self.build.__name__} returns {type(made).__name__}, not a Method")
        return made

    def _takes(self, options: Mapping[str, Any]) -> bool:
        try:
            self.make(**options)
        except UserError:
            return False
        return True

    def check_regime(self, regime: str) -> None:
        """Refuse label regimes from which this method would learn nonsense."""
        if regime not in self.serves:
            fit = [other.name for other in recipes().values() if regime in other.serves]
            raise UserError(
                f"the method {self.name!r} cannot learn from {regime} labels: {_WHY.get(regime, 'nothing is known')}",
                f"use one of: {', '.join(fit)}" if fit else "label some images first",
            )

    def _parse(self, name: str, text: str) -> Any:
        if name not in self.options:
            raise UserError(f"{self.name} has no option {name!r}", self._hint())
        option = self.options[name]
        kind = float if option.annotation in (float, "float") else type(option.default)  # also `x: float = 1`
        try:
            if kind is bool:
                return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}[text.lower()]
            return kind(text)
        except (ValueError, KeyError):
            takes, fix = {int: ("an int", "give a whole number"), bool: ("a bool", "give true or false")}.get(
                kind, ("a float", "give a number")
            )
            raise UserError(f"option {name} of {self.name} takes {takes}, not {text!r}", fix) from None

    def _hint(self) -> str:
        return f"its options: {', '.join(self.options) or 'none'}"


_WHY = {
    "full": "nothing is unknown, and what it does is for unknown labels",
    "partial": "it takes all classes of an image but one for absent, which such labels do not say",
    "positives-only": "nothing is known to be absent, and it ignores what is unknown",
    "single-positive": "nothing is known to be absent, and it ignores what is unknown",
}

_REGISTRY: dict[str, Recipe] = {}
_RECIPE = "__recipe__"  # where a function keeps what was made of it
_ALIASES: dict[str, str] = {}  # names without the signs a shell would take for its own


def method(
    *,
    serves: Sequence[str],
    paper: str,
    lr: float = 1e-3,
    weight_decay: float = 1e-4,
    linear_init: int = 0,
    tune: Tune | Callable[[Mapping[str, Any]], Tune] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Register a function as the method of its name (underscores become hyphens).

    `name` is for methods whose paper gives them one that no function can have, such as sarb*; the function's own name
    then finds the method too. Its keyword defaults are the hyper-parameters, its docstring is the page in the gallery.
    Of one's own code, as in a notebook, the same function may be registered again and takes the place of the former.
    `serves` names the label regimes it can learn from; `lr`, `weight_decay` and `linear_init` (epochs of the head alone
    before all is tuned) are its defaults in training; `tune` offers values of its one key hyper-parameter, for
    comparisons to try; where other options decide which make sense, or whether any does, it is a function of all
    options.
    """
    unknown = set(serves) - set(REGIMES)
    if unknown:
        raise ValueError(f"no such regimes: {sorted(unknown)}")

    def register(build: Callable[..., Method]) -> Callable[..., Method]:
        own = build.__name__.replace("_", "-")
        called = name or own
        if not _again(called, build) and (taken := {called, own} & {*_REGISTRY, *_ALIASES}):
            raise ValueError(f"two methods are called {min(taken)!r}")
        options = dict(inspect.signature(build).parameters)
        for option in options.values():
            if not isinstance(option.default, bool | int | float | str):  # what a command line can say
                raise ValueError(f"option {option.name!r} of {called} needs a number, a text, True or False as default")
        if tune and not callable(tune) and (other := set(tune) - set(options)):
            raise ValueError(f"{called} has no option {min(other)!r} to tune")
        _REGISTRY[called] = made = Recipe(
            called, build, options, tuple(serves), paper, lr, weight_decay, linear_init, tune or {}
        )
        vars(build)[_RECIPE] = made  # goes along to processes that have not run this
        if called != own:
            _ALIASES[own] = called
        return build

    return register


def _again(called: str, build: Callable[..., Method]) -> bool:
    """Whether a method of one's own is defined anew: a cell of a notebook that is run again, a module reloaded."""
    if called not in _REGISTRY or build.__module__.startswith("halflabel.methods."):
        return False
    before = _REGISTRY[called].build
    return (before.__module__, before.__qualname__) == (build.__module__, build.__qualname__)


@cache
def _discover() -> None:
    package = import_module("halflabel.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in NOT_METHODS:
            import_module(f"halflabel.methods.{module.name}")
    for path in own_files():
        if not any(path.samefile(file) for file in _files() if Path(file).is_file()):  # it may be what is running
            _run(path)


def _files() -> set[str]:
    """Where the methods known so far were written."""
    return {one.build.__code__.co_filename for one in _REGISTRY.values()}


_OWN = "halflabel_own_"  # what the modules of such files are called


def _module_name(path: Path) -> str:
    return _OWN + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]


class _OwnFinder:
    """Imports such a module by its name, as whoever loads a pickle does that names a class of it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(_OWN):
            return None
        return next((spec_from_file_location(name, file) for file in own_files() if _module_name(file) == name), None)


sys.meta_path.append(_OwnFinder)


def _run(path: Path) -> None:
    """Import a file by its place."""
    name = _module_name(path)
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{OWN} names {path}, which is no Python file", "give it a name that ends in .py")
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        inside = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == str(path)]
        line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else inside[-1] if inside else None
        where = f"{path}, line {line}" if line else str(path)
        fix = f"mend the file, or take it out of {OWN}; `python {path}` shows more"
        raise UserError(f"{where}: {type(error).__name__}: {error}", fix) from error


def registered() -> list[Recipe]:
    """The methods of all that has been imported so far."""
    return list(_REGISTRY.values())


def recipes() -> Mapping[str, Recipe]:
    """All methods by name: every module of `halflabel.methods` is imported, an import error raises.

    Methods that other code has registered are among them, and those in the files that HALFLABEL_METHODS names.
    """
    _discover()
    return dict(sorted(_REGISTRY.items()))


def recipe(name: str | Recipe | Callable[..., Method]) -> Recipe:
    """The method of that name, or an error that suggests one; or that of a function under `@method`."""
    if isinstance(name, Recipe):
        return name
    if not isinstance(name, str):
        found = getattr(name, _RECIPE, None)
        if isinstance(found, Recipe) and found.build is name:
            return found
        raise UserError(
            f"{getattr(name, '__name__', repr(name))} is no method",
            "give a method's name, or a function with @halflabel.methods.base.method(...) above it",
        )
    known = recipes()
    name = _ALIASES.get(name, name)
    if name not in known:
        raise no_method(name, known)
    return known[name]


def seeded(seed: int, make: Callable[[], M]) -> M:
    """Build a module whose first weights depend on the seed alone; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
