"""Packs: photos made small once, in a few checksummed files."""
