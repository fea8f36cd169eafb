"""`Method`, the training step of one paper; `Recipe`, a registered method; and the registry of recipes."""

from __future__ import annotations

import inspect
import math
import pkgutil
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import Head, HeadMaker, Linear, Model, in_words
from halflabel.labels.table import Table
from halflabel.methods import REGIMES as REGIMES  # exported for methods
from halflabel.methods.checks import check_shape, check_targets
from halflabel.methods.parts.losses import Loss, Reduce, over_entries
from halflabel.methods.parts.relabel import Begins, Ignore, Relabeler
from halflabel.methods.parts.terms import Term
from halflabel.system.validate import MAX_SIZE, above, at_least, below_one, between, one_of
from halflabel.types import Batch

M = TypeVar("M", bound=nn.Module)

# Types of options. Those that count epochs of training, or rounds of L-BFGS: something begins after so many (0 has a
# meaning of its own), or with this one, counted from 1; or lasts or repeats after so many; or changes by this amount
# with each; or a list such as "10,15".
AfterEpoch = Annotated[int, "after", partial(at_least, 0)]
FromEpoch = Annotated[int, "from", partial(at_least, 1)]
Duration = Annotated[int, "duration", partial(at_least, 0)]
PerEpoch = Annotated[float, "per", partial(at_least, 0)]
EpochList = Annotated[str, "list"]
NonNegative = Annotated[float, partial(at_least, 0)]
Positive = Annotated[float, partial(above, 0)]
OneOrMore = Annotated[float, partial(at_least, 1)]
Share = Annotated[float, partial(between, 0, 1)]
BelowOne = Annotated[float, below_one]  # from 0
Count = Annotated[int, partial(at_least, 0)]
PositiveCount = Annotated[int, partial(at_least, 1)]
Size = Annotated[int, partial(between, 1, MAX_SIZE)]
SizeOrZero = Annotated[int, partial(between, 0, MAX_SIZE)]
WAYS = {  # of training, with words for messages
    "linear": "in a linear fit",
    "batches": "in batches on a frozen backbone (‹fit=batches›)",
    "network": "with the whole network (‹tune=all›)",
}
VIEWS = ("plain", "weak", "strong")  # the kinds of views that image sources can make
Tune = Mapping[str, Sequence[Any]]  # option name -> values to try


@dataclass(frozen=True)
class Not:
    """All values of an option but one."""

    value: Any

    def __contains__(self, value: object) -> bool:
        return bool(value != self.value)


Needs = Mapping[str, Mapping[str, Sequence[Any] | Not]]  # option -> other option -> values of it with which it counts


class Method(nn.Module):
    """Loss, relabeler, head, terms and views of one paper, and the training step that combines them.

    The parameters and buffers of a method are trained and saved with those of the model. `views` lists the views of
    each image in a batch: "plain", "weak" (crop and mirror image) and "strong" (stronger augmentation); a view may be
    listed more than once. Override `step` only where the paper's step differs (two views, alternation).
    `starts_from_bce`: L-BFGS starts from the solution of cross-entropy, because the loss has several minima.
    """

    changes_known = False  # True: targets may differ from known labels
    samples = False  # True: the loss is drawn at random, and depends on the order of the images
    surrogate_gradient = False  # True: the gradient is deliberately not that of the loss
    words = ""  # what its step does, for people; "": the words of its class name

    def __init__(
        self,
        loss: Loss,
        relabel: Relabeler | None = None,
        *,
        head: HeadMaker = Linear,
        terms: Sequence[Term] = (),
        reduce: Reduce = over_entries,
        views: tuple[str, ...] = ("weak",),
        starts_from_bce: bool = False,
    ) -> None:
        super().__init__()
        if unknown := set(views) - set(VIEWS):
            raise ValueError(f"no view is called {min(unknown)!r}: there are {', '.join(VIEWS)}")
        if isinstance(head, nn.Module):
            raise UserError(
                f"head= of {type(self).__name__} is a {type(head).__name__}, and must be a function that makes a head",
                f"give the class, head={type(head).__name__}: it is called with (feature channels, classes)",
            )
        self.loss = loss
        self.relabel = relabel if relabel is not None else Ignore()
        self.terms = nn.ModuleList(terms)
        self.make_head = head
        self.reduce = reduce
        self.views = views
        self.starts_from_bce = starts_from_bce

    @property
    def is_linear_loss(self) -> bool:
        """Whether training is a loss of linear scores: a linear head, one view, the ordinary step, no other weights.

        On vectors L-BFGS fits such a method; every other one is trained in batches, as published.
        """
        steps = ("step", "after_step", "evaluated")
        ordinary = all(getattr(type(self), name) is getattr(Method, name) for name in steps)
        has_weights = any(True for _ in self.parameters())
        one_pass = len(self.views) == 1 and self.relabel.passes == 0
        return ordinary and self.make_head is Linear and one_pass and not has_weights

    def describe(self) -> str:
        """Return in a few words what training consists of: head, labels, terms and views.

        >>> recipe("plcl").make().describe()
        'WELDON pooling with dropout 0.5, graph network of 3 steps; curriculum e'
        """
        head = seeded(0, lambda: self.head(8, 2)).words
        views = f"{len(self.views)} views of each image" if len(self.views) > 1 else ""
        terms = [in_words(type(term).__name__) for term in self.terms]
        step = "" if type(self) is Method else self.words or in_words(type(self).__name__)
        return "; ".join(each for each in (head, step, self.relabel.words, *terms, views) if each)

    def head(self, channels: int, classes: int) -> Head:
        """Make a new head for features with this many channels."""
        head = self.make_head(channels, classes)
        if not isinstance(head, Head):
            raise UserError(
                f"head= of {type(self).__name__} makes a {type(head).__name__}, and must make a Head",
                "derive it from halflabel.features.heads.Head",
            )
        return head

    def plan(self, epochs: int) -> None:
        """Set the number of training epochs, or of rounds of L-BFGS; called before `start`."""
        self.relabel.plan(epochs)

    def begins(self) -> Begins | None:
        """Return which part of the method begins later than training, and when; called after `plan`."""
        return self.relabel.begins()

    def start(self, table: Table, model: Model | None = None) -> None:
        """Receive the known training labels and the model, on its device; called once, before training.

        `model` is None where there is none: in `halflabel.loss`, and in tests of steps.
        """
        self.relabel.start(table)
        for term in self.terms:
            typing.cast(Term, term).start(table)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the method's own parameters for the optimizer, each group with its learning rate ("base_lr")."""
        return [{"params": [each for each in self.parameters() if each.requires_grad], "base_lr": lr}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        """Return the loss of one batch, a scalar; for an ensemble, the mean over its members. Epochs count from 1."""
        output = model(batch.views[0])
        shape = tuple(batch.labels.shape)
        if tuple(output.logits.shape) != shape:
            inner = next((part for part in model.modules() if isinstance(part, Model)), model)
            part, must = f"the head {type(inner.head).__name__}", f"logits of the shape {shape}, images × classes"
            check_shape(output.logits, shape, part, must, "correct its `forward`")
        targets = self.relabel(batch, output.logits.detach(), epoch)
        check_targets(targets, shape, self.relabel)
        logits = output.logits if output.members is None else output.members
        entry_loss = self.loss(logits, targets)
        part, must = f"the loss {type(self.loss).__name__}", f"the loss of each entry {shape}, never reduced"
        check_shape(entry_loss, tuple(logits.shape), part, must, "leave sums and means to reduce=")
        if output.members is not None:  # reductions are linear in the loss, so the mean may be taken first
            entry_loss = entry_loss.mean(0)
        loss = self.reduce(entry_loss, targets)
        name = getattr(self.reduce, "__name__", type(self.reduce).__name__)
        check_shape(loss, (), f"reduce= ({name})", "a scalar", "take the mean or the sum of it")
        for term in self.terms:
            value = term(output, batch, targets)
            check_shape(value, (), f"the term {type(term).__name__}", "a scalar", "take the mean or the sum of it")
            loss = loss + value
        return loss

    def label_loss(self, logits: Tensor, batch: Batch, epoch: int) -> Tensor:
        """Return the loss of these logits with the targets that the relabeler gives them, a scalar."""
        targets = self.relabel(batch, logits.detach(), epoch)
        return self.reduce(self.loss(logits, targets), targets)

    def after_step(self, model: Model) -> None:
        """Called after each update of the weights, with the updated model: to follow it, such as by an average."""

    def evaluated(self, model: Model) -> Model:
        """Return the model to validate and to keep, of the shape of `model`: a teacher, for example."""
        return model


@dataclass(frozen=True)
class Recipe:
    """A registered method: how to build it, the label regimes it can learn from, and its training defaults."""

    name: str
    build: Callable[..., Method]
    options: Mapping[str, inspect.Parameter]
    serves: tuple[str, ...]
    paper: str
    lr: float = 1e-3
    weight_decay: float = 1e-4
    linear_init: int = 0  # epochs of the head alone before the whole network is trained
    # Values to try of the most important option, for comparisons; or a function of all options that returns them.
    tune: Tune | Callable[[Mapping[str, Any]], Tune] = field(default_factory=dict)
    needs: Needs = field(default_factory=dict)  # given beside other values, an option is refused
    only_in: Mapping[str, Collection[str]] = field(default_factory=dict)  # option -> the WAYS in which it counts
    no_onnx: str = ""  # why the model cannot be exported to ONNX

    def __deepcopy__(self, memo: Any) -> Recipe:
        """Return the recipe itself: it is immutable."""
        return self

    def tunes(self, options: Mapping[str, Any]) -> Tune:
        """Return the option values to try beside the given options, without those that the method would refuse."""
        defaults = {name: option.default for name, option in self.options.items()}
        offered = self.tune({**defaults, **options}) if callable(self.tune) else self.tune
        accepted = {
            name: [value for value in values if self._accepts({**options, name: value})]
            for name, values in offered.items()
        }
        return {name: values for name, values in accepted.items() if set(values) - {defaults[name]}}

    def counting_epochs(self) -> dict[str, str]:
        """Return the options that count epochs of training or rounds of L-BFGS, each with how it counts."""
        facts = {name: getattr(each.annotation, "__metadata__", (None,)) for name, each in self.options.items()}
        return {name: each[0] for name, each in facts.items() if isinstance(each[0], str)}

    @property
    def page(self) -> str:
        """The method's page: the docstring of its function."""
        return inspect.cleandoc(self.build.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.page.split("\n\n")[0].replace("\n", " ")

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Convert option values from text to the types of their defaults."""
        return {name: self._parse(name, text) for name, text in texts.items()}

    def make(self, **options: Any) -> Method:
        """Build the method with these options; the others keep their defaults.

        An option that has no effect beside the others is refused, unless it has its default.
        """
        for name, value in options.items():
            if name not in self.options:
                raise UserError(f"{self.name} has no option {name!r}", self._hint())
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"the option {name} of {self.name} cannot be {value:g}", "give a finite number")
            _check_bounds(name, value, self.options[name].annotation)
        values = {name: option.default for name, option in self.options.items()} | options
        for name in self.needs:
            if values[name] != self.options[name].default and (blocking := self.blocking(name, values)):
                other, allowed = blocking
                wanted = f"not {allowed.value}" if isinstance(allowed, Not) else " or ".join(map(str, allowed))
                raise UserError(
                    f"the option {name} of {self.name} does nothing with {other}={values[other]}",
                    f"leave {name} out, or set {other}: {wanted}",
                )
        method = self.build(**values)
        if not isinstance(method, Method):
            raise TypeError(f"{self.build.__name__} returns {type(method).__name__}, not a Method")
        return method

    def blocking(self, name: str, values: Mapping[str, Any]) -> tuple[str, Sequence[Any] | Not] | None:
        """Return the option beside which another one does nothing, and the values with which it would."""
        conditions = self.needs.get(name, {}).items()
        return next(((other, allowed) for other, allowed in conditions if values[other] not in allowed), None)

    def check_way(self, options: Collection[str], way: str) -> None:
        """Raise if one of these options does nothing in this way of training, one of WAYS."""
        if idle := [name for name in options if way not in self.only_in.get(name, WAYS)]:
            ways = " or ".join(WAYS[each] for each in self.only_in[idle[0]])
            raise UserError(
                f"the option {idle[0]} of {self.name} does nothing {WAYS[way]}", f"leave it out, or train {ways}"
            )

    def check_regime(self, regime: str) -> None:
        """Raise if this method cannot learn from labels of this regime."""
        if regime not in self.serves:
            suitable = [other.name for other in recipes().values() if regime in other.serves]
            reason = _REASONS.get(regime, "no label is known")
            raise UserError(
                f"the method {self.name!r} cannot learn from {regime} labels: {reason}",
                f"use one of: {', '.join(suitable)}" if suitable else "label some images first",
            )

    def _accepts(self, options: Mapping[str, Any]) -> bool:
        try:
            self.make(**options)
        except UserError:
            return False
        return True

    def _parse(self, name: str, text: str) -> Any:
        if name not in self.options:
            raise UserError(f"{self.name} has no option {name!r}", self._hint())
        option = self.options[name]
        annotated = getattr(option.annotation, "__origin__", option.annotation)
        kind = float if annotated in (float, "float") else type(option.default)  # also `x: float = 1`
        try:
            if kind is bool:
                return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}[text.lower()]
            return kind(text)
        except (ValueError, KeyError):
            expected, fix = {int: ("an int", "give a whole number"), bool: ("a bool", "give true or false")}.get(
                kind, ("a float", "give a number")
            )
            raise UserError(f"option {name} of {self.name} takes {expected}, not {text!r}", fix) from None

    def _hint(self) -> str:
        return f"its options: {', '.join(self.options) or 'none'}"


def _check_bounds(name: str, value: Any, annotation: Any) -> None:
    """Raise if a value is outside the bounds that the type of its option states."""
    if typing.get_origin(annotation) is typing.Literal:
        one_of(typing.get_args(annotation), **{name: value})
    for check in filter(callable, getattr(annotation, "__metadata__", ())):
        check(**{name: value})


def _resolved(build: Callable[..., Method]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function with their types, which are text in modules that postpone annotations."""
    parameters = inspect.signature(build).parameters
    try:
        types = typing.get_type_hints(build, include_extras=True)
    except NameError:  # names that exist only for type checkers
        types = {}
    return {name: each.replace(annotation=types.get(name, each.annotation)) for name, each in parameters.items()}


_REASONS = {
    "full": "no label is unknown, and the method is for unknown labels",
    "partial": "it takes every class of an image but one as absent, which is wrong for such labels",
    "positives-only": "no label is known to be absent, and the method ignores unknown labels",
    "single-positive": "no label is known to be absent, and the method ignores unknown labels",
}

_REGISTRY: dict[str, Recipe] = {}
_ALIASES: dict[str, str] = {}  # function name -> method name, for methods such as sarb*
_RECIPE = "__recipe__"  # the attribute of a function that holds its recipe


def method(
    *,
    serves: Sequence[str],
    paper: str,
    name: str | None = None,
    options_of: Callable[..., Method] | None = None,
    **declared: Any,
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Register a function as the method of its name (underscores become hyphens).

    The keyword defaults of the function are the hyper-parameters; its docstring is the page that `halflabel methods
    NAME` shows. Outside this package a function may be registered again (a notebook cell that is run twice) and then
    replaces the earlier one.

    serves: the label regimes that the method can learn from.
    name: for methods whose name no function can have, such as sarb*; the function's name is then an alias.
    options_of: another method, whose options this one takes too; the function gets them as keyword arguments.
    declared: further fields of `Recipe`: lr, weight_decay, linear_init, tune, needs, only_in, no_onnx.
    """
    unknown = set(serves) - set(REGIMES)
    if unknown:
        raise ValueError(f"no such regimes: {sorted(unknown)}")

    def register(build: Callable[..., Method]) -> Callable[..., Method]:
        if not build.__module__.startswith("halflabel.methods."):
            import_package_methods()  # so that a name that is taken is reported for the user's function
        alias = build.__name__.replace("_", "-")
        method_name = name or alias
        if not _is_redefinition(method_name, build) and (taken := {method_name, alias} & {*_REGISTRY, *_ALIASES}):
            raise ValueError(f"two methods are called {min(taken)!r}")
        options = _resolved(build)
        if options_of is not None:
            options = {name: option for name, option in options.items() if option.kind is not option.VAR_KEYWORD}
            options |= recipe(options_of).options
        for option in options.values():
            if not isinstance(option.default, bool | int | float | str):  # what a command line can pass
                raise ValueError(
                    f"option {option.name!r} of {method_name} needs a number, a text, True or False as default"
                )
        registered = Recipe(method_name, build, options, tuple(serves), paper, **declared)
        if not callable(registered.tune) and (other := set(registered.tune) - set(options)):
            raise ValueError(f"{method_name} has no option {min(other)!r} to tune")
        _REGISTRY[method_name] = registered
        vars(build)[_RECIPE] = registered  # pickled with the function, for processes that have not registered it
        if method_name != alias:
            _ALIASES[alias] = method_name
        return build

    return register


def _is_redefinition(name: str, build: Callable[..., Method]) -> bool:
    """Whether a user's function replaces its earlier version: a notebook cell run again, or a reloaded module."""
    module = build.__module__
    if module.startswith("halflabel.methods."):
        return False
    earlier = _REGISTRY[name].build if name in _REGISTRY else None
    return earlier is not None and (earlier.__module__, earlier.__qualname__) == (module, build.__qualname__)


@cache
def import_package_methods() -> None:
    """Import every module of `halflabel.methods`, which registers its methods."""
    package = import_module("halflabel.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            import_module(f"halflabel.methods.{module.name}")


def recipes() -> Mapping[str, Recipe]:
    """Return all methods by name.

    Included are the methods of this package, of installed packages (entry-point group `halflabel.plugins`), of the
    files listed in HALFLABEL_PLUGINS, and those that other code has registered.
    """
    from halflabel.system import plugins

    import_package_methods()
    plugins.load()
    return dict(sorted(_REGISTRY.items()))


def recipe(name: str | Recipe | Callable[..., Method]) -> Recipe:
    """Return the recipe of a method's name, or of a function decorated with `@method`."""
    if isinstance(name, Recipe):
        return name
    if not isinstance(name, str):
        registered = getattr(name, _RECIPE, None)
        if isinstance(registered, Recipe) and registered.build is name:
            return registered
        raise UserError(
            f"{getattr(name, '__name__', repr(name))} is not a method",
            "give a method's name, or a function decorated with @halflabel.methods.base.method(...)",
        )
    all_recipes = recipes()
    name = _ALIASES.get(name, name)
    if name not in all_recipes:
        raise _unknown_method(name, all_recipes)
    return all_recipes[name]


def _unknown_method(name: str, known: Collection[str]) -> UserError:
    close = get_close_matches(name.lower().replace("_", "-"), known, 3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    plugins = "to use a method of your own: export HALFLABEL_PLUGINS=mine.py"
    return UserError(f"no method is called {name!r}", f"{hint}`halflabel methods` lists all {len(known)}; {plugins}")


def seeded(seed: int, make: Callable[[], M]) -> M:
    """Build a module whose initial weights depend on the seed only; the global random generator is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
