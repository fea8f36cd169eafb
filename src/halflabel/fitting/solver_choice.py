"""The solver implied by the given options. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halflabel.fitting.config import declared_options

# Options that only training in epochs of batches has: giving one of them is a choice of sgd.
_SGD_OPTIONS = (
    "epochs",
    "batch_size",
    "lr",
    "optimizer",
    "weight_decay",
    "schedule",
    "warmup",
    "ema",
    "clip",
    "accumulate",
    "patience",
    "save_every",
    "precision",
    "begin_from",
    "held_out",
    "mirror",
)


def choose_solver(options: Mapping[str, Any]) -> str:
    """Return the solver implied by the given options: auto becomes sgd if an option that only sgd has is given.

    With --tune all it stays auto: the head is fitted again by L-BFGS after the epochs.

    >>> choose_solver({"solver": "auto", "held_out": 0.2}), choose_solver({"solver": "auto", "held_out": None})
    ('sgd', 'auto')
    """
    declared = declared_options()
    given = (options.get(name) not in (None, declared[name].command_default) for name in _SGD_OPTIONS)
    # These have no default on the command line, so that even the default value is a choice.
    epochs_given = any(options.get(name) is not None for name in ("epochs", "lr", "held_out"))
    is_sgd = options["solver"] == "auto" and options.get("tune") != "all" and (epochs_given or any(given))
    return "sgd" if is_sgd else str(options["solver"])
