"""The commands evaluate and predict."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import done, flat, refused, run
from digit_scenes import CLASSES

from halflabel.runs.folder import RunFolder


def test_evaluate_measures_on_other_labels(trained: Path, data: Path, tmp_path: Path) -> None:
    text = done("evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out", tmp_path / "m.json")
    assert "known entries only" in text
    content = json.loads((tmp_path / "m.json").read_text())
    assert f"mAP {100 * content['mAP']:.1f} (" in text
    assert f"micro F1 {100 * content['micro_f1']:.1f} " in text
    weakest = min((row for row in content["per_class"] if row["AP"] is not None), key=lambda row: row["AP"])
    assert re.search(rf"^{weakest['class']} +{100 * weakest['AP']:.1f} ", text, re.MULTILINE)
    assert content["images"] == 12
    assert content["scored"] == "12 new images, 0 that the run was trained on"
    assert content["scored"] in flat(text)
    assert [row["class"] for row in content["per_class"]] == CLASSES


def test_evaluate_decides_by_one_threshold_where_asked(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ["evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out"]
    results = {}
    for cut in ("", "0.0", "0.75"):
        text = flat(done(*words, tmp_path / f"m{cut}.json", *(["--threshold", cut] if cut else [])))
        results[cut] = json.loads((tmp_path / f"m{cut}.json").read_text())
        assert results[cut]["protocol"] in text
    assert "present or absent by one threshold of" in results[""]["protocol"]
    assert "threshold" not in results[""]
    own = RunFolder(trained).read_thresholds()
    assert {row["class"]: row["threshold"] for row in results[""]["per_class"]} == pytest.approx(own)
    assert "present or absent by one threshold of 0.75" in results["0.75"]["protocol"]
    assert results["0.75"]["threshold"] == 0.75
    assert {row["threshold"] for row in results["0.75"]["per_class"]} == {0.75}
    # All is called present from 0 on: nothing is missed, and as much is right as there is.
    known = [(row["present"], row["absent"]) for row in results["0.0"]["per_class"]]
    assert results["0.0"]["OR"] == 1
    assert results["0.0"]["OP"] == pytest.approx(sum(p for p, _ in known) / sum(p + a for p, a in known))
    assert results["0.0"]["mAP"] == results[""]["mAP"]
    assert run(*words[:-1], "--threshold", "1.5").exit_code == 2
    assert "--threshold" in flat(done("evaluate", "--help"))


def test_evaluate_shows_a_dash_for_classes_that_the_labels_do_not_name(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    from halflabel.labels import formats

    pictures = data / "test" / "images"
    table = formats.read(data / "test" / "test.csv").table()
    formats.write(table.subset(classes=[8, 3, 5]), tmp_path / "few.csv")
    text = flat(done("evaluate", trained, tmp_path / "few.csv", pictures, "--out", tmp_path / "few.json"))
    assert "few.csv has no row on 7 of the run's 10 classes: 0, 1, 2, 4, 6, 7, 9" in text
    done("evaluate", trained, data / "test" / "test.csv", pictures, "--out", tmp_path / "whole.json")
    few, whole = (json.loads((tmp_path / f"{name}.json").read_text())["per_class"] for name in ("few", "whole"))
    assert [row["class"] for row in few] == CLASSES
    for c, (mine, theirs) in enumerate(zip(few, whole, strict=True)):
        if c in (3, 5, 8):
            assert [mine[key] for key in ("present", "absent", "AP")] == [
                theirs[key] for key in ("present", "absent", "AP")
            ]
        else:
            assert [mine[key] for key in ("present", "absent", "AP", "precision")] == [0, 0, None, None]
    (tmp_path / "other.csv").write_text("image,cat,dog\ntest-000000.png,1,0\n")
    error = refused("evaluate", trained, tmp_path / "other.csv", pictures)
    assert "other.csv has none of the model's 10 classes: it has 'cat', 'dog' …, the model '0', '1', '2' …" in error


def test_evaluate_overwrites_an_earlier_evaluation_and_nothing_else(trained: Path, data: Path, tmp_path: Path) -> None:
    words = ["evaluate", trained, data / "test" / "test.csv", data / "test" / "images", "--out"]
    done(*words, tmp_path / "m.json")
    done(*words, tmp_path / "m.json")
    for precious in ("image,cat\na,1\n", '{"images": []}', "[1]"):
        (tmp_path / "precious").write_text(precious)
        assert "--force" in refused(*words, tmp_path / "precious")
        assert (tmp_path / "precious").read_text() == precious
    done(*words, tmp_path / "precious", "--force")
    assert "per_class" in json.loads((tmp_path / "precious").read_text())


def test_predict_marks_what_is_over_its_threshold_in_plain_text_too(
    trained: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "images")
    photo = Path("train-000003.png")
    (actual,) = json.loads(done("predict", trained, photo, "--format", "json", "--all"))
    text = done("predict", trained, photo, "--all")
    assert "*: above the threshold" in text
    wanted = {label["class"]: label["present"] for label in actual["labels"]}
    assert True in wanted.values()
    marks = {name: bool(mark) for name, mark in re.findall(r"\b(\d) [01]\.\d\d(\*?)", flat(text))}
    assert marks == wanted


def test_predict_as_table_json_and_csv_from_files_folders_and_stdin(trained: Path, data: Path) -> None:
    photo = data / "images" / "train-000003.png"
    assert "train-000003.png" in done("predict", trained, photo).replace("\n", "")
    content = json.loads(done("predict", trained, photo, "--format", "json", "--all"))
    assert len(content) == 1
    assert content[0]["image"] == str(photo)
    assert sorted(label["class"] for label in content[0]["labels"]) == CLASSES
    rows = list(csv.DictReader(io.StringIO(done("predict", trained, data / "images", "--format", "csv", "--top", "2"))))
    assert len({row["image"] for row in rows}) == 48
    assert all(0 <= float(row["probability"]) <= 1 and row["present"] in "01" for row in rows)
    names = f"{photo}\n\n{data / 'images' / 'train-000001.png'}\n"
    piped = json.loads(done("predict", trained, "-", "--format", "json", stdin=names.replace("\n", "\r\n")))
    assert [Path(item["image"]).name for item in piped] == ["train-000003.png", "train-000001.png"]
    alone = json.loads(done("predict", trained, photo, "--format", "json"))
    chances = [[label["probability"] for label in item["labels"]] for item in (piped[0], alone[0])]
    assert chances[0] == pytest.approx(chances[1], abs=1e-5)


def test_predict_names_the_images_it_cannot_read(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = data / "images" / "train-000003.png", Path("[bold]x.png")
    bad.write_bytes(b"no picture")
    for shape in ("json", "csv", "table"):
        assert "[bold]x.png" in done("predict", trained, good, bad, "--format", shape)
    result = run("predict", trained, bad, "--format", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["error"]
    assert "no image could be read" in result.stderr
    (tmp_path / "none").mkdir()
    assert "there are no images" in refused("predict", trained, tmp_path / "none")
    assert "there are no images" in refused("predict", trained, "-", stdin="\n")


def test_a_file_name_that_is_not_utf8_is_escaped(trained: Path, data: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(data / "images" / "train-000003.png", name)
    assert r"caf\xe9.png," in done("predict", trained, tmp_path, "--format", "csv")
    done("predict", trained, tmp_path, "--out", tmp_path / "out")
    assert pq.read_table(tmp_path / "out")["image"][0].as_py().endswith(r"caf\xe9.png")


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_predict_writes_one_file_of_the_stated_format(
    trained: Path, data: Path, tmp_path: Path, ending: str, stated: bool
) -> None:
    out = tmp_path / (f"decisions.{ending}" if not stated or ending == "parquet" else "decisions")
    words = ["predict", trained, data / "images", "--out", out, *(["--format", ending] if stated else [])]
    done(*words)
    assert out.is_file()
    if ending == "json":
        images = [item["image"] for item in json.loads(out.read_text())]
    elif ending == "csv":
        images = [row["image"] for row in csv.DictReader(io.StringIO(out.read_text()))]
    else:
        images = pq.read_table(out)["image"].to_pylist()
    assert len(set(images)) == 48
    assert "already exists" in refused(*words)
    done(*words, "--force")


def test_predict_fails_where_a_file_is_missing(trained: Path, data: Path, tmp_path: Path) -> None:
    photo = data / "images" / "train-000003.png"
    result = run("predict", trained, photo, tmp_path / "nothing.jpg", "--out", tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "nothing.jpg" in flat(result.stderr)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert {row["image"] for row in rows if not row["error"]} == {str(photo)}
    result = run("predict", trained, "-", "--format", "json", stdin=f"{tmp_path / 'nothing.jpg'}\n{photo}\n")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)) == 2
