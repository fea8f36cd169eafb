"""Thumbnails: public ids, links that leave the folder, metadata and the limit of the cache."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from PIL import Image
from server_examples import ask

from halflabel.review.thumbnails import ImageUnavailable, Thumbnails


def test_pictures_go_by_names_that_mean_nothing(client, session) -> None:
    (question, *_) = ask(client, count=1)
    assert question["name"] not in question["image"]
    reply = client.get(f"/api/image/{question['image']}?size=small")
    assert reply.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(reply.content)).size == (64, 64)
    for path in ("0", question["name"], "..%2f..%2fetc%2fpasswd", "%2e%2e", "/etc/passwd", question["image"] + "0"):
        assert client.get(f"/api/image/{path}").status_code == 404
    assert client.get(f"/api/image/{question['image']}?size=huge").status_code == 422


def test_links_that_leave_the_folder_are_refused(tmp_path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    Image.new("RGB", (8, 8)).save(inside / "own.png")
    os.symlink(tmp_path / "secret.png", inside / "link.png")
    os.symlink(tmp_path, inside / "up")
    os.symlink(inside / "own.png", inside / "alias.png")
    os.symlink(inside / "loop.png", inside / "loop.png")
    names = ["own.png", "link.png", "up/secret.png", "../secret.png", "alias.png", "loop.png", None, "up"]
    thumbnails = Thumbnails(inside, [*names, str(tmp_path / "secret.png")])
    for good in (0, 4):
        assert thumbnails.jpeg(good, "small")[:2] == b"\xff\xd8"
    for bad in (1, 2, 3, 5, 6, 7, 8, 9, -1):
        with pytest.raises(ImageUnavailable):
            thumbnails.jpeg(bad, "small")


def test_pictures_are_small_upright_and_without_metadata(tmp_path) -> None:
    photo = Image.new("RGB", (3000, 1500), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    exif[0x010E] = "taken at home"
    photo.save(tmp_path / "a.jpg", exif=exif)
    Image.new("RGBA", (50, 40), (0, 0, 0, 0)).save(tmp_path / "b.png")
    Image.fromarray(np.full((20, 30), 65535, np.uint16)).save(tmp_path / "c.png")
    (tmp_path / "d.jpg").write_bytes(b"\xff\xd8\xff damaged")
    (tmp_path / "e.png").write_text("<svg onload=alert(1)>")
    thumbnails = Thumbnails(tmp_path, ["a.jpg", "b.png", "c.png", "d.jpg", "e.png"])
    shown = Image.open(io.BytesIO(thumbnails.jpeg(0, "large")))
    assert shown.size == (512, 1024)
    assert b"home" not in thumbnails.jpeg(0, "large")
    assert Image.open(io.BytesIO(thumbnails.jpeg(1, "small"))).getpixel((5, 5)) == (255, 255, 255)
    assert Image.open(io.BytesIO(thumbnails.jpeg(2, "small"))).getpixel((5, 5)) == (255, 255, 255)
    for bad in (3, 4):
        with pytest.raises(ImageUnavailable):
            thumbnails.jpeg(bad, "small")
