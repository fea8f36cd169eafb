"""Frame times of the map of the review page in Chromium, while it is moved and zoomed.

    python benchmarks/review_map.py --photos 20000

A page with random places is drawn; no photo is read. Prints the median and the 99th percentile of the time between two
frames, and of drawing one.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from halflabel.labels.answers import AnswerStore
from halflabel.labels.table import Table
from halflabel.review import server
from halflabel.review.photo_map import lay_out
from halflabel.review.session import ReviewSession
from halflabel.review.thumbnails import Thumbnails
from halflabel.runs.scores import ScoredImages
from halflabel.serve.guard import run_server
from halflabel.system.sockets import open_socket

# How long the page draws in each frame.
WATCH = """
  window.drawing = [];
  const request = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (paint) => request((time) => {
    const start = performance.now();
    paint(time);
    window.drawing.push(performance.now() - start);
  });
"""
# The time between frames, while each frame zooms the map a little.
MEASURE = """async () => {
  const canvas = document.querySelector("#map-canvas");
  const between = [];
  window.drawing = [];
  let last = performance.now();
  for (let frame = 0; frame < 240; frame += 1) {
    const zoom = { deltaY: frame % 80 < 40 ? -12 : 12, clientX: 500, clientY: 400, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", zoom));
    await new Promise((done) => requestAnimationFrame(done));
    between.push(performance.now() - last);
    last = performance.now();
  }
  return { between: between.slice(20), drawing: window.drawing.filter((time) => time > 0.2) };
}"""


def make_session(folder: Path, photos: int) -> ReviewSession:
    draw = np.random.default_rng(0)
    labels = np.zeros((photos, 20), np.int8)
    labels[np.arange(photos), draw.integers(0, 20, photos)] = 1
    table = Table.from_dense(labels, [f"{i}.jpg" for i in range(photos)], [f"class {c}" for c in range(20)])
    scores = draw.random((photos, 20)).astype(np.float32) ** 4
    centres = draw.normal(size=(60, 64))
    features = (centres[draw.integers(0, 60, photos)] + 0.5 * draw.normal(size=(photos, 64))).astype(np.float16)
    held_out, thresholds = np.ones(photos, bool), np.full(20, 0.5)
    scored = ScoredImages(table, scores, features, held_out, thresholds, folder, [None] * photos)
    return ReviewSession(scored, [], AnswerStore(folder / "answers.sqlite"), who="me")


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=1280)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, open_socket("127.0.0.1", 0) as listening:
        folder = Path(place)
        session = make_session(folder, options.photos)
        started = time.process_time()
        lay_out(session.scored.features)
        print(f"layout of {options.photos} photos: {time.process_time() - started:.1f} s of processor time")
        port, token = listening.getsockname()[1], secrets.token_urlsafe(32)
        layout = folder / "map.npz"
        thumbnails = Thumbnails(folder, session.scored.paths)
        address = {"token": token, "host": "127.0.0.1", "port": port}
        app = server.make_app(session, thumbnails, layout=layout, **address)
        threading.Thread(target=run_server, args=(app, listening), kwargs={"patience": 2}, daemon=True).start()
        with sync_playwright() as engine:
            browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": options.width, "height": 800})
            page.add_init_script(WATCH)
            page.goto(f"http://127.0.0.1:{port}/#{token}")
            page.click('nav [data-view="map"]')
            page.wait_for_selector("#map-key li", timeout=300_000)
            page.wait_for_timeout(500)
            times = page.evaluate(MEASURE)
            browser.close()
    for name, values in times.items():
        print(f"{name}: median {np.median(values):.1f} ms, 99th percentile {np.quantile(values, 0.99):.1f} ms")


if __name__ == "__main__":
    main()
