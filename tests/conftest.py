"""Settings for all tests."""

import os

# Two test processes on two cores are fastest with one thread each; results do not depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import ipaddress
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

# A process that a shell starts in the background ignores Ctrl-C, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("halflabel", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("halflabel")


def _is_local(host: Any) -> bool:
    """Return whether an address belongs to this machine."""
    text = host.decode() if isinstance(host, bytes) else host
    if text in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(text).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _fail(what: str) -> None:
    # pytest.fail raises no Exception: an `except Exception` in the tested code cannot hide it.
    pytest.fail(f"a test tried to reach the network: {what}")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Let tests reach this machine only: other addresses and name look-ups fail the test."""
    original, patch = socket.getaddrinfo, pytest.MonkeyPatch()

    def guarded(call: Any) -> Any:
        def checked(self: socket.socket, *args: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(args[-1][0]):
                _fail(f"{call.__name__} to {args[-1]}")
            return call(self, *args)

        return checked

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(host, str) and host.endswith(".invalid"):  # reserved by RFC 2606: never resolves
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if not _is_local(host):
            _fail(f"getaddrinfo of {host!r}")
        return original(host, *args, **kwargs)

    for name in ("connect", "connect_ex", "sendto"):
        patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))
    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    for name in ("gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        patch.setattr(socket, name, lambda host: _fail(f"a look-up of {host!r}"))
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Do not wait for the disk: no test simulates a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


NO_BROWSER = "needs Chromium and playwright"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; tests that ask for it are skipped, and counted at the end, where there is none."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_BROWSER)
    with playwright.sync_playwright() as engine:
        chromium = chromium or engine.chromium.executable_path  # Playwright's own
        if not Path(chromium).exists():
            pytest.skip(NO_BROWSER)
        opened = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try tests of web pages again if they fail: a busy machine may be too slow for a page."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Warn where the tests of the web pages, or of optional packages, did not run."""
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()) if len(report.longrepr) == 3}
    for reason in sorted(reason for reason in reasons if reason.endswith("is not installed")):
        terminalreporter.write_sep("!", f"WARNING: tests were SKIPPED: {reason.removeprefix('Skipped: ')}", red=True)
    skipped = sum(NO_BROWSER in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if skipped:
        how = "apt install chromium, or .venv/bin/playwright install chromium"
        text = f"WARNING: {skipped} browser tests were SKIPPED. To run them: {how}"
        terminalreporter.write_sep("!", text, red=True, bold=True)


class SolverRun(NamedTuple):
    """A finished run of the solver lbfgs, and its image folder; tests that change it work on a copy."""

    run: Any
    images: Path


@pytest.fixture(scope="session")
def solver_run(tmp_path_factory: pytest.TempPathFactory) -> SolverRun:
    """A run of `train` on 60 digit scenes, half of whose labels are known; its head uses similar images."""
    from digit_scenes import CLASSES, scenes, write_folder

    from halflabel.fitting.config import Config
    from halflabel.labels.table import Table
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.train import train

    folder = tmp_path_factory.mktemp("solver")
    write_folder(folder, 60, size=32)
    images, labels = folder / "images", scenes(60, size=32).labels.copy()
    labels[::2, ::2] = labels[1::2, 1::2] = 0
    table = Table.from_dense(labels, sorted(path.name for path in images.iterdir()), CLASSES)
    config = Config(
        method="bn-bce",
        backbone="tiny",
        size=32,
        fit="linear",
        l2_strength=1e-4,
        device="cpu",
        images=str(images),
    )
    run = RunFolder(folder / "runs" / "solved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("halflabel.fitting.crossfit._LARGEST_LOSS", 1.0)  # similar images need not help on so few
        train(table, images, config, run)
    return SolverRun(run, images)
