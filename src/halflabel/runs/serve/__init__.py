"""A model behind HTTP: images in, labels with calibrated probabilities out. Concurrent requests share batches.

What a client sends is hostile until proven otherwise: sizes are checked before anything is kept, pixels before any is
decoded, and whatever is wrong with an image is answered with a status below 500 and a reason. Above it there are 503
with Retry-After, when more comes than can be served, and 500, when the model itself fails; they have a reason too, as
JSON of the same form.

limits.py    how much a client may ask for
uploads.py   the files of a request, counted as they come in
batches.py   one thread that scores what waits together
app.py       the application, and the server that runs it
page.py      the page at /docs
"""

from __future__ import annotations

from halflabel.errors import missing_package

try:
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401

    from halflabel.runs.serve.app import make_app, serve
except ImportError as error:
    raise missing_package(error, "web") from None
from halflabel.runs.serve.batches import Batcher
from halflabel.runs.serve.limits import Limits, Refused
from halflabel.system.sockets import open_socket

__all__ = ["Batcher", "Limits", "Refused", "make_app", "open_socket", "serve"]
