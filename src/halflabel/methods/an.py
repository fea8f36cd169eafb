"""Assume negative: what nobody has labelled is taken to be absent."""

from halflabel.losses import BCE
from halflabel.method import REGIMES, Method, method
from halflabel.relabel import AssumeNegative


@method(serves=REGIMES, paper="common baseline; Zhou 2022 (EM+APL), row AN")
def an() -> Method:
    """Binary cross-entropy with every unknown entry taken as absent.

    The baseline for positives-only labels: it learns from missing positives as if they were negatives, so scores are
    too low. Report it beside every other method, with the oracle.

        L = 1/(B·C) (Σ_present −log p + Σ_{absent or unknown} −log(1 − p))
    """
    return Method(BCE(), AssumeNegative())
