"""Packs: images resized once and stored in a few checksummed files."""
