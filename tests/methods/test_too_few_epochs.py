"""A method warns if its own part never starts in the given number of epochs, and states the fix."""

from __future__ import annotations

import re

import pytest

from halflabel.fitting.config import Config
from halflabel.methods.base import recipe, recipes

CASES = [
    ("ss-rml", {"start": 5}, 5, "propagation never starts in 5 epochs: .* ‹epochs=6› or more, or a smaller ‹start›"),
    ("ss-rml", {"start": 0}, 0, ""),
    (
        "csl",
        {},
        2,
        "learning from unknown entries never starts in 2 epochs: .* ‹epochs=3› or more, or a smaller ‹prior_epochs›",
    ),
    ("curriculum", {}, 1, "labelling unknown entries never starts in 1 epoch: .* use ‹epochs=2› or more"),
    ("curriculum", {"relabel_at": "10,15"}, 9, "use ‹epochs=10› or more, or a smaller ‹relabel_at›"),
    ("plcl", {}, 1, "‹epochs=2› or more"),
    (
        "em-apl",
        {"apl_from": 5},
        5,
        "pseudo-labels never .* ‹epochs=6› or more, or a smaller ‹apl_from›",
    ),
    ("em-apl", {"apl_from": 1}, 1, "use ‹epochs=2› or more"),
    ("srcr", {"cr_from": 4}, 3, "use ‹epochs=4› or more, or a smaller ‹cr_from›"),
    ("splc", {}, 1, "correcting labels never starts in 1 epoch: .* use ‹epochs=2› or more, or a smaller ‹start_epoch›"),
    *((name, {}, 5, "guessing .* ‹epochs=6› or more, or a smaller ‹warm›") for name in ("sst", "hst")),
    *(
        (name, {"warm": 1}, 1, "blending never starts .* ‹epochs=2› or more, or a smaller ‹warm›")
        for name in ("sarb", "sarb*")
    ),
    ("sst", {"warm": 0}, 0, ""),
    ("ll-r", {}, 1, "leaving large losses out never starts in 1 epoch: .* use ‹epochs=2› or more"),
    ("ll-ct", {}, 1, "correcting large losses never starts in 1 epoch: .* use ‹epochs=2› or more"),
    ("ll-cp", {}, 1, "correcting large losses never starts in 1 epoch: .* use ‹epochs=2› or more"),
    ("ll-r", {"delta": 0.0}, 0, ""),
    ("boostlu", {}, 1, "leaving large losses out never starts in 1 epoch: .* use ‹epochs=2› or more"),
    ("boostlu", {"scheme": "an"}, 0, ""),
    ("ss-rml", {}, 1, "label propagation never starts"),
    ("em-apl", {}, 1, "learning from pseudo-labels never starts"),
    ("imcl", {"image_similarity": "fixed"}, 1, "smoothness never starts in 1 epoch: .* use ‹epochs=2› or more"),
]


@pytest.mark.parametrize(("name", "options", "limit", "message"), CASES)
def test_too_few_epochs_are_a_problem(name: str, options: dict[str, object], limit: int, message: str) -> None:
    for epochs in (*range(1, limit + 1), limit + 1, limit + 2, 20):
        method = recipe(name).make(**options)
        method.plan(epochs)
        begins = method.begins()
        problem = begins.problem(epochs) if begins is not None else ""
        assert bool(problem) == (epochs <= limit)
        if epochs == limit:
            assert begins is not None
            assert re.search(message, f"{problem}; {begins.fix()}")


def test_defaults_start_within_the_default_number_of_epochs() -> None:
    for method_recipe in recipes().values():
        method = method_recipe.make()
        method.plan(Config.epochs)
        begins = method.begins()
        assert begins is None or not begins.problem(Config.epochs)
