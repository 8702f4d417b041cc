"""Checks and measures Clew on a GPU within minutes: `python -m experiments.gpu`."""
