"""Separates what an image shows from what people report (Misra 2016)."""

from __future__ import annotations

from functools import partial

from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.noise_head import LatentNoiseHead
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.system.validate import at_least, one_of


@method(
    serves=REGIMES,
    paper="Misra, Zitnick, Mitchell, Girshick 2016: Seeing through the Human Reporting Bias",
    lr=1e-3,
    tune={"score": ("visual", "relevance")},
)
def latent_noise(score: str = "visual", unknown: str = "auto", first: float = 3.0, noise_rate: float = 0.01) -> Method:
    """Learns what an image shows and, separately, whether people report it; labels depend on both.

    Use it for labels that people chose to mention: tags, keywords, captions. If each label was asked for and answered,
    there is little reporting bias, and it is close to `logistic`.

        v = σ(W f + b)                                       the visual classifier: what is present
        r₁ = σ(ρ W₁ f + b₁),   r₀ = σ(ρ W₀ f + b₀)           probability of a report if present, if absent
        h = r₁ v + r₀ (1 − v);   L = 1/(B·C) Σ BCE(h, y)     the relevance: what is reported

    score: what is predicted and evaluated: visual (v) or relevance (h). Training is the same.
    unknown: ignore leaves unknown entries out, negative takes them as not reported; auto means negative if no label at
    all is known to be absent. Images without any known label are left out.
    first: b₁ and −b₀ at the start (3: 95 % of present labels are reported, and 5 % of absent ones).
    noise_rate (ρ): how much slower than v the noise learns from the image. With 1 the noise learns what v should learn,
    and v is useless: its mAP fell from 75.3 to 60.4 in the run below.

    Figures of Huynh 2020 (Open Images, end to end, mAP): visual 75.86, relevance 75.59, `logistic` 75.85. Do not take
    unknown as not reported if most labels were never asked for.

    The slow noise, `noise_rate`, is our addition; Huynh 2020 starts from a trained classifier instead.
    """
    one_of(("visual", "relevance"), score=score)
    at_least(0, first=first, noise_rate=noise_rate)
    return Method(BCE(), UnknownAs(unknown), head=partial(LatentNoiseHead, score=score, first=first, rate=noise_rate))
