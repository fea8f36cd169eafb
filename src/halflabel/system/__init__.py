"""Files, memory, signals, processes, random numbers and text formatting: what knows nothing of labels or models."""
