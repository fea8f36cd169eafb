"""Rules: consequences against a slow loop, errors with file and line, and suggestions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halflabel.errors import LabelError
from halflabel.labels.names import Names
from halflabel.labels.rules import Rules, find_contradictions, read_rules, suggest_rules
from halflabel.labels.table import Table

CLASSES = Names(["dog", "animal", "living", "day", "night", "car"])


def rules_of(tmp_path: Path, text: str, classes: Names = CLASSES) -> Rules:
    path = tmp_path / "rules.csv"
    path.write_text(text)
    return read_rules(path, classes)


def slow(labels: np.ndarray, implies: list[tuple[int, int]], excludes: list[tuple[int, int]]) -> tuple[set, set]:
    """One image: apply each rule again and again until nothing new comes."""
    present = {c for c in range(len(labels)) if labels[c] > 0}
    absent = {c for c in range(len(labels)) if labels[c] < 0}
    while True:
        before = (len(present), len(absent))
        for a, b in implies:
            if a in present:
                present.add(b)
            if b in absent:
                absent.add(a)
        for a, b in excludes:
            if a in present:
                absent.add(b)
            if b in present:
                absent.add(a)
        if (len(present), len(absent)) == before:
            return present, absent


def test_chains_and_exclusions_reach_everything_they_mean(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "class,rule,class\ndog,implies,animal\nanimal,implies,living\nday,excludes,night\n")
    labels = np.zeros((3, 6), np.int8)
    labels[0, 0] = 1  # a dog: an animal, living
    labels[1, 2] = -1  # nothing living: no animal, no dog
    labels[2, 4] = 1  # night: no day
    result = rules.consequences(labels)
    assert result.present.astype(int).tolist() == [[1, 1, 1, 0, 0, 0], [0] * 6, [0, 0, 0, 0, 1, 0]]
    assert result.absent.astype(int).tolist() == [[0] * 6, [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    assert not result.contradiction.any()


def test_contradictions_are_marked_and_say_nothing(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "dog,implies,animal\n")
    result = rules.consequences(np.array([[1, -1, 0, 0, 0, 0]], np.int8))
    assert result.contradiction[0].tolist() == [True, True, False, False, False, False]
    assert not result.present[0, 1]
    table = Table.from_dense([[1, -1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]], ["a", "b"], CLASSES)
    assert find_contradictions(rules, table) == (2, ["a: dog", "a: animal"])


@given(st.integers(0, 10_000))
def test_consequences_are_those_of_a_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = 7
    # Implications go upwards only, so that there is no circle.
    implies = [(a, b) for a in range(size) for b in range(a + 1, size) if rng.random() < 0.2]
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size) if rng.random() < 0.15]
    means = [slow(np.eye(size)[c], implies, [])[0] for c in range(size)]
    excludes = [(a, b) for a, b in pairs if not any({a, b} <= meant for meant in means)]
    if not implies and not excludes:
        return
    text = "".join(f"c{a},implies,c{b}\n" for a, b in implies) + "".join(f"c{a},excludes,c{b}\n" for a, b in excludes)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rules = rules_of(Path(folder), text, Names([f"c{n}" for n in range(size)]))
    labels = rng.choice([-1, 0, 0, 1], (6, size)).astype(np.int8)
    result = rules.consequences(labels)
    for row in range(6):
        present, absent = slow(labels[row], implies, excludes)
        # Beyond a contradiction the loop may go on; the closed rules say nothing there.
        assert {int(c) for c in np.flatnonzero(result.present[row])} <= present
        assert bool(result.contradiction[row].any()) == bool(present & absent)
        if not present & absent:
            assert set(np.flatnonzero(result.present[row]).tolist()) == present
            assert set(np.flatnonzero(result.absent[row]).tolist()) == absent


def test_proposals_that_cannot_hold_together_are_all_named(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "dog,implies,animal\nday,excludes,night\n")
    present = np.array([[1, 0, 0, 1, 1, 1]], bool)
    absent = np.array([[0, 1, 0, 0, 0, 0]], bool)
    bad_present, bad_absent = rules.conflicting(present, absent)
    assert bad_present[0].tolist() == [True, False, False, True, True, False]
    assert bad_absent[0].tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        ("dog,implies,animal\nanimal,implies,living\nliving,implies,dog\n", 3, "cycle", "remove one"),
        ("dog,implies,animal\ndog,implies,living\nanimal,excludes,living\n", 3, "could never be present", "remove"),
        ("dog,implies,anmal\n", 1, "no class is called 'anmal'", "'animal'"),
        ("class,rule,class\ndog,means,animal\n", 2, "'means' is not a rule", "implies or excludes"),
        ("dog,implies\n", 1, "2 fields", "class,rule,class"),
        ("dog,implies,dog\n", 1, "itself", "another class"),
        ("day,excludes,night\nnight,excludes,day\n", 2, "already on line 1", "remove one"),
        ("class,rule,class\n", None, "has no rules", "dog,implies,animal"),
    ],
)
def test_faults_have_a_place_and_a_fix(tmp_path: Path, text: str, line: int | None, message: str, fix: str) -> None:
    with pytest.raises(LabelError) as caught:
        rules_of(tmp_path, text)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.line == line


def tree() -> dict:
    dog = {"LabelName": "/m/dog"}
    mammal = {"LabelName": "/m/mammal", "Subcategory": [dog], "Part": [{"LabelName": "/m/tail"}]}
    animal = {"LabelName": "/m/animal", "Subcategory": [mammal]}
    return {"LabelName": "/m/entity", "Subcategory": [animal, {"LabelName": "/m/unknown"}]}


def test_a_hierarchy_skips_levels_that_are_no_classes_and_parts_imply_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bbox_labels_600_hierarchy.json"
    path.write_text(json.dumps(tree()))
    rules = read_rules(path, Names(["/m/dog", "/m/animal", "/m/tail"]))
    assert rules.implied.toarray().astype(int).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert rules.ignored == 3  # entity, mammal, unknown


def test_a_hierarchy_is_read_with_display_names(tmp_path: Path) -> None:
    path = tmp_path / "hierarchy.json"
    path.write_text(json.dumps(tree()))
    (tmp_path / "class-descriptions-boxable.csv").write_text("/m/dog,Dog\n/m/animal,Animal\n")
    assert read_rules(path, Names(["Animal", "Dog"])).implied.toarray()[1].tolist() == [True, True]
    with pytest.raises(LabelError, match="file of class descriptions"):
        read_rules(path, Names(["sofa", "chair"]))
    path.write_text('{"Subcategory": []}')
    with pytest.raises(LabelError, match="LabelName"):
        read_rules(path, Names(["Dog"]))


def known_pairs() -> Table:
    """200 images: dogs are animals, day is never night, car has nothing to do with either; some labels unknown."""
    rng = np.random.default_rng(0)
    dog = rng.random(400) < 0.3
    animal = dog | (rng.random(400) < 0.3)
    day = rng.random(400) < 0.5
    night = ~day & (rng.random(400) < 0.8)
    columns = [dog, animal, animal | (rng.random(400) < 0.2), day, night, rng.random(400) < 0.5]
    labels = np.where(np.stack(columns, 1), 1, -1) * (rng.random((400, 6)) < 0.9)
    return Table.from_dense(labels, classes=CLASSES)


def test_suggestions_are_the_rules_that_hold_with_their_counts() -> None:
    table = known_pairs()
    result = suggest_rules(table, bound=0.9)
    pairs = {(rule.first, rule.kind, rule.second): rule for rule in result}
    assert ("dog", "implies", "animal") in pairs
    assert ("animal", "implies", "living") in pairs
    assert len({("day", "excludes", "night"), ("night", "excludes", "day")} & set(pairs)) == 1
    assert not any("car" in (rule.first, rule.second) for rule in result)
    dense = table.dense()
    rule = pairs["dog", "implies", "animal"]
    seen = (dense[:, 0] > 0) & (dense[:, 1] != 0)
    assert (rule.seen, rule.holds) == (seen.sum(), (dense[seen, 1] > 0).sum())
    assert 0.9 <= rule.bound < rule.holds / rule.seen


def test_few_pairs_or_no_negative_suggest_nothing() -> None:
    table = known_pairs()
    assert suggest_rules(table.subset(np.arange(12)), bound=0.9) == []
    assert suggest_rules(table.keep(table.value > 0)) == []
    # A class that nearly every image has is implied by everything, which says nothing.
    usual = np.ones((300, 2), np.int8)
    usual[:150, 0] = -1
    usual[0, 1] = -1
    assert suggest_rules(Table.from_dense(usual)) == []


def test_the_bound_of_many_images_is_that_of_few_but_closer() -> None:
    """30,000 images, of which the square does not fit 32 bits; Wilson's bound of n out of n is n / (n + z²)."""
    count = 30_000
    labels = np.where(np.arange(2 * count)[:, None] < [count, count + 1], 1, -1)
    rule = next(rule for rule in suggest_rules(Table.from_dense(labels, classes=["dog", "animal"])))
    assert (rule.first, rule.kind, rule.second, rule.holds, rule.seen) == ("dog", "implies", "animal", count, count)
    assert rule.bound == pytest.approx(count / (count + 1.645**2), abs=1e-12)


def test_of_several_premises_the_surest_is_named(tmp_path: Path) -> None:
    """Classes: dog and car imply living; night excludes day. A score that is not given is the lowest."""
    rules = rules_of(tmp_path, "dog,implies,living\ncar,implies,living\nnight,excludes,day\n")
    labels, late = np.zeros((4, 6), np.int8), np.zeros((4, 6), np.int8)
    score = np.full((4, 6), np.nan, np.float32)
    labels[:, [0, 5]], late[:, 2] = 1, 1
    score[0, [0, 5]] = 0.7, 0.9
    score[1, 0] = 0.1
    score[2, [0, 5]] = 0.5, 0.5
    labels[3] = [0, 0, -1, 0, 1, 0]
    late[3] = [-1, 0, 0, -1, 0, 0]
    result = [part.tolist() for part in rules.strongest_premises(labels, score, late)]
    assert list(zip(*result, strict=True)) == [(0, 2, 5), (1, 2, 0), (2, 2, 0), (3, 0, 2), (3, 3, 4)]
    assert all(len(part) == 0 for part in rules.strongest_premises(labels, score, np.zeros_like(late)))


def test_sparse_labels_do_not_suggest_that_everything_excludes_everything() -> None:
    """Photos with one or two things each, drawn independently of each other: nothing excludes anything."""
    rng = np.random.default_rng(0)
    labels = np.full((3000, 20), -1, np.int8)
    for image in labels:
        image[rng.choice(20, size=1 + int(rng.random() < 0.4), replace=False)] = 1
    assert suggest_rules(Table.from_dense(labels)) == []
    # Two classes that share no photo although each is often beside others.
    for image in labels[:1500]:
        image[[0, 1]] = -1
        image[rng.integers(0, 2)] = 1
    (rule,) = suggest_rules(Table.from_dense(labels))
    assert (rule.first, rule.kind, rule.second) in {("0", "excludes", "1"), ("1", "excludes", "0")}
