"""Trace predictions back to training examples."""
