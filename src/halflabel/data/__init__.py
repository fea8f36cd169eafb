"""From image files and a label table to batches: decoding, views, and a data set that needs no download."""
