"""Backbones, heads, scoring and the feature cache."""
