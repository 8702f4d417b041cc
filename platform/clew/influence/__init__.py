"""Traces a prediction back to the training examples behind it."""
