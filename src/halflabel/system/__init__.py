"""Files, memory, signals, processes, random numbers, text formatting and HTML, independent of labels and models."""
