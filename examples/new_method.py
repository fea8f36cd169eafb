"""A new training method in one file: a loss, a registered method, and the training loop on features.

In `src/halflabel/methods/` the file would be found automatically and become an option of the command line. Anywhere
else, name it: `HALFLABEL_PLUGINS=new_method.py halflabel train labels.csv photos/ --method bounded-an`
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from halflabel import Config, Loss, Method, Table, fit, metrics
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import score_source
from halflabel.images.sources import Features
from halflabel.labels import drop
from halflabel.methods.base import method, recipe
from halflabel.methods.parts.relabel import AssumeNegative


class Bounded(Loss):
    """ℓ⁺ = −log p, ℓ⁻ = (1 − (1 − p)^q) / q: at most 1/q, so that a wrong negative has a limited effect."""

    def __init__(self, q: float) -> None:
        super().__init__()
        self.q = q

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(-logits), (1 - torch.exp(-self.q * softplus(logits))) / self.q


@method(serves=("positives-only", "single-positive"), paper="an example; ℓ⁻ of Zhang & Sabuncu 2018")
def bounded_an(q: float = 0.7) -> Method:
    """Treat unknown labels as absent, with a bounded loss."""
    return Method(Bounded(q), AssumeNegative())


def main(images: int = 400, epochs: int = 10) -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(2 * images, 20, generator=random)
    noise = 0.5 * torch.randn(2 * images, 5, generator=random)
    labels = torch.where(features[:, :5] + noise > 0.3, 1, -1).to(torch.int8)
    known = drop.single_positive(Table.from_dense(labels[:images].numpy()))
    train, test = Features(features[:images], known.images), Features(features[images:], known.images)
    print(f"{known}: {known.stats.regime}; test mAP, mean probability of what is present and of what is absent:")

    for name, options in (("an", {}), ("bounded-an", {}), ("bounded-an", {"q": 1.0})):
        torch.manual_seed(0)
        model = Model(None, Linear(20, 5))
        fit(model, recipe(name).make(**options), train, known, Config(epochs=epochs, lr=0.05, device="cpu"))
        logits, truth = score_source(model, test).logits, labels[images:]
        present, absent = (float(torch.sigmoid(logits)[truth == value].mean()) for value in (1, -1))
        print(f"  {name} {options}: {metrics.mean_average_precision(logits, truth):.3f}, {present:.2f}, {absent:.2f}")


if __name__ == "__main__":
    main()
