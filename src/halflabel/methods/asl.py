"""Asymmetric loss: easy negatives have little weight, very easy ones none, positives full weight."""

from __future__ import annotations

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, BelowOne, Method, NonNegative, method
from halflabel.methods.parts.losses import ASL, over_images, total
from halflabel.methods.parts.relabel import AssumeNegative, Ignore
from halflabel.system.validate import one_of


@method(
    serves=REGIMES,
    paper="Ridnik 2021 (ASL); Zhou 2022 (EM+APL), row ASL",
    lr=3e-4,
    tune={"gamma_neg": (1.0, 2.0, 4.0)},
    only_in={"reduction": ("batches", "network")},
)
def asl(
    gamma_neg: NonNegative = 4.0,
    gamma_pos: NonNegative = 0.0,
    margin: BelowOne = 0.05,
    unknown: str = "negative",
    detach: bool = False,
    reduction: str = "images",
) -> Method:
    """Cross-entropy with little weight for easy negatives, and none for those that score below a margin.

    Use it with many classes and few positives per image, all labels known or unknown taken as absent: rare positives
    are not outweighed. Scores are too high; use the ranking and choose thresholds on labelled images.

        L = 1/B Σ_i (Σ_present −(1 − p)^γ⁺ log p + Σ_{absent or unknown} −q^γ⁻ log(1 − q)),  q = max(p − m, 0)

    Options: gamma_neg, gamma_pos (γ⁻, γ⁺); margin (m, called clip in the released code); unknown=negative, or ignore to
    learn from known labels only, which must then include absent ones; detach=true keeps the focusing weights out of the
    gradient; reduction=images, or sum over the whole batch.

    Differs from the released code: it sums over the batch (reduction=sum), so its learning rate depends on the batch
    size; it floors the log at 1e-8, this computes from logits; its plain class detaches the focusing weights,
    its optimized one does not.
    """
    loss = ASL(gamma_neg, gamma_pos, margin, detach)
    reductions = {"images": over_images, "sum": total}
    relabelers = {"negative": AssumeNegative, "ignore": KnownOnly}
    one_of(reductions, reduction=reduction)
    one_of(relabelers, unknown=unknown)
    return Method(loss, relabelers[unknown](), reduce=reductions[reduction])


class KnownOnly(Ignore):
    """Unknown → (0, 0); refuses labels without any known absence, with which everything would be called present."""

    def start(self, table: Table) -> None:
        if not (table.value < 0).any():
            raise UserError("unknown=ignore cannot learn if no label is known to be absent", "use unknown=negative")
