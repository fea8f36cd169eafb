"""Questions that are worth asking, and random ones that measure."""
