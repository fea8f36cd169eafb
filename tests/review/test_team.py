"""Several people on one server: a second answer that does not see the first, conflicts, names, https, 20 at once."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
import httpx
from command_line import done, flat, refused
from fastapi.testclient import TestClient
from http_servers import serving

from halflabel.review import server
from halflabel.review.thumbnails import Thumbnails
from halflabel.serve.guard import TOKEN_HEADER

TOKEN = "t" * 43


def app_of(project, session, port: int = 8765, tls: bool = False):
    thumbnails, layout = Thumbnails(project.images, session.scored.paths), project.run / "map.npz"
    return server.make_app(session, thumbnails, token=TOKEN, host="127.0.0.1", port=port, layout=layout, tls=tls)


def client_of(project, session) -> TestClient:
    return TestClient(app_of(project, session), base_url="http://127.0.0.1:8765", headers={TOKEN_HEADER: TOKEN})


@pytest.fixture
def team(project):
    session = project.session(asks_name=True, twice=1.0)
    yield session, client_of(project, session)
    session.answers.close()


def ask(client, who: str, count: int = 60, **more) -> list[dict]:
    reply = client.post("/api/questions", json={"tab": who, "count": count, **more}, headers=name(who))
    assert reply.status_code == 200, reply.text
    return reply.json()["questions"]


def name(who: str) -> dict[str, str]:
    return {"X-Halflabel-Reviewer": quote(who)}


def say(client, who: str, values: dict[int, int], **more) -> dict:
    steps = [
        {"kind": "answer", "key": f"{who}-key-{entry:05}", "entry": entry, "value": value, "who": who, **more}
        for entry, value in values.items()
    ]
    reply = client.post("/api/answers", json={"tab": who, "steps": steps}, headers=name(who))
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_second_person_answers_without_seeing_the_first_answer(team) -> None:
    session, client = team
    first = ask(client, "ann", 8)
    say(client, "ann", {q["entry"]: 1 for q in first})
    again = {q["entry"] for q in ask(client, "ann")}
    assert not again & {q["entry"] for q in first}  # nobody is asked twice
    client.post("/api/release", json={"tab": "ann", "entries": sorted(again)})
    second = ask(client, "bob", 8)
    shared = [q for q in second if q["entry"] in {one["entry"] for one in first}]
    assert len(shared) == 2  # up to a quarter
    assert all(q["answer"] is None for q in shared)
    entry = shared[0]["entry"]
    photo = f"/api/photo/{shared[0]['image']}"

    def shown_to(who: str) -> dict | None:
        classes = client.get(photo, headers=name(who)).json()["classes"]
        return next(item["answer"] for item in classes if item["entry"] == entry)

    assert shown_to("bob") is None
    assert shown_to("ann")["value"] == 1
    say(client, "bob", {entry: -1})
    assert shown_to("bob")["value"] == -1
    assert shown_to("ann")["value"] == 1
    assert entry not in {q["entry"] for q in ask(client, "cleo")}  # two are enough
    assert {(item.who, item.value) for item in session.team.given[entry]} == {("ann", 1), ("bob", -1)}


def test_conflicts_are_shown_and_settled(team) -> None:
    session, client = team
    entries = [q["entry"] for q in ask(client, "ann", 6)]
    say(client, "ann", dict.fromkeys(entries, 1))
    state = say(client, "bob", dict.fromkeys(entries[:4], 1) | dict.fromkeys(entries[4:], -1))
    assert state["shared_changes"] > 0
    agreement = client.get("/api/agreement").json()
    assert agreement["conflicts"] == 2
    assert (agreement["all"]["pairs"], agreement["all"]["equal"]) == (6, 4)
    assert {row["name"]: row["answers"] for row in agreement["people"]} == {"ann": 6, "bob": 6}
    assert sum(row["pairs"] for row in agreement["classes"]) == 6
    shown = client.get("/api/gallery?kind=conflicts").json()["items"]
    assert [item["entry"] for item in shown] == entries[4:]
    assert shown[0]["answers"] == [{"who": "ann", "value": 1}, {"who": "bob", "value": -1}]
    values = {(i * 10 + c): value for i, c, value, _ in session.entry_answers()}
    assert [values[e] for e in entries] == [1, 1, 1, 1, 0, 0]  # a tie is unknown
    say(client, "ann", {entries[4]: -1}, settles=True, key=f"settled-{entries[4]:05}")
    values = {(i * 10 + c): value for i, c, value, _ in session.entry_answers()}
    assert [values[e] for e in entries[4:]] == [-1, -1]  # bob was right: the other conflict is decided by that
    agreement = client.get("/api/agreement").json()
    assert agreement["conflicts"] == 1
    assert agreement["all"]["equal"] == 4
    errors = {row["name"]: row["error"] for row in agreement["people"]}
    assert errors["bob"] < errors["ann"]
    assert len(client.get("/api/labels").text.splitlines()) == 1 + 6


def test_names_are_checked(team) -> None:
    _, client = team
    assert client.get("/api/state", headers=name("Zoë\n")).status_code == 200
    assert client.get("/api/state", headers=name("x" * 61)).status_code == 422
    assert client.get("/api/state", headers=name("a\tb")).status_code == 422


def test_a_given_reviewer_is_not_replaced_by_a_browser(project) -> None:
    session = project.session()
    client = client_of(project, session)
    say(client, "eve", {next(iter(session.pool)): 1})
    assert [item.who for item in session.answers.current()] == ["me"]
    session.answers.close()


def test_a_stated_share_is_asked_twice(project) -> None:
    session = project.session(twice=0.3)
    entries = range(len(session.images) * len(session.classes))
    session.add_answers([(f"key-{e:08}", e, 1) for e in entries], who="ann")
    assert len(session.team.waiting) / len(entries) == pytest.approx(0.3, abs=0.05)
    waiting = set(session.team.waiting)
    session.answers.close()
    again = project.session(twice=0.3)  # the same ones after a restart, and asked although the list does not name them
    assert set(again.team.waiting) == waiting
    taken = {q["entry"] for q in again.take_questions("tab", 500, who="bob")}
    assert taken == waiting
    again.answers.close()


@contextmanager
def served(project, *, tls=None, **more):
    """Serve a session over a real socket, in a thread."""
    session = project.session(asks_name=True, **more)
    with serving(lambda port: app_of(project, session, port, tls is not None), tls=tls or (None, None)) as port:
        yield session, port
    session.answers.close()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_twenty_people_at_once_lose_nothing(project, database, request) -> None:
    place = request.getfixturevalue("new_database")() if database == "postgresql" else ""
    with served(project, count=400, twice=0.2, place=place) as (session, port):
        asked: Counter[tuple[int, str]] = Counter()
        failures: list[Exception] = []

        def answer_all(who: str) -> None:
            try:
                with httpx.Client(
                    base_url=f"http://127.0.0.1:{port}", headers={TOKEN_HEADER: TOKEN}, timeout=60
                ) as client:
                    for _ in range(8):
                        questions = ask(client, who, 3)
                        asked.update((q["entry"], who) for q in questions)
                        values = {q["entry"]: 1 if q["entry"] % 2 else -1 for q in questions}
                        if values:
                            say(client, who, values)
                            say(client, who, values)  # sent again: the reply was lost
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=answer_all, args=(f"person-{k}",)) for k in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert max(asked.values()) == 1
        given = session.answers.current()
        assert Counter((item.image, item.label, item.who) for item in given).most_common(1)[0][1] == 1
        assert {(item.image, item.label, item.who) for item in given} == {
            (session.images[e // 10], session.classes[e % 10], who) for e, who in asked
        }
        assert session.answers.count() == (len(asked), 0)
        people = Counter((item.image, item.label) for item in given)
        assert set(people.values()) == {1, 2}  # a share is answered by two, and nothing by three
        assert session._leases == {}


def test_the_page_is_served_over_https(project, tmp_path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with served(project, tls=(certificate, key)) as (_, port):
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", headers={TOKEN_HEADER: TOKEN}, verify=trust) as client:
            assert client.get("/").status_code == 200
            own, other = (f"{scheme}://127.0.0.1:{port}" for scheme in ("https", "http"))
            assert client.get("/api/state", headers={"Origin": own}).status_code == 200
            assert client.get("/api/state", headers={"Origin": other}).status_code == 403
            assert client.get("/api/state", headers={TOKEN_HEADER: ""}).status_code == 401
    wrong = ("review", project.run.folder, project.images, "--tls", certificate, tmp_path / "none.pem")
    assert "none.pem is not a file" in refused(*wrong)


def test_export_tells_how_people_agree(project, tmp_path) -> None:
    session = project.session(twice=1.0)
    entries = list(session.pool)[:20]
    session.add_answers([(f"ann-{e:08}", e, 1 if e % 2 else -1) for e in entries], who="ann")
    session.add_answers([(f"bob-{e:08}", e, 1 if e % 2 else -1) for e in entries[2:]], who="bob")
    session.add_answers([(f"bob-{e:08}", e, -1 if e % 2 else 1) for e in entries[:2]], who="bob")
    session.answers.close()
    text = flat(done("review", project.run.folder, "--export", tmp_path / "answers.csv"))
    assert "18 answers" in text
    assert "all 20 90.0 %" in text
    assert "2 conflicts are not settled" in text
    assert "ann" in text
    assert "bob" in text
