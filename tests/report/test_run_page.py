"""The page of a run: complete, escaped, bounded, without the network; and it opens in a browser."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_checks import HOSTILE, check, random_run
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.labels.names import Names
from halflabel.report.layout import FEW_POSITIVES, method_summary
from halflabel.report.run_facts import read_run_facts
from halflabel.report.run_page import build_page, write_report
from halflabel.runs.folder import RunFolder


def test_page_shows_the_metrics_of_the_run(tmp_path: Path) -> None:
    run = random_run(tmp_path / "first")
    text = build_page(run)
    page = check(text)
    overall = run.read_json("metrics.json")
    for title, key in (("mAP", "mAP"), ("micro F1", "micro_f1"), ("macro F1", "macro_f1")):
        assert f"{title} {100 * overall[key]:.1f} " in page.text
    assert f"calibration error {overall['ECE']:.3f}" in page.text
    stats = run.read_labels().stats
    for c, name in enumerate(("cat", "dog", "cow")):
        row = re.search(rf'<tr[^>]*><th scope="row"[^>]*>{name}</th>(.*?)</tr>', text)
        assert row is not None
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[1])
        assert cells[:3] == [str(part[c]) for part in (stats.positives, stats.negatives, stats.unknown)]
    assert "40 images to train on, 20 held out" in page.text
    assert page.text.count("Measured on the 19 held-out images, which training did not see") == 1
    assert "Images that could not be read: 1;" in page.text
    assert "halflabel report RUN --images PHOTOS" in page.text
    match = re.search(r"This file: (\d+) kB", page.text)
    assert match is not None
    assert abs(int(match[1]) - len(text.encode()) / 1000) < 1
    for name in ("photos", "classes", "threshold", "scores", "labels", "pairs", "learning"):
        assert f'href="#{name}"' in text


def test_relabelling_is_drawn_where_it_was_logged(tmp_path: Path) -> None:
    quiet = build_page(random_run(tmp_path / "quiet"))
    assert "Pseudo-labels" not in quiet
    log: list[dict[str, Any]] = [
        {"epoch": 1, "loss": 0.5, "label_proportion": 0.4, "tp_rate": 0.9, "tn_rate": 0.8, "weak_positives": 7.0},
        {"epoch": 2, "loss": None},
        {
            "epoch": 3,
            "loss": 0.2,
            "label_proportion": 0.6,
            "tp_rate": 0.7,
            "tn_rate": float("nan"),
            "weak_positives": 9,
        },
    ]
    text = build_page(random_run(tmp_path / "messages", log=log))
    page = check(text)
    assert "over 3 epochs, at last: share labelled 0.6, TP rate 0.7, TN rate 0.8" in text
    assert "weak positives" in page.text
    assert "Epochs in which the loss was not a finite number: 1." in page.text


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
        assert "P(column | row)" not in page.text
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
    names = [HOSTILE, "'; DROP TABLE --", "ab\x1b\u202ec", "日本語 🐄", "]]><!--", "</script>", "&lt;"]
    text = build_page(random_run(tmp_path / f"run {HOSTILE.replace('/', '_')}", classes=names))
    page = check(text)
    assert page.count("b", "onload") == 0
    assert not any("onload" in attributes for _, attributes in page.tags)
    for name in (HOSTILE, "'; DROP TABLE --", "日本語 🐄", "]]><!--", "</script>", "&lt;"):
        assert name in page.words
    assert "ab\ufffd\ufffdc" in page.words


def test_many_classes_do_not_explode_the_page(tmp_path: Path) -> None:
    names = [f"{i} " + '"<&>' * 75 for i in range(1200)]
    text = build_page(random_run(tmp_path / "run", images=30, classes=names))
    page = check(text)
    assert text.count('<th scope="row" class="name"') == 200
    assert "200 of 1,200 classes are listed: those with the most known positives" in page.text
    assert "28 of 1,200 classes are drawn: those with the most known positives" in page.text
    assert page.count("svg") < 60
    # A name that makes every character six takes most of it.
    assert len(text) < 1_500_000


def test_long_log_is_thinned(tmp_path: Path) -> None:
    log = [{"epoch": e, "loss": math.sin(e), "mAP": 0.5, **{f"extra_{k}": e for k in range(9)}} for e in range(1, 3001)]
    text = build_page(random_run(tmp_path / "run", log=log))
    page = check(text)
    assert max(points.count(",") for points in page.values("points")) <= 200
    assert "6 of 9 columns of what the method logged are drawn" in page.text
    assert len(text) < 200_000


def test_nothing_but_pages_is_written(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    page = write_report(run)
    assert page.path == run / "report.html"
    assert page.size == page.path.stat().st_size
    assert write_report(run, tmp_path / "other.HTML").path.exists()
    with pytest.raises(UserError, match=r"end it in \.html"):
        write_report(run, tmp_path / "weights.safetensors")
    assert build_page(run) == page.path.read_text(encoding="utf-8")


def test_scores_of_other_labels_are_refused(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    run.write_scores(Scores.unknown(Names(["other.jpg"]), Names(["cat", "dog", "cow"])))
    with pytest.raises(UserError, match="images that its labels do not name"):
        build_page(run)
    run.write_scores(Scores.unknown(Names(["other.jpg"]), Names(["cat"])))
    with pytest.raises(UserError, match="other classes"):
        build_page(run)


def test_damaged_scores_are_refused_in_one_message(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    run.stored_scores.write_bytes(b"PAR1 no")
    result = CliRunner().invoke(app, ["report", str(run.folder)])
    assert result.exit_code == 2, result.output
    assert "scores.parquet cannot be read" in " ".join(result.stderr.split())


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


def test_command_writes_the_page(trained: tuple[Path, Path], tmp_path: Path) -> None:
    folder, photos = trained
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(folder), "--images", str(photos), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "Wrote" in result.stdout
    check(out.read_text(encoding="utf-8"))
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "--images PHOTOS" in result.stdout
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{empty}"], "is not a run"),
        (["{run}", "--images", "{run}/none"], "is not a folder"),
        (["{run}", "--images", "{empty}"], "none of the 60 images"),
        (["{run}", "--out", "{empty}/page.txt"], "end it in .html"),
        (["{run}", "--out", "{empty}"], "end it in .html"),
    ],
)
def test_command_refuses_in_one_message(
    trained: tuple[Path, Path], tmp_path: Path, words: list[str], said: str
) -> None:
    given = [word.format(run=trained[0], empty=tmp_path) for word in words]
    result = CliRunner().invoke(app, ["report", *given])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("error:") == 1
    assert said in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_in_a_browser(browser: Any, pages: list[Path], width: int, scheme: str) -> None:
    for path in pages:
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.set_default_timeout(10_000)
        messages: list[str] = []
        tab.on("console", lambda message, messages=messages: messages.append(message.text))
        tab.on("pageerror", lambda error, messages=messages: messages.append(str(error)))
        tab.on("dialog", lambda dialog, messages=messages: messages.append("dialog"))
        asked: list[str] = []
        tab.on("request", lambda request, asked=asked: asked.append(request.url))
        tab.goto(path.as_uri())
        wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
        tab.get_by_role("button", name="AP", exact=True).click()
        shown = tab.locator("table.sortable tbody tr td:nth-child(7)").all_inner_texts()
        values = [float(value) for value in shown if value != "—"]
        assert values == sorted(values, reverse=True)
        assert len(values) > 1
        assert shown[len(values) :] == ["—"] * (len(shown) - len(values))
        tab.get_by_role("button", name="AP", exact=True).click()
        shown = tab.locator("table.sortable tbody tr td:nth-child(7)").all_inner_texts()
        assert [float(value) for value in shown if value != "—"] == values[::-1]
        if path.name == "photos.html":
            assert tab.locator("#wrong .map").first.is_visible()
            tab.locator("#wrong-maps").uncheck()
            assert not tab.locator("#wrong .map").first.is_visible()
        assert messages == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        tab.close()


def test_class_with_few_positives_is_a_ring_with_a_caution(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", images=45)
    rows = read_run_facts(run).held_out
    assert rows is not None
    thin = [row for row in rows.per_class if np.isfinite(row["AP"]) and 0 < row["present"] < FEW_POSITIVES]
    assert thin
    text = build_page(run)
    page = check(text)
    assert page.count("circle", "ring") == len(thin)
    assert f"Measured with fewer than {FEW_POSITIVES} known positives: {len(thin)} of 3 classes" in page.text


def test_page_shows_when_the_run_was_trained(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    assert "; trained" not in build_page(run)  # older runs do not say
    run.write_json("made.json", {"trained": "wan: <b>", "time": "2031-02-03T04:05:06Z", "halflabel": "9.8.7"})
    assert "wan: <b>; 3 epochs in all; trained 2031-02-03, 04:05 UTC, by halflabel 9.8.7" in check(build_page(run)).text
    run.write_json("made.json", ["2031"])
    with pytest.raises(UserError, match=r"made\.json is damaged"):
        build_page(run)


def test_of_paths_the_page_shows_the_last_part_alone(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    options = {"vectors": "/secret/place/glove.txt", "graph": "cooccurrence", "side": "C:\\secret\\place\\birds.csv"}
    secret = {"weights": "/secret/place/w.pt", "begin_from": "/secret/place/before", "later": "/secret/place"}
    run.write_config({**run.read_config(), **secret, "options": options})
    page = check(build_page(run))
    assert "options vectors = glove.txt, graph = cooccurrence, side = birds.csv" in page.text
    assert "secret" not in page.text
    assert "begin_from" not in page.text
    for shown in ("backbone tiny", "size 32", "epochs 3", "lr 0.1"):
        assert shown in page.text


def test_a_solver_run_shows_strengths_and_no_epochs(solver_run: Any, tmp_path: Path) -> None:
    from halflabel.report.quality_sections import training_section

    log = solver_run.run.read_log()
    assert training_section([{**log[0], "strength": 0.0}]) is None  # nothing was chosen
    section = str(training_section([*log, {**log[0], "strength": 3 * log[0]["strength"]}]))
    assert "L-BFGS" in section
    assert "not a finite number" not in section
    assert "epoch" not in section


def test_a_slider_tries_thresholds_and_a_click_enlarges_a_photo(browser: Any, pages: list[Path]) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(pages[0].as_uri())
    tab.locator(".slider").fill("0")
    assert tab.inner_text(".thresholds .recall b") == "100.0 %"
    everything = tab.inner_text(".thresholds .precision b")
    tab.locator(".slider").fill("90")
    assert tab.inner_text(".thresholds output") == "0.90"
    assert tab.inner_text(".thresholds .precision b") != everything
    first, second = tab.locator(".tile figcaption").all_inner_texts()[:2]
    tab.locator(".tile svg.photo").first.click()
    assert tab.inner_text("dialog.enlarged figcaption") == first
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("dialog.enlarged figcaption") == second
    tab.keyboard.press("Escape")
    assert not tab.is_visible("dialog.enlarged")
    photo = tab.get_by_role("button").and_(tab.locator("svg.photo")).first
    photo.press("Space")
    assert tab.is_visible("dialog.enlarged")
    tab.get_by_role("button", name="Close").press("Enter")
    assert not tab.is_visible("dialog.enlarged")
    assert "precision" in tab.get_attribute(".thresholds input", "aria-valuetext")
    tab.close()


def test_galleries_have_pages_and_a_class_shows_its_own_photos(browser: Any, pages: list[Path]) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.goto(pages[0].as_uri())
    shown = tab.locator("#missing .tile:visible")
    total = tab.locator("#missing .tile").count()
    assert shown.count() == 24 < total
    assert tab.inner_text("#missing .pager span") == f"1 to 24 of {total}"
    first = tab.locator("#missing .tile:visible").first.inner_text()
    tab.locator("#missing .pager button").last.click()
    assert shown.count() == min(24, total - 24)
    assert tab.locator("#missing .tile:visible").first.inner_text() != first
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
    tab.close()


def test_values_of_a_chart_appear_at_the_pointer(browser: Any, pages: list[Path]) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(pages[0].as_uri())
    tab.locator("#labels rect").first.hover()
    assert tab.inner_text(".tip").startswith((tab.locator("#labels text.name").first.text_content() or "") + ": ")
    tab.locator("h1").hover()
    assert not tab.is_visible(".tip")
    tab.close()


def test_a_method_that_is_not_there_has_no_summary() -> None:
    assert method_summary("no such method") == ""
