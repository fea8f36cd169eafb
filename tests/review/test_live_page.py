"""A live review in a real browser: from nothing, through fits and a killed server, to the finished run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium and playwright")
pytest.importorskip("fastapi")

from digit_scenes import CLASSES  # noqa: E402

expect = playwright.expect
SHOWN = "#stage[aria-busy=false] img"
PATIENCE = 180_000  # ms: torch is imported in another process, on a machine that may be busy


class LiveServer:
    """`halflabel review` of photos without labels, in a process of its own."""

    def __init__(self, folder: Path, images: Path, port: str = "0") -> None:
        words = ["review", str(folder), str(images), "--port", port, "--reviewer", "me"]
        words += ["--classes", ",".join(CLASSES), "--backbone", "tiny"]
        code = "from halflabel.cli import main; main()"
        self.process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)/#\S+", self.process.stdout.readline())
        assert match
        self.url, self.port = match[0], match[1]

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def stop(self, how: int = signal.SIGTERM) -> None:
        os.kill(self.process.pid, how)
        self.process.wait(20)
        self.process.stdout.close()


def answer(page, project, count: int) -> None:
    """Answer so many questions rightly."""
    names = {f"Photo {name}": number for number, name in enumerate(project.scored().table.images)}
    for _ in range(count):
        page.wait_for_selector(SHOWN, timeout=PATIENCE)
        image = names[page.get_attribute("#photo img", "alt")]
        present = project.truth[image, CLASSES.index(page.inner_text("#asked-class"))] > 0
        page.keyboard.press("y" if present else "n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="lists child processes")
def test_from_nothing_to_a_finished_run(project, browser, tmp_path) -> None:
    folder = tmp_path / "live" / "digits"
    server = LiveServer(folder, project.images)
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(server.url)
        answer(page, project, 20)
        expect(page.locator("#live-answers")).to_have_text(
            re.compile("^20 answers; found [0-9]+ of [0-9]+ classes"), timeout=PATIENCE
        )
        assert "of 20 when it last learned" in page.inner_text("#live-basis")  # no estimate from two random checks
        assert not page.is_visible("#live-map")
        answer(page, project, 21)  # a fit is under way
        children = server.children()
        server.stop(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)

        server = LiveServer(folder, project.images, server.port)  # the browser keeps unsaved answers by address
        page.goto(server.url)
        expect(page.locator("#count")).to_have_text("41 answers", timeout=PATIENCE)
        # The last answer may have been on its way when the server was killed: it comes after the first fit.
        expect(page.locator("#live-answers")).to_have_text(re.compile("^4[01] answers"), timeout=PATIENCE)
        page.click("#live-finish")
        page.click("#finish-start")
        expect(page.locator("#finish-result")).to_be_visible(timeout=PATIENCE)
        assert (folder.with_name("digits-2") / "best.safetensors").exists()
        assert (folder.with_name("digits-2") / "report.html").exists()
        assert str(folder.with_name("digits-2")) in page.inner_text("#finish-result")
        assert faults == []
    finally:
        context.close()
        server.stop()


SLOW_QUESTIONS = """
const quick = window.fetch;
window.fetch = async (address, options) => {
  const reply = await quick(address, options);
  if (String(address).includes("/api/questions")) await new Promise((done) => setTimeout(done, 1500));
  return reply;
};
"""


@pytest.mark.slow
def test_no_question_is_asked_twice_while_the_model_learns(project, browser, tmp_path) -> None:
    """The replies to two requests, for further questions and for those of a new fit, may come in any order."""
    server = LiveServer(tmp_path / "live" / "digits", project.images)
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        context.add_init_script(SLOW_QUESTIONS)
        page = context.new_page()
        sent: list[tuple[str, int]] = []

        def note(request) -> None:
            if request.url.endswith("/api/answers"):
                sent.extend((step["key"], step["entry"]) for step in request.post_data_json["steps"])

        page.on("request", note)
        page.goto(server.url)
        answer(page, project, 90)
        expect(page.locator("#count")).to_have_text("90 answers", timeout=PATIENCE)
        entries = [entry for _, entry in dict.fromkeys(sent)]
        assert len(entries) == len(set(entries)) == 90
    finally:
        context.close()
        server.stop()
