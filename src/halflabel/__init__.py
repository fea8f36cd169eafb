"""Multi-label image classifiers from labels that are only partly known."""

__version__ = "0.1.0"
