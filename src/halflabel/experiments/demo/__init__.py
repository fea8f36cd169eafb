"""The data, the picture and the table of `halflabel demo`."""
