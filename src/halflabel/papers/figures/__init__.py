"""The papers' figures of a run."""
