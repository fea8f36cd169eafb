"""A run folder and everything done with one: train, predict, evaluate, export, serve."""
