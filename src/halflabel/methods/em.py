"""Entropy maximisation and asymmetric pseudo-labels: unknown labels are treated as unknown (Zhou 2022)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, AfterEpoch, Duration, Method, NonNegative, Positive, Share, method
from halflabel.methods.parts.label_store import EntryStore, label_blocks, lowest_per_class
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Begins, FewAbsent, Relabeler, begin_early, check_size
from halflabel.methods.parts.terms import Entropy
from halflabel.system.rng import hash_names
from halflabel.types import Batch, Sweep, Targets

_TUNE = {"alpha": (0.05, 0.1, 0.2, 0.5)}


@method(lr=3e-4, serves=REGIMES, paper="Zhou 2022 (Acknowledging the Unknown), EM loss", tune=_TUNE)
def em(alpha: NonNegative = 0.2, few_absent: NonNegative = 0.1) -> Method:
    """Cross-entropy on known labels; the entropy of unknown entries is maximised instead of calling them absent.

    Use it for single positives and other positives-only labels: missing positives are not punished, and present classes
    still score above the rest. Scores are not probabilities until `halflabel train` calibrates them: the paper uses a
    threshold of 0.75. With all labels known it equals `bce`.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p)),  H(p) = −p log p − (1 − p) log(1 − p)

    The loss can be negative. Options: alpha (α); the released code uses 0.2 for VOC, 0.1 for COCO and NUS-WIDE, 0.01
    for CUB. few_absent: the weight of known negatives where known positives outnumber them; 0 treats them as unknown.
    At full weight the few labels that somebody was asked about would outweigh the entropy term.

    Differs from the released code: known negatives, which it refuses, count as such; and it adds 1e-5 inside every log.
    """
    return Method(BCE(), FewAbsent(few_absent), terms=[Entropy(-alpha)])


@method(lr=3e-4, serves=REGIMES, paper="Zhou 2022 (Acknowledging the Unknown), EM loss + APL", tune=_TUNE)
def em_apl(
    alpha: NonNegative = 0.2,
    beta: Positive = 0.02,
    theta: Share = 0.9,
    apl_from: AfterEpoch = 0,
    apl_to: Duration = 0,
    few_absent: NonNegative = 0.1,
) -> Method:
    """`em`, and after a warm-up the lowest-scored unknown entries of each class become soft negative labels.

    Use it for single positives and other positives-only labels when there is time for a pass over the training set per
    epoch. Only the negative side gets pseudo-labels (the asymmetry): most unknown entries are absent, so the lowest
    scores are almost surely right.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p) + β Σ_pseudo [−s log p − (1 − s) log(1 − p)])
        after each epoch e with W ≤ e < E: the ⌊θ U_c / (E − W)⌋ lowest-scored entries of class c that are still unknown
        become permanent pseudo-labels with s = p as scored then; U_c = entries of class c unknown at the start

    Options: alpha (α), beta (β), theta (θ, the share of unknown entries labelled at the end, up to rounding down),
    apl_from (W, warm-up; 0 = 5, or 1 in a training of at most 5 epochs) and apl_to (E; 0 = the end, as in the released
    code); L-BFGS has 4 rounds, which count as epochs. α, β, W of the released code: VOC 0.2, 0.02, 5; COCO 0.1, 0.9, 5;
    NUS-WIDE 0.1, 0.2, 4; CUB 0.01, 0.4, 3; E = 10. few_absent: as in `em`.

    Differs from the released code: known negatives stay known negatives (it would read one as a soft label of 1); the
    training images are scored without augmentation (there half of them are mirrored at random); and it adds 1e-5 inside
    every log.
    """
    if apl_to and apl_to <= max(apl_from, 1):
        raise UserError(f"apl_from {apl_from} and apl_to {apl_to} do not fit", "use apl_from < apl_to, or apl_to = 0")
    return Method(BCE(), APL(beta, theta, apl_from, apl_to, few_absent), terms=[Entropy(-alpha)])


class APL(Relabeler):
    """Known labels as in `FewAbsent`, pseudo-labelled → (β s, β (1 − s)), still unknown → (0, 0).

    Equal scores are ordered by the hashes of the image names, so the order of the table does not matter.
    """

    words = "asymmetric pseudo-labels"
    labels: EntryStore  # (N, C) float32: the soft label s, NaN for unknown, −1 for known
    quota: Tensor  # (C,) int64: pseudo-labels per sweep
    rank: Tensor  # (N,) int32: position of each image in the order of the name hashes
    wants_features = False

    def __init__(self, beta: float, theta: float, first: int, end: int, few_absent: float = 0.1) -> None:
        super().__init__()
        self.beta = beta
        self.theta = theta
        self.first_option, self.end_option = first, end
        self.plan(10)
        self.unknown = 0  # unknown entries at the start
        self.known = FewAbsent(few_absent)
        self.labels = EntryStore()
        self.register_buffer("quota", None, persistent=False)
        self.register_buffer("rank", None, persistent=False)

    def plan(self, epochs: int) -> None:
        self.first = self.first_option or begin_early(5, epochs)
        self.end = self.end_option or epochs

    def begins(self) -> Begins | None:
        return Begins("learning from pseudo-labels", self.first + 1, "apl_from")

    def start(self, table: Table) -> None:
        check_size(table, 0, "em-apl", sweeps=1, stored=4)
        self.known.start(table)
        self.labels.start(table, "em-apl", torch.float32)
        for rows, known in label_blocks(table):
            self.labels.values[rows] = torch.where(known != 0, -1.0, torch.nan)
        unknown = table.stats.unknown
        self.unknown = int(unknown.sum())
        # 1e-9: 0.29 · 100 is 28.999… in floating point, and 29 is meant.
        quota = np.floor(self.theta * unknown / max(self.end - self.first, 1) + 1e-9)
        self.quota = torch.from_numpy(quota.astype(np.int64))
        order = np.argsort(hash_names(table.images.array), kind="stable")
        self.rank = torch.from_numpy(np.argsort(order).astype(np.int32))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        pos, neg = self.known(batch, logits, epoch)
        soft = self.labels.rows(batch.index).to(pos.dtype)
        is_pseudo = soft >= 0
        pos = pos + torch.where(is_pseudo, self.beta * soft, 0)
        neg = neg + torch.where(is_pseudo, self.beta * (1 - soft), 0)
        return Targets(pos, neg)

    def wants_sweep(self, epoch: int) -> bool:
        return self.unknown > 0 and self.first <= epoch < self.end

    @torch.no_grad()
    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        labels = self.labels.values

        def is_unknown(rows: slice, classes: slice) -> Tensor:
            return labels[rows, classes].isnan()

        for rows, classes, chosen in lowest_per_class(sweep.logits, is_unknown, self.quota, self.rank):
            part = labels[rows, classes]
            part.copy_(torch.where(chosen.to(part.device), sweep.logits[rows, classes].to(part.device).sigmoid(), part))
        labelled = self.unknown - self.labels.count(torch.isnan)
        return {"pseudo_labels": float(labelled), "pseudo_share": labelled / max(self.unknown, 1)}
