"""CSL against the slow loop, the published numbers, and half precision, order and state."""

from __future__ import annotations

import pytest
import step_checks as checks
import torch

from halflabel.methods.base import recipe

slow = checks.reference("csl")


def make(**options):
    return recipe("csl").make(**options)


@pytest.mark.parametrize("shape", checks.SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_is_the_slow_loop(shape, ties):
    logits, labels = checks.inputs(0, *shape, ties=ties)
    for options in ({"topk": 1}, {"topk": 2, "margin": 0.1, "gamma_pos": 1.0, "gamma_neg": 2.0, "gamma_unknown": 3.0}):
        for threshold in (0.45, 1.0):
            method = checks.begin(make(prior_threshold=threshold, prior_epochs=1, **options), labels)
            # The last epoch without unknowns leaves the mean score of each class behind.
            prior = torch.sigmoid(logits).mean(dim=0).float()
            for epoch, mode in ((1, "ignore"), (2, "selective")):
                loss = checks.step(method, logits, labels, epoch)
                expected = checks.slow(
                    lambda x, m=mode, t=threshold, p=prior, o=options: slow.csl(
                        x, labels, p.tolist(), m, prior_threshold=t, **o
                    ),
                    logits,
                )
                checks.same(loss, expected)
            torch.testing.assert_close(method.relabel.prior, prior)


@pytest.mark.parametrize("case", checks.golden("csl"), ids=lambda case: case["name"])
def test_equals_the_published_values(case):
    options = case["options"]
    mode = options["partial_loss_mode"]
    method = make(
        topk=options["likelihood_topk"] if mode == "selective" else 0,
        prior_threshold=options["prior_threshold"],
        prior_epochs=1,
        gamma_pos=options["gamma_pos"],
        gamma_neg=options["gamma_neg"],
        gamma_unknown=options["gamma_unann"],
        margin=options["clip"],
    )
    checks.begin(method, case["labels"])
    if "prior" in case:
        method.relabel.prior.copy_(torch.tensor(case["prior"]))
    epoch = 1 if mode == "ignore" else 2
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    loss, grad = checks.step(method, logits, case["labels"], epoch)
    images = len(case["labels"])
    checks.same((loss * images, grad * images), (case["loss"], case["grad"]), 1e-10)
    unknown = torch.tensor(case["labels"]) == 0
    if mode == "selective":
        targets = method.relabel(checks.batch(logits, case["labels"]), logits, epoch)
        kept = (torch.tensor(case["kept"]) > 0) & (torch.sigmoid(logits) > options["clip"])
        assert torch.equal(targets.neg[unknown] > 0, kept[unknown])
