"""`halflabel fill` and `halflabel rules` on small data."""

from __future__ import annotations

import shutil
from pathlib import Path

import command_line
import fill_worlds as worlds
import numpy as np
import pytest
from command_line import flat, refused

from halflabel.evaluation.scores import Scores
from halflabel.filling import plan as filling_plan
from halflabel.filling import run as filling_run
from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder


def done(*words: str | Path) -> str:
    return flat(command_line.done(*words))


EASY = ("--precision", "0.6", "--confidence", "0.6", "--folds", "2")


def test_fill_append_and_undo(frozen: RunFolder, pictures: Path, digits: Table, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "filled.csv"
    formats.write(digits, labels)
    before = labels.read_text()
    shown = done("fill", frozen.folder, pictures / "images", "--out", out, "--only-filled", *EASY)
    assert "filled present" in shown
    assert "left unknown" in shown
    assert f"source model:bn-bce:{frozen.folder.as_posix()}" in shown
    filled = formats.read(out, format="long").rows
    assert len(filled) > 20
    labels.write_text(before + out.read_text().split("\n", 1)[1])
    table = formats.read(labels, format="long").table()
    assert table.known == digits.known + len(filled)
    assert f"{len(filled)} rows removed" in done("fill", frozen.folder, "--undo", labels)
    assert labels.read_text() == before


def test_a_whole_file_and_other_labels(frozen: RunFolder, pictures: Path, digits: Table, tmp_path: Path) -> None:
    labels, whole = tmp_path / "labels.csv", tmp_path / "whole.parquet"
    formats.write(digits.subset(list(range(30))), labels)
    done("fill", frozen.folder, pictures / "images", "--labels", labels, "--out", whole, "--complete", *EASY)
    table = formats.read(whole).table()
    assert len(table) == 30
    at = table.images.index(digits.images.array[:30])
    known = digits.subset(list(range(30))).dense()
    assert (table.dense()[at][known != 0] == known[known != 0]).all()
    assert table.known > digits.subset(list(range(30))).known


def test_photos_without_a_row_are_filled_if_asked_for(frozen: RunFolder, pictures: Path, tmp_path: Path) -> None:
    images, out = tmp_path / "images", tmp_path / "filled.csv"
    shutil.copytree(pictures / "images", images)
    first = next(images.iterdir())
    (images / "more").mkdir()
    for number in range(5):
        shutil.copy(first, images / "more" / f"{number}.png")
    words = ("fill", frozen.folder, images, "--out", out, "--force", *EASY[:4])
    assert "5 photos" in done(*words)
    assert not [name for name in formats.read(out).rows.images if name.startswith("more/")]
    done(*words, "--all-photos")
    rows = formats.read(out).rows
    new = [rows.images[i] for i in rows.image.tolist() if rows.images[i].startswith("more/")]
    assert set(new) == {f"more/{number}.png" for number in range(5)}


def test_earlier_model_labels_are_not_used_for_evaluation(
    pictures: Path, digits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that came back from an earlier fill stay as they are, keep their source, and judge nothing."""
    image, column, value = digits.entries()
    actual = np.arange(digits.known) % 2
    sources = ("person", "model:an:runs/before")
    rows = Labels.build(digits.images, digits.classes, image, column, value, actual, actual * 0.75, sources)
    formats.write(rows, tmp_path / "labels.csv")
    shown = done(
        "train", tmp_path / "labels.csv", pictures / "images", "--method", "bn-bce", "--backbone", "tiny", "--size",
        "32", "--fit", "batches", "--epochs", "1", "--set", "device=cpu", "--workers", "0", "--out", tmp_path / "run",
    )  # fmt: skip
    assert f"{actual.sum()} of {digits.known} labels were made by a model" in shown
    judged = []
    monkeypatch.setattr(
        filling_run,
        "_score",
        lambda run, images, rows, *more: judged.append(rows.evaluation) or scored(rows.evaluation),
    )
    monkeypatch.setattr(filling_plan, "_SIGMAS", np.inf)  # only known entries have good scores
    out = tmp_path / "whole.csv"
    done("fill", tmp_path / "run", pictures / "images", "--out", out, "--complete", *EASY)
    assert judged == [digits.keep(actual == 0)]
    after = formats.read(out).rows
    old = after.source == after.sources.index("model:an:runs/before")
    assert old.sum() == actual.sum()
    assert set(after.score[old].tolist()) == {0.75}
    assert len(after) > digits.known
    table = after.training.subset(after.images.index(digits.images.array), after.classes.index(digits.classes.array))
    assert (table.dense()[digits.dense() != 0] == digits.dense()[digits.dense() != 0]).all()


def test_derived_labels_are_counted_by_the_source_of_their_premise(
    frozen: RunFolder, pictures: Path, digits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's 0 in ten images and a model's in five others; all is told, and can be taken back."""
    image, column, value = digits.entries()
    image, column, value = (part[column > 1] for part in (image, column, value))
    rows = Labels.build(digits.images, digits.classes, image, column, value, "person")
    who = (np.arange(15) >= 10).astype(np.int16)
    zero = np.zeros(15, np.int8)
    names = ("person", "model:an:runs/before")
    rows = rows.append(Labels.build(digits.images, digits.classes, np.arange(15), zero, zero + 1, who, None, names))
    rules, out = tmp_path / "rules.csv", tmp_path / "whole.csv"
    rules.write_text("0,implies,1\n")
    monkeypatch.setattr(RunFolder, "read_rows", lambda run: rows)
    monkeypatch.setattr(filling_run, "_score", lambda run, images, rows, *more: scored(rows.evaluation))
    monkeypatch.setattr(filling_plan, "_SIGMAS", np.inf)
    shown = done("fill", frozen.folder, pictures / "images", "--rules", rules, "--out", out, "--complete")
    assert "10 of the filled labels follow by the rules from people's labels (source rule)" in shown
    assert "5 of the filled labels follow by the rules from labels of a model only" in shown
    assert f", source model:bn-bce:{frozen.folder.as_posix()} and rule" in shown
    assert f"halflabel fill --undo {out} --source rule" in shown
    assert "10 rows removed" in done("fill", "--undo", out, "--source", "rule")
    assert "10 rows removed" in done("fill", "runs/before", "--undo", out)  # what it said, and what followed


def scored(table: Table) -> Scores:
    """Scores that know the labels: enough to fill something."""
    noise = np.random.default_rng(0).normal(0, 1, table.shape)
    return worlds.made_up((4 * table.dense() + noise).astype(np.float32), np.arange(len(table)) % 2)


@pytest.mark.parametrize("name", ["f.labels", "f.json", "f", "f.csv.gz"])
def test_output_names_must_end_in_csv_or_parquet(frozen: RunFolder, pictures: Path, tmp_path: Path, name: str) -> None:
    answer = refused("fill", frozen.folder, pictures / "images", "--out", tmp_path / name)
    assert "end the name in .csv or .parquet" in answer
    assert list(tmp_path.iterdir()) == []


def test_faults(frozen: RunFolder, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "there.csv"
    out.write_text("x")
    assert "--force" in refused("fill", frozen.folder, pictures / "images", "--out", out)
    assert "RUN and IMAGES" in refused("fill")
    assert "--undo" in refused("fill", frozen.folder, pictures / "images", "--source", "model:x:y")
    assert "2 or more" in refused(
        "fill", frozen.folder, pictures / "images", "--out", tmp_path / "a.csv", "--folds", "1"
    )
    rules = tmp_path / "rules.csv"
    rules.write_text("cat,implies,animal\n")
    answer = refused("fill", frozen.folder, pictures / "images", "--out", tmp_path / "a.csv", "--rules", rules)
    assert "rules.csv, line 1: no class is called 'cat'" in answer
    assert not (tmp_path / "a.csv").exists()


def test_an_unfinished_run_is_refused(frozen: RunFolder, pictures: Path, tmp_path: Path) -> None:
    begun = RunFolder(shutil.copytree(frozen.folder, tmp_path / "run"))
    begun.weights.unlink()
    out = tmp_path / "filled.csv"
    assert "has no weights yet" in refused("fill", begun.folder, pictures / "images", "--out", out, *EASY)
    assert not out.exists()
