"""The protocol that hides labels from training in an experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.table import Table

GROWING = ("partial", "dense")  # protocols that keep a share of the labels: of every image, or of some images


@dataclass(frozen=True)
class LabelMask:
    """Hides labels from training: a protocol of `halflabel.labels.drop` and its options; "" hides nothing."""

    protocol: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def share(cls, share: float) -> LabelMask:
        """Keep a share of the labels of every image; 1 keeps all."""
        if not 0 < share <= 1:
            raise UserError(f"the share {share:g} is not in (0, 1]", "give shares such as 0.1,0.3,1")
        return cls("partial", (("share", float(share)),)) if share < 1 else cls()

    @classmethod
    def parse(cls, text: str) -> LabelMask:
        """
        >>> LabelMask.parse("per-class:positives=20:negatives=30").options
        (('negatives', 30), ('positives', 20))
        """
        name, options = drop.parse_protocol(text)
        return cls(name, tuple(sorted(options.items())))

    @property
    def name(self) -> str:
        """
        >>> LabelMask().name, LabelMask.share(0.1).name, LabelMask.parse("positives:number=2").name
        ('all', '10 %', 'positives:number=2')
        """
        if not self.protocol:
            return "all"
        if self.protocol == "partial" and len(self.options) == 1:
            return f"{100 * dict(self.options)['share']:g} %"
        return ":".join([self.protocol, *(f"{name}={value}" for name, value in self.options)])

    def clean(self, table: Table) -> float:
        """Return the share of the labels that stay known and correct; NaN for protocols without such a share."""
        options = dict(self.options)
        if self.protocol == "noisy+":
            return float(np.mean(self.apply(table, 0).value == table.value))
        if self.protocol == "noisy":
            return float(round(1 - options["share"], 9))
        return 1.0 if not self.protocol else float(options["share"]) if self.protocol in GROWING else math.nan

    def apply(self, table: Table, seed: int) -> Table:
        return drop.apply(self.protocol, table, seed=seed, **dict(self.options)) if self.protocol else table
