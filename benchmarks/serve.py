"""A server under fire: good and hostile files at once, against a real process. No crash, no leak, no 5xx.

    python benchmarks/serve.py [MODEL] [--requests 1000] [--concurrency 16] [--backbone efficientnet-lite0]

Without MODEL a small one is trained on digit scenes first. Every kind of file has the statuses it may be answered
with; anything else counts as wrong. Requests come in five rounds of the same kinds; the first is the warm-up, and
memory after it is compared with memory after the last. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import io
import json
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

ROUNDS = 5
OCTETS = "application/octet-stream"


class Sent(NamedTuple):
    """One request: its kind, the body with its type, and the statuses that are right; none: the client hangs up."""

    kind: str
    body: bytes
    type: str
    right: tuple[int, ...]


def picture(rng: random.Random, mode: str = "RGB", side: tuple[int, int] = (320, 240)) -> Image.Image:
    """Smooth colours with noise, as a photo has."""
    seeded = np.random.default_rng(rng.randrange(1 << 30))
    coarse = Image.fromarray(seeded.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(side, Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse, np.int16) + seeded.integers(-12, 12, (*side[::-1], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, form: str, **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


@cache
def png_of_nothing(width: int, height: int, bits: int = 1, rows: int | None = None) -> bytes:
    """A grey PNG of zeros: millions of pixels in a few kilobytes; fewer `rows` than its header says, if told."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width * bits + 7) // 8)
    packed = b"".join(packer.compress(row) for _ in range(height if rows is None else rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def form(*files: tuple[str, bytes], field: str = "files") -> tuple[bytes, str]:
    """The body of a form, and its type."""
    mark = b"halflabel-bench-4711"
    parts = [
        b"--" + mark + f'\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
        + content + b"\r\n"
        for name, content in files
    ]  # fmt: skip
    return b"".join(parts) + b"--" + mark + b"--\r\n", f"multipart/form-data; boundary={mark.decode()}"


def makers() -> dict[str, tuple[Callable[[random.Random], Sent], int]]:
    """How to make each kind, and how often it comes in a hundred requests or so."""
    header = png_of_nothing(65_535, 65_535, rows=1)
    svg = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    html = b"<!DOCTYPE html><html><body><script>alert(1)</script></body></html>"

    def jpeg(rng: random.Random) -> bytes:
        return saved(picture(rng), "JPEG", quality=85)

    def deep(rng: random.Random) -> bytes:
        grey = np.asarray(picture(rng, "L"), np.uint16) * 257
        return saved(Image.fromarray(grey), "PNG")

    def animation(rng: random.Random) -> bytes:
        frames = [picture(rng, "P") for _ in range(12)]
        return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])

    def damaged(rng: random.Random) -> bytes:
        content = bytearray(saved(picture(rng), "PNG"))
        for _ in range(20):
            content[rng.randrange(8, len(content))] = rng.randrange(256)
        return bytes(content)

    def raw(kind: str, make: Callable[[random.Random], bytes], *right: int, type: str = OCTETS) -> Any:
        return lambda rng: Sent(kind, make(rng), type, right)

    def several(kind: str, make: Callable[[random.Random], list[tuple[str, bytes]]], *right: int) -> Any:
        return lambda rng: Sent(kind, *form(*make(rng)), right)

    found: dict[str, tuple[Any, int]] = {
        "JPEG": (raw("JPEG", jpeg, 200, type="image/jpeg"), 12),
        "PNG": (raw("PNG", lambda r: saved(picture(r, "RGBA"), "PNG"), 200), 6),
        "WebP": (raw("WebP", lambda r: saved(picture(r), "WEBP"), 200), 4),
        "form of one": (several("form of one", lambda r: [("a.jpg", jpeg(r))], 200), 12),
        "form of six": (several("form of six", lambda r: [(f"{i}.jpg", jpeg(r)) for i in range(6)], 200), 4),
        "CMYK": (raw("CMYK", lambda r: saved(picture(r, "CMYK"), "JPEG"), 200), 4),
        "16-bit": (raw("16-bit", deep, 200), 4),
        "animated GIF": (raw("animated GIF", animation, 200), 4),
        "TIFF": (raw("TIFF", lambda r: saved(picture(r), "TIFF", compression="tiff_lzw"), 200), 3),
        "49 megapixels, 16-bit": (raw("49 megapixels, 16-bit", lambda r: png_of_nothing(7_000, 7_000, 16), 200), 1),
        "form, one bad": (several("form, one bad", lambda r: [("a.jpg", jpeg(r)), ("b.jpg", html)], 200), 4),
        "truncated": (raw("truncated", lambda r: (b := jpeg(r))[: r.randrange(20, len(b) - 20)], 400), 8),
        "damaged": (raw("damaged", damaged, 200, 400, 413), 4),
        "zero bytes": (raw("zero bytes", lambda r: b"", 400), 4),
        "zero bytes in form": (several("zero bytes in form", lambda r: [("a.jpg", b"")], 400), 3),
        "SVG": (raw("SVG", lambda r: svg, 415, type="image/svg+xml"), 4),
        "HTML as JPEG": (several("HTML as JPEG", lambda r: [("a.jpg", html)], 415), 4),
        "noise": (raw("noise", lambda r: b"\0" + r.randbytes(5_000), 415), 4),
        "bomb": (raw("bomb", lambda r: png_of_nothing(30_000, 30_000), 413), 3),
        "header only": (raw("header only", lambda r: header, 413), 3),
        "bomb in form": (several("bomb in form", lambda r: [("a.png", png_of_nothing(30_000, 30_000))], 413), 2),
        "100 MB": (raw("100 MB", lambda r: bytes(100_000_000), 413), 1),
        "30 MB in form": (several("30 MB in form", lambda r: [("a.jpg", bytes(30_000_000))], 413), 1),
        "40 files": (several("40 files", lambda r: [(f"{i}.jpg", html) for i in range(40)], 413), 2),
        "no boundary": (lambda r: Sent("no boundary", b"x" * 50, "multipart/form-data", (400,)), 2),
        "cut form": (lambda r: Sent("cut form", form(("a.jpg", jpeg(r)))[0][:-40], form()[1], (200, 400)), 2),
        "not a form": (lambda r: Sent("not a form", b"--x\r\n" * 20, "multipart/form-data; boundary=x", (400,)), 2),
        "multipart/mixed": (lambda r: Sent("multipart/mixed", b"--x", "multipart/mixed; boundary=x", (415,)), 1),
        "hangs up": (lambda r: Sent("hangs up", jpeg(r), OCTETS, ()), 3),
    }
    return found


def samples(count: int, seed: int = 0, without: tuple[str, ...] = ()) -> list[Callable[[], Sent]]:
    """So many requests in a random order, of every kind at least one; made when called, to be light until then."""
    rng = random.Random(seed)
    kinds = {kind: (make, often) for kind, (make, often) in makers().items() if kind not in without}
    chosen = list(kinds)
    chosen += rng.choices(chosen, [often for _, often in kinds.values()], k=max(count - len(chosen), 0))
    rng.shuffle(chosen)
    seeds = [rng.randrange(1 << 30) for _ in chosen]
    return [partial(_make, kinds[kind][0], number) for kind, number in zip(chosen[:count], seeds, strict=False)]


def _make(make: Callable[[random.Random], Sent], seed: int) -> Sent:
    return make(random.Random(seed))


class Reply(NamedTuple):
    kind: str
    status: int  # 0: no answer
    seconds: float
    right: bool
    said: str


def send(port: int, make: Callable[[], Sent]) -> Reply:
    """Send one request; one that hangs up sends half of what it announced."""
    sent = make()
    started = time.perf_counter()
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if not sent.right:
            link.putrequest("POST", "/predict")
            link.putheader("Content-Length", str(2 * len(sent.body)))
            link.endheaders(sent.body)
            return Reply(sent.kind, 0, time.perf_counter() - started, True, "")
        link.request("POST", "/predict", sent.body, {"Content-Type": sent.type})
        got = link.getresponse()
        said = got.read().decode()
    except OSError as error:
        return Reply(sent.kind, 0, time.perf_counter() - started, False, f"{type(error).__name__}: {error}")
    finally:
        link.close()
    content = json.loads(said)
    right = got.status in sent.right and ("images" in content if got.status == 200 else bool(content["detail"]))
    return Reply(sent.kind, got.status, time.perf_counter() - started, right, said[:200])


class Server:
    """A real server process, and what the system says of it."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-c", "from halflabel.cli import main; main()", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(self.said))
        if found is None:
            raise SystemExit("".join(self.said))
        self.port = int(found[1])

    def memory(self) -> tuple[float, float]:
        """Resident megabytes, now and at the peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        now, most = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1000 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now, most

    def handles(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ask(self, path: str) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        link.request("GET", path)
        found = json.loads(link.getresponse().read())
        link.close()
        return found

    def stop(self) -> tuple[int, str]:
        """Ask it to end; its exit code, and all it said since it began."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, "".join(self.said) + rest


def small_model(folder: Path, backbone: str) -> Path:
    """A head on a backbone, trained for a moment on digit scenes."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "papers" / "datasets"))
    from digit_scenes import scenes

    from halflabel.fitting.config import Config
    from halflabel.labels.table import Table
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.train import train

    made = scenes(60, size=64)
    table = Table.from_dense(made.labels, made.names, made.classes)
    settings = Config(epochs=2, batch_size=16, device="cpu")
    train(table, made.images, dataclasses.replace(settings, backbone=backbone), RunFolder(folder / "run"))
    return folder / "run"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        server = Server(given.model or small_model(Path(place), given.backbone))
        begin = server.memory()[0]
        print(f"{'round':8}{'requests':>9}{'s':>8}{'RSS MB':>9}{'peak MB':>9}{'handles':>9}")
        print(f"{'start':8}{'':9}{'':8}{begin:9.0f}{server.memory()[1]:9.0f}{server.handles():9d}")
        replies: list[Reply] = []
        after: list[float] = []
        per_round = -(-given.requests // ROUNDS)
        with ThreadPoolExecutor(given.concurrency) as pool:
            for number in range(ROUNDS):
                started = time.perf_counter()
                replies += pool.map(lambda make: send(server.port, make), samples(per_round, seed=number))
                seconds = time.perf_counter() - started
                time.sleep(2)  # at rest it hands memory back
                after.append(server.memory()[0])
                print(
                    f"{number + 1:<8}{per_round:9d}{seconds:8.1f}{after[-1]:9.0f}{server.memory()[1]:9.0f}"
                    f"{server.handles():9d}",
                    flush=True,
                )
        health = server.ask("/health")
        code, said = server.stop()
    statuses = Counter(reply.status for reply in replies)
    wrong = [reply for reply in replies if not reply.right]
    growth = after[-1] - after[0]
    good = [reply.seconds for reply in replies if reply.kind == "JPEG"]
    print(f"statuses: {dict(sorted(statuses.items()))} (0: the client hung up)")
    print(f"JPEG: median {1000 * statistics.median(good):.0f} ms, slowest {1000 * max(good):.0f} ms")
    print(f"{health['images']} images")
    print(f"memory after the warm-up {after[0]:.0f} MB, at the end {after[-1]:.0f} MB: {growth:+.0f} MB")
    for reply in wrong[:20]:
        print(f"WRONG {reply.kind}: {reply.status} {reply.said}")
    crashed = code != 0 or "Traceback" in said
    if crashed:
        print(f"exit code {code}:\n{said}")
    leaked = growth > 0.1 * after[0]
    over = sum(number for status, number in statuses.items() if status >= 500)
    if given.json:
        content = {
            "requests": len(replies),
            "statuses": statuses,
            "wrong": len(wrong),
            "rss_mb": after,
            "median_ms": 1000 * statistics.median(good),
        }
        given.json.write_text(json.dumps(content, indent=1))
    print("passed" if not (wrong or crashed or leaked or over) else "FAILED")
    return int(bool(wrong or crashed or leaked or over))


if __name__ == "__main__":
    sys.exit(main())
