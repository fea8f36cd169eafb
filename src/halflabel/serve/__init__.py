"""Serve a model over HTTP; the guard of its requests and of those of `review`."""
