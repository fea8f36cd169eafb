"""Losses, relabelers, terms, heads and other parts that methods are built from."""
