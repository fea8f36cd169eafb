"""Images of one group, such as a burst, a patient or a recording, teach each other their unknown labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from halflabel.labels.groups import image_groups
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, Method, Share, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import check_size
from halflabel.methods.taught import Taught
from halflabel.system.validate import between
from halflabel.types import Sweep


@method(
    serves=REGIMES,
    paper="agreement within groups of images, weighted as a teacher of `taught`",
    lr=1e-3,
    tune={"trust": (0.1, 0.5)},
)
def group_consistency(trust: Share = 0.3, smoothing: float = 0.1) -> Method:
    """Unknown labels are learned from the other images of the group, as far as groups agree on the known labels.

    Use it with --group, where images of one group show mostly the same things: bursts, frames of a recording, views
    of a patient. The trust in a class is measured on the known labels: groups that do not agree have hardly any.

        t_ic = mean over the other images j of the group of: 1 or 0 where y_jc is known, else σ(x_jc)
        q, w_c, pos and neg from t as in `taught`; images without a group have w = 0

    t is recomputed after each epoch, or in each of the 4 rounds of L-BFGS. trust: the weight of groups that agree on
    all known labels, from 0 to 1; a known label has weight 1. smoothing: as in `taught`.

    It pays only where the images of a group really show the same things.
    """
    between(0, 0.5, smoothing=smoothing)
    return Method(BCE(), GroupAgreement(trust, smoothing))


class GroupAgreement(Taught):
    """Targets from known labels and the labels and scores of other images of the group. Memory: 5 bytes per entry."""

    is_static = False
    wants_features = False
    needs_group = True

    def __init__(self, trust: float, smoothing: float) -> None:
        super().__init__("", trust, smoothing)

    def start(self, table: Table) -> None:
        check_size(table, 5, "group-consistency", sweeps=1)
        self.table = table
        self.numbers = torch.from_numpy(
            group_numbers(image_groups(self.group, table.images, required=False), len(table))
        )
        self.set_scores(table.dense(), None)

    def wants_sweep(self, epoch: int) -> bool:
        return True

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        labels, device = self.table.dense(), self.trust.device
        known = torch.from_numpy(labels).to(sweep.logits.device)
        scores = torch.where(known == 0, torch.sigmoid(sweep.logits), (known > 0).to(sweep.logits.dtype))
        scores[torch.isnan(sweep.logits).any(1)] = torch.nan
        t = mean_of_others(scores, self.numbers.to(scores.device)).cpu().numpy()
        self.set_scores(labels, None if bool(np.isnan(t).all()) else t)
        self.to(device)
        return {"group_trust": float(self.trust.mean())}


def mean_of_others(scores: Tensor, group: Tensor) -> Tensor:
    """Return the mean of the other images of each image's group, NaN without any: (N, C), (N,) -> (N, C).

    Images whose scores are NaN are left out.
    """
    readable = ~torch.isnan(scores).any(1)
    values = scores.nan_to_num(0.0) * readable[:, None]
    size = int(group.max()) + 1 if len(group) else 0
    total = scores.new_zeros(size, scores.shape[1]).index_add_(0, group, values)
    count = torch.bincount(group[readable], minlength=size)[group] - readable.long()
    mean = (total[group] - values) / count.clamp(min=1)[:, None]
    return mean.clamp(0, 1).masked_fill((count == 0)[:, None], torch.nan)
