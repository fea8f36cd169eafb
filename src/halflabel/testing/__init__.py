"""The contract of a method: what every method promises, checked."""
