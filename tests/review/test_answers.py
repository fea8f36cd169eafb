"""The store of answers: confirmed answers survive, duplicates are stored once, undo restores the earlier answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.answers import Answer, AnswerStore, answered_entries
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

IMAGES, CLASSES = Names(["a", "b", "c"]), Names(["cat", "dog"])


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "answers.sqlite"
    return request.getfixturevalue("new_database")()


@pytest.fixture
def store(place):
    actual = AnswerStore(place)
    yield actual
    actual.close()


def values(store: AnswerStore) -> dict[tuple[str, str], int]:
    return {(item.image, item.label): item.value for item in store.current()}


def test_last_answer_of_a_person_holds_and_history_stays(store) -> None:
    store.add([Answer("k1", "a", "cat", 1, 0.7, "uncertain")], "ann", "first")
    store.add([Answer("k2", "a", "cat", -1), Answer("k3", "b", "dog", 0)], "ann")
    assert values(store) == {("a", "cat"): -1, ("b", "dog"): 0}
    assert store.count() == (3, 0)
    first = store._db.read("SELECT who, score, why, run, at FROM answer ORDER BY number")[0]
    assert first[:4] == ("ann", 0.7, "uncertain", "first")
    assert first[4].endswith("+00:00")


def test_answer_sent_twice_is_stored_once(store) -> None:
    assert store.add([Answer("k1", "a", "cat", 1)], "me") == 1
    store.add([Answer("k2", "a", "cat", -1)], "me")
    assert store.add([Answer("k1", "a", "cat", 1)], "me") == 0  # sent again, late
    assert values(store) == {("a", "cat"): -1}


def test_undo_brings_back_what_held_before(store) -> None:
    store.add([Answer("k1", "a", "cat", 1)], "me")
    store.add([Answer("k2", "a", "cat", -1)], "me")
    store.undo(["k2"], "me")
    store.undo(["k2"], "me")
    assert values(store) == {("a", "cat"): 1}
    store.undo(["k1"], "me")
    assert values(store) == {}
    assert store.count() == (2, 2)
    assert store.current(("a", "cat")) == []


def test_undo_that_overtakes_its_answer_still_holds(store) -> None:
    store.undo(["k1"], "me")
    store.add([Answer("k1", "a", "cat", 1)], "me")
    assert values(store) == {}


def test_file_is_synced_at_each_commit(tmp_path) -> None:
    store = AnswerStore(tmp_path / "x.sqlite")
    assert store._db.read("PRAGMA journal_mode") == [("wal",)]
    assert store._db.read("PRAGMA synchronous") == [(2,)]  # FULL
    store.close()


def test_a_bad_value_writes_nothing_of_its_portion(store) -> None:
    with pytest.raises(store._db.errors, match="constraint"):
        store.add([Answer("k1", "a", "cat", 1), Answer("k2", "a", "dog", 5)], "me")
    assert values(store) == {}
    store.add([Answer("k1", "a", "cat", 1)], "me")  # and the file still works
    assert values(store) == {("a", "cat"): 1}


def test_two_processes_and_many_threads_write_at_once(place) -> None:
    first, second = AnswerStore(place), AnswerStore(place)
    assert first.project == second.project
    _, seen = first.changed_since((0, 0))

    def write(store: AnswerStore, name: str) -> None:
        for k in range(20):
            store.add([Answer(f"{name}{k}", f"i{k}", "cat", 1)], name)

    threads = [threading.Thread(target=write, args=(store, f"{at}-")) for at, store in enumerate([first, second] * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.count() == second.count() == (80, 0)
    entries, newest = first.changed_since(seen)
    assert set(entries) == {(f"i{k}", "cat") for k in range(20)}
    assert first.changed_since(newest) == ([], newest)
    first.undo(["0-3"], "me")
    assert first.changed_since(newest)[0] == [("i3", "cat")]
    first.close()
    second.close()


KILLED = """
import sys
from halflabel.labels.answers import Answer, AnswerStore
store = AnswerStore(sys.argv[1])
for k in range(100_000):
    store.add([Answer(f"k{k}", f"i{k}", "cat", 1)], "me")
    print(k, flush=True)
"""


def test_a_kill_loses_nothing_confirmed(tmp_path) -> None:
    path = tmp_path / "x.sqlite"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(25)]
    os.kill(process.pid, signal.SIGKILL)
    confirmed += [int(line) for line in process.stdout.read().splitlines() if line]
    process.stdout.close()
    process.wait()
    store = AnswerStore(path)
    actual = {item.key for item in store.current()}
    store.close()
    assert len(confirmed) >= 25
    assert {f"k{k}" for k in confirmed} <= actual


def test_rows_hold_current_answers_without_unsure_ones(store, tmp_path) -> None:
    store.add([Answer("k1", "b", "dog", 1), Answer("k2", "a", "cat", -1), Answer("k3", "a", "dog", 0)], "me")
    store.add([Answer("k4", "c", "cat", 1)], "me")
    store.undo(["k4"], "me")
    rows = store.label_rows(IMAGES, CLASSES)
    assert {rows.sources[number] for number in rows.source} == {"person:me"}
    formats.write(rows, tmp_path / "answers.csv")
    back = formats.read(tmp_path / "answers.csv").table()
    assert (back.images, back.classes) == (IMAGES, CLASSES)
    assert back.dense().tolist() == [[-1, 0], [0, 1], [0, 0]]
    # After the labels trained on, an answer corrects one, and being unsure retracts none.
    labels = Table.from_dense([[1, 1], [0, 0], [0, 0]], list(IMAGES), list(CLASSES))
    both = Labels.from_table(labels).append(rows).training
    assert both.dense().tolist() == [[-1, 1], [0, 1], [0, 0]]


def test_rows_of_another_run_are_refused(store) -> None:
    store.add([Answer("k1", "a", "zebra", 1)], "me")
    with pytest.raises(UserError, match="zebra"):
        store.label_rows(IMAGES, CLASSES)


def test_answers_about_photos_without_a_label_come_after_the_images_of_the_run(store) -> None:
    store.add([Answer("k1", "unlisted.jpg", "cat", 1), Answer("k2", "b", "dog", -1)], "me")
    rows = store.label_rows(IMAGES, CLASSES)
    assert list(rows.images) == [*IMAGES, "unlisted.jpg"]
    assert rows.training.rows([1, 3]).tolist() == [[0, -1], [1, 0]]


def test_answered_entries_are_named_for_the_next_list(store, tmp_path) -> None:
    table = Table.from_dense([[0, 0]] * 3, list(IMAGES), list(CLASSES))
    store.add([Answer("k1", "b", "dog", 0), Answer("k2", "elsewhere", "dog", 1)], "me")
    assert answered_entries(store.place, table) == [(1, 1)]
    assert answered_entries(tmp_path / "none.sqlite", table) == []
    assert not (tmp_path / "none.sqlite").exists()


def test_what_is_no_answer_file_is_refused(tmp_path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"this is a letter, not a database" * 100)
    with pytest.raises(UserError, match="cannot be used for answers"):
        AnswerStore(tmp_path / "x.sqlite")


def test_a_full_disk_asks_for_room(tmp_path) -> None:
    store = AnswerStore(tmp_path / "a.sqlite")
    pages = store._db.read("PRAGMA page_count")[0][0]
    store._db.read(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UserError, match="disk is full") as caught:
        store.add([Answer(f"key-{k:05}", "x" * 200, "dog", 1) for k in range(200)], "me")
    assert caught.value.fix == "free space on its disk"
    store.close()


def test_a_lost_connection_is_opened_again(new_database) -> None:
    store = AnswerStore(new_database())
    assert store.name.startswith("postgresql:///review")  # neither password nor options are shown
    store.add([Answer("k1", "a", "cat", 1)], "me")
    other = AnswerStore(store.place)
    own = store._db.read("SELECT pg_backend_pid()")[0][0]
    other._db.read("SELECT pg_terminate_backend(?)", (own,))
    with pytest.raises(UserError, match="cannot be used"):
        store.add([Answer("k2", "a", "dog", 1)], "me")
    store.add([Answer("k2", "a", "dog", 1)], "me")  # the page sends it again
    assert values(other) == {("a", "cat"): 1, ("a", "dog"): 1}
    store.close()
    other.close()


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match="cannot be used for answers") as caught:
        AnswerStore("postgresql://ann:secret@127.0.0.1:9/photos")
    assert "secret" not in str(caught.value)
