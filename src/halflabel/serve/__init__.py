"""Serve a model over HTTP: images in, labels with calibrated probabilities out. One thread scores the images.

Requests are not trusted: sizes are checked before anything is stored, pixels before anything is decoded, and a bad
image gets a status below 500 and a reason. 503 with Retry-After means that there are too many requests, 500 that the
model failed; both have a reason as JSON too.

uploads.py   the files of a request, and limits on them
app.py       the application, checks of the Host header and the token, and the server that runs it
page.py      the page to try photos
"""

from __future__ import annotations

from halflabel.errors import missing_package

try:
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401

    from halflabel.serve.app import AccessCheck, make_app, serve
except ImportError as error:
    raise missing_package(error, "web") from None
from halflabel.serve.uploads import Limits

__all__ = ["AccessCheck", "Limits", "make_app", "serve"]
