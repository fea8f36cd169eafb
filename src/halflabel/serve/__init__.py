"""Serve a model over HTTP: images in, labels with calibrated probabilities out. One thread scores the images.

Requests are not trusted: sizes are checked before anything is stored, pixels before anything is decoded, and a bad
image gets a status below 500 and a reason. 503 with Retry-After means that there are too many requests, 500 that the
model failed; both have a reason as JSON too.

guard.py   who may send requests, how large and how slow: for this server and for that of `review`
app.py     the application, and the server that runs it
page.py    the page to try photos
"""
