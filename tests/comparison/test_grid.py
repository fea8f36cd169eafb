"""Candidates, label masks, and the order of tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest

from halflabel.comparison.grid import Candidate, Grid, Outcome, Task, parse_budget
from halflabel.comparison.label_mask import LabelMask
from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.methods.base import recipe

ALL, TENTH = LabelMask(), LabelMask.share(0.1)


def grid(*names: str, seeds: int = 3, search: str = "small", label_masks: tuple[LabelMask, ...] = (ALL,)) -> Grid:
    return Grid(tuple(map(Candidate.parse, names)), label_masks, seeds, search)  # type: ignore[arg-type]


def walk(grid: Grid, quality: Callable[[Task], float] = lambda task: 0.5) -> tuple[list[Task], Mapping[Task, Outcome]]:
    """All tasks in turn, each with a made-up result."""
    results: dict[Task, Outcome] = {}
    order = []
    for task in grid.tasks(results):
        assert task not in results
        order.append(task)
        value = quality(task)
        results[task] = Outcome(select=value) if value >= 0 else Outcome(error="broken")
    return order, results


def test_every_method_has_one_seed_before_any_gets_a_second() -> None:
    tasks = grid("bce", "em", "asl", label_masks=(TENTH, ALL))
    order, outcomes = walk(tasks)
    assert len(order) == tasks.total == len({task.key for task in order})
    pairs = {task.pair for task in order}
    assert len(pairs) == 6
    for seed in (1, 2):
        first = next(number for number, task in enumerate(order) if task.seed == seed)
        assert {task.pair for task in order[:first] if task.seed == seed - 1} == pairs
        assert all(task.seed >= seed for task in order[first:])
    # The first round is every method with its defaults.
    assert [(task.lr, task.options) for task in order[:6]] == [(task.candidate.lr, ()) for task in order[:6]]
    assert {task.pair for task in order[:6]} == pairs
    assert all(list(tasks.finished(*pair, outcomes)) == [0, 1, 2] for pair in tasks.pairs)


def test_without_search_there_is_one_run_per_cell() -> None:
    tasks = grid("bce", "em", seeds=2, search="none", label_masks=(TENTH, ALL))
    order, _ = walk(tasks)
    assert len(order) == tasks.total == 2 * 2 * 2
    assert {task.lr for task in order if task.candidate.method == "em"} == {recipe("em").lr}


def test_the_search_takes_the_best_rate_then_the_best_option_and_keeps_both() -> None:
    default_lr = recipe("em").lr

    def quality(task: Task) -> float:
        return (0.2 if math.isclose(task.lr, 3 * default_lr) else 0.1) + (
            0.3 if dict(task.options) == {"alpha": 0.05} else 0
        )

    tasks = grid("em")
    order, outcomes = walk(tasks, quality)
    tried = [(round(task.lr / default_lr, 3), dict(task.options).get("alpha")) for task in order if task.seed == 0]
    assert tried == [(1, None), (0.333, None), (3, None), (9, None), (3, 0.05), (3, 0.1), (3, 0.5)]
    (pair,) = tasks.pairs
    assert tasks.chosen(*pair, outcomes).options == (("alpha", 0.05),)
    assert tasks.tried(*pair, outcomes) == [task for task in order if task.seed == 0]
    assert {(task.lr, task.options) for task in order if task.seed > 0} == {(3 * default_lr, (("alpha", 0.05),))}


@pytest.mark.parametrize(("wanted", "is_inside"), [(1 / 30, True), (20, True), (1e-4, False), (1e4, False)])
def test_rates_are_tried_until_the_best_is_between_two_others(wanted: float, is_inside: bool) -> None:
    default_lr, tasks = recipe("bce").lr, grid("bce", "wan", seeds=1)
    order, outcomes = walk(tasks, lambda task: 2 - abs(math.log10(task.lr / default_lr / wanted)) / 10)
    (pair, _) = tasks.pairs
    rates = sorted(task.lr for task in order if task.candidate == pair[0])
    best = tasks.chosen(*pair, outcomes).lr
    assert (rates[0] < best < rates[-1]) == is_inside
    assert all(high == pytest.approx(3 * low) for low, high in itertools.pairwise(rates))
    assert not is_inside or best / default_lr == pytest.approx(wanted, rel=2)
    assert len(order) == 2 * len(rates)


def test_a_time_limit_ends_the_search_for_a_rate() -> None:
    outcomes: dict[Task, Outcome] = {}
    for number, task in enumerate(grid("bce", seeds=2).tasks(outcomes)):
        if number < 2:
            outcomes[task] = Outcome(select=1 / task.lr)
    assert number == 3  # without outcomes nothing further is offered


def test_among_equal_settings_the_defaults_are_chosen() -> None:
    tasks = grid("em", seeds=2)
    order, outcomes = walk(tasks)
    assert (order[-1].lr, order[-1].options) == (recipe("em").lr, ())
    assert tasks.finished(*tasks.pairs[0], outcomes)[1] == order[-1]


def test_failed_runs_and_nan_are_not_chosen() -> None:
    tasks = grid("bce", seeds=1)
    default_lr = recipe("bce").lr
    for poor in (-1.0, math.nan):
        _, outcomes = walk(tasks, lambda task, poor=poor: 0.0 if task.lr < default_lr else poor)  # type: ignore[misc]
        assert tasks.chosen(*tasks.pairs[0], outcomes).lr == pytest.approx(default_lr / 3)


def test_an_option_that_was_given_is_not_searched() -> None:
    order, _ = walk(grid("em:alpha=0.3", seeds=1))
    assert len(order) == 3
    assert {task.options for task in order} == {(("alpha", 0.3),)}


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("em", "alpha", (0.05, 0.1, 0.5)),
        ("plcl", "theta", (0.1, 0.5)),
        ("plcl:strategy=a", "theta", (1.0, 5.0)),
        ("plcl:strategy=b", "theta", (0.2, 0.5)),
        ("l1r", "strength", (1e-6, 1e-4)),
        ("l1r:of=scores", "strength", (0.01, 0.1, 1.0)),
        ("sst:theta=0.8", "theta_floor", (0.65,)),  # thresholds above θ it would refuse
        ("imcl:label_similarity=fixed", "lambda_y", (0.1, 0.3)),
    ],
)
def test_values_to_try_fit_the_options_given(text: str, name: str, values: tuple[float, ...]) -> None:
    assert Candidate.parse(text).trials() == (name, values)


def test_unfit_pairs_have_no_tasks() -> None:
    tasks = grid("bce", "em", search="none", seeds=1, label_masks=(TENTH, ALL))
    bce, _ = tasks.candidates
    fewer = Grid(tasks.candidates, tasks.label_masks, 1, "none", frozenset({(bce, TENTH)}))
    order, _ = walk(fewer)
    assert {task.pair for task in order} == {task.pair for task in walk(tasks)[0]} - {(bce, TENTH)}
    assert fewer.total == 3


def test_keys_are_safe_file_names_and_differ() -> None:
    label_mask = LabelMask.parse("per-class:positives=20:negatives=30")
    order, _ = walk(grid("em", "em:alpha=0.3", label_masks=(TENTH, label_mask)))
    assert all(set(task.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789.=+-_") for task in order)
    assert len({task.key for task in order}) == len(order)


def test_label_masks_equal_drop() -> None:
    table = Table.from_dense([[1, -1, 1, -1, 1], [1, 1, -1, -1, 1], [-1, 1, 1, 1, 0]])
    assert ALL.apply(table, 3) == table
    assert LabelMask.share(1.0) == ALL
    assert LabelMask.share(0.4).apply(table, 3) == drop.partial(table, 0.4, seed=3)
    assert LabelMask.parse("positives:number=2:keep-negatives=yes").apply(table, 1) == drop.positives(
        table, number=2, keep_negatives=True, seed=1
    )
    assert LabelMask.parse("single-positive").apply(table, 1) == drop.single_positive(table, seed=1)


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        (Candidate.parse, "bcee", "did you mean bce"),
        (Candidate.parse, "em:beta=1", "alpha"),
        (Candidate.parse, "em:alpha", "NAME:option=value"),
        (Candidate.parse, "em:alpha=much", "number"),
        (LabelMask.parse, "partiall:share=0.1", "single-positive"),
        (LabelMask.parse, "partial:number=3", "takes share, exact"),
        (LabelMask.parse, "partial", "share=0.1"),
        (LabelMask.parse, "per-class:positives=5", "negatives=20"),
        (LabelMask.parse, "partial:share=lots", "give a number"),
        (LabelMask.parse, "partial:seed=3", "takes share, exact"),
        (lambda text: LabelMask.share(float(text)), "0", "0.1,0.3,1"),
        (lambda text: LabelMask.share(float(text)), "1.5", "0.1,0.3,1"),
        (parse_budget, "30", "30m"),
        (parse_budget, "soon", "30m"),
        (parse_budget, "", "30m"),
        (parse_budget, "0m", "30m"),
        (parse_budget, "1.2.3m", "30m"),
    ],
)
def test_bad_texts_are_refused_with_a_hint(parse: Callable[[str], object], text: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert hint in caught.value.fix


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5H", 5400)])
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds
