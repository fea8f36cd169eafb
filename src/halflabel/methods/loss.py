"""`halflabel.loss`: the loss of a method as a torch module, for training loops of your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import Linear
from halflabel.labels.table import Table
from halflabel.methods.base import Method, Recipe, recipe, seeded
from halflabel.methods.parts.relabel import FewAbsent, Relabeler
from halflabel.methods.parts.terms import Term
from halflabel.types import Batch, Output

_INSTEAD = "use halflabel.train, halflabel.fit or HalfLabelClassifier, which train with the whole method"


def loss(
    method: str | Recipe | Callable[..., Method],
    /,
    *,
    table: Table | ArrayLike | None = None,
    epochs: int | None = None,
    **options: Any,
) -> MethodLoss:
    """Return the loss of a method, by name and with its options, as a module: `loss(logits, labels)` -> scalar.

    `table` holds the labels of all training images, a Table or an (N, C) array. Methods that count something in
    them or remember something per image require it. em works without it, and then gives known negatives full weight
    even if they are few (its option few_absent). `epochs` is the length of the training; methods with a schedule
    require it. Methods that need more than the logits of one view of a batch raise a UserError: those with a head of
    their own, and those that use features, the weights of the model, or the scores of all training images.

    >>> logits = torch.tensor([[2.0, -1.0], [0.0, 3.0]], requires_grad=True)
    >>> labels = torch.tensor([[1, 0], [0, -1]])  # present, absent (-1) or unknown (0)
    >>> criterion = loss("em", alpha=0.2)
    >>> round(criterion(logits, labels).item(), 4)
    0.7301
    >>> remembers = loss("ll-cp", table=labels, epochs=10)
    >>> remembers(logits, labels, index=torch.tensor([0, 1]), epoch=2).backward()
    """
    chosen = recipe(method)
    module = seeded(0, lambda: chosen.make(**options))
    _check_possible(chosen.name, module)
    if epochs is not None:
        module.plan(epochs)
    elif _has_schedule(module):
        raise UserError(
            f"the loss of {chosen.name} changes over the epochs", "pass epochs=, the length of the training"
        )
    if table is not None:
        table = table if isinstance(table, Table) else Table.from_dense(table)
        chosen.check_regime(table.stats.regime)
        module.start(table)
    elif _requires_table(module):
        raise UserError(
            f"{chosen.name} needs the labels of all training images before the first batch",
            "pass table=, a Table or an (N, C) array of -1, 0 (unknown) and +1",
        )
    return MethodLoss(chosen.name, module, images=len(table) if table is not None else None)


class MethodLoss(nn.Module):
    """The loss of one method; made by `halflabel.loss`.

    What the method remembers is in buffers, saved by `state_dict` and moved by `to(device)`. role also learns
    parameters, one per image and class: pass them to the optimizer as a group of their own, with ten times the learning
    rate of the model and no weight decay. `eval()` computes the loss without changing what the method remembers.
    """

    def __init__(self, name: str, method: Method, images: int | None = None) -> None:
        super().__init__()
        self.name = name
        self.method = method
        self.images = images  # training images, if known
        self._changes_over_epochs = _has_schedule(method) or type(method.relabel).begins is not Relabeler.begins
        self._is_checked = False

    def forward(
        self, logits: Tensor, labels: Tensor, *, index: Tensor | None = None, epoch: int | None = None
    ) -> Tensor:
        """Return the loss of a batch: logits (B, C), labels (B, C) in {−1, 0, +1}, NaN also means unknown -> scalar.

        `index` (B,) holds the rows of the images in `table`, for methods that remember something per image. `epoch`
        counts from 1; methods whose loss changes over the epochs, such as splc, csl, gr and ll-ct, require it.
        The values of labels and index are checked in the first batch only, because that waits for a GPU.
        """
        if logits.ndim != 2 or labels.shape != logits.shape:
            raise UserError(
                f"logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)} do not fit",
                "use (B, C), images × classes, for both",
            )
        if index is not None and index.shape != logits.shape[:1]:
            raise UserError(
                f"index has the shape {tuple(index.shape)} for {len(logits)} images",
                "give one row of `table` per image",
            )
        if epoch is None and self._changes_over_epochs:
            raise UserError(f"the loss of {self.name} changes over the epochs", "pass epoch=, counted from 1")
        known = torch.nan_to_num(labels, nan=0.0) if labels.is_floating_point() else labels
        if not self._is_checked:
            self._check_values(known, index)
        known = known.to(logits.device, torch.int8)
        if index is None:
            batch: Batch = _BatchWithoutIndex(self.name, logits, known)
        else:
            batch = Batch(index.to(logits.device, torch.int64), (logits,), known)
        model: Any = _LogitsAsModel(self.name, logits)
        value = self.method.step(model, batch, 1 if epoch is None else epoch)
        self._is_checked = True
        return value

    def _check_values(self, labels: Tensor, index: Tensor | None) -> None:
        wrong = labels[(labels != 0) & (labels != 1) & (labels != -1)]
        if len(wrong):
            raise UserError(f"{wrong[0].item()!r} is not a label", "use +1 present, -1 absent, 0 or NaN unknown")
        if index is not None and self.images is not None and not bool(((index >= 0) & (index < self.images)).all()):
            raise UserError(f"index must be in 0 … {self.images - 1}", "give the rows of the images in `table`")

    def extra_repr(self) -> str:
        return self.name


class _Missing:
    """Stands in for what a loss does not have: any use of it raises a UserError."""

    def __init__(self, error: UserError) -> None:
        self._error = error

    def __getattr__(self, attribute: str) -> NoReturn:
        raise self._error


class _LogitsAsModel(_Missing):
    """Stands in for the model in `Method.step`: its input and its output are the logits."""

    def __init__(self, name: str, logits: Tensor) -> None:
        super().__init__(_impossible(name, "uses the weights of the model"))
        self._name = name
        self._logits = logits

    def __call__(self, view: Tensor) -> Output:
        if view is not self._logits:
            raise _impossible(self._name, "scores altered images")
        features: Any = _Missing(_impossible(self._name, "uses the features of the images"))
        return Output(view, features)


class _BatchWithoutIndex(Batch):
    """A batch whose image numbers are unknown: a method that reads them raises a UserError."""

    __slots__ = ("_name",)
    _name: str

    def __init__(self, name: str, logits: Tensor, labels: Tensor) -> None:
        for attribute, value in (("_name", name), ("views", (logits,)), ("labels", labels), ("soft", None)):
            object.__setattr__(self, attribute, value)

    @property
    def index(self) -> Tensor:
        raise UserError(
            f"{self._name} remembers something about every image", "pass index=, the rows of the images in `table`"
        )


def _check_possible(name: str, method: Method) -> None:
    """Raise if the method needs more than the logits of one view of a batch."""
    relabel = method.relabel
    reasons = {
        "has a head of its own": method.make_head is not Linear,
        f"compares {len(method.views)} views of each image": len(method.views) != 1,
        "relabels by the scores of all training images": (
            type(relabel).wants_sweep is not Relabeler.wants_sweep
            or type(relabel).wants_sweep_first is not Relabeler.wants_sweep_first
            or relabel.passes > 0
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise _impossible(name, reason)


def _impossible(name: str, reason: str) -> UserError:
    return UserError(f"{name} has no loss of logits alone: it {reason}", _INSTEAD)


def _has_schedule(method: Method) -> bool:
    """Whether the loss depends on the number of epochs."""
    return type(method).plan is not Method.plan or type(method.relabel).plan is not Relabeler.plan


def _requires_table(method: Method) -> bool:
    """Whether any part of the method needs the table of training labels."""
    own_start = type(method).start is not Method.start
    relabels = not isinstance(method.relabel, FewAbsent) and type(method.relabel).start is not Relabeler.start
    return own_start or relabels or any(getattr(type(term), "start", None) is not Term.start for term in method.terms)
