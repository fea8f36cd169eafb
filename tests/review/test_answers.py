"""The store of answers: confirmed answers survive, duplicates are stored once, undo restores the earlier answer."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable
from halflabel.review.answers import Answer, AnswerStore, answered_entries

IMAGES, CLASSES = Names(["a", "b", "c"]), Names(["cat", "dog"])


@pytest.fixture
def store(tmp_path):
    actual = AnswerStore(tmp_path / "answers.sqlite")
    yield actual
    actual.close()


def values(store: AnswerStore) -> dict[tuple[str, str], int]:
    return {(item.image, item.label): item.value for item in store.current()}


def test_last_answer_wins_and_history_stays(store) -> None:
    store.add([Answer("k1", "a", "cat", 1, 0.7, "uncertain")], "ann", "first")
    store.add([Answer("k2", "a", "cat", -1), Answer("k3", "b", "dog", 0)], "bob")
    assert values(store) == {("a", "cat"): -1, ("b", "dog"): 0}
    assert store.count() == (3, 0)
    first = store._db.execute("SELECT who, score, why, run, at FROM answer ORDER BY number").fetchone()
    assert first[:4] == ("ann", 0.7, "uncertain", "first")
    assert first[4].endswith("+00:00")


def test_said_twice_is_said_once(store) -> None:
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


def test_file_is_synced_at_each_commit(store) -> None:
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_bad_value_writes_nothing_of_its_portion(store) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        store.add([Answer("k1", "a", "cat", 1), Answer("k2", "a", "dog", 5)], "me")
    assert values(store) == {}
    store.add([Answer("k1", "a", "cat", 1)], "me")  # and the file still works
    assert values(store) == {("a", "cat"): 1}


def test_two_processes_and_many_threads_write_at_once(tmp_path) -> None:
    first, second = AnswerStore(tmp_path / "x.sqlite"), AnswerStore(tmp_path / "x.sqlite")
    assert first.project == second.project
    before = first.version()

    def write(store: AnswerStore, name: str) -> None:
        for k in range(20):
            store.add([Answer(f"{name}{k}", f"i{k}", "cat", 1)], name)

    threads = [threading.Thread(target=write, args=(store, f"{at}-")) for at, store in enumerate([first, second] * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.count() == second.count() == (80, 0)
    assert first.version() != before
    first.close()
    second.close()


KILLED = """
import sys
from halflabel.review.answers import Answer, AnswerStore
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


def test_rows_say_what_stands_and_unsure_says_nothing(store, tmp_path) -> None:
    store.add([Answer("k1", "b", "dog", 1), Answer("k2", "a", "cat", -1), Answer("k3", "a", "dog", 0)], "me")
    store.add([Answer("k4", "c", "cat", 1)], "me")
    store.undo(["k4"], "me")
    rows = store.label_rows(IMAGES, CLASSES)
    assert {rows.sources[number] for number in rows.source} == {"person:asked"}
    formats.write(rows, tmp_path / "answers.csv")
    back = formats.read(tmp_path / "answers.csv").table()
    assert (back.images, back.classes) == (IMAGES, CLASSES)
    assert back.dense().tolist() == [[-1, 0], [0, 1], [0, 0]]
    # After the labels trained on, an answer corrects one, and being unsure retracts none.
    labels = LabelTable.from_dense([[1, 1], [0, 0], [0, 0]], list(IMAGES), list(CLASSES))
    both = Rows.from_table(labels).append(rows).resolve()
    assert both.dense().tolist() == [[-1, 1], [0, 1], [0, 0]]


def test_rows_of_another_run_are_refused(store) -> None:
    store.add([Answer("k1", "zebra.jpg", "cat", 1)], "me")
    with pytest.raises(UserError, match=r"zebra\.jpg"):
        store.label_rows(IMAGES, CLASSES)


def test_answered_entries_are_named_for_the_next_list(store, tmp_path) -> None:
    table = LabelTable.from_dense([[0, 0]] * 3, list(IMAGES), list(CLASSES))
    store.add([Answer("k1", "b", "dog", 0), Answer("k2", "elsewhere", "dog", 1)], "me")
    assert answered_entries(store.path, table) == [(1, 1)]
    assert answered_entries(tmp_path / "none.sqlite", table) == []
    assert not (tmp_path / "none.sqlite").exists()


def test_what_is_no_answer_file_is_refused(tmp_path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"this is a letter, not a database" * 100)
    with pytest.raises(UserError, match="cannot be used for answers"):
        AnswerStore(tmp_path / "x.sqlite")


def test_a_full_disk_asks_for_room(tmp_path) -> None:
    store = AnswerStore(tmp_path / "a.sqlite")
    store._db.execute(f"PRAGMA max_page_count = {store._db.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(UserError, match="disk is full") as caught:
        store.add([Answer(f"key-{k:05}", "x" * 200, "dog", 1) for k in range(200)], "me")
    assert caught.value.fix == "free space on its disk"
    store.close()
