"""Settings for all tests."""

import os

# Two test processes on two cores are quickest when each stays on one; results do not depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

settings.register_profile("halflabel", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("halflabel")
