"""The modules of this folder are found by name, by the tests here and by benchmarks/fuzz.py alike."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
