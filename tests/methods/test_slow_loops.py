"""Methods whose step needs logits alone: value and gradient are those of the slow loops and of the published code."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.methods.base import recipe

FILES = ("an", "asl", "em", "focal", "gr", "hill", "large_loss", "lsep", "plcl", "role", "softmax")
CASES = [case for file in FILES for case in checks.reference(file).CASES]


@pytest.mark.parametrize(("name", "options", "slow"), CASES, ids=[f"{name} {options}" for name, options, _ in CASES])
def test_value_and_gradient_are_those_of_the_slow_loop(name, options, slow):
    for seed, shape in enumerate(checks.SHAPES):
        for ties in (False, True):
            logits, labels = checks.inputs(seed, *shape, ties=ties)
            if options.get("unknown") == "ignore":
                labels[-1, -1] = -1  # one known absence at least
            method = checks.begin(recipe(name).make(**options), labels)
            for epoch in (1, 2, 3):
                x = logits.clone().requires_grad_()
                value = slow(x, labels.tolist(), epoch) + 0 * x.sum()
                (grad,) = torch.autograd.grad(value, x)
                checks.same(checks.step(method, logits, labels, epoch), (value.detach(), grad))


def plain(name):
    """The golden file states no option."""
    return lambda case: (recipe(name).make(), 1, 1)


def asl(**form):
    def adapt(case):
        how = case["options"]
        method = recipe("asl").make(gamma_neg=how["gamma_neg"], gamma_pos=how["gamma_pos"], margin=how["clip"], **form)
        return method, 1, 1

    return adapt


def focal(case):
    how = case["options"]
    entries = np.size(case["labels"]) if how["reduction"] == "sum" else 1
    return recipe("focal").make(gamma=how["gamma"], alpha=how["alpha"] or 0.0), 1, entries


def splc(case):
    how = dict(case["options"])
    epoch, start = how.pop("epoch") + 1, how.pop("change_epoch") + 1  # there epochs count from 0
    return recipe("splc").make(released=True, start_epoch=start, **how), epoch, len(case["labels"])


def large_loss(name):
    return lambda case: (recipe(name).make(delta=case["options"]["delta_percent"]), case["options"]["epoch"], 1)


# Golden file -> method, epoch, and the factor by which its loss is larger than ours.
GOLDEN = {
    "an": plain("an"),
    "an_ls": plain("an-ls"),
    "bce": plain("bce"),
    "iun": plain("bce"),
    "wan": plain("wan"),
    "asl": asl(reduction="sum"),
    "asl_partial": asl(unknown="ignore"),
    "focal": focal,
    "gr": lambda case: (recipe("gr").make(), case["options"]["epoch"], 1),
    "hill": lambda case: (recipe("hill").make(**case["options"]), 1, len(case["labels"])),
    "splc": splc,
    "ll_r": large_loss("ll-r"),
    "ll_ct": large_loss("ll-ct"),
    "ll_cp": large_loss("ll-cp"),
}


@pytest.mark.parametrize("file", GOLDEN)
def test_the_published_values(file):
    for case in checks.golden(file):
        labels = np.array(case["labels"])
        if file == "wan":  # its source has no known negatives: they are handed over as unknown
            labels = labels.clip(0)
        method, epoch, factor = GOLDEN[file](case)
        logits = torch.tensor(case["logits"], dtype=torch.float64)
        loss, grad = checks.step(checks.begin(method, labels), logits, labels, epoch)
        checks.same((factor * loss, factor * grad), (case["loss"], case["grad"]), 1e-10)


@pytest.mark.parametrize(("file", "form"), [("asl", {"reduction": "sum"}), ("asl_partial", {"unknown": "ignore"})])
def test_the_published_asymmetric_loss_with_detached_focus(file, form):
    for case in checks.golden(file):
        method, _, _ = asl(detach=True, **form)(case)
        labels, logits = np.array(case["labels"]), torch.tensor(case["logits"], dtype=torch.float64)
        loss, grad = checks.step(checks.begin(method, labels), logits, labels, 1)
        checks.same((loss, grad), (case["loss"], case["grad_focus_detached"]), 1e-10)


@pytest.mark.parametrize("name", ["n-ls", "wan", "entmin", "em", "an", "ll-r", "ll-ct", "ll-cp", "gr", "partial-bce"])
def test_with_all_labels_known_it_is_cross_entropy(name):
    logits, labels = checks.inputs(7, 6, 5)
    labels = np.where(labels > 0, 1, -1).astype(np.int8)
    method = checks.begin(recipe(name).make(), labels)
    checks.same(checks.step(method, logits, labels, 9), checks.step(recipe("bce").make(), logits, labels, 9), 1e-12)
