"""Losses, relabelers, terms and other parts that methods are made of."""
