"""Checks that hold for every page, and a run folder with random labels and scores."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import measure
from halflabel.evaluation.scores import Scores
from halflabel.fitting.config import Config
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.report.run_page import MAX_PAGE_BYTES
from halflabel.runs.folder import RunFolder
from halflabel.system.files import write_csv, write_json
from halflabel.system.rng import uniform

VOID = {"br", "hr", "img", "input", "meta"}
HOSTILE = '<script>alert(\'x\')</script>"&<b onload="x">'


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
    table = Table.from_dense(known, [f"photo {i} {HOSTILE}.jpg" for i in range(images)], names)
    run = RunFolder.create(folder)
    config = Config(backbone="tiny", size=32, images="/secret/place", epochs=3, lr=0.1)
    run.start(Labels.of(table), config.as_dict())
    lines = [{"epoch": e, "loss": 1 / e, "lr": 0.1, "mAP": 0.2 * e, "select": 0.2 * e} for e in (1, 2, 3)]
    run.write_log(log if log is not None else lines)
    run.weights.touch()
    if held_out:
        at = np.arange(0, images, 3)
        held = table.subset(at)
        logits = torch.from_numpy(truth[at] + 4 * uniform(5, at[:, None], np.arange(len(names))) - 3).float()
        logits[4] = math.nan  # one that could not be read
        write_csv(run / "bad_images.csv", ["image", "path", "reason"], [[held.images[4], "/secret/place", "truncated"]])
        labels = torch.from_numpy(held.dense())
        cuts = torch.linspace(0.4, 0.6, len(names))
        evaluation = measure(logits, labels, held.classes, Decisions(Calibration(), cuts))
        write_json(run / "thresholds.json", dict(zip(held.classes, cuts.tolist(), strict=True)))
        write_json(run / "calibration.json", {"slope": 1.0, "offset": 0.0, "known": 10})
        write_json(run / "metrics.json", {"protocol": "held-out images", **evaluation.overall})
        write_csv(
            run / "per_label.csv", list(evaluation.per_class[0]), [list(row.values()) for row in evaluation.per_class]
        )
        run.write_scores(Scores(held.images, held.classes, logits.numpy(), np.zeros(len(at), np.int8), "held-out"))
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
    assert len(text.encode()) < MAX_PAGE_BYTES
    return page


@contextmanager
def open_in_browser(browser: Any, path: Path, width: int, scheme: str = "light") -> Iterator[Any]:
    """Open a page: it fits the window, reports no error and asks for nothing."""
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.set_default_timeout(10_000)
    messages: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("dialog", lambda dialog: messages.append("dialog"))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    yield tab
    assert messages == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    tab.close()
