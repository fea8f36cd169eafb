"""The contract of a method, one function per promise; used by `halflabel methods NAME --check` and by the tests.

Each check trains or steps a method on a small random table of one label regime, or raises `Broken`.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.features.backbones import Backbone, Preprocess
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Recipe, seeded
from halflabel.methods.checks import absorbed, check_loss
from halflabel.runs.export.onnx import write_onnx
from halflabel.runs.model import Model as Predictor
from halflabel.runs.new_run import reserved_options
from halflabel.types import Batch, Output, Sweep

IMAGES, CLASSES, CHANNELS = 32, 6, 16
UNREADABLE = 3  # an image that cannot be read: in no batch, NaN in every sweep
EPOCHS = 12


class Broken(Exception):
    """A promise that a method does not keep, and how to mend it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


def require(holds: object, problem: str, fix: str) -> None:
    """Raise `Broken` unless a promise holds."""
    if not holds:
        raise Broken(problem, fix)


def make_table(regime: str) -> Table:
    """A small random table of the regime, in which every class has a known positive."""
    rng = np.random.default_rng(5)
    labels = np.where(rng.random((IMAGES, CLASSES)) < 0.4, 1, -1)
    labels[np.arange(IMAGES), np.arange(IMAGES) % CLASSES] = 1
    if regime == "partial":
        labels = labels * (rng.random(labels.shape) < 0.6)
    elif regime == "positives-only":
        labels = np.where((labels > 0) & (rng.random(labels.shape) < 0.8), 1, 0)
        labels[0, :2] = 1
    elif regime == "single-positive":
        labels = np.eye(CLASSES, dtype=np.int64)[np.arange(IMAGES) % CLASSES]
    return Table.from_dense(labels)


class Case:
    """A method at the start of training, with a model and data that fit it."""

    def __init__(self, recipe: Recipe, regime: str) -> None:
        self.recipe, self.table = recipe, make_table(regime)
        self.method = seeded(0, recipe.make)
        head = seeded(0, lambda: self.method.head(CHANNELS, CLASSES))
        self.model = Model(None, head)
        self.method.start(self.table, self.model)
        shape = (IMAGES, CHANNELS, 4, 4) if head.needs_maps else (IMAGES, CHANNELS)
        self.values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        self.noise = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        strong = [self.values + 0.1 * self.noise]
        self.source = Features(self.values, self.table.images, [UNREADABLE], strong=strong)

    def batch(self, index: Tensor | None = None) -> Batch:
        """All readable images, or those of `index`; further views are near the first, as augmented ones are."""
        index = torch.tensor([i for i in range(IMAGES) if i != UNREADABLE]) if index is None else index
        views = tuple((self.values + 0.1 * number * self.noise)[index] for number in range(len(self.method.views)))
        return Batch(index, views, torch.from_numpy(self.table.rows(index.numpy())))

    def step(self, batch: Batch, epoch: int) -> Tensor:
        torch.manual_seed(epoch)
        return self.method.step(self.model, batch, epoch)

    def finish_epoch(self, epoch: int) -> None:
        """Pass all scores to the relabeler, if it wants a sweep."""
        relabel = self.method.relabel
        if relabel.wants_sweep(epoch):
            sweep: Sweep = score_source(self.model, self.source, passes=relabel.passes)
            for name, value in absorbed(relabel, sweep, epoch).items():
                problem = f"absorb reports {name} = {value:g} after epoch {epoch}"
                require(np.isfinite(value), problem, "the logits of unreadable images are NaN: leave them out")

    def fit(self, config: Config, **more: Any) -> dict[str, Tensor]:
        """Train, and return the weights of model and method."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* never starts in ")
            fit(self.model, self.method, self.source, self.table, config, **more)
        return {**self.model.state_dict(), **{f"method.{k}": v for k, v in self.method.state_dict().items()}}


def check_page(recipe: Recipe) -> None:
    """Docstring, options and values to tune."""
    require(recipe.page, "it has no docstring, so `halflabel methods` cannot say what it does", "write one")
    reserved = reserved_options()
    for option in recipe.options:
        is_explained = re.search(rf"\b{option}\b", recipe.page)
        require(is_explained, f"its docstring does not explain the option {option}", "add a sentence for each option")
        problem = f"`train` has an option {option} too, so that of the method cannot be set"
        require(option not in reserved, problem, "rename it")
    defaults = {name: option.default for name, option in recipe.options.items()}
    for option, values in (recipe.tune(defaults) if callable(recipe.tune) else recipe.tune).items():
        for value in values:
            recipe.make(**{option: value})


def check_values(recipe: Recipe, regime: str) -> None:
    """Loss and gradients are finite in every epoch, and the head learns."""
    case = Case(recipe, regime)
    learned = _learned(case.model, case.method)
    optimizer = torch.optim.SGD(learned, lr=0.01)
    has_moved = False
    check_loss(case.step(case.batch(), 1), f"the step of {type(case.method).__name__}")
    for epoch in range(1, EPOCHS + 1):
        loss = case.step(case.batch(), epoch)
        problem = f"the loss of epoch {epoch} is {loss.item():g}"
        require(loss.isfinite(), problem, "look for log(0), 0/0 and exp of large numbers")
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        is_finite = all(bool(each.grad.isfinite().all()) for each in learned if each.grad is not None)
        fix = "use softplus and logsigmoid in place of log and exp"
        require(is_finite, f"a gradient of epoch {epoch} is not finite", fix)
        has_moved |= any(bool(each.grad.any()) for each in case.model.parameters() if each.grad is not None)
        optimizer.step()
        case.method.after_step(case.model)
        case.finish_epoch(epoch)
    require(has_moved, "not one step has a gradient for the head", "compute the loss from model(...).logits")


def check_small_batches(recipe: Recipe, regime: str) -> None:
    """A batch of one image, and an image without known labels, have a finite loss."""
    case = Case(recipe, regime)
    batch = case.batch(torch.tensor([5]))
    for content, labels in (("one image", batch.labels), ("one image without labels", torch.zeros_like(batch.labels))):
        loss = case.step(Batch(batch.index, batch.views, labels), 1)
        require(loss.isfinite(), f"the loss of {content} is not finite", "divide by max(count, 1)")


def check_targets(recipe: Recipe, regime: str) -> None:
    """Targets are ≥ 0, have no gradient, and agree with the known labels."""
    case = Case(recipe, regime)
    batch = case.batch()
    present, absent = batch.labels > 0, batch.labels < 0
    for epoch in range(1, EPOCHS + 1):
        torch.manual_seed(epoch)
        pos, neg = case.method.relabel(batch, case.model(batch.views[0]).logits.detach(), epoch)
        is_weight = (pos >= 0).all() and (neg >= 0).all()
        require(is_weight, f"a target of epoch {epoch} is negative", "the weights pos and neg are 0 or more")
        has_gradient = pos.requires_grad or neg.requires_grad
        require(not has_gradient, "targets have a gradient", "compute them from detached scores")
        is_present, is_absent = (pos > 0) & (neg == 0), (neg > 0) & (pos == 0)
        require(
            case.method.changes_known or (is_present[present].all() and is_absent[absent].all()),
            f"a known label has the wrong target in epoch {epoch}",
            "present: pos > 0 and neg = 0, absent the reverse; or set `changes_known = True` in the Method",
        )
        case.finish_epoch(epoch)
    relabel, logits = case.method.relabel, 9 * torch.randn(batch.labels.shape)
    is_same = not relabel.is_static or all(map(torch.equal, relabel(batch, logits, 1), relabel(batch, -logits, 2)))
    require(is_same, "targets depend on scores or epoch, and `is_static` is True", "set it to False")


def check_order(recipe: Recipe, regime: str) -> None:
    """The order of the images in a batch does not matter."""
    case = Case(recipe, regime)
    if case.method.samples:
        return
    case.model.eval()  # dropout draws by place in the batch
    batch = case.batch()
    order = torch.randperm(len(batch.index), generator=torch.Generator().manual_seed(3))
    permuted = Batch(batch.index[order], tuple(view[order] for view in batch.views), batch.labels[order])
    for epoch in range(1, 8):
        before = copy.deepcopy(case.method)
        loss = case.step(batch, epoch).detach()
        case.method = before
        permuted_loss = case.step(permuted, epoch).detach()
        require(
            torch.allclose(loss, permuted_loss, rtol=1e-5, atol=1e-6),
            f"the loss of epoch {epoch} is {loss:g}, and {permuted_loss:g} for the same images in another order",
            "use batch.index to tell images apart; if the method draws at random, set `samples = True` in it",
        )
        case.finish_epoch(epoch)


class _Extreme(Model):
    """Logits of ±1e4 in half precision, as a diverging network under autocast gives."""

    def __init__(self, model: Model, sign: float) -> None:
        super().__init__(model.backbone, model.head)
        self.sign = sign
        self.seen: list[Tensor] = []

    def run(self, other: Model, view: Tensor) -> Output:
        return other(view)  # type: ignore[no-any-return]

    def forward(self, view: Tensor) -> Output:
        output = super().forward(view)
        size = output.logits.detach().abs().clamp(min=1e-3)
        logits = (self.sign * 1e4 * output.logits / size).clamp(-1e4, 1e4).half()
        if logits.requires_grad:
            logits.retain_grad()
            self.seen.append(logits)
        return output._replace(logits=logits)


def check_half_precision(recipe: Recipe, regime: str) -> None:
    """Loss and gradients are finite for logits of ±1e4 in half precision."""
    for sign in (1.0, -1.0):
        case = Case(recipe, regime)
        case.model = model = _Extreme(case.model, sign)
        for epoch in (1, 2):
            loss = case.step(case.batch(), epoch)
            torch.autograd.backward(loss)
            gradients = [logits.grad for logits in model.seen if logits.grad is not None]
            gradients += [each.grad for each in case.method.parameters() if each.grad is not None]
            require(
                all(bool(value.isfinite().all()) for value in (loss, *gradients)),
                f"logits of {sign * 1e4:g} in half precision give a loss or a gradient that is not finite",
                "start with halflabel.types.at_least_float32(logits), and use softplus in place of log",
            )


class _Constants(TorchFunctionMode):
    """Keeps what a step detaches, or reads without gradient, at the values of its first run.

    So finite differences see the loss as the gradient does: with pseudo-labels and weights held fixed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Tensor] = []
        self.position: int | None = None  # None while recording

    def constant(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        if self.position is None:
            with torch._C.DisableTorchFunctionSubclass():
                self.values.append(value.detach().clone())
            return self.values[-1].clone()
        self.position += 1
        return self.values[self.position - 1].clone()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.detach or func is Tensor.data.__get__:  # type: ignore[attr-defined]
            return self.constant(args[0]) if args[0].requires_grad else func(*args)
        if not torch.is_grad_enabled() and not getattr(func, "__name__", "").startswith("__"):
            args = [
                [*map(self.constant, each)] if isinstance(each, list | tuple) else self.constant(each) for each in args
            ]
        return func(*args, **(kwargs or {}))


def _learned(*modules: nn.Module) -> list[nn.Parameter]:
    return [each for module in modules for each in module.parameters() if each.requires_grad]


def check_gradient(recipe: Recipe, regime: str) -> None:
    """The gradient of a step agrees with finite differences of its loss, along random directions."""
    case = Case(recipe, regime)
    if case.method.surrogate_gradient:
        return
    for epoch in (1, 2):
        case.finish_epoch(epoch)
    case.model.double()
    case.method.double()
    case.values, case.noise = case.values.double(), case.noise.double()
    batch, constants = case.batch(), _Constants()

    def loss_at(shift: float, seed: int) -> tuple[Tensor, Tensor]:
        """The loss after a shift of all weights along a direction, and the slope that its gradient predicts."""
        model, method = copy.deepcopy((case.model, case.method))
        learned = _learned(model, method)
        random = torch.Generator().manual_seed(seed)
        directions = [torch.randn(each.shape, generator=random, dtype=torch.float64) for each in learned]
        with torch.no_grad():
            for weight, direction in zip(learned, directions, strict=True):
                weight.add_(direction, alpha=shift)
        torch.manual_seed(0)
        with constants:
            loss = method.step(model, batch, 3)
        gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        pairs = zip(gradients, directions, strict=True)
        slope = sum(((g * d).sum() for g, d in pairs if g is not None), torch.zeros((), dtype=torch.float64))
        return loss.detach(), slope

    for seed in range(3):
        constants.values, constants.position = [], None
        _, slope = loss_at(0.0, seed)
        losses = []
        for shift in (1e-6, -1e-6):
            constants.position = 0
            losses.append(loss_at(shift, seed)[0])
        difference = float(losses[0] - losses[1]) / 2e-6
        require(
            abs(difference - float(slope)) <= 1e-4 * max(abs(difference), abs(float(slope)), 1e-3),
            f"the gradient predicts a slope of {float(slope):.5g}, the loss has {difference:.5g}",
            "look for in-place changes and own backward functions; if it is meant, set `surrogate_gradient = True`",
        )


class _Stop(Callback):
    """Interrupts training after an epoch."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch_end(self, log: EpochLog) -> None:
        if log["epoch"] == self.after:
            raise KeyboardInterrupt


def check_resume(recipe: Recipe, regime: str) -> None:
    """An interrupted and resumed training ends with the same weights and state, bit for bit: nothing else is kept."""
    config = Config(epochs=7, batch_size=16, lr=0.01, device="cpu")
    expected = Case(recipe, regime).fit(config)
    with TemporaryDirectory() as folder:
        with suppress(KeyboardInterrupt):
            Case(recipe, regime).fit(config, folder=Path(folder), callback=_Stop(4))
        resumed = Case(recipe, regime).fit(config, folder=Path(folder), resume=True)
    for name, value in expected.items():
        require(
            name in resumed and torch.equal(resumed[name].nan_to_num(-1), value.nan_to_num(-1)),
            f"{name} differs after a resumed training",
            "keep what a step changes in buffers (register_buffer), sized in `start`; draw random numbers from torch's "
            "default generator only",
        )


def check_loading(recipe: Recipe, regime: str) -> None:
    """A saved head gives the same scores when it is loaded without the training labels, as `predict` loads it."""
    case = Case(recipe, regime)
    case.fit(Config(epochs=1, batch_size=16, lr=0.01, device="cpu"))
    loaded = Model(None, recipe.make().head(CHANNELS, CLASSES))
    try:
        loaded.load_state_dict(case.model.state_dict())
    except RuntimeError as error:
        fix = "register all buffers of the head in its __init__"
        raise Broken(f"the head cannot be loaded: {error}", fix) from None
    with torch.no_grad():
        logits, loaded_logits = (model.eval()(case.values).logits for model in (case.model, loaded))
    is_same = torch.allclose(logits, loaded_logits, rtol=1e-4, atol=1e-5)  # another memory layout rounds differently
    require(is_same, "a loaded head scores otherwise", "keep all that the head needs in parameters and buffers")


class _TinyBackbone(Backbone):
    """(B, 3, 16, 16) uint8 -> (B, CHANNELS, 4, 4)."""

    def __init__(self) -> None:
        preprocess = Preprocess(16, (0.0,) * 3, (1.0,) * 3, "bilinear", 1.0)
        super().__init__("tiny", nn.Conv2d(3, CHANNELS, 4, stride=4), CHANNELS, preprocess)

    def _raw(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images.float() / 255)
        return features


def check_onnx(recipe: Recipe, regime: str) -> None:
    """The model can be exported to ONNX, and ONNX Runtime gives the same scores."""
    if recipe.no_onnx:
        return
    case = Case(recipe, regime)
    network, names = Model(seeded(0, _TinyBackbone), case.model.head), Names.numbered(CLASSES)
    config, thresholds = Config(method=recipe.name, backbone="tiny"), torch.full((CLASSES,), 0.5)
    predictor = Predictor(network, config, names, {"plain": Plain(16)}, Calibration(), thresholds)
    with TemporaryDirectory() as folder:
        try:
            write_onnx(predictor, Path(folder) / "model.onnx")
        except UserError as error:
            fix = 'change the head\'s forward, or declare @method(..., no_onnx="why")'
            raise Broken(error.message, fix) from None


def train_briefly(recipe: Recipe) -> dict[str, Tensor]:
    """Weights and state after one epoch without dropout, which several processes draw differently."""
    case = Case(recipe, recipe.serves[-1])
    for layer in case.model.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
    state = case.fit(Config(epochs=1, batch_size=12, lr=0.01, optimizer="sgd", device="cpu"))
    return {name: value.detach().clone().contiguous() for name, value in state.items()}


CHECKS: Mapping[str, Callable[[Recipe, str], None]] = {  # for every label regime
    "values": check_values,
    "small batches": check_small_batches,
    "targets": check_targets,
    "half precision": check_half_precision,
    "order of images": check_order,
}
ONCE: Mapping[str, Callable[[Recipe, str], None]] = {  # for one regime, as they take longer
    "gradient": check_gradient,
    "resume": check_resume,
    "loading": check_loading,
    "export to ONNX": check_onnx,
}
