"""Each option of each method counts in each way of training: another value changes the weights, or is refused."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.fitting.solver import LinearSolver
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import Recipe, recipe, recipes, seeded

IMAGES, CHANNELS, CLASSES = 64, 8, 6
SETTINGS = Config(epochs=4, batch_size=16, lr=0.05, device="cpu")


def _labels() -> tuple[np.ndarray, np.ndarray]:
    """All labels, and a part of them, some images having none."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((IMAGES, CLASSES)) < 0.35, 1, -1)
    known = truth * (rng.random(truth.shape) < 0.5)
    known[::4] = 0
    return truth, known


TRUTH, KNOWN = _labels()
ONE = np.where((TRUTH > 0) & (np.cumsum(TRUTH > 0, 1) == 1), 1, 0)
FEW_ABSENT = np.where((KNOWN > 0) | ((KNOWN < 0) & (np.arange(CLASSES) == 0)), KNOWN, 0)
TABLES = {"softmax": np.where(ONE > 0, 1, -1), "em": FEW_ABSENT, "em-apl": FEW_ABSENT}

# What must hold besides, so that an option can count with so few images, classes and epochs.
NARROW = {"warm": 1, "width": 16, "rank": 16}
CONTEXT: dict[str, dict[str, Any]] = {name: {**NARROW, "every": 2} for name in ("sarb", "sarb*", "hst")}
CONTEXT |= {
    "sst": NARROW,
    "ssgrl": NARROW,
    "taught": {"teacher": "TEACHER"},
    "csl": {"topk": 0, "prior_threshold": 0.6},
}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("plcl", "block"): {"strategy": "b"},
    ("plcl", "ensemble"): {"strategy": "d"},
    ("fast0tag", "dropout"): {"hidden": "16"},
    ("imcl", "side_weight"): {"side": "GROUPS"},
    ("hst", "theta_fall"): {"thresholds": "falling"},
    ("hst", "theta_floor"): {"thresholds": "falling", "theta_fall": 0.1},
    ("sst", "theta_floor"): {"theta_fall": 0.1},
    ("csl", "topk"): {"prior_threshold": 0.9},
    ("curriculum", "relabel_at"): {"theta": 1.0},
    ("plcl", "relabel_at"): {"strategy": "a", "theta": 0.1},
}
OTHER: dict[str, Any] = {
    "vectors": "VECTORS",
    "graph": "GRAPH",
    "hidden": "16",
    "relabel_at": "4",
    "teacher": "TEACHER",
}
OTHER |= {"side": "GROUPS", "every": 1, "delta": 5.0, "length": 1}
# With 40 classes or fewer the nodes of plcl's graph have one number per class.
NOT_HERE = {("plcl", "node_size"), ("taught", "teacher"), ("hst", "every")}


def features() -> Tensor:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(IMAGES, CHANNELS)) + 0.8 * TRUTH @ rng.normal(size=(CLASSES, CHANNELS))
    return torch.from_numpy(values).float()


VECTORS = features()
MAPS = VECTORS[:, :, None, None] + torch.randn(IMAGES, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that options can name."""
    folder: Path = tmp_path_factory.mktemp("options")
    names = list(map(str, range(CLASSES)))
    texts = {
        "VECTORS": "".join(f"{name} {number} 1 {number * number}\n" for number, name in enumerate(names)),
        "GRAPH": "".join(f"{a},{b},0.5\n" for a, b in itertools.pairwise(names)),
        "GROUPS": "image,group\n" + "".join(f"{number},{TRUTH[number, :2]}\n" for number in range(IMAGES)),
        "TEACHER": "image,class,probability\n"
        + "".join(f"{i},{c},{0.9 if TRUTH[i, c] > 0 else 0.1}\n" for i in range(IMAGES) for c in range(CLASSES)),
    }
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    return {name: str(folder / f"{name}.csv") for name in texts}


def table_of(method: Recipe) -> Table:
    return Table.from_dense(TABLES.get(method.name, KNOWN if "partial" in method.serves else ONE))


def train(method: Recipe, way: str, options: dict[str, Any], files: dict[str, str]) -> list[Tensor]:
    """Weights, state and scores after a short training."""
    options = {name: files.get(value, value) if isinstance(value, str) else value for name, value in options.items()}
    made, table = seeded(0, lambda: method.make(**options)), table_of(method)
    if made.relabel.needs_group:
        made.relabel.group = files["GROUPS"]
    torch.manual_seed(0)
    method.check_way(options, way)
    if way == "linear":
        solver = LinearSolver(made, VECTORS, table)
        solver.fit(1e-3)
        return [solver.weight, solver.bias]
    head = seeded(0, lambda: made.head(CHANNELS, CLASSES))
    values = MAPS if head.needs_maps else VECTORS
    strong = [values + 0.3 * torch.randn(values.shape, generator=torch.Generator().manual_seed(2))]
    model = Model(None, head)
    fit(model, made, Features(values, table.images, strong=strong), table, SETTINGS)
    with torch.no_grad():
        scores = model.eval()(values).logits
    return [*(each.detach().clone() for each in (*head.state_dict().values(), *made.state_dict().values())), scores]


def other_values(method: Recipe, name: str) -> list[Any]:
    default = method.options[name].default
    if isinstance(OTHER.get(name), type(default)):
        return [OTHER[name]]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, 2, 1, 3]
    if isinstance(default, float):
        return [0.5 * default or 0.3, default + 0.2, 0.7]
    try:
        method.make(**{name: "?"})
    except UserError as error:  # it lists the values
        return [word.strip() for word in error.fix.rpartition(":")[2].replace(" or ", ",").split(",")]
    return []


def changes(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) != len(after) or any(
        one.shape != two.shape or not torch.equal(one.nan_to_num(), two.nan_to_num())
        for one, two in zip(before, after, strict=True)
    )


def ways() -> list[tuple[str, str]]:
    solved = [(each.name, "linear") for each in recipes().values() if each.make().is_linear_loss]
    return [*solved, *((each.name, "batches") for each in recipes().values())]


@pytest.mark.parametrize(("name", "way"), ways())
def test_every_option_counts_or_is_refused(name: str, way: str, files: dict[str, str]) -> None:
    method, base, idle = recipe(name), {}, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for option in method.options:
            if (name, option) in NOT_HERE:
                continue
            beside = {**CONTEXT.get(name, {}), **BESIDE.get((name, option), {})}
            beside = {key: value for key, value in beside.items() if key in method.options and key != option}
            key = str(beside)
            if key not in base:
                base[key] = train(method, way, beside, files)
            for value in other_values(method, option):
                try:
                    if changes(base[key], train(method, way, {**beside, option: value}, files)):
                        break
                except UserError:
                    break
            else:
                idle.append(option)
    assert not idle


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plcl", {"strategy": "d", "passes": 9}),
        ("plcl", {"strategy": "e", "ensemble": 9}),
        ("plcl", {"gnn": False, "steps": 2}),
        ("plcl", {"pooling": "mean", "k_plus": 0.5}),
        ("partial-bce", {"alpha": 1.0, "g_value": 3.0}),
        ("srcr", {"saliency": "none", "alpha": 9.0}),
        ("srcr", {"saliency": "none", "k": 1}),
        ("srcr", {"consistency": "none", "tau": 0.9}),
        ("imcl", {"logistic_share": 1.0, "label_similarity": "fixed"}),
        ("imcl", {"label_similarity": "fixed", "graph_rate": 2.0}),
        ("hst", {"theta_fall": 0.1}),
    ],
)
def test_an_option_that_another_one_makes_idle_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="does nothing with"):
        recipe(name).make(**options)
