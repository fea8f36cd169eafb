"""The server without a browser: questions, answers that count once, estimates and galleries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi.testclient import TestClient
from server_examples import ask, client_of, step

from halflabel.errors import UserError
from halflabel.labels.answers import Answer
from halflabel.questions.choose import CONTROL_ABSENT, CONTROL_PRESENT
from halflabel.review.team_answers import estimate_share
from halflabel.review.thumbnails import ImageUnavailable, Thumbnails
from halflabel.system.intervals import wilson


def say(client: TestClient, *steps: dict) -> dict:
    reply = client.post("/api/answers", json={"tab": "one", "steps": list(steps)})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_two_pages_never_hold_the_same_question(client, session) -> None:
    one = {q["entry"] for q in ask(client, "one", count=15)}
    two = {q["entry"] for q in ask(client, "two", count=15)}
    assert len(one) == len(two) == 15
    assert not one & two
    assert {q["entry"] for q in ask(client, "one", count=15)} == one  # a reload gets its own again
    client.post("/api/release", json={"tab": "two", "entries": [*one, *two]})
    assert {q["entry"] for q in ask(client, "three", count=15)} == two


def test_closed_page_releases_its_questions(project) -> None:
    now = [0.0]
    session = project.session(clock=lambda: now[0])
    held = {q["entry"] for q in session.take_questions("gone", 40)}
    assert len(held) == 40
    assert session.take_questions("here", 40) == []
    now[0] = 60.0
    session.renew("here", held)  # not theirs to hold
    now[0] = 91.0
    assert {q["entry"] for q in session.take_questions("here", 40)} == held
    session.answers.close()


def test_a_page_that_is_there_keeps_its_questions(project) -> None:
    now = [0.0]
    session = project.session(clock=lambda: now[0])
    held = [q["entry"] for q in session.take_questions("slow", 40)]
    now[0] = 60.0
    session.renew("slow", held)
    now[0] = 120.0
    assert session.take_questions("quick", 40) == []
    session.add_answers([("key-00000001", held[0], 1)])
    session.undo(["key-00000001"], "slow")  # shown again, so no other page is asked
    assert session.take_questions("quick", 40) == []
    session.answers.close()


def test_answers_count_once_and_can_be_taken_back(client, session) -> None:
    first, second = (q["entry"] for q in ask(client, count=2))
    after = say(client, step(first, 1, "key-00000001"), step(second, 0, "key-00000002"))
    assert after["stored"] == ["key-00000001", "key-00000002"]
    assert (after["answered"], after["questions"]) == (2, 40)
    assert after["values"] == {"present": 1, "absent": 0, "unsure": 1}
    assert say(client, step(first, 1, "key-00000001"))["answered"] == 2
    assert first not in {q["entry"] for q in ask(client, count=60)}
    undo = {"kind": "undo", "key": "key-00000001", "entry": first}
    assert say(client, undo, undo)["answered"] == 1
    assert first in {q["entry"] for q in ask(client, count=60)}
    # In one message: answered, taken back, answered otherwise.
    last = say(client, step(first, 1, "key-00000003"), {**undo, "key": "key-00000003"}, step(first, -1, "key-00000004"))
    assert last["values"] == {"present": 0, "absent": 1, "unsure": 1}
    (current,) = session.answers.current((session.images[first // 10], session.classes[first % 10]))
    assert current.value == -1
    assert current.who == "me"
    assert current.score == pytest.approx(float(session.scored.scores[first // 10, first % 10]))


def test_filters_keep_their_word_and_leave_the_control_alone(client, session) -> None:
    label = next(q["class"] for q in ask(client, count=60) if q["why"] != "random check")
    for actual in (ask(client, count=60, label=label), ask(client, count=60, one_class=True)):
        assert actual
        assert len({q["class"] for q in actual}) == 1
        assert all(q["why"] != "random check" for q in actual)
    entry = ask(client, count=1)[0]["entry"]
    assert ask(client, state="answered") == []
    say(client, step(entry, -1, "key-00000001"))
    assert [q["entry"] for q in ask(client, state="answered")] == [entry]
    assert ask(client, state="absent")[0]["answer"]["value"] == -1
    assert ask(client, state="present") == []


def test_the_count_of_a_class_is_what_its_filter_shows(client, session) -> None:
    def counted() -> None:
        rows = client.get("/api/state").json()["classes"]
        assert {row["name"] for row in rows} == {session.classes[q.column] for q in session.pool.values()}
        for row in rows:
            for state in ("open", "present", "absent", "unsure"):
                assert len(ask(client, count=60, label=row["name"], state=state)) == row[state]

    counted()
    control = [e for e, q in session.pool.items() if q.is_control]
    others = [e for e, q in session.pool.items() if not q.is_control]
    chosen = [*control[:4], *others[:7]]
    say(client, *(step(e, at % 3 - 1, f"key-{at:08}") for at, e in enumerate(chosen)))
    counted()
    rows = client.get("/api/state").json()["classes"]
    assert sum(row["open"] for row in rows) == len(others) - 7
    assert sum(row["present"] + row["absent"] + row["unsure"] for row in rows) == 11


def test_control_is_asked_first_and_not_named_as_what_it_is(client, session) -> None:
    questions = ask(client, count=40)
    assert [q["why"] for q in questions[:20]] == ["random check"] * 20
    assert "random check" not in [q["why"] for q in questions[20:]]


def test_the_estimate_counts_control_answers_alone(client, session, project) -> None:
    steps, right = [], {CONTROL_PRESENT: [], CONTROL_ABSENT: []}
    for at, (entry, question) in enumerate(session.pool.items()):
        value = int(project.truth[divmod(entry, 10)])
        if question.is_control:
            value = 0 if at == 0 else value
            right[question.why].append(value)
        steps.append(step(entry, value, f"key-{at:08}"))
    actual = say(client, *steps)["estimate"]
    for name, why in (("precision", CONTROL_PRESENT), ("missed", CONTROL_ABSENT)):
        sure = [value for value in right[why] if value]
        low, _ = wilson(sure.count(1), len(sure))
        assert actual[name]["part"] == sure.count(1)
        assert actual[name]["total"] == len(sure)
        assert actual[name]["low"] == pytest.approx(float(low))
        assert actual[name]["unsure"] == right[why].count(0)
    assert actual["precision"]["unsure"] + actual["missed"]["unsure"] == 1


def test_the_estimate_counts_each_answer_for_the_entries_that_it_stands_for() -> None:
    asked = {0: 90.0, 1: 10.0, 2: 40.0, 3: 7.0}
    answers = {e: Answer(str(e), "a", "x", value, weight=asked[e], run="r") for e, value in ((0, 1), (1, -1), (2, 0))}
    answers[3] = Answer("3", "a", "x", -1, weight=7.0, run="other")
    estimate = estimate_share(asked, answers, "r")
    assert estimate["share"] == pytest.approx(0.9)
    assert estimate["low"] < 0.5  # two answers say little
    assert [estimate[name] for name in ("part", "total", "asked", "unsure")] == [1, 2, 4, 1]


def test_galleries_show_what_they_say(client, session) -> None:
    table = session.scored.table
    scores = session.scored.scores.copy()
    image = int(np.searchsorted(table.start, 5, side="right")) - 1
    scores[image, table.column[5]] = 0.001  # a positive that the model contradicts
    session.scored = replace(session.scored, scores=scores)
    wrong = client.get("/api/gallery?kind=wrong&count=60").json()["items"]
    assert wrong
    for item in wrong:
        assert table.rows([item["entry"] // 10])[0, item["entry"] % 10] == item["label"] == 1
        assert item["score"] < 0.5
    first = wrong[0]["entry"]
    say(client, step(first, -1, "key-00000001"))
    again = client.get("/api/gallery?kind=wrong&count=60").json()["items"]
    assert first not in {item["entry"] for item in again}
    label = wrong[0]["class"]
    only = client.get("/api/gallery", params={"kind": "wrong", "label": label}).json()["items"]
    assert {item["class"] for item in only} <= {label}


def test_another_process_is_noticed(client, session) -> None:
    from halflabel.labels.answers import Answer, AnswerStore

    question = ask(client, count=1)[0]
    other = AnswerStore(session.answers.place)
    other.add([Answer("key-of-another", question["name"], question["class"], 1)], "you")
    other.close()
    assert question["entry"] not in {q["entry"] for q in ask(client, count=60)}
    assert client.get("/api/state").json()["answered"] == 1


def test_full_disk_has_a_clear_message(client, session, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise UserError("answers.sqlite cannot be used for answers (database or disk is full)", "make room")

    entry = ask(client)[0]["entry"]
    monkeypatch.setattr(session.answers, "add", full)
    reply = client.post("/api/answers", json={"tab": "one", "steps": [step(entry, 1, "key-00000001")]})
    assert reply.status_code == 503
    assert "disk is full" in reply.json()["error"]
    monkeypatch.undo()
    assert say(client, step(entry, 1, "key-00000001"))["answered"] == 1


def test_a_person_can_browse_one_class(client, session) -> None:
    body = {"tab": "a", "count": 6, "label": "3", "one_class": True, "order": "high"}
    high = client.post("/api/questions", json=body).json()["questions"]
    scores = [item["score"] for item in high]
    assert scores == sorted(scores, reverse=True)
    assert {item["class"] for item in high} == {"3"}
    assert all(item["label"] == 0 for item in high)
    again = client.post("/api/questions", json=body | {"tab": "b"}).json()["questions"]
    assert not {item["entry"] for item in high} & {item["entry"] for item in again}  # reserved for the first tab
    alike = client.post("/api/questions", json=body | {"tab": "c", "like": again[0]["image"]}).json()["questions"]
    similarity = session._similarity(session.image(again[0]["image"]))
    order = [similarity[session.image(item["image"])] for item in alike]
    assert order == sorted(order, reverse=True)
    named = client.post("/api/questions", json=body | {"tab": "d", "name": "07"}).json()["questions"]
    assert named
    assert all("07" in item["name"] for item in named)


def test_what_a_person_chose_to_answer_is_no_random_check(client, session) -> None:
    control = next(e for e, question in session.pool.items() if question.is_control)
    image, column = divmod(control, len(session.classes))
    classes = client.get(f"/api/photo/{session.public_ids[image]}").json()["classes"]
    assert {item["column"] for item in classes} == set(range(len(session.classes)))
    assert classes[0]["label"] == 1  # what is known comes first
    step = {"kind": "answer", "key": "k" * 10, "entry": control, "value": 1, "chosen": True}
    state = client.post("/api/answers", json={"tab": "a", "steps": [step]}).json()
    assert state["estimate"]["precision"]["total"] == state["estimate"]["missed"]["total"] == 0
    assert session.entry_answers() == [(image, column, 1, 0.0)]


def test_answers_are_exported_as_labels(client, session) -> None:
    steps = [
        {"kind": "answer", "key": f"key-{e:08}", "entry": e, "value": value}
        for e, value in zip(list(session.pool)[:3], (1, -1, 0), strict=True)
    ]
    client.post("/api/answers", json={"tab": "a", "steps": steps})
    lines = client.get("/api/labels").text.splitlines()
    assert lines[0] == "image,class,value,source,inclusion_weight,who,at"
    assert len(lines) == 3
    assert all(line.split(",")[3] == "person:me" and ",me," in line for line in lines[1:])


def test_a_class_seen_nowhere_is_an_answer_and_not_a_fault(project, session) -> None:
    class Cold:
        def png(self, image: int, column: int) -> bytes | None:
            if column:
                return None
            raise ImageUnavailable("damaged")

    client = client_of(session, Thumbnails(project.images, session.scored.paths), maps=Cold())
    shown = ask(client)[0]
    reply = client.get(f"/api/map/{shown['image']}/1")
    assert (reply.status_code, list(reply.json())) == (200, ["nothing"])
    assert client.get(f"/api/map/{shown['image']}/0").status_code == 404
    assert client.get(f"/api/map/{shown['image']}/999").status_code == 404
