"""Several reviewers: agreement, expected errors, and the answer that holds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from halflabel.errors import UserError
from halflabel.labels.answers import (
    SETTLED,
    Answer,
    AnswerStore,
    expected_errors,
    group_by_entry,
    holding_answer,
    is_conflict,
    measure_agreement,
)
from halflabel.labels.names import Names


def group(*votes: tuple[str, int], image: str = "a", label: str = "cat", why: str = "uncertain", settled=None):
    answers = [Answer(who, image, label, value, 0.5, why, who=who) for who, value in votes]
    if settled is not None:
        answers.append(Answer("s", image, label, settled, 0.5, SETTLED, who="boss"))
    return answers


def simulated(count: int, errors: dict[str, float], seed: int = 0):
    """Return groups of two answers each by people with these errors, and the truth."""
    draw = np.random.default_rng(seed)
    truth = np.where(draw.random(count) < 0.3, 1, -1)
    names = list(errors)
    groups = []
    for k, value in enumerate(truth.tolist()):
        pair = draw.choice(len(names), 2, replace=False)
        votes = [(names[n], value if draw.random() >= errors[names[n]] else -value) for n in pair]
        groups.append(group(*votes, image=f"i{k}", label="cat" if k % 3 else "dog"))
    return groups, truth


def test_kappa_is_that_of_cohen() -> None:
    groups, _ = simulated(300, {"ann": 0.1, "bob": 0.2})
    agreement = measure_agreement(groups)
    assert list(agreement) == ["", "dog", "cat"]
    for label, chosen in (("", groups), ("dog", groups[::3])):
        ann, bob = ([next(a.value for a in g if a.who == who) for g in chosen] for who in ("ann", "bob"))
        assert agreement[label].kappa == pytest.approx(cohen_kappa_score(ann, bob))
        assert agreement[label].equal == sum(np.equal(ann, bob))
        assert agreement[label].pairs == len(chosen)


def test_kappa_is_undefined_where_all_answers_are_the_same_and_unsure_does_not_count() -> None:
    same = [group(("ann", -1), ("bob", -1)), group(("ann", 1), ("bob", 0), label="dog")]
    assert measure_agreement(same) == {"": (1, 1, None), "cat": (1, 1, None)}
    assert measure_agreement([group(("ann", 1))]) == {}


def test_errors_are_found_without_knowing_the_truth() -> None:
    actual = {"ann": 0.02, "bob": 0.05, "cleo": 0.25}
    groups, truth = simulated(1500, actual)
    errors = expected_errors(groups)
    assert errors == {who: pytest.approx(error, abs=0.04) for who, error in actual.items()}
    # Where two differ, the more reliable one is right more often.
    differ = [(g, value) for g, value in zip(groups, truth, strict=True) if is_conflict(g)]
    right = np.mean([holding_answer(g, errors).value == value for g, value in differ])
    assert right > 0.75


def test_the_settled_answer_wins_then_the_more_reliable_one_and_a_tie_is_unknown() -> None:
    assert holding_answer(group(("ann", 1), ("bob", -1)), {}).value == 0
    assert holding_answer(group(("ann", 1), ("bob", -1)), {"ann": 0.1, "bob": 0.02}).value == -1
    assert holding_answer(group(("ann", 1), ("bob", -1), ("cleo", 1)), {}).value == 1
    settled = group(("ann", 1), ("bob", -1), settled=1)
    assert holding_answer(settled, {"ann": 0.3, "bob": 0.01}).value == 1
    assert not is_conflict(settled)
    assert holding_answer(group(("ann", 1), ("bob", -1), settled=0), {}).value == 0
    assert holding_answer(group(("ann", 0), ("bob", -1)), {}).value == -1  # unsure is no vote
    assert holding_answer(group(("ann", 0)), {}).value == 0


def test_an_entry_that_was_drawn_at_random_stays_a_control(tmp_path) -> None:
    store = AnswerStore(tmp_path / "x.sqlite")
    store.add([Answer("k1", "a", "cat", 1, 0.5, "control: called present", 40), Answer("k2", "b", "cat", 1)], "ann")
    store.add([Answer("k3", "a", "cat", -1, 0.5, "chosen by the person")], "bob")
    images, classes = Names(["a", "b"]), Names(["cat"])
    rows = store.label_rows(images, classes)
    assert (rows.image.tolist(), rows.weight.tolist()) == ([1], [0])  # a tie: nothing is known of the other
    store.add([Answer("k4", "a", "cat", -1, 0.5, SETTLED)], "ann")
    rows = store.label_rows(images, classes)
    assert sorted(zip(rows.image.tolist(), rows.value.tolist(), strict=True)) == [(0, -1), (1, 1)]
    assert dict(zip(rows.image.tolist(), rows.weight.tolist(), strict=True)) == {0: 40, 1: 0}
    # Settling replaces nobody's own answer: the difference still counts.
    assert measure_agreement(group_by_entry(store.current()).values())[""] == (1, 0, 0.0)
    store.undo(["k4"], "ann")
    assert len(store.label_rows(images, classes)) == 1
    store.close()


@pytest.mark.parametrize("scheme", ["mysql", "sqlite", "http"])
def test_only_postgresql_is_known_by_an_address(scheme, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refusal:
        AnswerStore(f"{scheme}://ann:s/e@cret@db/photos")
    assert "cret" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["postgresql", "POSTGRESQL", "postgresql+psycopg2", "postgres"])
def test_a_password_is_never_shown(scheme, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("psycopg")
    with pytest.raises(UserError) as refusal:
        AnswerStore(f"{scheme}://ann:s%2Fe%40cret@127.0.0.1:1/photos")
    assert "cret" not in str(refusal.value)
    assert "restore" not in refusal.value.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("password", ["s@cret", "s/cret", "s%cret", "%zzcret"])
def test_a_password_that_divides_the_address_is_refused_without_showing_it(password) -> None:
    with pytest.raises(UserError) as refusal:
        AnswerStore(f"postgresql://ann:{password}@127.0.0.1:1/photos")
    assert "cret" not in str(refusal.value)
    assert "%40" in refusal.value.fix
