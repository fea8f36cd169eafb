"""Names in Label Studio projects: of the question of a class, and of the image behind an address."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_QUESTION_PREFIX = "class_"
_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts this before the name of an uploaded file


def question_name(name: str) -> str:
    """The name of a class's question: letters and digits stay, every other byte becomes _ and its hexadecimal code.

    >>> question_name("traffic light"), class_of("class_traffic_20light")
    ('class_traffic_20light', 'traffic light')
    """
    plain = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02X}" for byte in name.encode())
    return _QUESTION_PREFIX + "".join(plain)


def class_of(question: str) -> str | None:
    """The class of a question; None if `question_name` did not make the name."""
    if not question.startswith(_QUESTION_PREFIX):
        return None
    try:
        text = unquote(question.removeprefix(_QUESTION_PREFIX).replace("_", "%"), errors="strict")
    except UnicodeDecodeError:
        return None
    return text if text and question_name(text) == question else None


def image_name_from_url(url: str) -> str:
    """The path of a local file, the name of an uploaded file, else the last part of the URL.

    >>> image_name_from_url("/data/local-files/?d=a%20b/1%2B1.jpg")
    'a b/1+1.jpg'
    >>> image_name_from_url("/data/upload/3/0a1b2c3d-cat.jpg")
    'cat.jpg'
    >>> image_name_from_url("s3://bucket/x/cat%231.jpg"), image_name_from_url("photos/100%.jpg")
    ('cat#1.jpg', 'photos/100%.jpg')
    """
    if "?d=" in url:
        return unquote(url.split("?d=", 1)[1]).replace("\\", "/").lstrip("/")
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    last = unquote(parts.path).rsplit("/", 1)[-1]
    if "/upload/" in parts.path:
        return _UPLOAD_PREFIX.sub("", last)
    return last if parts.scheme and parts.netloc else url
