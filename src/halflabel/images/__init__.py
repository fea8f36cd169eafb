"""From image files and label tables to batches: decoding, views, packs, and readers of public data sets."""
