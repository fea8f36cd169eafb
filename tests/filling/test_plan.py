"""Tests of plan_fill and fill: known labels, rules, sampling warnings, and whole runs."""

from __future__ import annotations

from pathlib import Path

import fill_worlds as worlds
import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.filling.plan import FillOptions, plan_fill
from halflabel.filling.run import fill, write_filled
from halflabel.labels import formats
from halflabel.labels.labels import RULE_SOURCE, Labels
from halflabel.labels.names import Names
from halflabel.labels.rules import read_rules
from halflabel.labels.table import Table
from halflabel.runs.crossfit import fit_again
from halflabel.runs.folder import RunFolder


def test_known_labels_have_no_row_and_scores_are_probabilities() -> None:
    world = worlds.make_world(0)
    filling = plan_fill(world.scores, world.table, FillOptions(source="model:x:runs/y"))
    rows = filling.rows()
    assert not world.table.dense()[rows.image, rows.column].any()
    assert set(rows.sources) == {"model:x:runs/y", RULE_SOURCE}
    assert (rows.source == 0).all()
    assert rows.score.min() >= 0.5
    right = world.truth[rows.image, rows.column] == rows.value
    for low, high in ((0.95, 0.97), (0.97, 0.99), (0.99, 1.0)):
        inside = (rows.score >= low) & (rows.score < high)
        assert inside.sum() > 100
        assert right[inside].mean() == pytest.approx(rows.score[inside].mean(), abs=0.03)


def test_fill_counts_cover_every_unknown_entry_once() -> None:
    world = worlds.make_world(1)
    filling = plan_fill(world.scores, world.table)
    tally = filling.empty_counts()
    count = sum(len(rows) for rows in filling.blocks(tally))
    assert count == (tally.present + tally.absent).sum()
    assert np.array_equal(tally.present + tally.absent + tally.unknown, (world.table.dense() == 0).sum(0))
    assert np.array_equal(tally.present, filling.present.filled)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.make_world(2, images=1500, known=0.4)
    whole = plan_fill(world.scores, world.table).rows()
    monkeypatch.setattr("halflabel.evaluation.scores._BLOCK_ENTRIES", 1000)
    pieces = plan_fill(world.scores, world.table).rows()
    assert len(whole) > 2000
    assert whole.training == pieces.training
    assert np.allclose(whole.score, pieces.score)


def test_unreadable_images_stay_unknown() -> None:
    world = worlds.make_world(3)
    world.scores.logits[:500] = np.nan
    rows = plan_fill(world.scores, world.table).rows()
    assert rows.image.min() >= 500


def test_training_images_are_not_used_for_evaluation() -> None:
    """Half of the images carry scores that know the answer; as evidence they would promise far too much."""
    world = worlds.make_world(4, sharp=0.3)
    logits, fold = world.scores.logits.copy(), world.scores.fold.copy()
    fold[:2000] = -1
    known = world.table.dense()
    logits[:2000] += 6 * known[:2000]
    filling = plan_fill(worlds.made_up(logits, fold), world.table)
    seen = world.table.subset(np.arange(2000, 4000))
    assert filling.bin_counts.present.sum() + filling.bin_counts.absent.sum() == seen.known


def test_a_model_that_knows_nothing_fills_no_positive() -> None:
    world = worlds.make_world(5)
    noise = np.random.default_rng(0).normal(size=world.scores.logits.shape).astype(np.float32)
    filling = plan_fill(worlds.made_up(noise, world.scores.fold), world.table)
    assert filling.present.filled.sum() == 0
    assert any("nothing is filled as present" in warning for warning in filling.warnings)


def test_earlier_fills_stay_and_are_not_used_for_evaluation() -> None:
    world = worlds.make_world(6)
    first = plan_fill(world.scores, world.table)
    again = plan_fill(world.scores, Labels.from_table(world.table, "person").append(first.rows()))
    assert again.bin_counts.present.sum() == first.bin_counts.present.sum()
    assert len(again.rows()) < len(first.rows()) / 20


def test_positives_only_cannot_be_evaluated() -> None:
    world = worlds.make_world(7)
    with pytest.raises(UserError, match="known to be absent") as caught:
        plan_fill(world.scores, world.table.keep(world.table.value > 0))
    assert "neither of positives nor of negatives" in caught.value.message
    assert "labelled" in caught.value.fix
    with pytest.raises(UserError, match="known to be present"):
        plan_fill(world.scores, world.table.keep(world.table.value < 0))
    with pytest.raises(UserError, match="known to be absent"):
        plan_fill(worlds.made_up(world.scores.logits, np.full(4000, -1)), world.table)


def test_a_class_with_positives_only_is_not_filled() -> None:
    world = worlds.make_world(8)
    table = world.table.keep((world.table.value > 0) | (world.table.column != 2))
    filling = plan_fill(world.scores, table)
    assert filling.unfillable.tolist() == [False, False, True, False, False, False]
    assert not (filling.rows().column == 2).any()
    assert any(warning.startswith("2: positives are known but no negatives") for warning in filling.warnings)


def test_a_class_without_a_known_positive_is_not_filled_as_absent() -> None:
    world = worlds.make_world(8)
    filling = plan_fill(world.scores, world.table.keep((world.table.value < 0) | (world.table.column != 2)))
    rows = filling.rows()
    assert not (rows.column == 2).any()
    assert (rows.value < 0).any()
    assert any(warning.startswith("2: no positive is known") for warning in filling.warnings)


def test_a_random_sample_raises_no_warning_and_others_do() -> None:
    assert all(plan_fill(*worlds.make_world(seed)[::2]).warnings == () for seed in range(6))
    for known, bias in ((0.1, 4), (0.4, 0.2)):
        filling = plan_fill(*worlds.make_world(0, known=known, bias=bias)[::2])
        assert filling.unlike
        assert any("are not a random sample" in warning for warning in filling.warnings)
    world, rng = worlds.make_world(1, classes=20), np.random.default_rng(1)
    labels, truth = world.table.dense(), world.truth[:, 7]
    labels[:, 7] = np.where(rng.random(len(truth)) < np.where(truth > 0, 0.5, 0.05), truth, 0)
    filling = plan_fill(world.scores, Table.from_dense(labels))
    assert not filling.unlike  # one class of twenty
    assert [warning.partition(":")[0] for warning in filling.warnings] == ["7"]


def ruled(tmp_path: Path, text: str, seed: int = 9):  # type: ignore[no-untyped-def]
    world = worlds.make_world(seed)
    path = tmp_path / "rules.csv"
    path.write_text(text)
    return world, plan_fill(
        world.scores, world.table, FillOptions(rules=read_rules(path, world.table.classes), source="model:m:r")
    )


def test_rules_fill_what_follows_from_known_labels(tmp_path: Path) -> None:
    world, filling = ruled(tmp_path, "0,implies,5\n1,excludes,4\n")
    tally = filling.empty_counts()
    parts = list(filling.blocks(tally))
    rows = parts[0]
    known = world.table.dense()
    value = np.zeros_like(known)
    value[rows.image, rows.column] = rows.value
    by_rule = np.zeros(known.shape, bool)
    by_rule[rows.image, rows.column] = rows.source == 1
    assert np.array_equal(by_rule[:, 5], (known[:, 0] > 0) & (known[:, 5] == 0))
    assert np.array_equal(by_rule[:, 4], (known[:, 1] > 0) & (known[:, 4] == 0))
    assert (value[by_rule[:, 5], 5] == 1).all()
    assert (value[by_rule[:, 4], 4] == -1).all()
    assert np.isnan(rows.score[rows.source == 1]).all()
    assert not np.isnan(rows.score[rows.source == 0]).any()
    assert tally.by_rule.sum() == by_rule.sum() > 0
    assert tally.contradictions == 2 * (
        ((known[:, 0] > 0) & (known[:, 5] < 0)).sum() + ((known[:, 1] > 0) & (known[:, 4] > 0)).sum()
    )
    assert tally.contradictions > 0
    # After the fill no rule is broken by anything that was not broken before.
    after = known + value
    fine = ~((known[:, 0] > 0) & (known[:, 5] < 0))
    assert not ((after[:, 0] > 0) & (after[:, 5] < 0))[fine].any()
    fine = ~((known[:, 1] > 0) & (known[:, 4] > 0))
    assert not ((after[:, 1] > 0) & (after[:, 4] > 0))[fine].any()
    assert tally.clashes.sum() > 0


def test_labels_derived_from_a_fill_have_its_source_and_probability(tmp_path: Path) -> None:
    world, filling = ruled(tmp_path, "5,implies,0\n")
    rows = filling.rows()
    plain = plan_fill(world.scores, world.table, FillOptions(source="model:m:r")).rows()
    assert not filling.table.dense()[rows.image, rows.column].any()
    mine = rows.source == 0
    score = np.full(world.table.shape, np.nan)
    score[rows.image[mine], rows.column[mine]] = rows.score[mine]
    value = rows.training.dense()
    late = (value[:, 0] > 0) & (plain.training.dense()[:, 0] == 0) & (value[:, 5] > 0)
    assert late.sum() > 20
    assert np.allclose(score[late, 0], score[late, 5])


def test_files_append_to_the_labels_or_are_complete(tmp_path: Path) -> None:
    world = worlds.make_world(10, images=1200, known=0.4)
    filling = plan_fill(world.scores, world.table, FillOptions(source="model:m:r"))
    expected = Labels.of(world.table).append(filling.rows()).training
    labels = tmp_path / "labels.csv"
    formats.write(world.table, labels)
    for ending in (".csv", ".parquet"):
        tally = write_filled(filling, tmp_path / f"filled{ending}")
        assert (
            formats.read(tmp_path / f"filled{ending}", format="long").table().known
            == tally.present.sum() + tally.absent.sum()
        )
        write_filled(filling, tmp_path / f"whole{ending}", base=Labels.from_table(world.table, "person"))
        whole = formats.read(tmp_path / f"whole{ending}", format="long")
        at = whole.table().images.index(expected.images.array)
        assert np.array_equal(whole.table().dense()[at], expected.dense())
        assert set(whole.rows.sources) - {""} == {"person", "model:m:r"}
    text = (tmp_path / "filled.csv").read_text().split("\n", 1)
    assert text[0] == "image,class,value,source,score"
    labels.write_text(labels.read_text() + text[1])
    assert formats.read(labels, format="long").table() == expected


def test_the_highest_precision_that_fills_something_fills_it_and_a_higher_one_nothing() -> None:
    world = worlds.make_world(3, images=600, known=0.1, sharp=0.5)
    plan = plan_fill(world.scores, world.table, FillOptions(precision=0.99))
    assert not len(plan.rows())
    lower = plan.lower_precision(useful=100_000)
    assert lower is not None
    precision, count = lower
    enough = plan.lower_precision(useful=count + 1)
    assert enough is not None
    assert enough[0] < precision
    assert enough[1] > count
    assert len(plan_fill(world.scores, world.table, FillOptions(precision=precision)).rows()) == count > 0
    assert not len(plan_fill(world.scores, world.table, FillOptions(precision=precision + 0.01)).rows())


def test_a_frozen_run_is_scored_by_heads_that_saw_no_label_of_the_image(
    frozen: RunFolder, pictures: Path, digits: Table
) -> None:
    scores = fit_again(frozen, pictures / "images", Labels.of(digits), folds=3)
    assert set(scores.fold.tolist()) == {0, 1, 2}
    assert scores.logits.shape == digits.shape
    assert not np.isnan(scores.logits).any()
    # Other labels for one fold change nothing in its own scores, and something in the others.
    first = scores.fold == 0
    image = np.repeat(np.arange(len(digits)), np.diff(digits.start))
    value = np.where(first[image], -digits.value, digits.value).astype(np.int8)
    turned = Table.from_parts(digits.images, digits.classes, digits.start, digits.column, value)
    other = fit_again_with_folds(frozen, pictures, turned, scores.fold)
    assert np.array_equal(other.logits[first], scores.logits[first])
    assert not np.allclose(other.logits[~first], scores.logits[~first])


def fit_again_with_folds(run: RunFolder, pictures: Path, table: Table, fold: np.ndarray) -> Scores:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("halflabel.fitting.fit.assign_parts", lambda *a, **k: fold)
        return fit_again(run, pictures / "images", Labels.of(table), folds=3)


def test_a_tuned_run_is_evaluated_on_held_out_images(tuned: RunFolder, pictures: Path, digits: Table) -> None:
    filling = fill(tuned, pictures / "images", precision=0.6, confidence=0.6)
    scores = filling.scores
    assert scores.kind == "held-out"
    assert np.array_equal(scores.unbiased, tuned.split_of(scores.images) == 1)
    assert 0 < scores.unbiased.sum() < len(digits)
    assert not any("overestimated" in warning for warning in filling.warnings)
    again = fill(tuned, pictures / "images", precision=0.6, confidence=0.6, folds=2)
    assert again.scores.unbiased.all()
    assert any("overestimated" in warning for warning in again.warnings)


def test_other_labels_are_added_to_those_of_the_run(frozen: RunFolder, pictures: Path, digits: Table) -> None:
    some = Labels.from_table(digits.subset(np.arange(10)), "person")
    filling = fill(frozen, pictures / "images", labels=some, precision=0.6, confidence=0.6, folds=2)
    assert filling.images_to_fill.tolist() == list(range(10))
    assert filling.options.source == f"model:bn-bce:{frozen.folder.as_posix()}"
    assert filling.rows().image.max(initial=0) < 10
    judged = filling.bin_counts.present.sum() + filling.bin_counts.absent.sum()
    assert judged == digits.known  # the other 50 images are evidence too
    assert filling.bin_counts.unknown.sum() == (digits.dense()[:10] == 0).sum()
    guessed = Labels.from_table(digits.subset(np.arange(10)), "model:em:runs/before")
    again = fill(frozen, pictures / "images", labels=guessed, precision=0.6, confidence=0.6, folds=2)
    assert again.table.known == digits.known
    judged = again.bin_counts.present.sum() + again.bin_counts.absent.sum()
    assert judged == digits.known  # labels of people hold against those of a model
    foreign = Labels.build(Names(["x"]), Names(["sofa"]), np.array([0]), np.array([0]), np.array([1]))
    with pytest.raises(UserError, match="'sofa'"):
        fill(frozen, pictures / "images", labels=foreign)


def test_a_retraction_in_other_labels_counts(frozen: RunFolder, pictures: Path, digits: Table) -> None:
    image, column, _ = digits.entries()
    taken = Labels.build(digits.images, digits.classes, image[:1], column[:1], np.zeros(1, np.int8), "person")
    filling = fill(frozen, pictures / "images", labels=taken, precision=0.6, confidence=0.6, folds=2)
    assert filling.table.known == digits.known - 1


def slow_derived(
    known: np.ndarray, made: np.ndarray, score: np.ndarray, above: dict[int, set[int]], apart: set[tuple[int, int]]
) -> tuple[dict[int, tuple[int, int | None]], int]:
    """Of one image: {class: (value, the class whose label it follows from, or None where a person's says it)}.

    `above[a]` is all that a implies; `apart` holds both (a, b) and (b, a). Also how many entries are contradicted.
    """
    derived: dict[int, tuple[int, int | None]] = {}
    contradicted = 0
    for c in range(len(known)):
        ways = [
            (value, a)
            for a in range(len(known))
            for value, follows in (
                (1, known[a] > 0 and c in above[a] | {a}),
                (-1, known[a] < 0 and a in above[c] | {c}),
                (-1, known[a] > 0 and any((x, y) in apart for x in above[a] | {a} for y in above[c] | {c})),
            )
            if follows
        ]
        people = {value for value, a in ways if not made[a]}
        if len({value for value, _ in ways}) == 2 and not (known[c] == 0 and len(people) == 1):
            contradicted += 1
        elif known[c] == 0 and ways:
            if people:
                derived[c] = next(iter(people)), None
            else:
                derived[c] = ways[0][0], min((-score[a], a) for _, a in ways)[1]
    return derived, contradicted


@pytest.mark.parametrize("block", [1 << 21, 8 * 7])
def test_derived_labels_inherit_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Against a slow loop over every chain: the value, the source and the score of each derived row."""
    monkeypatch.setattr("halflabel.evaluation.scores._BLOCK_ENTRIES", block)
    rng = np.random.default_rng(0)
    path = tmp_path / "rules.csv"
    path.write_text("0,implies,1\n1,implies,2\n3,implies,2\n4,excludes,1\n4,excludes,5\n6,implies,5\n")
    above: dict[int, set[int]] = {0: {1, 2}, 1: {2}, 2: set(), 3: {2}, 4: set(), 5: set(), 6: {5}, 7: set()}
    apart = {(4, 1), (1, 4), (4, 5), (5, 4)}
    sources = ("person", "", "rule", "model:a:r", "model:b:r", "machine")
    known = rng.choice([-1, 0, 1], (300, 8), p=[0.15, 0.7, 0.15])
    image, column = rng.permutation(np.argwhere(known)).T
    who = rng.integers(0, len(sources), len(image))
    sure = np.where(who > 2, rng.integers(10, 20, len(image)) / 20, np.nan)
    labels = Labels.build(
        Names.numbered(300), Names.numbered(8), image, column, known[image, column], who, sure, sources
    )
    asked = rng.random(300) < 0.6
    rules = read_rules(path, labels.classes)
    filling = plan_fill(blind(labels.training), labels, FillOptions(to_fill=asked, rules=rules, source="model:b:r"))
    tally = filling.empty_counts()
    actual = {
        (rows.images[i], c): (v, rows.sources[s], x)
        for rows in filling.blocks(tally)
        for i, c, v, s, x in zip(rows.image, rows.column, rows.value, rows.source, rows.score, strict=True)
    }
    by, score = np.zeros(known.shape, int), np.full(known.shape, np.nan)
    by[image, column], score[image, column] = who, sure
    expected, contradicted = {}, 0
    for n in np.flatnonzero(asked).tolist():
        derived, count = slow_derived(known[n], by[n] > 2, score[n], above, apart)
        contradicted += count
        for c, (value, origin) in derived.items():
            maker = ("rule", np.nan) if origin is None else (sources[by[n, origin]], np.float32(score[n, origin]))
            expected[str(n), c] = (value, *maker)
    assert actual.keys() == expected.keys()
    assert all(actual[at][:2] == expected[at][:2] for at in actual)
    assert np.array_equal([actual[at][2] for at in actual], [expected[at][2] for at in actual], equal_nan=True)
    assert {row[1] for row in actual.values()} == {"rule", "model:a:r", "model:b:r", "machine"}
    assert tally.contradictions == contradicted > 0
    assert tally.by_rule.sum() == sum(row[1] == "rule" for row in actual.values())
    assert tally.by_model.sum() == sum(row[1] != "rule" for row in actual.values())


def blind(table: Table) -> Scores:
    """Scores of a model that knows nothing: what is filled comes from rules."""
    return worlds.made_up(np.zeros(table.shape, np.float32), np.arange(len(table)) % 2)


@pytest.mark.parametrize("kind", ["random", "whole images", "easy", "agreeing"])
def test_known_labels_that_do_not_look_like_unknown_ones_are_noticed(kind: str) -> None:
    noticed = 0
    for seed in range(8):
        world, rng = worlds.make_world(seed, images=1500), np.random.default_rng([seed, 1])
        chance = np.full(world.truth.shape, 0.2)
        if kind == "whole images":
            chance[:] = rng.random((len(chance), 1)) < 0.2
        elif kind == "easy":
            chance = np.where(np.abs(world.scores.logits - 1) > 1.5, 0.4, 0.1)
        elif kind == "agreeing":
            chance = np.where((world.scores.logits > 1) == (world.truth > 0), 0.3, 0.02)
        table = Table.from_dense((world.truth * (rng.random(chance.shape) < chance)).astype(np.int8))
        noticed += bool(plan_fill(world.scores, table).unlike)
    assert noticed >= 7 if kind in ("easy", "agreeing") else noticed <= 1
