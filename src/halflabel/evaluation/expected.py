"""What probabilities expect where labels cannot measure: precision, recall and F1, with intervals."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from halflabel.evaluation.calibration import Calibration, fit_correction
from halflabel.evaluation.intervals import rate_limits

_LEAST_SLOPE = 0.05  # probabilities keep the order of the logits
_DRAWS = 40  # of slope and offset, for intervals


def plausible_change(calibration: Calibration, logits: Tensor, asked: csr_array, readable: Tensor) -> Calibration:
    """Return no change of calibrated log odds, with the covariance that answers to random questions leave.

    logits (M, C) are those of the `readable` (N,) images; `asked` (N, C) holds inclusion weights, negative for no.
    """
    answers = asked[readable.numpy()]
    z = calibration.log_odds(logits[answers.nonzero()].double().numpy(), answers.nonzero()[1])
    change = fit_correction(z, answers.data > 0, np.abs(answers.data))
    return Calibration(known=len(z), covariance=change.covariance)


def expected_rates(
    scores: Tensor,
    labels: Tensor,
    thresholds: Tensor,
    group: NDArray[np.int64],
    corrected: tuple[Tensor, Calibration] | None = None,
) -> dict[str, float]:
    """Expected precision, recall and micro F1 of the decisions if scores (N, C) are probabilities, with 95 % intervals.

    Known labels count as certain. The intervals come from the spread over groups (N,) of images: they say nothing about
    the probabilities, unless these are `corrected`: log odds (N, C), and a change of them with its covariance.
    """
    called = (scores >= thresholds).double()

    def rates(p: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Numerator and denominator of each rate, per image."""
        p = torch.where(labels == 0, p.double(), (labels > 0).double())
        hits, number, present = (p * called).sum(1), called.sum(1), p.sum(1)
        return {"precision": (hits, number), "recall": (hits, present), "f1": (2 * hits, number + present)}

    values, plausible = {"called_present": float(called.sum(1).mean())}, []
    if corrected is not None:
        log_odds, change = corrected
        for slope, offset in change.draws(_DRAWS).tolist():
            plausible.append(rates(torch.sigmoid(max(slope, _LEAST_SLOPE) * log_odds + offset)))
    for name, (part, whole) in rates(scores).items():
        total = whole.sum()
        value = part.sum() / total
        low, high = rate_limits(float(value), (part - value * whole) / total, float(total), group)
        if plausible:
            drawn = [float(each[name][0].sum() / each[name][1].sum()) for each in plausible]
            low, high = min(low, float(np.quantile(drawn, 0.025))), max(high, float(np.quantile(drawn, 0.975)))
        names = (f"estimated_{name}", f"estimated_{name}_low", f"estimated_{name}_high")
        values |= dict(zip(names, (float(value), low, high), strict=True))
    return values
