"""Predictions of a trained model: heads and tails, text, or values of image sequences."""
