"""Clew trains models with measured optimizations and traces predictions to training examples."""

__version__ = "0.1.0"
