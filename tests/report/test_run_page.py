"""The page of a run: whole, escaped, bounded, without a trace of the network; and it opens in a browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.data.datasets.digits import write_folder
from halflabel.errors import UserError
from halflabel.labels import drop, formats
from halflabel.labels.table import LabelTable
from halflabel.metrics import best_thresholds, calibration_error
from halflabel.models.class_maps import visible_box
from halflabel.papers.figures import canvas
from halflabel.report import gallery, judged
from halflabel.report import layout as sections
from halflabel.report import svg as charts
from halflabel.report.curves import precision_recall, reliability, thin
from halflabel.report.labels import draw_labels
from halflabel.report.run_facts import gather
from halflabel.report.run_page import MOST_BYTES, build_page, write_report
from halflabel.report.svg import Series
from halflabel.runs import model_card as training
from halflabel.runs.evaluate import Evaluation, evaluate
from halflabel.runs.folder import RunFolder
from halflabel.system.html import Html, count, el, join, short
from halflabel.system.rng import uniform

VOID = {"br", "hr", "img", "input", "meta"}
HOSTILE = '<script>alert(\'x\')</script>"&<b onload="x">'


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about power cuts."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def random_run(
    folder: Path,
    *,
    images: int = 60,
    classes: list[str] | None = None,
    keep: float = 0.7,
    positives_only: bool = False,
    held_out: bool = True,
    log: list[dict[str, Any]] | None = None,
) -> RunFolder:
    """A run directory as training leaves it, of random labels and scores that know a little of them."""
    names = classes or ["cat", "dog", "cow"]
    u = uniform(3, np.arange(images)[:, None], np.arange(len(names)))
    truth = np.where(u < 0.3, 1, -1).astype(np.int8)
    known = np.where(uniform(4, np.arange(images)[:, None], np.arange(len(names))) < keep, truth, 0).astype(np.int8)
    if positives_only:
        known = np.maximum(known, 0)
    table = LabelTable.from_dense(known, [f"photo {i} {HOSTILE}.jpg" for i in range(images)], names)
    run = RunFolder.create(folder)
    config = {"method": "bce", "options": {}, "backbone": "tiny", "size": 32, "tune": "head", "images": "/secret/place"}
    run.start(table, {**config, "settings": {"epochs": 3, "lr": 0.1}})
    part = (np.arange(images) % 3 == 0).astype(np.int8) if held_out else np.zeros(images, np.int8)
    run.write_split(table.images.array, part)
    lines = [{"epoch": e, "loss": 1 / e, "lr": 0.1, "mAP": 0.2 * e, "select": 0.2 * e} for e in (1, 2, 3)]
    run.write_log(log if log is not None else lines)
    run.weights.touch()
    if held_out:
        at = np.flatnonzero(part)
        held = table.subset(at)
        logits = torch.from_numpy(truth[at] + 4 * uniform(5, at[:, None], np.arange(len(names))) - 3).float()
        logits[4] = math.nan  # one that could not be read
        run.write_csv("bad_images.csv", ["image", "path", "reason"], [[held.images[4], "/secret/place", "truncated"]])
        labels = torch.from_numpy(held.dense())
        readable = ~logits.isnan().any(1)
        cuts = best_thresholds(torch.sigmoid(logits[readable]), labels[readable])
        found = evaluate(logits, labels, held.classes, thresholds=cuts)
        run.write_json("thresholds.json", dict(zip(held.classes, cuts.tolist(), strict=True)))
        run.write_json("calibration.json", {"slope": 1.0, "offset": 0.0, "known": 10})
        run.write_json("metrics.json", {"protocol": "held-out images", **found.overall})
        run.write_csv("per_label.csv", list(found.per_class[0]), [list(row.values()) for row in found.per_class])
        run.write_predictions(held.images.array, list(held.classes), torch.sigmoid(logits).numpy())
    return run


class Page(HTMLParser):
    """What is on a page, and whether its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] or "" for _, attributes in self.tags if attribute in attributes]

    def count(self, tag: str, css: str | None = None) -> int:
        return sum(t == tag and (css is None or css in (a.get("class") or "").split()) for t, a in self.tags)


def check(text: str) -> Page:
    """What holds for every page."""
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for attribute in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
        for address in page.values(attribute):
            assert address.startswith(("#", "data:image/jpeg;base64,", "data:image/png;base64,")), address
            assert not address.startswith("#") or address[1:] in ids
    assert set(page.values("for") + page.values("aria-labelledby")) <= set(ids)
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        assert tag not in ("iframe", "object", "embed", "link", "base", "form")
    pictures = page.count("svg", "chart") + page.count("svg", "photo")
    assert pictures == page.count("svg") > 0
    styles, scripts = re.findall(r"<style>(.*?)</style>", text, re.S), re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(styles) == len(scripts) == page.count("style") == page.count("script") == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; img-src data:;")
    for kind, content in (("style", styles[0]), ("script", scripts[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "/secret/place" not in text
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", re.sub(r"base64,[^\"]*", "", page.text + text).lower())
    assert len(text.encode()) < MOST_BYTES
    return page


def test_page_says_what_the_run_measured(tmp_path: Path) -> None:
    run = random_run(tmp_path / "first")
    text = build_page(run)
    page = check(text)
    overall = run.read_json("metrics.json")
    for title, key in (("mAP", "mAP"), ("micro F1", "micro_f1"), ("macro F1", "macro_f1")):
        assert f"{title} {100 * overall[key]:.1f} " in page.text
    assert f"calibration error {overall['ECE']:.3f}" in page.text
    stats = run.read_labels().stats()
    for c, name in enumerate(("cat", "dog", "cow")):
        row = re.search(rf'<tr><th scope="row"[^>]*>{name}</th>(.*?)</tr>', text)
        assert row is not None
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[1])
        assert cells[:3] == [str(part[c]) for part in (stats.positives, stats.negatives, stats.unknown)]
    assert "40 images to train on, 20 held out" in page.text
    assert page.text.count("Measured on the 19 held-out images, which training did not see") == 3
    assert "Images that could not be read: 1;" in page.text
    assert "halflabel report RUN --images PHOTOS" in page.text
    said = re.search(r"This file: (\d+) kB", page.text)
    assert said is not None
    assert abs(int(said[1]) - len(text.encode()) / 1000) < 1
    for name in ("labels", "learning", "classes", "recall", "scores", "pairs", "photos"):
        assert f'href="#{name}"' in text


def test_relabelling_is_drawn_where_it_was_logged(tmp_path: Path) -> None:
    quiet = build_page(random_run(tmp_path / "quiet"))
    assert "made up" not in quiet
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
    text = build_page(random_run(tmp_path / "told", log=log))
    page = check(text)
    assert "After each relabelling: share labelled at last 0.600, TP rate at last 0.700, TN rate at last 0.800" in text
    assert "weak positives" in page.text
    assert "Epochs in which the loss was not a finite number: 1." in page.text


@pytest.mark.parametrize("kind", ["positives-only", "nothing held out", "one epoch", "unfinished", "one class"])
def test_page_of_a_run_that_lacks_something(tmp_path: Path, kind: str) -> None:
    if kind == "positives-only":
        page = check(build_page(random_run(tmp_path / "run", positives_only=True)))
        assert "Precision cannot be measured: nothing is known to be absent" in page.text
        assert "mAP — needs known absences" in page.text
        assert "micro F1" not in page.text.partition("What was known")[0]
        assert "P(column | row)" not in page.text
    elif kind == "nothing held out":
        page = check(build_page(random_run(tmp_path / "run", held_out=False)))
        assert "No images were held out, so nothing was measured" in page.text
        assert page.values("href").count("#recall") == 0
    elif kind == "one epoch":
        check(build_page(random_run(tmp_path / "run", log=[{"epoch": 1, "loss": 0.3, "mAP": 0.5}])))
    elif kind == "one class":
        check(build_page(random_run(tmp_path / "run", classes=["cat"])))
    else:
        run = random_run(tmp_path / "run", held_out=False, log=[])
        run.weights.unlink()
        (run / "log.jsonl").unlink()
        (run / "split.parquet").unlink()
        page = check(build_page(run))
        assert "This run is unfinished" in page.text
        assert page.values("href").count("#learning") == 0
        with pytest.raises(UserError, match="no weights yet"):
            build_page(run, images=tmp_path)


def test_names_stay_text(tmp_path: Path) -> None:
    names = [HOSTILE, "'; DROP TABLE --", "a\x00b\x1b\u202ec", "日本語 🐄", "]]><!--", "</script>", "&lt;"]
    text = build_page(random_run(tmp_path / f"run {HOSTILE.replace('/', '_')}", classes=names))
    page = check(text)
    assert page.count("b", "onload") == 0
    assert not any("onload" in attributes for _, attributes in page.tags)
    for name in (HOSTILE, "'; DROP TABLE --", "日本語 🐄", "]]><!--", "</script>", "&lt;"):
        assert name in page.words
    assert "a\ufffdb\ufffd\ufffdc" in page.words


def test_many_classes_do_not_explode_the_page(tmp_path: Path) -> None:
    names = [f"{i} " + '"<&>' * 75 for i in range(1200)]
    text = build_page(random_run(tmp_path / "run", images=30, classes=names))
    page = check(text)
    assert text.count('<th scope="row" class="name"') == 200
    assert "200 of 1 200 classes are listed: those with the most known positives" in page.text
    assert "28 of 1 200 classes are drawn: those with the most known positives" in page.text
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
    made = write_report(run)
    assert made.path == run / "report.html"
    assert made.size == made.path.stat().st_size
    assert write_report(run, tmp_path / "other.HTML").path.exists()
    with pytest.raises(UserError, match=r"end it in \.html"):
        write_report(run, tmp_path / "weights.safetensors")
    assert build_page(run) == made.path.read_text(encoding="utf-8")


def test_predictions_of_other_labels_are_refused(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    run.write_predictions(["other.jpg"], ["cat", "dog", "cow"], np.zeros((1, 3), np.float32))
    with pytest.raises(UserError, match="images that its labels do not name"):
        build_page(run)
    run.write_predictions(["other.jpg"], ["cat"], np.zeros((1, 1), np.float32))
    with pytest.raises(UserError, match="other classes"):
        build_page(run)
    (run / "predictions.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="cannot be read"):
        build_page(run)


def test_a_damaged_split_is_refused_in_one_message(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    run.split.write_bytes(b"garbage")
    result = CliRunner().invoke(app, ["report", str(run.folder)])
    assert result.exit_code == 2, result.output
    assert "split.parquet cannot be read" in " ".join(result.stderr.split())
    run.write_split(["other.jpg"], np.zeros(1, np.int8))
    with pytest.raises(UserError, match="which were trained on"):
        build_page(run)


def test_labels_of_a_model_are_not_among_what_was_known_of_held_out_images(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    whole = gather(run)
    rows = run.read_rows()
    made = np.arange(len(rows)) % 2
    run.write_labels(dataclasses.replace(rows, source=made.astype(np.int16), sources=("person", "model:an:x")))
    facts = gather(run)
    assert facts.table == whole.table
    assert whole.measured is not None
    assert facts.measured is not None
    people = whole.table.keep(made == 0).rows(whole.measured.images)
    np.testing.assert_array_equal(facts.measured.labels, people)
    assert 0 < facts.measured.known < whole.measured.known


def test_markup_is_escaped_unless_it_is_markup() -> None:
    assert el("p", "<", Html("<br>"), None, title='"', hidden=False) == '<p title="&quot;">&lt;<br></p>'
    assert el("br") == "<br>"
    assert join(["&", el("i", 3)]) == "&amp;<i>3</i>"
    assert count(1234567) == "1\u202f234\u202f567"
    assert all(len(short("x" * n, 9)) == min(n, 9) for n in range(20))


def test_precision_and_recall_are_those_of_scikit_learn() -> None:
    scores = np.round(uniform(0, np.arange(200)), 2)
    labels = np.where(uniform(1, np.arange(200)) < 0.4, 1, -1)
    labels[::5] = 0
    found = precision_recall(scores, labels)
    known = labels != 0
    precision, recall, cut = precision_recall_curve(labels[known] > 0, scores[known])
    assert np.allclose(found.precision, precision[:-1][::-1])
    assert np.allclose(found.recall, recall[:-1][::-1])
    assert np.allclose(found.cut, cut[::-1])
    assert len(precision_recall(scores, np.minimum(labels, 0)).recall) == 0


def test_reliability_sums_to_the_calibration_error() -> None:
    scores = uniform(0, np.arange(300)[:, None], np.arange(4))
    scores[0, 0] = 1.0
    labels = np.where(uniform(1, np.arange(300)[:, None], np.arange(4)) < 0.3, 1, -1).astype(np.int8)
    labels[:, 1] = 0
    found = reliability(scores, labels, bins=10)
    error = np.nansum(found.entries * abs(found.score - found.present)) / found.entries.sum()
    assert error == pytest.approx(calibration_error(scores, labels, bins=10))
    assert (found.low < found.present).all()
    assert (found.present < found.high).all()
    empty = reliability(np.full((2, 1), 0.05), np.array([[1], [-1]]), bins=10)
    assert empty.entries.tolist() == [2] + [0] * 9
    assert np.isnan(empty.present[1:]).all()


def test_thinning_keeps_the_ends_and_the_peak() -> None:
    x = np.arange(10_001.0)
    y = np.where(abs(x - 5_000) < 3, 1.0, 0.0)
    a, b = thin(x, y, 50)
    assert len(a) <= 50
    assert (a[0], a[-1], b.max()) == (0, 10_000, 1)
    assert thin(x[:50], y[:50], 50)[0] is not None
    assert len(thin(x[:50], y[:50], 50)[0]) == 50


def test_chart_puts_values_where_they_belong() -> None:
    drawn = charts.intervals(["a"], np.array([0.5]), np.array([0.0]), np.array([1.0]), alt="x", mean=math.nan)
    places = [float(v) for v in re.findall(r'(?:cx|x1|x2)="([\d.]+)" (?:cy|x2|y1)="', drawn)]
    assert 'class="whisker"' in drawn
    whisker = re.search(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="[\d.]+" y2="[\d.]+" class="whisker">', drawn)
    circle = re.search(r'cx="([\d.]+)"', drawn)
    assert whisker is not None
    assert circle is not None
    assert places
    assert float(circle[1]) == pytest.approx((float(whisker[1]) + float(whisker[2])) / 2)


def test_missing_positives_are_high_scores_not_known_to_be_present() -> None:
    scores = np.array([[0.9, 0.8], [0.95, 0.99], [0.2, 0.7], [np.nan, np.nan], [0.6, 0.1]], np.float32)
    labels = np.array([[1, 0], [-1, 1], [0, -1], [0, 0], [0, 0]], np.int8)
    found = gallery.missing_positives(scores, labels, np.array([0.5, 0.75]))
    assert [(pick.row, pick.column) for pick in found] == [(1, 0), (0, 1), (4, 0)]
    assert gallery.missing_positives(scores, np.ones_like(labels), np.zeros(2)) == []


def test_contradicted_labels_are_known_and_not_shown_before() -> None:
    scores = np.array([[0.9, 0.02], [0.3, 0.6], [0.99, 0.01], [np.nan, np.nan]], np.float32)
    labels = np.array([[-1, 1], [1, 0], [1, -1], [1, 1]], np.int8)
    cuts = np.array([0.5, 0.5])
    assert [pick[:2] for pick in gallery.contradicted(scores, labels, cuts)] == [(0, 1), (1, 0)]
    shown = [gallery.Pick(0, 1)]
    assert [pick[:2] for pick in gallery.contradicted(scores, labels, cuts, shown=shown)] == [(0, 0), (1, 0)]


def test_hardest_images_have_the_largest_loss() -> None:
    scores = uniform(0, np.arange(40)[:, None], np.arange(5)).astype(np.float32)
    scores[7] = np.nan
    labels = (uniform(1, np.arange(40)[:, None], np.arange(5)) * 3).astype(np.int8) - 1
    slow = []
    for p, row in zip(scores.tolist(), labels.tolist(), strict=True):
        each = [-math.log(s if value > 0 else 1 - s) for s, value in zip(p, row, strict=True) if value and s == s]
        slow.append(sum(each))
    found = gallery.hardest(scores, labels, 6)
    assert [pick.row for pick in found] == sorted(range(40), key=lambda i: -slow[i])[:6]
    assert [pick.loss for pick in found] == pytest.approx(sorted(slow)[::-1][:6], rel=1e-5)


def test_no_class_fills_a_gallery_while_others_wait() -> None:
    scores = np.full((30, 3), 0.6)
    scores[:, 0] = 0.9
    scores[:3, 0] = 0.1
    labels = np.zeros((30, 3), np.int8)
    found = gallery.missing_positives(scores, labels, np.full(3, 0.5), 8)
    assert len(found) == 8
    assert len({pick.row for pick in found}) == 8
    columns = [pick.column for pick in found]
    assert columns.count(1) == 2  # the quota of class 0 is used up, so the next best come in
    scores[:3] = 0.9
    assert len(gallery.missing_positives(scores, labels, np.full(3, 0.5), 8)) == 8  # alone, it may fill it


def test_photos_are_small_and_tell_nothing_of_the_file() -> None:
    from PIL import Image

    noise = (uniform(0, np.arange(3 * 900 * 700)).reshape(3, 900, 700) * 256).astype(np.uint8)
    address = gallery._jpeg(torch.from_numpy(noise), 156, 200)
    content = base64.b64decode(address.removeprefix("data:image/jpeg;base64,"))
    assert len(content) <= gallery.PHOTO_BYTES
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (156, 200)
        assert not image.getexif()


def test_heat_is_opaque_where_it_is_hot() -> None:
    from PIL import Image

    hot = np.zeros((28, 28))
    hot[3, 4] = 1.0
    content = base64.b64decode(gallery._png(hot).removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert np.argwhere(alpha > 0).tolist() == [[3, 4]]
    assert alpha[3, 4] == 150


def test_only_the_part_that_was_seen_is_covered() -> None:
    from halflabel.data.views import Plain

    assert visible_box(Plain(32), 100, 50) == (0, 0, 1, 1)
    left, top, right, bottom = visible_box(Plain(32, "crop", crop_pct=0.8), 100, 50)
    assert (left, right) == pytest.approx((0.1, 0.9))
    assert (top, bottom) == pytest.approx((0.3, 0.7))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on digit scenes with a third of the labels hidden, and the folder of its photos."""
    folder = tmp_path_factory.mktemp("report")
    write_folder(folder, 60)
    from halflabel.labels.policy import Policy

    table = formats.read(folder / "train.csv", Policy(zero="absent")).table()
    formats.write(drop.partial(table, 0.66, seed=0), folder / "labels.csv")
    words = [
        "train",
        folder / "labels.csv",
        folder / "images",
        "--out",
        folder / "run",
        "--epochs",
        "3",
        "--lr",
        "0.05",
    ]
    words += ["--method", "bce", "--backbone", "tiny", "--size", "32", "--workers", "0", "--device", "cpu"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return folder / "run", folder / "images"


def test_galleries_hold_photos_with_maps(trained: tuple[Path, Path]) -> None:
    folder, photos = trained
    done: list[tuple[int, int]] = []
    text = build_page(RunFolder.open(folder), images=photos, progress=lambda *how: done.append(how))
    page = check(text)
    training = len(gather(RunFolder.open(folder)).training)
    assert done[-1] == (training, training)
    told = f"{60 - training} held-out images, with the scores of the run, and {training} of {training} training images"
    assert told in page.text
    assert 3 <= page.count("svg", "photo") <= 3 * gallery.TILES
    assert page.count("image", "map") == page.count("svg", "photo")
    assert page.count("input", "switch") == 3
    assert str(photos) not in text
    parts = set(re.findall(r'<span class="tag part">(\S+)</span>', text))
    assert parts == {"held\u2011out", "training"}


def test_scan_limits_what_is_scored(trained: tuple[Path, Path]) -> None:
    folder, photos = trained
    done: list[tuple[int, int]] = []
    page = check(build_page(RunFolder.open(folder), images=photos, scan=5, progress=lambda *how: done.append(how)))
    assert done[-1] == (5, 5)
    assert re.search(r"and 5 of 4\d training images", page.text)
    done.clear()
    page = check(build_page(RunFolder.open(folder), images=photos, scan=0, progress=lambda *how: done.append(how)))
    assert done == []
    assert re.search(r"and 0 of 4\d training images", page.text)


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
def browser() -> Any:
    import shutil

    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One page with photos, one with many classes of awkward names."""
    folder, photos = trained
    place = tmp_path_factory.mktemp("pages")
    names = [HOSTILE, "</script>", "a class whose name is long" * 12] + [f"class {i}" for i in range(70)]
    return [
        write_report(RunFolder.open(folder), place / "photos.html", images=photos, scan=0).path,
        write_report(random_run(place / "many", classes=names), place / "many.html").path,
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_in_a_browser(browser: Any, pages: list[Path], width: int, scheme: str) -> None:
    for path in pages:
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.set_default_timeout(10_000)
        told: list[str] = []
        tab.on("console", lambda message, told=told: told.append(message.text))
        tab.on("pageerror", lambda error, told=told: told.append(str(error)))
        tab.on("dialog", lambda dialog, told=told: told.append("dialog"))
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
        assert told == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        tab.close()


def test_a_class_judged_by_few_positives_is_a_ring_and_is_said_to_be_luck(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", images=45)
    rows = gather(run).measured
    assert rows is not None
    thin = [row for row in rows.per_class if np.isfinite(row["AP"]) and 0 < row["present"] < sections.FEW]
    assert thin
    text = build_page(run)
    page = check(text)
    assert page.count("circle", "ring") == len(thin)
    assert f"Judged by fewer than {sections.FEW} known positives: {len(thin)} of 3 classes" in page.text


def test_pictures_of_a_run_are_in_points_and_have_rings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(training, "save_figure", lambda figure, path: drawn.append(figure))
    rows = [
        {"class": name, "present": many, "absent": 9, "AP": ap, "AP_low": ap - 0.1, "AP_high": ap + 0.1}
        for name, many, ap in (("cat", 4, 0.3), ("dog", 5, 0.5), ("cow", 40, 0.85))
    ]
    training.draw_run([{"epoch": 1, "loss": 1.0, "mAP": 0.55}], Evaluation({"mAP": 0.55}, rows, ""), tmp_path)
    curves, classes = drawn
    assert curves.axes[1].lines[0].get_ydata().tolist() == pytest.approx([55])
    (axes,) = classes.axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    found = {line.get_markerfacecolor(): list(zip(*line.get_data(), strict=True)) for line in marks}
    assert found == {training.BLUE: [(50.0, 1), (85.0, 2)], "white": [(30.0, 0)]}
    assert axes.get_title() == "mAP 55.0 (rings: fewer than 5 known positives)"


def test_the_page_says_when_the_run_was_made(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run")
    assert "; trained" not in build_page(run)  # older runs do not say
    run.write_json("made.json", {"time": "2031-02-03T04:05:06Z", "halflabel": "9.8.7"})
    assert "3 epochs; trained 2031-02-03, 04:05 UTC, by halflabel 9.8.7" in check(build_page(run)).text
    run.write_json("made.json", ["2031"])
    with pytest.raises(UserError, match=r"made\.json is damaged"):
        build_page(run)


@pytest.mark.parametrize(
    ("present", "ap", "thin"), [(4, 1.0, True), (5, 1.0, False), (0, 0.3, False), (4, math.nan, False)]
)
def test_thinly_judged(present: int, ap: float, thin: bool) -> None:
    assert sections.thinly_judged({"present": present, "AP": ap}) is thin


def test_small_thresholds_are_not_0() -> None:
    assert [judged._cut(value) for value in (0.4567, 0.004, 0.0)] == ["0.46", "0.004", "0.00"]


def test_axes_have_names_and_enough_ticks() -> None:
    drawn = charts.scatter(["a", "b"], np.array([0.24, 0.37]), np.array([0.3, 0.5]), alt="", x_label="s", y_label="mAP")
    assert ">mAP</text>" in drawn
    ticks = re.findall(r'text-anchor="middle">([\d.]+)</text>', drawn)
    assert len(ticks) >= 3
    assert float(ticks[0]) <= 0.24
    assert float(ticks[-1]) >= 0.37
    shares = Series("m", np.array([10.0, 50.0]), np.array([0.3, 0.5]))
    drawn = charts.trend([shares], [shares.y], [shares.y], alt="", x_label="%")
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    assert 46 < places[0] < places[1] < charts.WIDTH - 10
    assert "m at 50: 50.0 (50.0 – 50.0)" in drawn
    assert {"30", "35", "50"} <= set(re.findall(r'text-anchor="end">([\d.]+)</text>', drawn))


def test_differences_are_written_with_their_sign() -> None:
    value, low, high = np.array([[-0.0123], [-0.03], [0.005]])
    drawn = charts.intervals(["m"], value, low, high, alt="", mean=0.0, span=(-0.03, 0.01), differences=True)
    assert "m: −1.23 (−3.00 to +0.50)" in drawn
    assert {"−3", "−2", "0"} <= set(re.findall(r'text-anchor="middle">([−\d.]+)</text>', drawn))


def test_every_run_of_a_method_can_be_seen_beside_their_mean() -> None:
    ends = np.array([0.4])
    drawn = charts.intervals(
        ["m"], np.array([0.5]), ends, 1 - ends, alt="", mean=math.nan, dots=[np.array([0.45, 0.55])]
    )
    assert drawn.count('class="f1 seed"') == 2
    assert drawn.count('class="middle"') == 1
    assert 'r="4"' not in drawn


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


def test_the_card_says_what_each_class_wants() -> None:
    labels = torch.tensor([[1, 1, -1, 0], [1, -1, -1, 0], [1, -1, -1, 0]], dtype=torch.int8)
    table = LabelTable.from_dense(labels.numpy(), None, ["always", "some", "never", "nothing"])
    found = evaluate(torch.zeros(3, 4), labels, table.classes)
    config = {"backbone": "tiny", "method": "bce", "size": 32, "tune": "head"}
    card = training.model_card(config, found, table)
    assert "for want of a known positive among the held-out images: never, nothing.\n" in card
    assert "for want of a known negative among the held-out images: always.\n" in card
    assert "for 4 classes, 32 px, linear head" in card
    card = training.model_card({**config, "size": None}, found, table)
    assert "for 4 classes, images in the size the backbone was made for, linear head" in card


@pytest.mark.parametrize("name", ["a$^$b", "$", r"\$x$", "$\\frac$"])
def test_names_with_dollars_are_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    save = canvas.save_figure

    def keep(figure: Any, path: Path) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(training, "save_figure", keep)
    numbers = {"present": 9, "absent": 9, "AP": 0.5, "AP_low": 0.4, "AP_high": 0.6}
    found = Evaluation({"mAP": 0.5}, [{"class": name, **numbers}], "")
    training.draw_run([{"epoch": 1, "loss": 1.0, "mAP": 0.5}], found, tmp_path)
    assert (tmp_path / "per_class.png").stat().st_size > 1000
    (tick,) = drawn[1].axes[0].get_yticklabels()
    written, is_formula = tick._preprocess_math(tick.get_text())
    assert not is_formula
    assert written.startswith(f"{name}  (9+")
    table = LabelTable.from_dense(np.array([[1, -1], [1, 1]]), None, [name, "dog"])
    for suffix in ("png", "svg"):
        draw_labels(table, tmp_path / f"labels.{suffix}")
        assert (tmp_path / f"labels.{suffix}").exists()
    with pytest.raises(UserError, match=r"no picture can be written as '\.docx'"):
        draw_labels(table, tmp_path / "labels.docx")


def test_only_a_wrong_suffix_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise ValueError("something else")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    with pytest.raises(ValueError, match="something else"):
        draw_labels(LabelTable.from_dense(np.array([[1, -1]])), tmp_path / "labels.png")
    assert list(tmp_path.iterdir()) == []
