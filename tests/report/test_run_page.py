"""The page of a run: complete, escaped, bounded, without the network; and it opens in a browser."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_checks import HOSTILE, check, open_in_browser, random_run
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.labels.names import Names
from halflabel.report.labels_page import write_labels_page
from halflabel.report.quality_sections import training_section
from halflabel.report.run_facts import FEW_POSITIVES, read_run_facts
from halflabel.report.run_page import build_page, write_report
from halflabel.runs.folder import RunFolder
from halflabel.system.files import write_json


def test_page_shows_the_metrics_of_the_run(tmp_path: Path) -> None:
    run = random_run(tmp_path / "first", images=45)
    text = build_page(run)
    page = check(text)
    overall = run.read_object("metrics.json")
    for title, key in (("mAP", "mAP"), ("micro F1", "micro_f1"), ("macro F1", "macro_f1")):
        assert f"{title} {100 * overall[key]:.1f} " in page.text
    assert f"calibration error {overall['ECE']:.3f}" in page.text
    stats = run.read_labels().stats
    for c, name in enumerate(("cat", "dog", "cow")):
        row = re.search(rf'<tr[^>]*>\s*<th scope="row"[^>]*>{name}</th>(.*?)</tr>', text, re.S)
        assert row is not None
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[1])
        assert cells[:3] == [str(part[c]) for part in (stats.positives, stats.negatives, stats.unknown)]
    assert "30 images to train on, 15 held out" in page.text
    assert page.text.count("Measured on the 14 held-out images, which training did not see") == 1
    assert "Images that could not be read: 1;" in page.text
    assert "halflabel report RUN --images PHOTOS" in page.text
    match = re.search(r"This file: (\d+) kB", page.text)
    assert match is not None
    assert abs(int(match[1]) - len(text.encode()) / 1000) < 1
    for name in ("photos", "classes", "threshold", "scores", "labels", "learning"):
        assert f'href="#{name}"' in text
    results = read_run_facts(run).held_out
    assert results is not None
    few = int(results.has_few_positives.sum())
    assert page.count("circle", "ring") == few > 0
    assert f"Measured with fewer than {FEW_POSITIVES} known positives: {few} of 3 classes" in page.text


def test_page_begins_with_the_result_a_chart_and_what_to_do(tmp_path: Path) -> None:
    header = build_page(random_run(tmp_path / "run")).partition("</header>")[0]
    assert "The model reaches a mean average precision of" in header
    assert "<code>halflabel next RUN PHOTOS</code>" in header
    assert header.count("<svg") == 1
    assert "<table" not in header


def test_columns_of_the_log_are_drawn(tmp_path: Path) -> None:
    log: list[dict[str, Any]] = [
        {"epoch": 1, "loss": 0.5, "label_proportion": 0.4, "tp_rate": 0.9, "tn_rate": 0.8, "weak_positives": 7.0},
        {"epoch": 2, "loss": None},
        {"epoch": 3, "loss": 0.2, "label_proportion": 0.6, "tp_rate": 0.7, "tn_rate": math.nan, "weak_positives": 9},
    ]
    text = build_page(random_run(tmp_path / "relabelled", log=log))
    page = check(text)
    for shown in ("Share labelled over 3 epochs, at last 0.6", "TP rate over 3 epochs, at last 0.7", "at last 0.8"):
        assert shown in text
    assert "weak positives" in page.text
    assert "Epochs in which the loss was not a finite number: 1." in page.text
    log = [{"epoch": e, "loss": math.sin(e), "mAP": 0.5, **{f"extra_{k}": e for k in range(9)}} for e in range(1, 3001)]
    text = build_page(random_run(tmp_path / "long", log=log))
    page = check(text)
    assert "Share labelled" not in text
    assert max(points.count(",") for points in page.values("points")) <= 200
    assert "9 of 11 columns of what was logged are drawn" in page.text
    assert len(text) < 200_000


def test_a_solver_run_shows_strengths_and_no_epochs(solver_run: Any) -> None:
    log = solver_run.run.read_log()
    assert training_section([{**log[0], "strength": 0.0}]) is None  # nothing was chosen
    section = str(training_section([*log, {**log[0], "strength": 3 * log[0]["strength"]}]))
    assert "L-BFGS" in section
    assert "epoch" not in section


@pytest.mark.parametrize("kind", ["positives-only", "nothing held out", "one epoch", "unfinished", "one class"])
def test_page_of_a_run_that_lacks_something(tmp_path: Path, kind: str) -> None:
    if kind == "positives-only":
        page = check(build_page(random_run(tmp_path / "run", positives_only=True)))
        assert not {"#threshold", "#scores"} & set(page.values("href"))  # nothing to say
        assert "of the known positives; about" in page.text
        assert "mAP —" not in page.text
        assert "estimated precision" in page.text
        assert "95 % interval" not in page.text.partition("Class by class")[2].partition("What was known")[0]
        assert "micro F1" not in page.text.partition("What was known")[0]
        assert "Known labels per image" not in page.text  # the same as the known positives
    elif kind == "nothing held out":
        page = check(build_page(random_run(tmp_path / "run", held_out=False)))
        assert "No images were held out, so nothing was measured" in page.text
    elif kind == "one epoch":
        check(build_page(random_run(tmp_path / "run", log=[{"epoch": 1, "loss": 0.3, "mAP": 0.5}])))
    elif kind == "one class":
        check(build_page(random_run(tmp_path / "run", classes=["cat"])))
    else:
        run = random_run(tmp_path / "run", held_out=False, log=[])
        run.weights.unlink()
        (run / "log.jsonl").unlink()
        page = check(build_page(run))
        assert "This run is unfinished" in page.text
        assert page.values("href").count("#learning") == 0
        with pytest.raises(UserError, match="no weights yet"):
            build_page(run, images=tmp_path)


def test_names_stay_text(tmp_path: Path) -> None:
    names = [HOSTILE, "'; DROP TABLE --", "ab\x1b\u202ec", "日本語 🐄", "]]><!--", "</script>", "&lt;", "{{ 7*7 }}"]
    text = build_page(random_run(tmp_path / f"run {HOSTILE.replace('/', '_')}", classes=names))
    page = check(text)
    assert page.count("b", "onload") == 0
    assert not any("onload" in attributes for _, attributes in page.tags)
    for name in names:
        assert name.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd") in page.words


def test_many_classes_do_not_explode_the_page(tmp_path: Path) -> None:
    names = [f"{i} " + '"<&>' * 75 for i in range(1200)]
    text = build_page(random_run(tmp_path / "run", images=30, classes=names))
    page = check(text)
    assert text.count("<tr data-class=") == 200
    assert "200 of 1,200 classes are listed: those with the most known positives" in page.text
    assert "28 of 1,200 classes are drawn: those with the most known positives" in page.text
    assert page.count("svg") < 60
    # A name that makes every character six takes most of it.
    assert len(text) < 1_500_000


def test_pages_are_written_as_html_alone(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    page = write_report(run)
    assert page.path == run / "report.html"
    assert page.size == page.path.stat().st_size
    assert write_report(run, tmp_path / "other.HTML").path.exists()
    assert build_page(run) == page.path.read_text(encoding="utf-8")
    labels = write_labels_page(run.read_labels(), tmp_path / "labels.html").path.read_text(encoding="utf-8")
    shown = check(labels)
    assert "60 images" in shown.text
    assert "#labels" in shown.values("href")
    assert "held out" not in shown.text
    for write in (lambda path: write_report(run, path), lambda path: write_labels_page(run.read_labels(), path)):
        with pytest.raises(UserError, match=r"end it in \.html"):
            write(tmp_path / "weights.safetensors")


def test_scores_of_other_labels_are_refused(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    run.write_scores(Scores.unknown(Names(["other.jpg"]), Names(["cat", "dog", "cow"])))
    with pytest.raises(UserError, match="images that its labels do not name"):
        build_page(run)
    run.write_scores(Scores.unknown(Names(["other.jpg"]), Names(["cat"])))
    with pytest.raises(UserError, match="other classes"):
        build_page(run)
    run.stored_scores.write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"scores\.parquet cannot be read"):
        build_page(run)


def test_labels_of_a_model_are_not_among_what_was_known_of_held_out_images(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    whole = read_run_facts(run)
    rows = run.read_rows()
    actual = np.arange(len(rows)) % 2
    run.write_labels(dataclasses.replace(rows, source=actual.astype(np.int16), sources=("person", "model:an:x")))
    facts = read_run_facts(run)
    assert facts.table == whole.table
    assert whole.held_out is not None
    assert facts.held_out is not None
    people = whole.table.keep(actual == 0).rows(whole.held_out.images)
    np.testing.assert_array_equal(facts.held_out.labels, people)
    assert 0 < facts.held_out.known < whole.held_out.known


def test_page_shows_settings_without_folders_and_when_it_was_trained(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    assert "; trained" not in build_page(run)
    write_json(run / "made.json", {"trained": "wan: <b>", "time": "2031-02-03T04:05:06Z", "halflabel": "9.8.7"})
    options = {"vectors": "/secret/place/glove.txt", "graph": "cooccurrence", "side": "C:\\secret\\place\\birds.csv"}
    secret = {"weights": "/secret/place/w.pt", "begin_from": "/secret/place/before", "later": "/secret/place"}
    run.write_config({**run.read_config(), **secret, "options": options})
    page = check(build_page(run))
    assert "wan: <b>; 3 epochs in all; trained 2031-02-03, 04:05 UTC, by halflabel 9.8.7" in page.text
    assert "secret" not in page.text
    assert "begin_from" not in page.text
    assert "options vectors = glove.txt, graph = cooccurrence, side = birds.csv" in page.text
    for shown in ("backbone tiny", "size 32", "epochs 3", "lr 0.1"):
        assert shown in page.text
    write_json(run / "made.json", ["2031"])
    with pytest.raises(UserError, match=r"made\.json is damaged"):
        build_page(run)


def test_command_writes_the_page_or_one_message(trained: tuple[Path, Path], tmp_path: Path) -> None:
    folder, photos = map(str, trained)
    out, empty = str(tmp_path / "page.html"), tmp_path / "empty"
    empty.mkdir()
    for words, message in (
        ([str(empty)], "is not a run"),
        ([folder, "--images", f"{folder}/none"], "is not a folder"),
        ([folder, "--images", str(empty)], "none of the 60 images"),
        ([folder, "--out", f"{empty}/page.txt"], "end it in .html"),
        ([folder, "--out", str(empty)], "end it in .html"),
    ):
        result = CliRunner().invoke(app, ["report", *words])
        assert (result.exit_code, result.stderr.count("error:")) == (2, 1), result.output
        assert message in " ".join(result.stderr.split())
        assert list(empty.iterdir()) == []
    result = CliRunner().invoke(app, ["report", folder, "--images", photos, "--out", out])
    assert result.exit_code == 0, result.output
    check(Path(out).read_text(encoding="utf-8"))
    result = CliRunner().invoke(app, ["report", folder])
    assert result.exit_code == 0, result.output
    assert "--images PHOTOS" in result.stdout
    assert (trained[0] / "report.html").exists()


@pytest.fixture(scope="module")
def pages(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One page with photos, one with many classes of awkward names."""
    folder, photos = trained
    place = tmp_path_factory.mktemp("pages")
    names = [HOSTILE, "</script>", "a class whose name is long" * 12] + [f"class {i}" for i in range(70)]
    return [
        write_report(RunFolder.open(folder), place / "photos.html", images=photos, maps=True).path,
        write_report(random_run(place / "many", classes=names), place / "many.html").path,
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_opens_in_a_browser(browser: Any, pages: list[Path], width: int, scheme: str) -> None:
    for path in pages:
        with open_in_browser(browser, path, width, scheme) as tab:
            tab.locator("#classes summary").click()
            tab.get_by_role("button", name="AP", exact=True).click()
            shown = tab.locator("#classes tbody tr td:nth-child(7)").all_inner_texts()
            values = [float(value) for value in shown if value != "—"]
            assert values == sorted(values, reverse=True)
            assert len(values) > 1
            assert shown[len(values) :] == ["—"] * (len(shown) - len(values))
            tab.get_by_role("button", name="AP", exact=True).click()
            shown = tab.locator("#classes tbody tr td:nth-child(7)").all_inner_texts()
            assert [float(value) for value in shown if value != "—"] == values[::-1]
            if path.name == "photos.html":
                assert tab.locator("#wrong .map").first.is_visible()
                tab.locator("#wrong-maps").uncheck()
                assert not tab.locator("#wrong .map").first.is_visible()
            tab.emulate_media(media="print")
            assert not tab.locator(".pager:visible, .thresholds:visible, nav:visible").count()


def test_slider_photos_and_tips_answer_the_pointer(browser: Any, pages: list[Path]) -> None:
    with open_in_browser(browser, pages[0], 1280) as tab:
        tab.locator(".slider").fill("0")
        assert tab.inner_text(".thresholds .recall b") == "100.0 %"
        everything = tab.inner_text(".thresholds .precision b")
        tab.locator(".slider").fill("90")
        assert tab.inner_text(".thresholds output") == "0.90"
        assert tab.inner_text(".thresholds .precision b") != everything
        assert "precision" in tab.get_attribute(".thresholds input", "aria-valuetext")
        first, second = tab.locator(".tile figcaption").all_inner_texts()[:2]
        tab.locator(".tile svg.photo").first.click()
        assert tab.inner_text("dialog.enlarged figcaption") == first
        tab.keyboard.press("ArrowRight")
        assert tab.inner_text("dialog.enlarged figcaption") == second
        tab.keyboard.press("Escape")
        assert not tab.is_visible("dialog.enlarged")
        tab.get_by_role("button").and_(tab.locator("svg.photo")).first.press("Space")
        assert tab.is_visible("dialog.enlarged")
        tab.get_by_role("button", name="Close").press("Enter")
        assert not tab.is_visible("dialog.enlarged")
        tab.locator("#labels rect").first.hover()
        assert tab.inner_text(".tip").startswith((tab.locator("#labels text.name").first.text_content() or "") + ": ")
        tab.locator("h1").hover()
        assert not tab.is_visible(".tip")


def test_galleries_have_pages_and_a_class_shows_its_own_photos(browser: Any, pages: list[Path]) -> None:
    with open_in_browser(browser, pages[0], 390) as tab:
        tab.locator("#classes summary").click()
        shown = tab.locator("#missing .tile:visible")
        total = tab.locator("#missing .tile").count()
        assert shown.count() == 24 < total
        assert tab.inner_text("#missing .pager span") == f"1 to 24 of {total}"
        first = shown.first.inner_text()
        tab.locator("#missing .pager button").last.click()
        assert shown.count() == min(24, total - 24)
        assert shown.first.inner_text() != first
        name = tab.locator("#missing .tile:visible b").first.inner_text()
        tab.locator("#class-filter").select_option(name)
        assert set(tab.locator(".tile:visible b").all_inner_texts()) == {name}
        assert tab.locator("#classes tbody tr:visible").count() == 1
        assert f"halflabel review RUN PHOTOS --class {name}" in tab.inner_text("#one-class")
        tab.get_by_role("button", name="All classes").click()
        assert tab.locator("#classes tbody tr:visible").count() > 1
        assert shown.count() == 24
        tab.locator("#classes tbody button", has_text=name).first.click()
        assert tab.is_visible("#one-class")
