"""Binary cross-entropy on known labels, in the three normalisations of the literature."""

from halflabel.methods.base import Method, Share, method
from halflabel.methods.parts.losses import BCE, over_entries, over_images, over_known


@method(serves=("full", "partial"), paper="common baseline; the oracle when all labels are known")
def bce(smoothing: Share = 0.0) -> Method:
    """Binary cross-entropy on the known entries; unknown ones are ignored.

    The baseline for partly known ± labels and, with all labels known, the oracle that every other method is compared
    with. It refuses positives-only labels, from which it would learn to call everything present.

        L = 1/(B·C) Σ_known −log p (present) or −log(1 − p) (absent)

    The divisor counts unknown entries too, so with few known labels the gradients are small: tune the learning rate.
    Options: smoothing (ε): a label counts 1 − ε and its opposite ε, as in `an-ls`, which takes unknown as absent. It
    helps where classes are rare or labels wrong.
    """
    return Method(BCE(smoothing), reduce=over_entries)


@method(serves=("full", "partial"), paper="Wang 2023 (SR+CR), ablation row BN-BCE")
def bn_bce() -> Method:
    """Binary cross-entropy divided by the number of known entries of the batch.

    Use it in place of `bce` if few labels are known: the size of the gradient does not depend on their number. With
    all labels known it equals `bce`.

        L = Σ_known BCE / number of known entries in the batch
    """
    return Method(BCE(), reduce=over_known)


@method(serves=("full", "partial"), paper="Huynh 2020 (IMCL), baseline Logistic")
def logistic() -> Method:
    """One logistic regression per class on its known labels, summed over classes: the starting point of `imcl`.

    Equal to `bce` except for the scale: the sum over the known labels of an image is not divided by the number of
    classes, so it needs a smaller learning rate.

        L = 1/B Σ_i Σ_{known c} −log p (present) or −log(1 − p) (absent)
    """
    return Method(BCE(), reduce=over_images)
