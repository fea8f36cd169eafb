"""Training methods, one file per paper.

Every method registers itself with `halflabel.methods.base.method`. `halflabel.methods.base.recipes` returns all of
them: those of this package, those of installed packages (entry-point group `halflabel.plugins`) and those of the
files listed in the environment variable HALFLABEL_PLUGINS.
"""

from __future__ import annotations

# Kinds of label tables, from fully labelled to one known positive per image.
REGIMES = ("full", "partial", "positives-only", "single-positive")
