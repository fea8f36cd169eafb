"""Make the modules of this folder importable by name, for the tests here as for benchmarks/fuzz.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
